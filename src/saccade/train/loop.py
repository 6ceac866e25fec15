"""The training loop: epochs of steps, validation, best weights, checkpoints, a test at the end.

The host waits for the device only at logged steps, at the end of an epoch and for a checkpoint.
"""

from __future__ import annotations

import math
import os
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, cast

import torch
from torch import nn

from saccade.config import Config
from saccade.data import Loader, Split, Splits, make_loader
from saccade.errors import ConfigError, TrainingError
from saccade.models import VisionTransformer, count_flops
from saccade.runs import Checkpoint, RunFolder
from saccade.train import checkpoint
from saccade.train.build import build_model, set_up_training
from saccade.train.checkpoint import Weights, snapshot, swapped_in
from saccade.train.distributed import Ranks
from saccade.train.evaluation import Evaluation, evaluate_fitting
from saccade.train.guard import outputs_error
from saccade.train.initialize import InitialWeights, Pretrained, fill_start
from saccade.train.optimizers import learning_rate_factor
from saccade.train.progress import SilentReporter
from saccade.train.run_summary import (
    holds_earlier_runs,
    last_val_accuracy,
    measured_speed,
    median_speed,
    peak_memory_mib,
    skipped_images,
    start_peak_memory,
)
from saccade.train.signals import StopRequest, stopped_by
from saccade.train.step import Stepper
from saccade.train.teacher import read_teacher
from saccade.train.trackers import Tracker

__all__ = ["EpochWatcher", "Trainer"]

EpochWatcher = Callable[[Mapping[str, Any]], None]

MIN_SCALE = 2.0**-16


