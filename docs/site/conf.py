"""The site: `make site` builds it from the committed notebooks and documents; nothing is executed, no network is needed."""

import json
import re
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

from tools.readme import SAVED  # noqa: E402

project = "photodup"
author = "the photodup authors"
# A page loads the script that draws its diagrams; without a network it shows their text.
extensions = ["myst_nb", "sphinxcontrib.mermaid"]
root_doc = "docs/site/index"
include_patterns = [
    "docs/*.md",
    "docs/site/*.md",
    "notebooks/[0-9]*.ipynb",
    "results/README.md",
    "results/published/README.md",
    "docker/README.md",
    "k8s/README.md",
    "tools/*/README.md",
    "benchmarks/README.md",
    "CHANGELOG.md",
    "CONTRIBUTING.md",
    "SECURITY.md",
]
nb_execution_mode = "off"
highlight_language = "none"  # what a command prints is no Python
nb_render_text_lexer = "none"
nb_render_markdown_format = "myst"
nb_code_prompt_show = "Show the code"
nb_code_prompt_hide = "Hide the code"
myst_enable_extensions = ["html_image", "colon_fence", "tasklist"]
myst_fence_as_directive = ["mermaid"]
mermaid_height = "auto"
myst_heading_anchors = 4
# Links to code lead into the repository, which the site does not hold; odd lexers are shown as text.
suppress_warnings = [
    "myst.xref_missing",
    "misc.highlighting_failure",
    "mystnb.unknown_mime_type",
    "myst.header",
]
html_theme = "pydata_sphinx_theme"
html_title = "photodup"
html_theme_options = {"navigation_depth": 2, "show_toc_level": 2, "secondary_sidebar_items": ["page-toc"]}
html_show_sourcelink = False
html_static_path = ["static"]
html_css_files = ["site.css"]
html_extra_path = ["root"]  # the address of the site leads to its front page

DATA = "results/reference-cpu/figures"


def prepare(app, docname, source):
    """Fold the code of a notebook, and put an anchor named after each figure in front of it."""
    if docname == root_doc:  # the front page is the README, two folders up
        readme = (ROOT / "README.md").read_text(encoding="utf-8")
        readme = re.sub(r"\n.*\.svg.*", "", readme)  # the badge of CI lies outside the site
        readme = re.sub(r'<img src="([^"]+)" alt="([^"]+)"[^>]*>', r"![\2](\1)\n", readme)
        source[0] = re.sub(r"(\]\()(?!https?:|#)", r"\1../../", readme) + "\n" + source[0]
    if not docname.startswith("notebooks/"):
        return
    notebook = json.loads(source[0])
    cells = []
    for cell in notebook["cells"]:
        text = "".join(cell["source"])
        for name, kinds in cell.pop("attachments", {}).items():
            kind, content = next(iter(kinds.items()))
            text = text.replace(f"attachment:{name}", f"data:{kind};base64,{''.join(content.split())}")
        cell["source"] = text
        if cell["cell_type"] == "code":
            cell["metadata"]["tags"] = [*cell["metadata"].get("tags", ()), "hide-input"]
            drawn = [name for name in SAVED.findall(text) if (ROOT / DATA / f"{name}.csv").is_file()]
            for name in drawn:
                place = f"figure-{name.replace('_', '-')}"
                words = f"[Permalink of the figure](#{place}) `{name}`"
                if "figure" in cell["metadata"]["tags"]:
                    cell["outputs"] = [
                        each for each in cell["outputs"] if "image/png" not in each.get("data", {})
                    ]
                    words = f"The figure `{name}` stands at the top of this page."
                anchor = f"({place})=\n{words}"
                cells.append({"cell_type": "markdown", "metadata": {}, "source": anchor, "id": place[:64]})
        cells.append(cell)
        for name in drawn if cell["cell_type"] == "code" else ():
            link = f"{{download}}`Data of the figure (CSV) <../{DATA}/{name}.csv>`"
            cells.append({"cell_type": "markdown", "metadata": {}, "source": link, "id": f"data-{name}"[:64]})
    notebook["cells"] = cells
    source[0] = json.dumps(notebook)


def setup(app):
    app.connect("source-read", prepare)
    return {"parallel_read_safe": True}
