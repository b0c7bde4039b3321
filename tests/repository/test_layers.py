"""The packages of lib/photodup lie in layers: what may import what, and no circles (imports inside functions count)."""

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
# A package imports only packages of a lower layer, and itself.
LAYERS = {
    0: {"core"},
    1: {"embedding"},
    2: {"photos", "serving", "bench"},
    3: {"study"},
    5: {"cli"},
    6: {"__main__"},
}


def imports(lib: Path) -> dict[str, set[str]]:
    """Return each module's imports of its own package, wherever in the file they stand."""
    files = {}
    for path in lib.rglob("*.py"):
        files[".".join(path.relative_to(lib.parent).with_suffix("").parts).removesuffix(".__init__")] = path
    found = {name: set() for name in files}
    for name, path in files.items():
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Import):
                found[name] |= {a.name for a in node.names if a.name in files}
            elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
                full = {f"{node.module}.{a.name}" for a in node.names}
                found[name] |= {f if f in files else node.module for f in full} & set(files)
    return {name: targets - {name} for name, targets in found.items()}


def circles(graph: dict[str, set[str]]) -> list[str]:
    """Return every import that closes a circle, as the path that it closes."""
    found, done, path = [], set(), []

    def visit(module: str) -> None:
        if module in path:
            found.append(" -> ".join([*path[path.index(module) :], module]))
        elif module not in done:
            path.append(module)
            for target in sorted(graph[module]):
                visit(target)
            path.pop()
            done.add(module)

    for module in sorted(graph):
        visit(module)
    return found


def against_the_layers(graph: dict[str, set[str]]) -> list[str]:
    """Return every import of a package that does not lie below the importing one."""
    layer = {package: number for number, packages in LAYERS.items() for package in packages}

    def package(module: str) -> str:
        return module.split(".")[1] if "." in module else ""

    return [
        f"{module} -> {target}"
        for module, targets in sorted(graph.items())
        for target in sorted(targets)
        if package(module)
        and package(target)
        and package(module) != package(target)
        and layer[package(target)] >= layer[package(module)]
    ]


@pytest.fixture(scope="module")
def graph() -> dict[str, set[str]]:
    return imports(ROOT / "lib" / "photodup")


def test_nothing_imports_itself_in_a_circle(graph):
    assert not circles(graph)


def test_every_import_goes_down(graph):
    assert not against_the_layers(graph)


def test_every_folder_says_what_it_is_for():
    for init in (ROOT / "lib" / "photodup").rglob("__init__.py"):
        text = ast.get_docstring(ast.parse(init.read_text())) or ""
        assert text, f"{init.relative_to(ROOT)} has no docstring"
        if init.parent.parent.name != "lib":
            assert "May import" in text and "first" in text, (
                f"{init.relative_to(ROOT)}: what may it import, what first?"
            )
        for name in re.findall(r"`([a-z_/]+\.py)`", text):
            assert (init.parent / name).exists() or (ROOT / name).exists(), (
                f"{init.relative_to(ROOT)} names {name}"
            )


def plant(folder: Path, **sources: str) -> dict[str, set[str]]:
    for name, source in sources.items():
        path = folder / "photodup" / name.replace("__", "/")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.with_suffix(".py").write_text(source)
    return imports(folder / "photodup")


def test_a_planted_circle_is_found_inside_a_function(tmp_path):
    first = "def f():\n    from photodup.bench import b\n"
    graph = plant(tmp_path, bench__a=first, bench__b="from photodup.bench.a import f\n")
    assert circles(graph) == ["photodup.bench.a -> photodup.bench.b -> photodup.bench.a"]


def test_a_planted_import_of_a_neighbour_is_found(tmp_path):
    above = "import photodup.serving.b\n"
    graph = plant(tmp_path, bench__a=above, serving__b="", cli="from photodup.bench import a\n")
    assert against_the_layers(graph) == ["photodup.bench.a -> photodup.serving.b"]
