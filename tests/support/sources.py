"""What the source of the program does, by function: for the tables that list each place with its reason."""

import ast
from collections.abc import Callable, Iterable
from pathlib import Path


def places(source: str, is_one: Callable[[ast.AST], bool]) -> set[str]:
    """Return the function (`Class.method`) around each node that is one."""
    found = set()

    def visit(node: ast.AST, inside: str) -> None:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            inside = f"{inside}.{node.name}".lstrip(".")
        if is_one(node):
            found.add(inside or "<module>")
        for child in ast.iter_child_nodes(node):
            visit(child, inside)

    visit(ast.parse(source), "")
    return found


def everywhere(root: Path, folders: Iterable[str], is_one: Callable[[ast.AST], bool]) -> set[str]:
    """Return `file:function` of each place in the Python files below these folders."""
    return {
        f"{path.relative_to(root)}:{function}"
        for folder in folders
        for path in sorted((root / folder).rglob("*.py"))
        for function in places(path.read_text(), is_one)
    }
