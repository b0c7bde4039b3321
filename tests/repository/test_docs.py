"""Documents lead somewhere: links resolve, commands exist, quoted messages are said, and what was not run says so."""

import ast
import re
import shlex
from collections.abc import Iterator
from pathlib import Path

import nbformat
import pytest
import typer
from support.paths import ROOT

from photodup.cli import app
from photodup.study.notebook.files import notebooks

DOCUMENTS = sorted(
    path
    for pattern in (
        "docs/*.md", "README.md", "docker/*.md", "k8s/*.md", "results/README.md", "CONTRIBUTING.md",
        "SECURITY.md", "benchmarks/*.md", "tools/*/*.md",
    )
    for path in ROOT.glob(pattern)
)  # fmt: skip
GUIDES = sorted((ROOT / "docs").glob("*.md"))
LINK = re.compile(r"\[[^\]]*\]\(([^)\s]+)|<img[^>]+src=\"([^\"]+)\"")
INLINE = re.compile(r"`((?:photodup|make|papermill) [^-`…][^`…]*)`")
BLOCK = re.compile(r"^```(?:bash|sh|console)\n(.*?)^```", re.MULTILINE | re.DOTALL)
NEEDS_ANOTHER_MACHINE = ("docker", "kubectl", "kind", "helm")
# Who acts comes first: no statement begins so, and no coinage stands for the field's word.
RIDDLE = re.compile(
    r"(?:^|[.!?] )((?:Of|Whether|Who would|What) [^.?!]*[.!])"
    r"|(betray\w*|for company|held against|it is told\b|all told|as much as \d|listened to|to be had)"
)
GONE = re.compile(r"photodup (?:vast|tune)\b|\bsscd|trusted_torchscript|hidden_arguments", re.IGNORECASE)


def anchors(markdown: str) -> set[str]:
    """The anchors that GitHub gives to headings."""
    found = set()
    for line in re.sub(r"```.*?```", "", markdown, flags=re.DOTALL).splitlines():
        if heading := re.match(r"#{1,6} (.+)", line):
            text = re.sub(r"[`*_]|\[([^\]]*)\]\([^)]*\)", lambda m: m[1] or "", heading[1])
            found.add(re.sub(r"[^\w\- ]", "", text.strip().lower()).replace(" ", "-"))
    return found


def prose_of(document: Path) -> str:
    """The text of a document, or of a notebook's markdown cells."""
    if document.suffix != ".ipynb":
        return document.read_text(encoding="utf-8")
    cells = nbformat.read(document, as_version=4).cells
    return "\n\n".join(cell.source for cell in cells if cell.cell_type == "markdown")


def links(text: str) -> list[str]:
    return [link or image for link, image in LINK.findall(text)]


def broken_links(document: Path, text: str) -> list[str]:
    bad = []
    for target in links(re.sub(r"```.*?```", "", text, flags=re.DOTALL)):
        if re.match(r"[a-z]+:|../../actions/", target):  # the latter is GitHub's, beside the tree
            continue
        name, _, anchor = target.partition("#")
        path = (document.parent / name).resolve() if name else document
        wanted = anchor if path.suffix == ".md" else ""
        if not path.exists() or (wanted and wanted not in anchors(path.read_text(encoding="utf-8"))):
            bad.append(target)
    return bad


def commands(text: str) -> Iterator[list[str]]:
    """Every command of the bash blocks, as words; comments, pipes' later parts and set variables left out."""
    for block in BLOCK.findall(text):
        for line in block.replace("\\\n", " ").splitlines():
            words = shlex.split(line, comments=True)
            for stop in ("|", "&&", "||", ";"):
                words = words[: words.index(stop)] if stop in words else words
            while words and re.fullmatch(r"[A-Z_]+=.*", words[0]):
                words = words[1:]
            if words:
                yield words


def problem_of(words: list[str]) -> str:
    """Why a command cannot work as written, or "" for one that nobody here can judge."""
    program, *rest = words
    name = program.rpartition("/")[2]
    if name == "photodup":
        return photodup_problem(rest)
    if name == "papermill":
        return papermill_problem(rest)
    if name == "make":
        targets = [word for word in rest if "=" not in word and not word.startswith("-")]
        known = set(re.findall(r"^([a-z][a-z-]*):", (ROOT / "Makefile").read_text(), re.MULTILINE))
        return "".join(f"make {t}: no such target. " for t in targets if t not in known)
    if program.startswith(("docker/", "k8s/", "tools/", ".ci/")) and not (ROOT / program).is_file():
        return f"{program}: no such file"
    if name in ("docker", "kubectl", "kind", "helm"):
        return " ".join(
            f"{word}: no such file"
            for word in rest
            if re.match(r"(docker|k8s)/", word) and not (ROOT / word).exists()
        ) + compose_problem(rest)
    return ""


