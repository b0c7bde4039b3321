"""A notebook goes on where something was not measured: the cell says so, and so does every cell that builds on it.

A missing record is a result of its own: a link that could not be made, a server that was not there. So no notebook ends
because of one. `go_on_without_what_is_missing` lets each cell of a notebook run until it needs what is missing; the cell
then prints one sentence, and the names that it would have set hold a `Missing`, which says the same sentence wherever
it is used. Any other error is a mistake in a program and ends the notebook as ever.
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Callable, Iterator
from typing import Any, NoReturn

from photodup.errors import PhotodupError

_NAMED = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)
_INNER = (*_NAMED, ast.Lambda, ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp)
_THIS_RUN = "This run: not measured. "


class NotMeasured(PhotodupError):
    """Something is asked of a result that was not measured; the message says which and why."""


class Gap(dict):
    """The result of a point that failed or is missing; a number that it does not have raises `NotMeasured`."""

    def __missing__(self, name: str) -> NoReturn:
        raise NotMeasured(self.get("invalid_because") or f"{name} was not measured")


class Missing:
    """Stands for a value that could not be computed; to use it in any way raises `NotMeasured`."""

    def __init__(self, reason: str) -> None:
        object.__setattr__(self, "_reason", reason)

    def __repr__(self) -> str:
        return f"{_THIS_RUN}{object.__getattribute__(self, '_reason')}"

    def _use(self, *_: Any, **__: Any) -> NoReturn:
        raise NotMeasured(object.__getattribute__(self, "_reason"))

    def __getattr__(self, name: str) -> NoReturn:
        if name.startswith(("_repr_", "_ipython_", "__")):  # how IPython and copy ask what a value is
            raise AttributeError(name)
        self._use()


_USES = """array format iter len bool contains call getitem setitem add radd sub rsub mul rmul truediv rtruediv pow neg
    matmul rmatmul and rand or ror invert float int index eq ne lt le gt ge hash setattr"""
for _name in _USES.split():
    setattr(Missing, f"__{_name}__", Missing._use)


def need(found: bool, sentence: str) -> None:
    """Let the cell go on only if `found`; otherwise it prints `sentence`, and what builds on it does so too.

    The names that `found` was computed from are missing from then on, and all that the rest of the cell would have set.

    Raises:
        NotMeasured: not found.
    """
    if not found:
        raise NotMeasured(sentence)


def go_on_without_what_is_missing() -> None:
    """From the next cell on, let a notebook's cells say what they miss instead of ending it.

    Does nothing outside IPython, and nothing when it was called before.
    """
    shell = running_shell()
    if shell and not _cells_of(shell):
        cells = _Cells(shell.user_ns)
        shell.ast_transformers.append(cells)
        shell.user_ns |= {"_say_gap": cells.say, "_unless_gap": cells.value}


def end_notebook(reason: str) -> Any:
    """Let no further cell of this notebook do anything but say that this run was not measured.

    Returns:
        A `Missing` in place of the run; None outside IPython, where nothing can be ended.
    """
    shell = running_shell()
    for cells in _cells_of(shell) if shell else []:
        cells.has_ended = True
    return Missing(reason) if shell else None


def refuse_undeclared_parameters() -> None:
    """Check what papermill injected into this notebook: it only warns of a mistyped name, and runs the default.

    Raises:
        PhotodupError: a name that the notebook does not declare; names it and those that are declared.
    """
    shell = running_shell()
    sources = shell.user_ns.get("In", []) if shell else []
    injected = next((source for source in reversed(sources) if source.startswith("# Parameters\n")), "")
    given = {name for node in ast.parse(injected).body for name in _set_by(node)}
    declared = shell.user_ns.get("__annotations__", {}) if shell else {}
    if unknown := sorted(given - set(declared)):
        raise PhotodupError(
            f"This notebook has no parameter {', '.join(unknown)}: it declares {', '.join(declared)}."
        )


def running_shell() -> Any:
    """Return the IPython shell that runs this program, or None outside a notebook."""
    ipython = sys.modules.get("IPython")
    return ipython.get_ipython() if ipython else None


def _cells_of(shell: Any) -> list[_Cells]:
    return [each for each in shell.ast_transformers if isinstance(each, _Cells)]


class _Cells(ast.NodeTransformer):
    """Rewrites a cell so that `NotMeasured` in it is printed; its last expression is displayed as before."""

    def __init__(self, names: dict[str, Any]) -> None:
        self._names = names
        self._statements: list[ast.stmt] = []
        self._has_gap = False
        self.has_ended = False

    def visit_Module(self, module: ast.Module) -> ast.Module:
        if self.has_ended:
            module.body = ast.parse(f"print({_THIS_RUN.strip()!r})").body
        self._statements, self._has_gap = list(module.body), False
        if not module.body or any(isinstance(node, ast.Await) for node in ast.walk(module)):
            return module
        last = module.body[-1]
        body = module.body[:-1] if isinstance(last, ast.Expr) else module.body
        guarded: list[ast.stmt] = []
        if body:
            say: Any = ast.parse("try: pass\nexcept Exception:\n if not _say_gap(): raise").body[0]
            say.body = body
            guarded.append(ast.copy_location(say, body[0]))
        if isinstance(last, ast.Expr):
            shown: Any = ast.parse("_unless_gap(lambda: 0)").body[0]
            shown.value.args[0].body = last.value
            guarded.append(ast.copy_location(shown, last))
        module.body = guarded
        return ast.fix_missing_locations(module)

    def value(self, expression: Callable[[], Any]) -> Any:
        """Return the cell's last expression, or None where something is missing."""
        if self._has_gap:
            return None
        try:
            return expression()
        except Exception:
            if not self.say():
                raise
        return None

    def say(self) -> bool:
        """Print what is missing and return True; return False if the error being handled is another.

        The names that the rest of the cell would have set are missing from then on. A library may ask what a
        `Missing` is before it uses it and raise an error of its own: that is the same gap.
        """
        error = sys.exception()
        traceback = error.__traceback__ if error else None
        if traceback is None:
            return False
        while traceback.tb_next and traceback.tb_frame.f_globals is not self._names:
            traceback = traceback.tb_next
        after = [s for s in self._statements if (s.end_lineno or 0) >= traceback.tb_lineno]
        if not isinstance(error, NotMeasured):
            used = [self._names.get(node.id) for node in ast.walk(after[0]) if isinstance(node, ast.Name)]
            gap = next((value for value in used if isinstance(value, Missing)), None)
            if gap is None:
                return False
            error = NotMeasured(repr(gap).removeprefix(_THIS_RUN))
        missing = {name for statement in after for name in _set_by(statement)}
        if _is_need(after[0]):  # what it asked about was set above, in this cell
            asked = {node.id for node in ast.walk(after[0]) if isinstance(node, ast.Name)}
            missing |= asked & {name for statement in self._statements for name in _set_by(statement)}
        self._names |= {name: Missing(str(error)) for name in missing}
        self._has_gap = True
        if pyplot := sys.modules.get("matplotlib.pyplot"):
            pyplot.close("all")  # a figure drawn by half says nothing
        print(f"Not measured: {error}")
        return True


def _is_need(node: ast.stmt) -> bool:
    call = node.value if isinstance(node, ast.Expr) else None
    return isinstance(call, ast.Call) and isinstance(call.func, ast.Name) and call.func.id == need.__name__


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
