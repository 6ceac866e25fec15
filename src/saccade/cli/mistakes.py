"""What the option parser refuses, in one line: the option, the value, and what is accepted."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import typer
from typer.core import TyperGroup

from saccade.errors import ConfigError, near_matches

__all__ = ["told_in_a_line"]

UsageError: Any = typer.BadParameter.__base__
"""Base of the parser's errors, which is click's or that of the copy of click in typer."""


@contextmanager
def told_in_a_line(group: TyperGroup, words: Sequence[str]) -> Iterator[None]:
    """Turn an error of the option parser, which fills four lines, into a `ConfigError`.

    Args:
        group: The command of commands.
        words: Those of the command line, after its name.
    """
    try:
        yield
    except UsageError as error:
        if type(error).__name__ == "NoArgsIsHelpError":  # it is the help itself
            raise
        if error.ctx is not None:
            path, command = error.ctx.command_path, error.ctx.command
        else:
            path, command = _find_command(group, words)
        raise ConfigError(f"{_complaint(error, command)} (see `{path} --help`)") from error


def _find_command(group: TyperGroup, words: Sequence[str]) -> tuple[str, Any]:
    """The command that the words name, and how it is called."""
    path = "saccade"
    command: Any = group
    for word in words:
        if not isinstance(command, TyperGroup) or word.startswith("-"):
            break
        path, command = f"{path} {word}", command.get_command(typer.Context(command), word)
    return path, command


def _complaint(error: Any, command: Any) -> str:
    """What is wrong; errors are known by name, since none of their classes is public."""
    param = getattr(error, "param", None)
    option = getattr(error, "option_name", None)
    if type(error).__name__ == "NoSuchOption":
        near = _near_options(str(option), command)
        hint = f": did you mean {' or '.join(map(repr, near))}?" if near else ""
        return f"unknown option {option!r}{hint}"
    if type(error).__name__ == "MissingParameter" and param is not None:
        return f"{_name(param)} is needed{_accepted(param)}"
    if param is not None:
        return f"{_name(param)}{_fault(error)}"
    told = error.format_message().rstrip(".")
    known = [own for own in getattr(command, "params", ()) if option in own.opts]
    wants = _accepted(known[0]) if known and "requires" in told else ""
    return f"{told[:1].lower()}{told[1:]}{wants}"


def _near_options(option: str, command: Any) -> list[str]:
    """The command's own options that look like one, dashes apart: those look alike in all."""
    options = [own for own in command.params if own.param_type_name == "option"]
    names = [name for own in options for name in (*own.opts, *own.secondary_opts)]
    known = {name.lstrip("-"): name for name in (*names, "--help")}
    return [known[name] for name in near_matches(option.lstrip("-"), known)]


def _name(param: Any) -> str:
    if param.param_type_name == "argument":
        return str(param.metavar or param.name).upper()
    return str(max(param.opts, key=len))


def _accepted(param: Any) -> str:
    """What the help says of a parameter, to go on a sentence with."""
    text = (param.help or "").rstrip(".")
    return f": {text[:1].lower()}{text[1:]}" if text else ""


def _fault(error: Any) -> str:
    """The value and what is wrong with it, where the parser's own error tells them apart."""
    details = getattr(error.__cause__, "errors", None)
    if details is None:
        return f": {error.message.rstrip('.')}"
    first = details()[0]
    wants = first["msg"].removeprefix("Input ").split(",")[0]
    return f" {first['input']!r}: {wants}"
