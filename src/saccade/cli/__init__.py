"""The `saccade` command: a table of sub-commands that are imported when they are asked for.

Results go to stdout, logs and progress to stderr. A user's mistake becomes one line and an exit
code: 2 usage or configuration, 3 data, 4 training failed, memory ran out or the disk is full, 75
preempted and resumable, 130 Ctrl-C, 143 SIGTERM to a command that cannot be resumed.
"""

from __future__ import annotations

import os
import signal
import sys
import traceback
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib import import_module
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from saccade.cli.interrupts import catch_interrupts, halting
from saccade.cli.mistakes import told_in_a_line
from saccade.cli.streams import open_closed_streams, write_any_name
from saccade.errors import (
    FullDiskError,
    SaccadeError,
    TrainingError,
    is_full_disk,
    near_matches,
)
from saccade.version import __version__

__all__ = ["main"]

COMMANDS = {
    "train": "Train a model and leave a run folder.",
    "evaluate": "Measure a run's model on its validation or test set.",
    "predict": "Classify images with a run's model.",
    "explain": "Show what a run's model looks at, and what its data looks like.",
    "compare": "Train several attentions alike and say which is better.",
    "tune": "Search a recipe's settings by validation accuracy.",
    "list": "List models, attentions, datasets or recipes.",
    "report": "Write a page about finished runs.",
    "bench": "Measure attention and models beside their peers.",
    "analyze": "Analyse TaylorShift: when it pays, and how near softmax it is.",
    "data": "Fetch and check data sets.",
    "doctor": "Show versions, hardware, extras and caches.",
}
"""Sub-commands and their one-line help; the code of `x` is in `saccade.cli.x`."""

MODULES = {"list": "list_names"}
"""Sub-commands whose module is called otherwise."""

RESUMABLE = {"train", "compare", "tune"}
"""Sub-commands with a --resume: SIGTERM ends them with the code for "start me again"."""


class _LazyGroup(TyperGroup):
    """A group that imports a sub-command only to run it or to show its help."""

    def list_commands(self, ctx: Any) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        if cmd_name not in COMMANDS:
            near = near_matches(cmd_name, COMMANDS)
            hint = f" Did you mean {' or '.join(map(repr, near))}?" if near else ""
            ctx.fail(f"No such command {cmd_name!r}.{hint}")
        if not _is_asked_for(cmd_name):
            return typer.main.get_command_from_info(
                typer.models.CommandInfo(cmd_name, callback=_nothing, help=COMMANDS[cmd_name]),
                pretty_exceptions_short=False,
                rich_markup_mode=None,
            )
        module = import_module(f"saccade.cli.{MODULES.get(cmd_name, cmd_name)}")
        command = typer.main.get_command(module.app)
        command.name = cmd_name
        return command

    def make_context(self, *args: Any, **kwargs: Any) -> Any:
        with self._told():
            return super().make_context(*args, **kwargs)

    def invoke(self, ctx: Any) -> Any:
        with self._told():
            return super().invoke(ctx)

    @contextmanager
    def _told(self) -> Iterator[None]:
        """Have what typer would tell in its own way told as an error of saccade."""
        with (
            halting(resumable=_command() in RESUMABLE),
            told_in_a_line(self, sys.argv[1:]),
        ):
            yield


def _command() -> str:
    """The sub-command that the command line names; empty where it names none."""
    return next((word for word in sys.argv[1:] if not word.startswith("-")), "")


def _is_asked_for(name: str) -> bool:
    """Whether the command line names the sub-command, rather than asking for the list of all."""
    return name in sys.argv[1:]


def _nothing() -> None:
    """Stand in for a command in the list of all."""


app = typer.Typer(
    cls=_LazyGroup,
    no_args_is_help=True,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    add_completion=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _show_version(asked: bool) -> None:
    if asked:
        typer.echo(__version__)
        raise typer.Exit


@app.callback()
def _root(
    debug: Annotated[bool, typer.Option("--debug", help="Show the traceback of an error.")] = False,
    version: Annotated[
        bool,
        typer.Option("--version", callback=_show_version, is_eager=True, help="Show the version."),
    ] = False,
) -> None:
    """Vision transformers whose attention can be swapped: train, compare, look inside, ship."""


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command line and exit with its code.

    Args:
        arguments: Words after the program's name; the process's own by default.
    """
    open_closed_streams()
    write_any_name()
    words = list(sys.argv[1:] if arguments is None else arguments)
    debug = "--debug" in words
    sys.argv = [sys.argv[0], *(word for word in words if word != "--debug")]
    if _command() not in {"bench", "analyze"}:
        # CPU threads that spin while they wait for each other make training twenty times slower as
        # soon as another process wants a core. Read when torch is loaded; timings leave it alone.
        os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    try:
        with catch_interrupts([signal.SIGINT, signal.SIGTERM], resumable=_command() in RESUMABLE):
            app(args=sys.argv[1:], prog_name="saccade")
    except SaccadeError as error:
        _complain(error, f"{error}", debug=debug)
        sys.exit(error.exit_code)
    except OSError as error:
        _complain(error, f"{error}", debug=debug)
        sys.exit(FullDiskError.exit_code if is_full_disk(error) else 1)
    except Exception as error:
        told = f"{type(error).__name__}: {error}".splitlines()[0]
        if what := _failure(error):
            _complain(error, f"{what}: {told}", debug=debug)
            sys.exit(TrainingError.exit_code)
        _complain(error, f"unexpected {told} (--debug shows where)", debug=debug)
        sys.exit(1)


def _failure(error: Exception) -> str:
    """What went wrong, where memory ran out or a process was lost and nobody else has told."""
    if "torch" not in sys.modules:  # which takes seconds to load
        return "out of memory" if isinstance(error, MemoryError) else ""
    from saccade.data.decoding import is_lost_worker
    from saccade.train.memory import is_out_of_memory

    if is_lost_worker(error):
        return "lost a process that reads images"
    return "out of memory" if is_out_of_memory(error) else ""


def _complain(error: Exception, message: str, *, debug: bool) -> None:
    if debug:
        traceback.print_exception(error)
    typer.echo(f"saccade: {message}", err=True)