def compose_problem(words: list[str]) -> str:
    if "--profile" not in words:
        return ""
    profile = words[words.index("--profile") + 1]
    text = (ROOT / "docker" / "compose.yaml").read_text()
    return "" if f"profiles: [{profile}]" in text else f"compose has no profile {profile}"


def papermill_problem(words: list[str]) -> str:
    import papermill

    notebook = ROOT / words[0]
    if not notebook.is_file():
        return f"{words[0]}: no such file"
    given = {words[i + 1] for i, word in enumerate(words) if word in ("-p", "-r")}
    return "".join(
        f"{words[0]} declares no {name}" for name in given - set(papermill.inspect_notebook(str(notebook)))
    )


def photodup_problem(words: list[str]) -> str:
    command = typer.main.get_command(app)
    while (below := getattr(command, "commands", None)) and words and not words[0].startswith("-"):
        if words[0] not in below:
            return f"photodup has no command {words[0]!r}"
        command, words = below[words[0]], words[1:]
    if below:
        return ""
    options = {flag for p in command.params for flag in (*p.opts, *p.secondary_opts)} | {"--help"}
    if command.context_settings.get("allow_extra_args"):
        options |= {"-p"}
    return " ".join(
        f"photodup {command.name} has no option {word}"
        for word in (w.partition("=")[0] for w in words)
        if re.match(r"--?[a-zA-Z]", word) and word not in options
    )


def unmarked(text: str) -> list[str]:
    """Blocks that need another machine, in a section that does not say "not run here" before them."""
    found, start = [], 0
    for match in BLOCK.finditer(text):
        section = text[max(start, text.rfind("\n## ", 0, match.start())) : match.start()]
        lines = [line for line in commands(match[0]) if " ".join(line).startswith(NEEDS_ANOTHER_MACHINE)]
        if lines and "not run here" not in section.lower():
            found.append(" ".join(lines[0]))
        start = match.end()
    return found


def said_nowhere(text: str, source: str) -> list[str]:
    """Messages quoted in a first column of which a fixed part stands nowhere in the code."""
    joined = re.sub(r'["\']\s*\n\s*f?["\']', "", source)
    bad = []
    for cell in re.findall(r"^\| ([^|]*) \|", text, re.MULTILINE):
        for quote in re.findall(r"`([^`]+)`", cell):
            parts = [part.strip() for part in re.split(r"…|\d+(?: %)?|NN", quote)]
            if any(len(part) > 8 and part not in joined for part in parts):
                bad.append(quote)
    return bad


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_every_link_leads_somewhere(document: Path) -> None:
    assert broken_links(document, document.read_text(encoding="utf-8")) == []


@pytest.mark.parametrize("document", [*DOCUMENTS, *notebooks()], ids=lambda path: path.name)
def test_no_document_names_what_is_gone(document):
    assert not GONE.findall(prose_of(document))


@pytest.mark.parametrize("document", [*DOCUMENTS, *notebooks()], ids=lambda path: str(path.relative_to(ROOT)))
def test_every_command_exists(document: Path) -> None:
    text = prose_of(document)
    inside = "\n".join(f"```bash\n{' '.join(line.split())}\n```" for line in INLINE.findall(text))
    found = [problem_of(words).strip() for words in [*commands(text), *commands(inside)]]
    assert [problem for problem in found if problem] == []


@pytest.mark.parametrize("document", GUIDES, ids=lambda path: path.name)
def test_what_was_not_run_is_marked(document: Path) -> None:
    assert unmarked(document.read_text(encoding="utf-8")) == []


def test_the_messages_of_the_troubleshooting_are_really_said() -> None:
    source = "\n".join(p.read_text(encoding="utf-8") for p in (ROOT / "lib" / "photodup").rglob("*.py"))
    assert said_nowhere((ROOT / "docs" / "troubleshooting.md").read_text(encoding="utf-8"), source) == []


def test_every_document_is_in_the_index() -> None:
    index = (ROOT / "docs" / "README.md").read_text(encoding="utf-8")
    assert {path.name for path in GUIDES} - {"README.md"} <= set(links(index))


