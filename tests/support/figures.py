"""One figure of one server, as notebooks measure several."""

from typing import Any

from photodup.study.notebook.points import FigureSpec, measure_figures


def measure_figure(run, backend: str, load, plan=None, *, visits: int = 3, **spec: Any) -> dict[str, Any]:
    """Return the row of one `FigureSpec`."""
    return measure_figures(run, [FigureSpec(backend, load, **spec)], plan, visits=visits).iloc[0].to_dict()