class Trainer:
    """The training of one run.

    Attributes:
        trackers: Receive the metrics as well; empty until set.
    """

    def __init__(
        self,
        config: Config,
        splits: Splits,
        *,
        run: RunFolder,
        ranks: Ranks,
        reporter: SilentReporter,
        stop: StopRequest,
        on_epoch: EpochWatcher | None = None,
        initial: InitialWeights | Pretrained | None = None,
    ) -> None:
        self.config, self.splits, self.run, self.ranks = config, splits, run, ranks
        self.reporter, self.stop = reporter, stop
        self.trackers: Sequence[Tracker] = ()
        self.on_epoch = on_epoch
        self.train_loader = self._train_loader()
        self.val_loader = self._eval_loader(splits.val)
        torch.manual_seed(config.run.seed)
        network = build_model(config, splits.info)
        self.initial = fill_start(network, config, initial)
        network = network.to(ranks.device)
        set_up_training(network, config)
        self.attention = network.config.attention  # type: ignore[union-attr]
        self.flops = sum(count_flops(cast(VisionTransformer, network)).values())
        self.parameters = sum(p.numel() for p in network.parameters())
        self.stepper = self._make_stepper(network)
        self.at = checkpoint.Position()
        self.best: Weights | None = None
        self._clock = time.perf_counter()
        self._saved_step = -1

    def _make_stepper(self, network: nn.Module) -> Stepper:
        teacher = read_teacher(self.config, self.splits.info, self.ranks.device)
        return Stepper(network, self.config, self.ranks, teacher)

    def resume(self, saved: Checkpoint) -> None:
        """Restore the state saved in a checkpoint; the run folder is not changed."""
        state = self._state()
        checkpoint.restore(saved.path, state)
        self.at, self.best = state.position, state.best
        mine = (
            (self.at.loss_sum, self.at.correct, self.at.seen) if self.ranks.is_main else (0.0, 0, 0)
        )
        self.stepper.set_totals(*mine)
        self._saved_step = saved.step

    def rewind_metrics(self, saved: Checkpoint) -> None:
        """Drop the rows written after the checkpoint; report rows from before it that are lost."""
        written = self.at.metric_rows
        kept = self.run.rewind_metrics(written, saved)
        if kept < written:
            self.reporter.note(
                f"metrics.jsonl has only {kept} of {written} rows: continuing without the others"
            )
            self.at.metric_rows = kept

    def fit(self) -> dict[str, Any]:
        """Train to the end, test once, and return the summary."""
        epochs = self.config.train.epochs
        self.at.peak_memory_shared |= holds_earlier_runs(self.ranks.device)
        self.reporter.start(epochs * len(self.train_loader), self.at.step)
        while self.at.epoch < epochs and not self._out_of_patience():
            self.train_epoch()
            self._end_epoch()
        return self._finish()

    def write_status(self, state: str, message: str = "") -> None:
        """Write the state and position of the run to `status.json`."""
        if self.ranks.is_main:
            self.run.write("status.json", self.status(state, message))

    def status(self, state: str, message: str = "") -> dict[str, Any]:
        """The state and position of the run, as in `status.json`."""
        position = {"epoch": self.at.epoch, "step": self.at.step}
        here = {"pid": os.getpid(), "updated": time.time()}
        return {"state": state, **position, "message": message, **here}

    def train_epoch(self) -> None:
        """Take the remaining steps of the current epoch."""
        self.stepper.network.train()
        start_peak_memory(self.ranks.device)
        self._epoch_start = (time.perf_counter(), self.at.batch)
        self._interval_start = (time.perf_counter(), self.at.step)
        for batch in self.train_loader.epoch(self.at.epoch, start_batch=self.at.batch):
            loss = self.stepper.run(batch, self.at.step, self._factor())
            self.at.step += 1
            self.at.batch += 1
            self._after_step(loss)

    def dry_run(self) -> float:
        """Take the next step without counting it; return its loss."""
        self.stepper.network.train()
        batch = next(self.train_loader.epoch(self.at.epoch, start_batch=self.at.batch))
        return float(self.stepper.run(batch, self.at.step, self._factor()))

    def _after_step(self, loss: torch.Tensor) -> None:
        run = self.config.run
        is_logged = self.at.step % run.log_every_steps == 0
        if is_logged or self.stepper.sharded:
            self._stop_if_bad()
        if is_logged:
            self._log_step(float(loss))
        if self.at.batch == len(self.train_loader):
            return  # `_end_epoch` saves and stops
        due = run.checkpoint_every_steps and self.at.step % run.checkpoint_every_steps == 0
        signal = self._asked_to_stop(now=is_logged)
        if due or signal:
            self._save()
        if signal:
            self._leave(signal)

    def _end_epoch(self) -> None:
        self._stop_if_bad()
        seconds, images = self._since(self._epoch_start, self.at.batch)
        peaks = (self.at.peak_memory_mib, peak_memory_mib(self.ranks.device))
        self.at.peak_memory_mib = max((peak for peak in peaks if peak is not None), default=None)
        loss_sum, correct, seen = self.stepper.totals()
        lr = self.config.optim.lr * self._factor(self.at.step - 1)
        self.at.epoch, self.at.batch = self.at.epoch + 1, 0
        self.stepper.set_totals(0.0, 0, 0)
        validation = self._evaluate(self.val_loader, self._averaged())
        self._track_best(validation)
        row = self._write_row(
            kind="epoch",
            epoch=self.at.epoch,
            train_loss=loss_sum / max(1, seen),
            train_accuracy=correct / max(1, seen),
            val_loss=validation.loss if validation else None,
            val_accuracy=validation.accuracy if validation else None,
            lr=lr,
            **measured_speed(images, seconds),
        )
        self.write_status("running")
        if self.on_epoch is not None:
            self.on_epoch(row)
        signal = self._asked_to_stop(now=True)
        over = self.at.epoch == self.config.train.epochs or self._out_of_patience()
        if signal or over or self.at.epoch % self.config.run.checkpoint_every_epochs == 0:
            self._save()
        if signal:
            self._leave(signal)

    def _track_best(self, validation: Evaluation | None) -> None:
        """Keep the best weights (the later on a tie) and count the epochs without improvement."""
        if validation is None:
            return
        at, before = self.at, self.at.best_accuracy
        if before is None or validation.accuracy >= before:
            at.best_accuracy, at.best_epoch = validation.accuracy, at.epoch
            with swapped_in(self.stepper.network, self._averaged()):
                self.best = snapshot(self.stepper.network)
        if before is None or validation.accuracy > before:
            at.stale_epochs = at.plateau_epochs = 0
            return
        at.stale_epochs += 1
        at.plateau_epochs += 1
        if at.plateau_epochs >= self.config.optim.plateau_patience:
            at.plateau_epochs = 0
            at.reductions += 1

    def _finish(self) -> dict[str, Any]:
        loader = self._eval_loader(self.splits.test) if self.config.run.test else None
        last = self._evaluate(loader, self._averaged())
        best = self._evaluate(loader, self.best) if self.best is not None else None
        has_best = self.best is not None
        selected = "best" if has_best and self.config.train.evaluate_with == "best" else "last"
        test = best if selected == "best" else last
        if test is not None:
            counts = {"correct": test.correct, "count": test.count, "skipped": test.skipped}
            self._write_row(kind="test", accuracy=test.accuracy, loss=test.loss, **counts)
            if self.ranks.is_main:
                self.run.write_predictions(test.predictions)
        epochs = self.ranks.from_main(self.run.metrics("epoch"))
        self._tick()
        return {
            "test_accuracy": test.accuracy if test else None,
            "test_loss": test.loss if test else None,
            "test_count": test.count if test else 0,
            "test_skipped": test.skipped if test else 0,
            "selected": selected,
            "test_accuracy_best": best.accuracy if best else None,
            "test_accuracy_last": last.accuracy if last else None,
            "val_accuracy_best": self.at.best_accuracy,
            "val_accuracy_last": last_val_accuracy(epochs, self.at.epoch),
            "best_epoch": self.at.best_epoch if has_best else None,
            "epochs": self.at.epoch,
            "steps": self.at.step,
            "seconds": round(self.at.seconds, 2),
            **median_speed(epochs, self.train_loader.num_images),
            "peak_memory_mib": self.at.peak_memory_mib,
            "peak_memory_shared": self.at.peak_memory_shared,
            "parameters": self.parameters,
            "flops": self.flops,
            "model": self.config.model.name,
            "attention": self.attention,
            "dataset": self.splits.info.name,
            "seed": self.config.run.seed,
            "skipped_images": skipped_images(
                {"train": self.train_loader, "val": self.val_loader, "test": loader}, self.ranks
            ),
        }

    def _train_loader(self) -> Loader:
        train, world = self.config.train, self.ranks.world_size
        if train.batch_size % (world * train.accumulation):
            raise ConfigError(
                f"train.batch_size must be a multiple of {world} rank(s) x "
                f"train.accumulation={train.accumulation}, got {train.batch_size}"
            )
        full_batches = len(self.splits.train) >= train.batch_size
        return self._loader(self.splits.train, train.batch_size // world, full_batches)

    def _loader(self, split: Split, batch_size: int, drop_last: bool | None = None) -> Loader:
        """A loader of this process's share; it shuffles and augments if `drop_last` is given."""
        training = drop_last is not None
        return make_loader(
            split,
            self.splits.info,
            batch_size=batch_size,
            augment=self.config.augment if training else None,
            seed=self.config.run.seed,
            device=self.ranks.device,
            shuffle=training,
            drop_last=bool(drop_last),
            rank=self.ranks.rank,
            world_size=self.ranks.world_size,
            workers=self.config.data.workers,
            compiled=training and self.config.train.compile and self.ranks.device.type == "cuda",
            mixed_epochs=self._mixed_epochs() if training else None,
        )

    def _mixed_epochs(self) -> int | None:
        """The number of epochs with mixing; None if all have it."""
        unmixed, epochs = self.config.augment.unmixed_fraction, self.config.train.epochs
        return epochs - round(unmixed * epochs) if unmixed else None

    def _eval_loader(self, split: Split) -> Loader | None:
        batch_size = -(-self.config.train.eval_batch_size // self.ranks.world_size)
        return self._loader(split, batch_size) if len(split) else None

    def _averaged(self) -> Weights | None:
        return self.stepper.average.weights if self.stepper.average else None

    def _evaluate(self, loader: Loader | None, weights: Weights | None) -> Evaluation | None:
        if loader is None:
            return None
        network = self.stepper.network
        with swapped_in(network, weights):
            self.ranks.share_buffers(network)
            result = evaluate_fitting(
                network,
                loader,
                ranks=self.ranks,
                autocast=self.stepper.autocast,
                advice="train.eval_batch_size={}",
            )
            if not math.isfinite(result.loss):
                raise self._outputs_error(loader)
        return result

    def _outputs_error(self, loader: Loader) -> TrainingError:
        """The error of non-finite outputs; it names the layer unless weights are sharded."""
        network, autocast = self.stepper.network.eval(), self.stepper.autocast
        if self.config.train.compile:
            network.set_compiled(False)  # type: ignore[operator]
        images = (batch.images for batch in loader.epoch(0))
        with torch.autocast(self.ranks.device.type, autocast, enabled=autocast is not None):
            error = outputs_error(network, () if self.stepper.sharded else images)
        return TrainingError(f"{error}. Try a lower optim.lr")

    def _factor(self, step: int | None = None) -> float:
        return learning_rate_factor(
            self.config.optim,
            self.at.step if step is None else step,
            steps_per_epoch=len(self.train_loader),
            epochs=self.config.train.epochs,
            reductions=self.at.reductions,
        )

    def _out_of_patience(self) -> bool:
        patience = self.config.train.early_stopping_patience
        return patience is not None and self.at.stale_epochs >= patience

    def _asked_to_stop(self, *, now: bool) -> int:
        """The signal that asked to stop, or 0; several processes compare theirs only if `now`."""
        if self.ranks.world_size == 1:
            return self.stop.signal
        return self.ranks.highest(self.stop.signal)[0] if now else 0

    def _leave(self, signal: int) -> None:
        message = f"stopped at step {self.at.step} and saved; go on with --resume"
        raise stopped_by(signal, message)

    def _stop_if_bad(self) -> None:
        """Raise if a step since the last call was not finite; the weights kept their values."""
        scaler = self.stepper.scaler
        if scaler.is_enabled() and scaler.get_scale() < MIN_SCALE:
            raise TrainingError("fp16 overflows at every loss scale; use train.precision=bf16")
        bad = self.ranks.highest(self.stepper.guard.bad_step())[0]
        if bad < 0:
            return
        number = bad - (self.at.step - self.at.batch)
        batch = next(self.train_loader.epoch(self.at.epoch, start_batch=number))
        where = self.ranks.first(self.stepper.replay(batch, bad)) or "loss"
        newest = self.run.checkpoints()
        saved = f"newest checkpoint: {newest[-1].path.name}" if newest else "no checkpoint yet"
        raise TrainingError(
            f"step {bad + 1} (epoch {self.at.epoch + 1}) is not finite, first in the {where}; the "
            f"step was not taken ({saved}). Try a lower optim.lr, or optim.clip_norm"
        )

    def _log_step(self, loss: float) -> None:
        seconds, images = self._since(self._interval_start, self.at.step)
        self._interval_start = (time.perf_counter(), self.at.step)
        lr = self.config.optim.lr * self._factor(self.at.step - 1)
        speed = measured_speed(images, seconds)["img_per_s"]
        self._write_row(kind="step", epoch=self.at.epoch, loss=loss, lr=lr, img_per_s=speed)

    def _since(self, start: tuple[float, int], batches: int) -> tuple[float, int]:
        """Seconds and images since `start`, a pair of a time and a count of batches."""
        loader = self.train_loader
        images = (batches - start[1]) * loader.num_images // len(loader)
        return max(time.perf_counter() - start[0], 1e-9), images

    def _write_row(self, *, kind: str, **values: Any) -> Mapping[str, Any]:
        row: Mapping[str, Any] = {"step": self.at.step, "kind": kind, **values}
        self.at.metric_rows += 1
        self.reporter.row({**row, "noun": self.splits.info.noun})
        if self.ranks.is_main:
            self.run.append_metrics(row)
            for tracker in self.trackers:
                tracker.log(row)
        return row

    def _tick(self) -> None:
        now = time.perf_counter()
        self.at.seconds, self._clock = self.at.seconds + now - self._clock, now

    def _save(self) -> None:
        if self._saved_step == self.at.step and self.at.batch:
            return
        self._stop_if_bad()
        self._tick()
        self.at.loss_sum, self.at.correct, self.at.seen = self.stepper.totals()
        checkpoint.save(self.run, self._state(), self.ranks, keep=self.config.run.keep_last)
        self._saved_step = self.at.step

    def _state(self) -> checkpoint.TrainingState:
        stepper = self.stepper
        return checkpoint.TrainingState(
            model=stepper.network,
            optimizers=stepper.optimizers,
            position=self.at,
            average=self._averaged(),
            best=self.best,
            scaler=stepper.scaler,
        )
