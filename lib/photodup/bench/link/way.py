"""The way of requests to a server, as columns of a point: the name of the link and its properties."""

from dataclasses import asdict, dataclass, fields
from typing import Any

from photodup.bench.link.link import PRESETS, LinkSpec


@dataclass(frozen=True)
class Way:
    """The way from client to server, recorded with every point.

    Attributes:
        link: its name, for people: `loopback`, `network`, or an emulated link's.
        rtt_ms: round trip; 0 on loopback, None where nobody could measure it.
        rate_mbit_s, loss, initcwnd, congestion, slow_start_after_idle: of an emulated link (see `LinkSpec`);
            None where nothing is emulated: then they are the system's and the network's.
    """

    link: str = "loopback"
    rtt_ms: float | None = 0.0
    rate_mbit_s: float | None = None
    loss: float | None = None
    initcwnd: int | None = None
    congestion: str | None = None
    slow_start_after_idle: bool | None = None

    def columns(self) -> dict[str, Any]:
        """Return the columns of a point, by the names of the attributes."""
        return asdict(self)


LOOPBACK = Way()


def emulated(link: str | LinkSpec) -> Way:
    """Return the way over an emulated link: one of `PRESETS` by its name, or any spec under its label.

    Raises:
        KeyError: no such preset; `Link` says it in a sentence before anything is measured.
    """
    name, spec = (link, PRESETS[link]) if isinstance(link, str) else (link.label, link)
    return Way(name, **{field.name: getattr(spec, field.name) for field in fields(Way)[1:]})
