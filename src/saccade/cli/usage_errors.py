"""One-line messages for usage errors: the option, the value and what is accepted."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import typer
from typer.core import TyperGroup

from saccade.errors import ConfigError, near_matches

__all__ = ["usage_errors_in_one_line"]

UsageError: Any = typer.BadParameter.__base__
"""Base class of the parser's errors, from click or from typer's own copy of click."""


@contextmanager
def usage_errors_in_one_line(group: TyperGroup, words: Sequence[str]) -> Iterator[None]:
    """Turn a usage error of click, which prints four lines, into a `ConfigError` of one line."""
    try:
        yield
    except UsageError as error:
        if type(error).__name__ == "NoArgsIsHelpError":  # click prints the help for it
            raise
        if error.ctx is not None:
            path, command = error.ctx.command_path, error.ctx.command
        else:
            path, command = _find_command(group, words)
        raise ConfigError(f"{_message(error, command)} (see `{path} --help`)") from error


def _find_command(group: TyperGroup, words: Sequence[str]) -> tuple[str, Any]:
    """The full name of the command that the words name, and the command."""
    path = "saccade"
    command: Any = group
    for word in words:
        if not isinstance(command, TyperGroup) or word.startswith("-"):
            break
        path, command = f"{path} {word}", command.get_command(typer.Context(command), word)
    return path, command


def _message(error: Any, command: Any) -> str:
    """Describe the error. Compares class names, because click's error classes are not public."""
    param = getattr(error, "param", None)
    option = getattr(error, "option_name", None)
    if type(error).__name__ == "NoSuchOption":
        near = _near_keys(str(option), command) or _near_options(str(option), command)
        hint = f": did you mean {' or '.join(map(repr, near))}?" if near else ""
        return f"unknown option {option!r}{hint}"
    if type(error).__name__ == "MissingParameter" and param is not None:
        return f"{_name(param)} is needed{_accepted(param)}"
    if param is not None:
        return f"{_name(param)}{_fault(error)}"
    message = error.format_message().rstrip(".")
    known = [own for own in getattr(command, "params", ()) if option in own.opts]
    accepted = _accepted(known[0]) if known and "requires" in message else ""
    return f"{message[:1].lower()}{message[1:]}{accepted}"


def _near_options(option: str, command: Any) -> list[str]:
    """The command's options with a similar name; leading dashes are not compared."""
    options = [own for own in command.params if own.param_type_name == "option"]
    names = [name for own in options for name in (*own.opts, *own.secondary_opts)]
    known = {name.lstrip("-"): name for name in (*names, "--help")}
    return [known[name] for name in near_matches(option.lstrip("-"), known)]


def _near_keys(option: str, command: Any) -> list[str]:
    """Configuration keys with the option's name, if the command takes `section.key=value`."""
    if all(own.name != "overrides" for own in command.params):
        return []
    from saccade.config import keys_called

    return [f"{key}=VALUE" for key in keys_called(option.lstrip("-"))]


def _name(param: Any) -> str:
    if param.param_type_name == "argument":
        return str(param.metavar or param.name).upper()
    return str(max(param.opts, key=len))


def _accepted(param: Any) -> str:
    """The parameter's help as the end of a sentence; empty if it has no help."""
    text = (param.help or "").rstrip(".")
    return f": {text[:1].lower()}{text[1:]}" if text else ""


def _fault(error: Any) -> str:
    """The value and what is wrong with it, or only the latter if the parser joined them."""
    details = getattr(error.__cause__, "errors", None)
    if details is None:
        return f": {error.message.rstrip('.')}"
    first = details()[0]
    reason = first["msg"].removeprefix("Input ").split(",")[0]
    return f" {first['input']!r}: {reason}"
