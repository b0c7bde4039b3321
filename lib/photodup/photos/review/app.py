"""The review page's web application: security, pages and actions. Nothing here decides anything itself."""

import hmac
import os
import re
import secrets
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import HTMLResponse, RedirectResponse, Response
from jinja2 import Environment, PackageLoader, StrictUndefined
from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException

from photodup.errors import PhotodupError
from photodup.names import escaped, printable
from photodup.photos.embed.choose import known_backends, probe
from photodup.photos.groups.keepers import DEFAULT_RULES
from photodup.photos.library.catalogue import Photo
from photodup.photos.library.settings import AUTO, Settings, inside
from photodup.photos.review import facts, pictures
from photodup.photos.review.items import APART, DONE, MARKED, SKIPPED, TODO
from photodup.photos.review.session import ReviewSession, back_in_folders

PAGE_SIZE = 24
TRASH_PAGE_SIZE = 200
MAX_BODY_BYTES = 1_000_000
_LOCAL = (("local-pytorch-fp32", ""), ("local-onnx-fp32", ""))
_STATIC = {"style.css": "text/css", "review.js": "text/javascript", "icon.svg": "image/svg+xml"}


def create_app(
    session: ReviewSession,
    *,
    token: str | None = None,
    port: int = 8000,
    frame_ancestors: str = "'none'",
    is_demo: bool = False,
    endpoints: Mapping[str, str] | None = None,
) -> FastAPI:
    """Return the application. Every address begins with the token; see `check` for what else is asked.

    Args:
        session: the library under review.
        token: part of every address; random by default.
        port: where it listens, for the checks of Host and Origin.
        frame_ancestors: who may show it in a frame (CSP); a notebook on this machine may.
        is_demo: say on every page that the photographs are the demonstration's.
        endpoints: more embedding servers to show on the settings page, by backend.
    """
    token = token or secrets.token_urlsafe(24)
    app = FastAPI(openapi_url=None, docs_url=None, redoc_url=None)
    app.state.token = token
    base = f"/{token}"
    hosts = {f"{name}:{port}" for name in ("127.0.0.1", "localhost")}
    environment = Environment(
        loader=PackageLoader("photodup.photos.review"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= {"size": facts.size, "path": printable, "text": escaped, "percent": facts.percent}
    headers = {
        "Content-Security-Policy": "default-src 'none'; img-src 'self'; style-src 'self'; script-src 'self'; "
        f"form-action 'self'; base-uri 'none'; frame-ancestors {frame_ancestors}",
        "X-Content-Type-Options": "nosniff",
        "Referrer-Policy": "same-origin",  # with no-referrer a browser sends no usable Origin
        "Cross-Origin-Resource-Policy": "same-origin",
        "Cross-Origin-Opener-Policy": "same-origin",
        "Cache-Control": "no-store",
    }

    def check(request: Request) -> tuple[int, str] | None:
        """Return why a request is refused.

        The Host header keeps out names that were made to point here (DNS rebinding), the token keeps out
        other programs and pages, and Origin keeps out forms on other sites even if they know the token.
        """
        if request.headers.get("host", "").lower() not in hosts:
            return 421, f"This page answers only as 127.0.0.1:{port} or localhost:{port}."
        given = request.scope["path"].removeprefix("/").split("/")[0]
        if not hmac.compare_digest(given.encode(), token.encode()):
            return 403, "The address lacks this session's token: use the one that `photodup review` printed."
        if request.method not in ("GET", "HEAD"):
            origin = request.headers.get("origin", "")
            if urlsplit(origin).scheme != "http" or urlsplit(origin).netloc.lower() not in hosts:
                return 403, "The request comes from another page and was refused."
            if request.headers.get("sec-fetch-site", "same-origin") not in ("same-origin", "none"):
                return 403, "The request comes from another site and was refused."
            if int(request.headers.get("content-length") or MAX_BODY_BYTES + 1) > MAX_BODY_BYTES:
                return 413, "The request is too large."
        return None

    @app.middleware("http")
    async def guard(request: Request, call_next: Callable) -> Response:
        try:
            refused = check(request)
        except ValueError:  # a Content-Length that is no number
            refused = 400, "The request cannot be understood."
        if refused:
            response: Response = Response(refused[1], refused[0], media_type="text/plain")
        else:
            response = await call_next(request)
        for name, value in headers.items():
            response.headers.setdefault(name, value)
        return response

    @app.exception_handler(PhotodupError)
    async def explain(request: Request, error: PhotodupError) -> Response:
        status = 404 if isinstance(error, pictures.Refused) else 409
        return page("message.html", title="Not done", message=str(error), status=status)

    @app.exception_handler(HTTPException)
    async def no_page(request: Request, error: HTTPException) -> Response:
        message = "There is no such page: go back to the groups."
        return page("message.html", title="Not found", message=message, status=error.status_code)

    @app.exception_handler(RequestValidationError)
    async def no_number(request: Request, error: RequestValidationError) -> Response:
        message = "The address names no page or photo: go back to the groups."
        return page("message.html", title="Not found", message=message, status=422)

    def page(template: str, *, status: int = 200, **values: Any) -> HTMLResponse:
        items = session.items.values()
        decided = sum(item.status != TODO for item in items)
        common = {
            "base": base,
            "is_demo": is_demo,
            "library": printable(session.root),
            "n_groups": len(session.items),
            "n_decided": decided,
            "n_marked": sum(len(item.remove) for item in items if item.status == MARKED),
            "marked_bytes": sum(item.marked_bytes for item in items),
            "bytes_removed": session.bytes_removed,
            "can_undo": session.can_undo,
            "in_album": not session.trash.moves_files,
            "tiers": session.tiers,
        }
        text = environment.get_template(template).render(**common | values)
        # Names that are not UTF-8 reach sentences as lone surrogates, which no answer can carry.
        return HTMLResponse(re.sub("[\ud800-\udfff]", "\ufffd", text), status)

    def go(path: str) -> RedirectResponse:
        return RedirectResponse(f"{base}{path}", 303)

    async def form(request: Request) -> dict[str, list[str]]:
        body = await request.body()
        if len(body) > MAX_BODY_BYTES:
            raise PhotodupError("The request is too large.")
        try:
            return parse_qs(body.decode("utf-8", "replace"), max_num_fields=10_000)
        except ValueError:
            raise PhotodupError("The form has too many fields.") from None

    def photo_of(photo_id: int) -> Photo:
        try:
            return session.photos[photo_id]
        except KeyError:
            raise pictures.Refused("There is no such photo in these groups.") from None

    @app.get(base + "/")
    def overview(tier: str = "copies", status: str = "", number: int = 1) -> Response:
        shown = session.select(tier if tier in ("copies", "similar") else None, status or None)
        n_pages = max(1, -(-len(shown) // PAGE_SIZE))
        number = min(max(number, 1), n_pages)
        return page(
            "overview.html",
            items=shown[(number - 1) * PAGE_SIZE : number * PAGE_SIZE],
            following=shown[number * PAGE_SIZE : (number + 1) * PAGE_SIZE],
            n_shown=len(shown),
            tier=tier,
            status_filter=status,
            statuses=[TODO, MARKED, SKIPPED, APART, DONE],
            number=number,
            n_pages=n_pages,
            next_key=session.next_todo(),
            bytes_left=session.bytes_left,
            n_suggested=sum(bool(item.suggested) for item in session.select("copies", TODO)),
            outcome=session.last,
            problems=session.problems,
        )

    @app.get(base + "/group/{key}")
    def group(key: str, photo: int = 0) -> Response:
        item = session.item(key)
        members = item.members
        if not members:
            return go(f"/#{key}")
        if item.status == DONE:
            n = len(item.remove)
            were = "photo of this group was" if n == 1 else "photos of this group were"
            where = "album" if not session.trash.moves_files else "trash"
            said = (
                f"{n} {were} removed. Undo brings {'it' if n == 1 else 'them'} back, and so does the {where}."
            )
            return page("message.html", title="This group is done", message=said)
        chosen, why = next(((p, e) for p, e in members if p.id == photo), members[0])
        before, after = session.neighbours(key)
        rows = facts.compare(session.root, item.group.keeper, chosen)
        following = session.next_todo(key)
        others = [photo for photo, _ in members]
        ahead = others[others.index(chosen) + 1 :][:1]
        if following and following != key:
            ahead += session.item(following).photos[:2]
        return page(
            "group.html",
            item=item,
            keeper=item.group.keeper,
            chosen=chosen,
            evidence=facts.evidence(why),
            rows=rows,
            before=before,
            after=after,
            ahead=ahead,
            problems={p.id: pictures.problem(session.root, p) for p in item.photos},
            place=list(session.items).index(key) + 1,
        )

    @app.post(base + "/group/{key}")
    async def decide(key: str, request: Request) -> Response:
        fields = await form(request)
        action = fields.get("action", [""])[0]
        chosen = _number(fields.get("photo", ["0"])[0])
        if action == "accept":
            keep = [_number(value) for value in fields.get("keep", [])]
            await run_in_threadpool(session.accept, key, keep)
        elif action == "skip":
            await run_in_threadpool(session.skip, key)
        elif action in ("not_duplicate", "keep_both"):
            await run_in_threadpool(session.set_apart, key, chosen, action)
            if session.item(key).members:
                return go(f"/group/{key}")
        else:
            raise PhotodupError("There is no such action.")
        following = session.next_todo(key)
        return go(f"/group/{following}" if following else "/confirm")

    @app.post(base + "/undo")
    async def undo() -> Response:
        message = await run_in_threadpool(session.undo)
        if session.undone:
            return go(f"/group/{session.undone}")
        return page("message.html", title="Undone", message=message)

    @app.post(base + "/accept-all")
    async def accept_all() -> Response:
        await run_in_threadpool(session.accept_all)
        return go("/confirm")

    @app.get(base + "/confirm")
    def confirm(number: int = 1) -> Response:
        marked = session.select(status=MARKED)
        n_pages = max(1, -(-len(marked) // PAGE_SIZE))
        number = min(max(number, 1), n_pages)
        return page(
            "confirm.html",
            items=marked[(number - 1) * PAGE_SIZE : number * PAGE_SIZE],
            plan=session.plan,
            leaving={photo_id for item in marked for photo_id in item.remove},
            n_sidecars=session.n_sidecars,
            n_todo=len(session.select(status=TODO)),
            number=number,
            n_pages=n_pages,
        )

    @app.post(base + "/remove")
    async def remove(request: Request) -> Response:
        await run_in_threadpool(session.apply, (await form(request)).get("plan", [""])[0])
        return go("/trash")

    @app.get(base + "/trash")
    def trash(number: int = 1) -> Response:
        listing = session.trash.listing()
        n_pages = max(1, -(-len(listing) // TRASH_PAGE_SIZE))
        number = min(max(number, 1), n_pages)
        return page(
            "trash.html",
            unsigned=session.trash.unsigned(),
            problems=session.problems,
            operations=listing[(number - 1) * TRASH_PAGE_SIZE : number * TRASH_PAGE_SIZE],
            n=len(listing),
            bytes=sum(operation.bytes for operation in listing),
            number=number,
            n_pages=n_pages,
            outcome=session.last,
        )

    @app.post(base + "/restore")
    async def restore(request: Request) -> Response:
        fields = await form(request)
        ids = fields.get("shown" if fields.get("which") == ["shown"] else "operation", [])
        if not ids:
            raise PhotodupError("Choose what to restore first.")
        unsigned = fields.get("unsigned") == ["yes"]
        restored = await run_in_threadpool(partial(session.restore, ids, unsigned=unsigned))
        return page("message.html", title="Restored", message=back_in_folders(len(restored)))

    def settings_page(settings: Settings, message: str = "", status: int = 200) -> Response:
        chosen = (settings.backend, settings.url or "")
        states = probe(known_backends(settings, endpoints))
        listed = {(state.name, state.url) for state in states} | {(AUTO, ""), *_LOCAL}
        return page(
            "settings.html",
            settings=settings,
            states=states,
            local=_LOCAL,
            chosen=chosen,
            is_other=chosen not in listed,
            environment=environment_choice(),
            rules=[*settings.keep, *(rule for rule in DEFAULT_RULES if rule not in settings.keep)],
            message=message,
            status=status,
        )

    @app.get(base + "/settings")
    def settings() -> Response:
        return settings_page(session.settings)

    @app.post(base + "/settings/backend")
    async def set_backend(request: Request) -> Response:
        fields = await form(request)
        chosen = fields.get("backend", [AUTO])[0]
        if chosen == "other":
            chosen = f"{fields.get('name', [''])[0].strip()} {fields.get('url', [''])[0].strip()}"
        name, _, url = chosen.partition(" ")
        changed = replace(session.settings, backend=name or AUTO, url=url or None, ignored=None)
        await run_in_threadpool(session.change, changed)
        return go("/settings")

    @app.post(base + "/settings/keep")
    async def set_keep(request: Request) -> Response:
        fields = await form(request)
        places = {rule: _number(fields.get(rule, ["0"])[0] or "0") for rule in DEFAULT_RULES}
        order = sorted((rule for rule in DEFAULT_RULES if places[rule] > 0), key=lambda rule: places[rule])
        folders = inside(fields.get("folders", [""])[0].splitlines())
        changed = replace(session.settings, keep=tuple(order), folders=folders)
        await run_in_threadpool(session.change, changed)
        return go("/settings")

    @app.get(base + "/photo/{photo_id}/{size}.jpg")
    def image(photo_id: int, size: str, request: Request) -> Response:
        if size not in pictures.SIZES:
            raise pictures.Refused("There is no such size.")
        photo = photo_of(photo_id)
        # The browser asks each time, so it shows no picture whose file has changed or gone since.
        kept = {"Cache-Control": "private, no-cache", "ETag": f'"{photo.md5}-{size}"'}
        if request.headers.get("if-none-match") == kept["ETag"]:
            pictures.open_photo(session.root, photo).close()
            return Response(status_code=304, headers=kept)
        data = pictures.picture(session.root, session.own, photo, size)
        return Response(data, media_type="image/jpeg", headers=kept)

    @app.get(base + "/static/{name}")
    def static(name: str) -> Response:
        if name not in _STATIC:
            raise pictures.Refused("There is no such file.")
        data = (Path(__file__).parent / "static" / name).read_bytes()
        return Response(data, media_type=_STATIC[name], headers={"Cache-Control": "private, max-age=3600"})

    return app


def environment_choice() -> str:
    """Return what the environment chooses over the settings; empty if nothing."""
    names = ("INFERENCE_BACKEND", "INFERENCE_SERVICE_URL")
    return ", ".join(f"{name}={os.environ[name]}" for name in names if os.environ.get(name))


def _number(text: str) -> int:
    try:
        return int(text)
    except ValueError:
        raise PhotodupError("A photo is named by its number.") from None