def test_the_first_notebook_has_the_index_and_a_picture_of_today() -> None:
    """The picture names the last notebook, the usual ports and every engine, so that an addition is drawn too."""
    first = nbformat.read(ROOT / "notebooks" / "00_start_here.ipynb", as_version=4)
    outputs = [o for c in first.cells for o in c.get("outputs", [])]
    shown = "".join(o.get("data", {}).get("text/markdown", "") for o in outputs)
    index = links((ROOT / "docs" / "README.md").read_text(encoding="utf-8"))
    assert "../docs/README.md" in links(prose_of(ROOT / "notebooks" / "00_start_here.ipynb"))
    assert {f"../docs/{name}" for name in index} <= set(links(shown)), "render it again: the index changed"
    picture = (ROOT / "notebooks" / "images" / "architecture.svg").read_text(encoding="utf-8")
    last = max(path.name[:2] for path in (ROOT / "notebooks").glob("[0-9]*.ipynb"))
    words = [f"notebooks 00 to {last}", ":8002", ":8003", ":8004", ":8005"]
    words += ["PyTorch", "ONNX Runtime", "OpenVINO", "TensorRT", "Scan", "Embed", "Group", "Review"]
    assert [word for word in words if word not in picture] == []


def test_the_architecture_shows_the_three_places() -> None:
    text = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
    for heading in ("## On one machine", "## Against a rented machine", "## On Kubernetes"):
        section = text.split(heading)[1].split("\n## ")[0]
        assert "```mermaid" in section, heading


def riddles(text: str) -> list[str]:
    """Sentences that begin with something else than who acts; code, headings and questions are left out."""
    prose = re.sub(r"```.*?```|^[#|].*?$|\[[^\]]*\]\([^)]*\)", "", text, flags=re.DOTALL | re.MULTILINE)
    paragraphs = [" ".join(one.split()) for one in re.split(r"\n\s*\n|\n[-*] ", prose)]
    return [found[1] or found[2] for one in paragraphs for found in RIDDLE.finditer(one)]


@pytest.mark.parametrize("path", [*DOCUMENTS, *notebooks()], ids=lambda path: path.stem)
def test_sentences_begin_with_who_acts(path: Path) -> None:
    assert riddles(prose_of(path)) == []


def test_what_photodup_prints_and_shows_begins_with_who_acts() -> None:
    """The texts of errors, reports, `--help` and pages; a docstring counts where it is the help of a command."""
    found = {}
    library = ROOT / "lib" / "photodup"
    for path in (*library.rglob("*.py"), *library.rglob("*.html")):
        source = path.read_text(encoding="utf-8")
        texts = [re.sub(r"<[^>]+>|\{[%#].*?[%#]\}", "\n\n", source)]
        if path.suffix == ".py":
            nodes = list(ast.walk(ast.parse(source)))
            silent = {id(n.value) for n in nodes if isinstance(n, ast.Expr) and "cli" not in path.parts}
            said = [n for n in nodes if isinstance(n, ast.Constant) and id(n) not in silent]
            texts = [node.value for node in said if isinstance(node.value, str)]
        if bad := [riddle for text in texts for riddle in riddles(text)]:
            found[path.name] = bad
    assert found == {}


def test_planted_faults_are_found(tmp_path: Path) -> None:
    (tmp_path / "there.md").write_text("# A *heading*: with `code`\n")
    text = "[a](gone.md) [b](there.md#a-heading-with-code) [c](there.md#no) [d](https://x.org) `[e](f.md)`"
    assert broken_links(tmp_path / "x.md", text) == ["gone.md", "there.md#no", "f.md"]

    def found(line: str) -> str:
        return " ".join(problem_of(words) for words in commands(f"```bash\n{line}\n```"))

    assert "no command 'serv'" in found("photodup serv --embedded")
    assert "no option --embeded" in found("photodup serve --embeded")
    assert "no such target" in found("make studdy RUN=x")
    assert "no such file" in found("papermill notebooks/99_nothing.ipynb out.ipynb")
    assert "declares no ENGIN" in found("papermill notebooks/_template.ipynb out.ipynb -p ENGIN onnx")
    assert "no such file" in found("k8s/get-tool.sh")
    assert "no such file" in found("kubectl apply -k k8s/nowhere")
    assert "no profile tpu" in found("X=1 docker compose -f docker/compose.yaml --profile tpu up")
    assert not found("photodup study run --only 03 --endpoints 1.2.3.4:1   # a comment").strip()
    assert unmarked("## A\n\nRun:\n\n```bash\nkubectl get pods\n```\n") == ["kubectl get pods"]
    assert unmarked("## A\n\nNot run here:\n\n```bash\nkubectl get pods\n```\n") == []
    text = "A.\n\nOf a clone, this installs. What is it? We ask.\n\nIt is\nheld against x."
    assert riddles(text) == ["Of a clone, this installs.", "held against"]
    assert said_nowhere("| `never said at all` | x | y |", "") == ["never said at all"]


def test_the_front_page_names_both_uses_in_its_first_words() -> None:
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    first = " ".join(text.split()[:150])
    for part in ("near-duplicate photos", "photodup review", "photodup load", "removes nothing unasked"):
        assert part in first, part
    assert len(text.split()) <= 1400
