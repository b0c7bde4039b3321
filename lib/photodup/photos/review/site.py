"""What all addresses of the review page share: the session, the templates, and how a request is read."""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Annotated, Any
from urllib.parse import parse_qs

from fastapi import Depends, Request
from fastapi.responses import HTMLResponse, RedirectResponse
from jinja2 import Environment, PackageLoader, StrictUndefined

from photodup.errors import PhotodupError
from photodup.names import escaped, printable
from photodup.photos.review import facts
from photodup.photos.review.items import MARKED, TODO
from photodup.photos.review.security import MAX_BODY_BYTES
from photodup.photos.review.session import ReviewSession


@dataclass(frozen=True)
class Site:
    """The review page of one session.

    Attributes:
        session: the library under review.
        base: what every address begins with: a slash and the token.
        is_demo: say on every page that the photographs are the demonstration's.
        endpoints: more embedding servers to show on the settings page, by backend.
    """

    session: ReviewSession
    base: str
    is_demo: bool = False
    endpoints: Mapping[str, str] = field(default_factory=dict)

    @cached_property
    def _templates(self) -> Environment:
        environment = Environment(
            loader=PackageLoader("photodup.photos.review"),
            autoescape=True,
            undefined=StrictUndefined,
            trim_blocks=True,
            lstrip_blocks=True,
        )
        filters = {"size": facts.size, "path": printable, "text": escaped, "percent": facts.percent}
        environment.filters |= filters
        return environment

    def page(self, template: str, *, status: int = 200, **values: Any) -> HTMLResponse:
        """Return a page made of a template, its values, and what every page shows."""
        session = self.session
        items = session.items.values()
        common = {
            "base": self.base,
            "is_demo": self.is_demo,
            "library": printable(session.root),
            "n_groups": len(session.items),
            "n_decided": sum(item.status != TODO for item in items),
            "n_marked": sum(len(item.remove) for item in items if item.status == MARKED),
            "marked_bytes": sum(item.marked_bytes for item in items),
            "bytes_removed": session.bytes_removed,
            "can_undo": session.can_undo,
            "in_album": not session.trash.moves_files,
            "tiers": session.tiers,
        }
        text = self._templates.get_template(template).render(**common | values)
        # Names that are not UTF-8 reach sentences as lone surrogates, which no answer can carry.
        return HTMLResponse(re.sub("[\ud800-\udfff]", "\ufffd", text), status)

    def message(self, title: str, sentence: str, status: int = 200) -> HTMLResponse:
        """Return a page that says one thing."""
        return self.page("message.html", title=title, message=sentence, status=status)

    def go(self, path: str) -> RedirectResponse:
        """Send the browser to another address of this page."""
        return RedirectResponse(f"{self.base}{path}", 303)


def site_of(request: Request) -> Site:
    """Return the site that a request came to."""
    return request.app.state.site


CurrentSite = Annotated[Site, Depends(site_of)]


async def form_of(request: Request) -> dict[str, list[str]]:
    """Return the fields of a form.

    Raises:
        PhotodupError: it is too large.
    """
    body = await request.body()
    if len(body) > MAX_BODY_BYTES:
        raise PhotodupError("The request is too large.")
    try:
        return parse_qs(body.decode("utf-8", "replace"), max_num_fields=10_000)
    except ValueError:
        raise PhotodupError("The form has too many fields.") from None


def number_of(text: str) -> int:
    """Return the number that names a photo.

    Raises:
        PhotodupError: it is none.
    """
    try:
        return int(text)
    except ValueError:
        raise PhotodupError("A photo is named by its number.") from None
