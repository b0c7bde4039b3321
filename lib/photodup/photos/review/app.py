"""The review page's web application, put together: who may ask (`security`), `pages` and `actions`."""

import secrets

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import Response
from starlette.exceptions import HTTPException

from photodup.errors import PhotodupError
from photodup.photos.review import actions, pages, settings_pages, work_pages
from photodup.photos.review.pictures import Refused
from photodup.photos.review.reviewed_folder import ReviewedFolder
from photodup.photos.review.security import Guard
from photodup.photos.review.site import NotNow, Site, site_of


def create_app(
    folder: ReviewedFolder,
    *,
    port: int,
    frame_ancestors: str = "'none'",
    is_demo: bool = False,
) -> FastAPI:
    """Return the application. Every address begins with a random token, which is `app.state.token`.

    Args:
        folder: what is reviewed, open or not.
        port: where it listens, for the checks of Host and Origin.
        frame_ancestors: who may show it in a frame (CSP); a notebook on this machine may.
        is_demo: say on every page that the photographs are the demonstration's.
    """
    token = secrets.token_urlsafe(24)
    app = FastAPI(openapi_url=None, docs_url=None, redoc_url=None)
    app.state.token = token
    app.state.site = Site(folder, f"/{token}", is_demo)
    app.middleware("http")(Guard(token, port, frame_ancestors))
    for module in (pages, actions, settings_pages, work_pages):
        app.include_router(module.router, prefix=f"/{token}")
    app.add_exception_handler(PhotodupError, _not_done)
    app.add_exception_handler(NotNow, _not_now)
    app.add_exception_handler(HTTPException, _no_such_page)
    app.add_exception_handler(RequestValidationError, _no_such_number)
    return app


async def _not_done(request: Request, error: Exception) -> Response:
    status = 404 if isinstance(error, Refused) else 409
    return site_of(request).message("Not done", str(error), status)


async def _not_now(request: Request, error: Exception) -> Response:
    site = site_of(request)
    if request.method in ("GET", "HEAD") or site.folder.session is None:
        return site.go("/work")
    said = (
        "The groups are being changed at this moment, so this was not done: try it again when that has ended."
    )
    return site.message("Not now", said, 409)


async def _no_such_page(request: Request, error: Exception) -> Response:
    message = "There is no such page: go back to the groups."
    return site_of(request).message("Not found", message, getattr(error, "status_code", 404))


async def _no_such_number(request: Request, error: Exception) -> Response:
    message = "The address names no page or photo: go back to the groups."
    return site_of(request).message("Not found", message, 422)
