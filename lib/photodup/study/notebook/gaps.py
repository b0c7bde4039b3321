"""A notebook's cell that lacks a measurement prints one sentence, and the notebook goes on.

A missing record is a result of its own: a link that could not be made, a server that was not there. `NotMeasured` says
which. In a notebook the cell prints that sentence and sets no name; a later cell that uses one of its names prints it
too. Any other error ends the notebook as usual.
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator
from typing import Any, NoReturn

from photodup.core.errors import PhotodupError

_NAMED = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)
_INNER = (*_NAMED, ast.Lambda, ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp)


class NotMeasured(PhotodupError):
    """A result that is needed was not measured; the message says which and why."""


class Gap(dict):
    """The result of a point that failed or is missing; a number that it does not have raises `NotMeasured`."""

    def __missing__(self, name: str) -> NoReturn:
        raise NotMeasured(self.get("error") or f"{name} was not measured")


def need(is_there: bool, sentence: str) -> None:
    """Raise `NotMeasured` with a sentence, which ends the cell, unless what the cell needs is there."""
    if not is_there:
        raise NotMeasured(sentence)


def print_gaps() -> None:
    """From now on, let this notebook's cells print what they lack instead of ending it.

    Does nothing outside IPython, and nothing when it was called before.
    """
    shell = running_shell()
    if shell and not isinstance(shell.user_ns.get("_gaps"), _Gaps):
        shell.user_ns["_gaps"] = _Gaps(shell)


def refuse_undeclared_parameters() -> None:
    """Refuse parameters that this notebook does not declare; papermill only warns, and runs with the default.

    Raises:
        PhotodupError: a name that the notebook does not declare; names it and those that are declared.
    """
    shell = running_shell()
    sources = shell.user_ns.get("In", []) if shell else []
    injected = next((source for source in reversed(sources) if source.startswith("# Parameters\n")), "")
    names = {name for node in ast.parse(injected).body for name in _set_by(node)}
    declared = shell.user_ns.get("__annotations__", {}) if shell else {}
    if unknown := sorted(names - set(declared)):
        raise PhotodupError(
            f"This notebook has no parameter {', '.join(unknown)}: it declares {', '.join(declared)}."
        )


def running_shell() -> Any:
    """Return the IPython shell that runs this program, or None outside a notebook."""
    ipython = sys.modules.get("IPython")
    return ipython.get_ipython() if ipython else None


class _Gaps:
    """What the cells of one notebook lack: the sentence behind each name that a cell could not set."""

    def __init__(self, shell: Any) -> None:
        self._names, self._sentences = shell.user_ns, dict[str, str]()
        shell.set_custom_exc((NotMeasured, NameError), self._print)
        shell.events.register("post_run_cell", self._end_cell)

    def _sentence(self, error: BaseException | None) -> str:
        """Return what is missing; empty for an error that is a mistake in a program."""
        if isinstance(error, NotMeasured):
            return str(error)
        return self._sentences.get(error.name or "", "") if isinstance(error, NameError) else ""

    def _print(
        self, shell: Any, kind: type, error: BaseException, traceback: Any, tb_offset: Any = None
    ) -> None:
        if sentence := self._sentence(error):
            print(f"Not measured: {sentence}")
            if pyplot := sys.modules.get("matplotlib.pyplot"):
                pyplot.close("all")  # unfinished; a kernel shows it when the cell has ended
        else:
            shell.showtraceback((kind, error, traceback), tb_offset=tb_offset)

    def _end_cell(self, execution: Any) -> None:
        """Take away the names that a cell set before it ended with a gap, and let the kernel count it as executed."""
        if sentence := self._sentence(execution.error_in_exec):
            for name in _set_by(ast.parse(execution.info.transformed_cell)):
                self._sentences[name] = sentence
                self._names.pop(name, None)
            execution.error_in_exec = None


def _set_by(node: ast.AST) -> Iterator[str]:
    """Yield the names that a statement sets or changes in the notebook: not those inside functions."""
    if isinstance(node, _NAMED):
        yield node.name
    if isinstance(node, _INNER):
        return
    if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
        yield node.id
    if isinstance(node, (ast.Attribute, ast.Subscript)) and isinstance(node.ctx, ast.Store):
        base = node.value
        while isinstance(base, (ast.Attribute, ast.Subscript)):
            base = base.value
        if isinstance(base, ast.Name):
            yield base.id
    for child in ast.iter_child_nodes(node):
        yield from _set_by(child)
