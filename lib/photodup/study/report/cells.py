"""Render an executed notebook as one self-contained page: no script, no font and no style from the network.

A run may come from a stranger. Whatever its notebooks hold is reduced to text, tables and links; pictures are PNG files
that decode, and of this disk only those in `notebooks/images`. The page's content security policy forbids the rest.
nbconvert's own HTML templates load MathJax and RequireJS from a CDN and weigh 300 kB before the first word.
"""

from __future__ import annotations

import base64
import html
import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from photodup.core.pages import render_page
from photodup.core.paths import project_root
from photodup.study.notebook.files import read_notebook
from photodup.study.notebook.opening import alternative, is_png, is_tagged, with_headings, write_opening

if TYPE_CHECKING:
    import nbformat

_TAGS = frozenset(
    """a abbr b blockquote br caption code dd del details div dl dt em h1 h2 h3 h4 h5 h6 hr i img kbd li ol p pre s small
    span strong sub summary sup table tbody td tfoot th thead tr ul""".split()  # noqa: SIM905
)
TEMPLATES = Path(__file__).parent / "templates"
_PNG = "data:image/png;base64,"
_ANSI = re.compile(r"\x1b\[[0-9;]*[A-Za-z]")
_TABLE = re.compile(r"<table.*?</table>", re.DOTALL)


@dataclass
class Cell:
    """One rendered cell; `html` and `outputs` are safe to place in a page, which shows code folded."""

    kind: str
    html: str
    outputs: list[str] = field(default_factory=list)


def render_notebook(notebook: Path, run: str) -> str:
    """Return the page for an executed notebook of `run`."""
    from markupsafe import Markup
    from pygments.formatters import HtmlFormatter

    executed = read_notebook(notebook)
    write_opening(executed, run)  # a copy that papermill made opens with the reference run's answer
    for cell in executed.cells:
        if is_tagged(cell, "figure"):  # the opening cell shows it
            cell.outputs = [each for each in cell.outputs if "image/png" not in each.get("data", {})]
    cells = render_cells(executed.cells)
    light, dark = (
        HtmlFormatter(style=name).get_style_defs(".highlight") for name in ("friendly", "github-dark")
    )
    styles = f"{light}\n@media screen and (prefers-color-scheme: dark) {{ {dark} .highlight {{ background:none }} }}"
    return render_page(
        TEMPLATES / "notebook.html", title=notebook.stem, run=run, cells=cells, pygments=Markup(styles)
    )


def render_cells(cells: Iterable[nbformat.NotebookNode]) -> list[Cell]:
    """Return notebook cells as HTML with the pictures that prose links to; empty code cells and raw cells are left out."""
    from markupsafe import Markup

    rendered = [cell for cell in (_cell(*entry) for entry in with_headings(cells)) if cell]
    images = project_root() / "notebooks"
    for cell in rendered:
        cell.html = Markup(_embed_images(cell.html, images))
        cell.outputs = [Markup(output) for output in cell.outputs]
    return rendered


def _cell(cell: Any, heading: str) -> Cell | None:
    if cell.cell_type == "markdown":
        return Cell("markdown", _page_of(_attached(cell)))
    if cell.cell_type != "code" or not cell.source.strip():
        return None
    from pygments import highlight
    from pygments.formatters import HtmlFormatter
    from pygments.lexers import PythonLexer

    source = highlight(cell.source, PythonLexer(), HtmlFormatter())
    return Cell("code", source, [text for output in cell.outputs if (text := _output(output, heading))])


def _page_of(text: str) -> str:
    """Return Markdown as safe HTML; numbers in tables stay on the right, by class, since styles are taken away."""
    from nbconvert.filters.markdown_mistune import markdown2html_mistune

    page = markdown2html_mistune(text).replace(' style="text-align:right"', ' class="num"')
    # A wide table scrolls by itself: on a phone it would widen the whole page.
    return _TABLE.sub(r'<div class="scroll">\g<0></div>', _safe(page))


def _safe(page: str) -> str:
    """Return HTML without scripts, styles, forms, handlers and pictures from elsewhere."""
    import bleach

    def may_have(tag: str, name: str, value: str) -> bool:
        if tag == "img" and name == "src":
            drawn = value.startswith(_PNG) and is_png(value.removeprefix(_PNG))
            return drawn or re.fullmatch(r"images/\w[\w-]*\.(png|svg)", value) is not None
        if tag == "a" and name == "href":
            return not value.lower().startswith("data:") and ".." not in value
        return name in ("alt", "class", "colspan", "id", "rowspan", "scope", "start", "title")

    protocols = ("http", "https", "mailto", "data")
    return bleach.clean(page, tags=_TAGS, attributes=may_have, protocols=protocols, strip=True)


def _attached(cell: Any) -> str:
    """Return a prose cell's text with its attached pictures inside it."""
    text = cell.source
    for name, forms in cell.get("attachments", {}).items():
        for kind, data in forms.items():
            text = text.replace(f"attachment:{name}", f"data:{kind};base64,{''.join(data.split())}")
    return text


def _embed_images(page: str, folder: Path) -> str:
    """Put the pictures that prose links to (`images/...`) into the page itself; link pages, not notebooks."""

    def data_uri(match: re.Match) -> str:
        path = folder / match.group(1)
        kind = {".svg": "image/svg+xml", ".png": "image/png"}.get(path.suffix)
        if kind is None or not path.is_file():
            return match.group(0)
        return f'src="data:{kind};base64,{base64.b64encode(path.read_bytes()).decode()}"'

    page = re.sub(r'href="(\d\d_\w+)\.ipynb(#[^"]*)?"', r'href="\1.html\2"', page)
    return re.sub(r'src="(images/[\w-]+\.\w+)"', data_uri, page)


def _output(output: Any, heading: str) -> str:
    if output.output_type == "stream":
        return f"<pre>{html.escape(_ANSI.sub('', output.text))}</pre>" if output.name == "stdout" else ""
    if output.output_type == "error":
        return f"<pre>{html.escape(_ANSI.sub('', chr(10).join(output.traceback)))}</pre>"
    data = output.data
    if "image/png" in data:
        png = "".join(str(data["image/png"]).split())
        text = html.escape(alternative(output, heading))
        return f'<img alt="{text}" src="{_PNG}{png}">' if is_png(png) else ""
    if "text/html" in data:
        return f'<div class="scroll">{_safe(data["text/html"])}</div>'
    if "text/markdown" in data:
        return _page_of(data["text/markdown"])
    return f"<pre>{html.escape(data.get('text/plain', ''))}</pre>"
