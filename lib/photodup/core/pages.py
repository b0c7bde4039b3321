"""Pages that need no network: one base (`page_base.html`) with a content security policy, which every page extends."""

import re
from pathlib import Path

from photodup.core.extras import import_extra


def render_page(template: Path, /, **values: object) -> str:
    """Return a page; all values in it are escaped unless they are marked safe."""
    jinja2 = import_extra("jinja2")
    loader = jinja2.FileSystemLoader([template.parent, Path(__file__).parent])
    environment = jinja2.Environment(loader=loader, autoescape=True, trim_blocks=True)
    environment.filters["coded"] = _coded
    return environment.get_template(template.name).render(**values)


def _coded(text: str) -> str:
    """Return a sentence with Markdown's code marks as HTML's; the rest is escaped."""
    from markupsafe import Markup, escape

    return Markup(re.sub("`([^`]+)`", r"<code>\1</code>", str(escape(text))))
