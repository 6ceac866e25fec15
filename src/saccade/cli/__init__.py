"""The `saccade` command. A sub-command's module is imported only when it runs.

Results go to stdout, logs and progress to stderr. A user error prints one line and sets the exit
code:

    1    any other error; --debug shows the traceback
    2    usage or configuration
    3    data
    4    training failed, export refused, out of memory, or disk full
    75   stopped by a signal; --resume continues
    130  Ctrl-C
    143, 129, 138   SIGTERM, SIGHUP, SIGUSR1 in a command without --resume
"""

from __future__ import annotations

import os
import sys
import traceback
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib import import_module
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from saccade.cli.interrupts import catch_interrupts, halting
from saccade.cli.terminal import open_closed_streams, write_any_name
from saccade.cli.usage_errors import usage_errors_in_one_line
from saccade.errors import (
    FullDiskError,
    SaccadeError,
    TrainingError,
    is_full_disk,
    is_out_of_memory,
    near_matches,
    shorten,
)
from saccade.io import escape_for_terminal
from saccade.train.progress import print_line
from saccade.train.signals import STOP_SIGNALS, kill_if_hung
from saccade.version import __version__

__all__ = ["main"]

COMMANDS = {
    "train": "Train a model and write a run folder.",
    "init": "Write a recipe for a folder of images.",
    "evaluate": "Measure a run's model on its validation or test set.",
    "predict": "Classify images with a run's model.",
    "explain": "Draw a run's attention maps and samples of its data.",
    "export": "Write a model as ONNX, pt2 or a folder for the Hub.",
    "compare": "Train several attentions under the same settings and compare them.",
    "tune": "Search a recipe's settings by validation accuracy.",
    "convert": "Convert a trained softmax ViT to another attention.",
    "list": "List models, attentions, datasets or recipes.",
    "report": "Write a report about finished runs.",
    "serve": "Open a page with attention maps and predictions of a model.",
    "bench": "Benchmark attentions and models against other libraries.",
    "analyze": "Find the number of tokens above which linear time is faster.",
    "data": "Fetch and check data sets.",
    "doctor": "Show versions, hardware, extras and caches.",
}
"""Sub-commands and their one-line help. Sub-command `x` is in module `saccade.cli.x`."""

MODULES = {"list": "list_names"}
"""Sub-commands whose module has another name."""

NESTED = {("compare", "status"): "compare_status"}
"""Sub-commands of a command that takes arguments itself, and their modules."""

MAX_MESSAGE = 4000
"""Characters of an error message; longer ones are shortened."""

RESUMABLE = {"train", "compare", "tune", "convert"}
"""Sub-commands with --resume. SIGTERM ends them with exit code 75."""


class _LazyGroup(TyperGroup):
    """A command group that imports a sub-command only to run it or to show its help."""

    def list_commands(self, ctx: Any) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        if cmd_name not in COMMANDS:
            near = near_matches(cmd_name, COMMANDS)
            hint = f" Did you mean {' or '.join(map(repr, near))}?" if near else ""
            ctx.fail(f"No such command {cmd_name!r}.{hint}")
        if not _is_on_command_line(cmd_name):
            return typer.main.get_command_from_info(
                typer.models.CommandInfo(cmd_name, callback=_placeholder, help=COMMANDS[cmd_name]),
                pretty_exceptions_short=False,
                rich_markup_mode=None,
            )
        module = import_module(f"saccade.cli.{module_of(sys.argv[sys.argv.index(cmd_name, 1) :])}")
        command = typer.main.get_command(module.app)
        command.name = cmd_name
        return command

    def make_context(self, *args: Any, **kwargs: Any) -> Any:
        with self._translate_errors():
            return super().make_context(*args, **kwargs)

    def invoke(self, ctx: Any) -> Any:
        with self._translate_errors():
            return super().invoke(ctx)

    @contextmanager
    def _translate_errors(self) -> Iterator[None]:
        """Turn typer's usage errors and KeyboardInterrupt into errors of saccade."""
        with (
            halting(resumable=_command() in RESUMABLE),
            usage_errors_in_one_line(self, sys.argv[1:]),
        ):
            yield


def _command() -> str:
    """The sub-command on the command line; empty if there is none."""
    return next((word for word in sys.argv[1:] if not word.startswith("-")), "")


def _is_on_command_line(name: str) -> bool:
    """True if the command line names this sub-command."""
    return name in sys.argv[1:]


def module_of(words: Sequence[str]) -> str:
    """The module of the command line that begins with these words."""
    nested = NESTED.get((words[0], words[1])) if len(words) > 1 else None
    return nested or MODULES.get(words[0], words[0])


def _placeholder() -> None:
    """Callback of a sub-command that is only listed in the help."""


app = typer.Typer(
    cls=_LazyGroup,
    no_args_is_help=True,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    add_completion=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _show_version(requested: bool) -> None:
    if requested:
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
    """Train, compare and explain vision transformers with exchangeable attention."""


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command line and exit with its code.

    Args:
        arguments: Command-line arguments without the program's name; default `sys.argv[1:]`.
    """
    open_closed_streams()
    write_any_name()
    kill_if_hung()
    words = list(sys.argv[1:] if arguments is None else arguments)
    debug = "--debug" in words
    sys.argv = [sys.argv[0], *(word for word in words if word != "--debug")]
    if _command() not in {"bench", "analyze"}:
        # Waiting OpenMP threads spin by default. If another process needs a core, training then
        # slows down twentyfold. torch reads this variable when it loads. Benchmarks keep the
        # default.
        os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    try:
        with catch_interrupts(STOP_SIGNALS, resumable=_command() in RESUMABLE):
            app(args=sys.argv[1:], prog_name="saccade")
    except SaccadeError as error:
        _print_error(error, f"{error}", debug=debug)
        sys.exit(error.exit_code)
    except OSError as error:
        name = f"{error.filename!r}" if error.filename is not None else "a file"
        _print_error(error, f"cannot read or write {name}: {error.strerror or error}", debug=debug)
        sys.exit(FullDiskError.exit_code if is_full_disk(error) else 1)
    except (SystemExit, KeyboardInterrupt, GeneratorExit):
        raise
    except BaseException as error:  # a panic in a compiled library is not an Exception
        message = f"{type(error).__name__}: {error}".splitlines()[0]
        if cause := _known_cause(error):
            _print_error(error, f"{cause}: {message}", debug=debug)
            sys.exit(TrainingError.exit_code)
        _print_error(error, f"unexpected {message} (--debug shows the traceback)", debug=debug)
        sys.exit(1)


def _known_cause(error: BaseException) -> str:
    """Describe an error caused by lack of memory or a lost worker process; else empty."""
    if is_out_of_memory(error):
        return "out of memory"
    if "torch" not in sys.modules:  # importing torch takes seconds
        return ""
    from saccade.data.decoding import is_lost_worker

    return "lost a process that reads images" if is_lost_worker(error) else ""


def _print_error(error: BaseException, message: str, *, debug: bool) -> None:
    if debug:
        traceback.print_exception(error)
    print_line(f"saccade: {escape_for_terminal(shorten(message, MAX_MESSAGE))}")
