"""The run folder before training: inspect it, lock it, create it or clean it up.

A resumed run starts here too: `inspect_folder` finds the checkpoint, `prepare_folder` drops what a
killed process left behind.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import Any

from saccade.config import Config, differences
from saccade.errors import ConfigError, DamagedRunError
from saccade.io import make_folder
from saccade.runs import NO_MANIFEST, Checkpoint, RunFolder
from saccade.train.initialize import InitialWeights, Pretrained, check_initial
from saccade.train.progress import SilentReporter

__all__ = ["Start", "inspect_folder", "prepare_folder", "report_finished"]

CHANGEABLE = {
    "data.root",
    "data.workers",
    "data.on_bad_image",
    "data.max_bad_images",
    "train.device",
    "train.strategy",
    "train.accumulation",
    "train.eval_batch_size",
    "train.compile",
    "train.cuda_graph",
    "train.grad_checkpointing",
    "run.checkpoint_every_steps",
    "run.checkpoint_every_epochs",
    "run.keep_last",
    "run.log_every_steps",
    "run.trackers",
}
"""Keys that may differ when a run is resumed: they change how the run computes, not its result.

The keys for bad images are included because the first bad image may only turn up in the final test.
"""

RESTORE_HINT = "restore the original files, or delete the folder to train the run again"


@dataclass
class Start:
    """The state of a run folder before training, as the main process found it.

    Attributes:
        checkpoint: The checkpoint to resume from; None to train from the first step.
        faults: Descriptions of newer checkpoints that are damaged.
        damage: Descriptions of damaged files of a finished run, which will be repaired.
        summary: The summary of a finished, undamaged run; empty otherwise.
        logged: Step and kind of the rows that trackers have already.
    """

    run: RunFolder
    checkpoint: Checkpoint | None = None
    faults: list[str] = field(default_factory=list)
    damage: list[str] = field(default_factory=list)
    summary: dict[str, Any] = field(default_factory=dict)
    logged: set[tuple[int, str]] = field(default_factory=set)

    @property
    def step(self) -> int:
        """The number of steps already done; 0 for a new run."""
        return self.checkpoint.step if self.checkpoint else 0


def inspect_folder(
    run: RunFolder,
    config: Config,
    initial: InitialWeights | Pretrained | None,
    *,
    resume: bool,
) -> Start:
    """Read the state of the run folder; nothing is written."""
    if not (resume and run.exists()):
        run.check_free()
        return Start(run)
    _check_same(run.config(), config)
    checkpoint, faults = run.newest_intact()
    if checkpoint is None or initial is not None:
        check_initial(run, initial)
    damage = run.damage()
    if run.is_finished() and not damage:
        return Start(run, checkpoint, faults, summary=run.summary())
    if damage and not run.is_mendable():
        why = "no checkpoint is left to repair it from" if checkpoint is None else RESTORE_HINT
        raise DamagedRunError(run.path, [*damage.values(), why])
    logged = {(row["step"], row["kind"]) for row in run.metrics()} if config.run.trackers else set()
    return Start(run, checkpoint, faults, list(damage.values()), logged=logged)


def _check_same(saved: Config, asked: Config) -> None:
    """Raise if the configuration differs from the one that the run was started with."""
    changes = differences(saved, asked, ignored=CHANGEABLE)
    if changes:
        raise ConfigError(
            f"--resume: these settings must be those of the run, got {', '.join(changes)}; change "
            "them back, or train a new run in another folder"
        )


def prepare_folder(
    run: RunFolder, config: Config, inspect: Callable[[], Start], held: ExitStack
) -> Start:
    """Lock the folder until `held` is closed; create it, or clean up after a killed process.

    Another process may have continued the run before the lock was taken, so the folder is inspected
    again.
    """
    make_folder(run.path)
    held.enter_context(run.locked())
    start = inspect()
    if not run.exists():
        RunFolder.create(run.path, config)
    elif not start.summary:
        run.reopen()
        run.note_data_root(config.data.root)
        run.clear_leftovers(newest=start.checkpoint.step if start.checkpoint else -1)
        if start.checkpoint is None:
            if start.faults:
                run.set_aside_metrics()
            else:
                run.rewind_metrics(0)
    return start


def report_finished(start: Start, reporter: SilentReporter) -> dict[str, Any]:
    """Report that the run is already finished; return its summary."""
    unchecked = "" if start.run.has_manifest() else f" ({NO_MANIFEST})"
    reporter.note(f"{str(start.run.path)!r} is finished already: nothing to do{unchecked}")
    return start.summary
