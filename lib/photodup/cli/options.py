"""Options that several commands share, in groups: a dataclass with one field an option."""

import functools
from collections.abc import Callable
from copy import copy
from dataclasses import fields, is_dataclass
from inspect import Parameter, Signature, signature
from typing import Annotated, Any, get_type_hints


def with_groups(command: Callable[..., None]) -> Callable[..., None]:
    """Let a command take dataclasses of options: typer sees one option a field, in one panel a dataclass."""
    hints = get_type_hints(command, include_extras=True)
    groups: dict[str, Any] = {name: hint for name, hint in hints.items() if is_dataclass(hint)}
    parameters = []
    for parameter in signature(command).parameters.values():
        group = groups.get(parameter.name)
        if group is None:
            annotation = hints[parameter.name]
            parameters.append(parameter.replace(kind=Parameter.KEYWORD_ONLY, annotation=annotation))
            continue
        for name, annotation in get_type_hints(group, include_extras=True).items():
            option = copy(annotation.__metadata__[0])
            option.rich_help_panel = group.__name__.removesuffix("Options")
            default, kind = getattr(group, name, Parameter.empty), Annotated[annotation.__origin__, option]
            parameters.append(Parameter(name, Parameter.KEYWORD_ONLY, default=default, annotation=kind))

    @functools.wraps(command)
    def with_options(**options: Any) -> None:
        for name, group in groups.items():
            options[name] = group(**{field.name: options.pop(field.name) for field in fields(group)})
        command(**options)

    with_options.__signature__ = Signature(parameters)  # type: ignore[attr-defined]
    with_options.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
    return with_options
