"""Print the shape of the tree beside its ceilings (`[tool.shape]` of pyproject.toml); exit status 1 above one of them."""

import ast
import collections
import io
import json
import re
import sys
import tokenize
import tomllib
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
_NO_CODE = {
    tokenize.COMMENT,
    tokenize.NL,
    tokenize.NEWLINE,
    tokenize.INDENT,
    tokenize.DEDENT,
    tokenize.ENDMARKER,
}
# Words of prose: a variable is called after what it holds.
_PROSE = re.compile(
    "found|said|one|seen|told|asked|kept|wanted|known|given|own|done|made|named|held|laid|what|why|how|because|there|of|about|"
    "most|whose|mine|its|both|either|shown|taken|brought|needed|answered|lacking|others|rest|thing|things"
)


def code_lines(source: str) -> int:
    """Count the lines that hold code: no blanks, comments or docstrings."""
    strings = {
        line
        for node in ast.walk(ast.parse(source))
        if isinstance(node, ast.Expr)
        and isinstance(node.value, ast.Constant)
        and isinstance(node.value.value, str)
        for line in range(node.lineno, (node.end_lineno or 0) + 1)
    }
    tokens = tokenize.generate_tokens(io.StringIO(source).readline)
    code = {n for t in tokens if t.type not in _NO_CODE for n in range(t.start[0], t.end[0] + 1)}
    return len(code - strings)


def prose_names(source: str) -> int:
    """Count variables and parameters whose name is a word of prose."""
    nodes = list(ast.walk(ast.parse(source)))
    names = [node.id for node in nodes if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)]
    names += [node.arg for node in nodes if isinstance(node, ast.arg)]
    return sum(map(bool, map(_PROSE.fullmatch, names)))


def shape(root: Path) -> dict[str, int]:
    """Count code lines of lib/, all lines of tests/, prose names of lib/ and notebooks/, public classes that stand twice."""
    library = [path.read_text(encoding="utf-8") for path in sorted((root / "lib").rglob("*.py"))]
    notebooks = [
        json.loads(path.read_text(encoding="utf-8")) for path in (root / "notebooks").glob("*.ipynb")
    ]
    cells = [
        "".join(cell["source"])
        for notebook in notebooks
        for cell in notebook["cells"]
        if cell["cell_type"] == "code"
    ]
    tests = [path.read_text(encoding="utf-8") for path in sorted((root / "tests").rglob("*.py"))]
    classes = collections.Counter(
        node.name for text in library for node in ast.parse(text).body if isinstance(node, ast.ClassDef)
    )
    twice = [name for name, n in classes.items() if n > 1 and not name.startswith("_")]
    return {
        "lib_code_lines": sum(map(code_lines, library)),
        "tests_lines": sum(text.count("\n") for text in tests),
        "class_names_twice": len(twice),
        "prose_names": sum(map(prose_names, [*library, *cells])),
    }


if __name__ == "__main__":
    ceilings = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["tool"]["shape"]
    lines = shape(ROOT)
    print("shape: " + ", ".join(f"{name} {n} (at most {ceilings[name]})" for name, n in lines.items()))
    sys.exit(any(n > ceilings[name] for name, n in lines.items()))
