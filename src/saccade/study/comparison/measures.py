"""Measure cost and approximation error of the trained models, one attention at a time.

Measurements start after all runs have ended, because runs that train in parallel slow each other.

- Training speed, only if runs trained at the same time: images per second over a few training
  steps with the run's own settings, including compilation and CUDA graphs. Otherwise the speed
  comes from the runs' own epochs.
- Latency: median wall time of one forward pass in evaluation mode, including device
  synchronization, for one image and for an evaluation batch. The two are timed in alternating
  short windows, so that a brief load on the host affects only some windows. The median over the
  windows is reported. On a CPU the number of threads is that of the runs.
- Memory: peak during training. On a GPU, torch's peak over the run's epochs without evaluation. On
  a CPU, the peak of live tensors in one training step, including weights and optimizer state, as
  reported by torch's profiler.
- Approximation error: |core(q, k, v) - softmax(q, k, v)| / |softmax(q, k, v)|, averaged over the
  layers, with q, k and v from the trained model on held-out images. The softmax uses the
  mechanism's own scores (`AttentionCore.softmax_counterpart`). Attentions that do not approximate
  softmax have no error.

If no run of an attention still has its weights, a newly initialized model is measured instead. Its
cost is the same, and its approximation error is left out.
"""

from __future__ import annotations

import gc
import os
import statistics
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from itertools import chain, count, islice
from typing import Any

import torch
from torch import Tensor, nn

from saccade.config import Config, with_overrides
from saccade.data import Loader, Splits, make_loader
from saccade.errors import is_out_of_memory
from saccade.layers import AttentionCore
from saccade.runs import RunFolder
from saccade.study.comparison.folder import ComparisonFolder
from saccade.study.comparison.work import tidy
from saccade.study.workers import leave_if_asked
from saccade.train import build_model, load_model
from saccade.train.build import set_up_training
from saccade.train.distributed import Ranks, connect
from saccade.train.run_data import load_run_data
from saccade.train.run_summary import MIB
from saccade.train.signals import stop_signals
from saccade.train.step import PRECISIONS, Stepper
from saccade.train.torch_flags import set_up_machine

__all__ = [
    "MEASURES",
    "approximation_error",
    "is_measured",
    "measure",
    "measure_run",
    "training_speed",
]

MEASURES = "measures"
"""Name of the measurements, as a unit of work beside the runs."""

LATENCY_S, SPEED_S = 0.1, 1.0
LATENCY_WINDOWS = 5
BURST_STEPS, MIN_BURSTS = 5, 3
MAX_CALLS, WARM_UPS = 50, 2
HELD_OUT_IMAGES = 64


def measure(folder: ComparisonFolder) -> None:
    """Measure every set-up that has a finished run and was not measured yet."""
    together = folder.trained_together()
    with stop_signals() as stop:
        for setup in _setups(folder):
            leave_if_asked(stop, "two measurements")
            if (run := _run_to_measure(folder, setup, speed=together)) is not None:
                everything = [folder.run(job) for job in folder.finished()]
                found = measure_run(run, speed=together, runs=everything)
                folder.write("measures.json", {**folder.measures(), setup: found})
                tidy(compiled=together and run.config().train.compile)


def is_measured(folder: ComparisonFolder) -> bool:
    """True if `measure` has nothing to do."""
    speed = folder.trained_together()
    names = _setups(folder)
    return all(_run_to_measure(folder, name, speed=speed) is None for name in names)


def _setups(folder: ComparisonFolder) -> list[str]:
    """Names of the set-ups, in the order of the plan."""
    return list(dict.fromkeys(job.setup for job in folder.plan.jobs()))


def _run_to_measure(folder: ComparisonFolder, setup: str, *, speed: bool) -> RunFolder | None:
    """A finished run to measure, with its trained weights if possible; None if not needed."""
    before = folder.measures().get(setup, {})
    is_complete = {"latency_ms", *(["img_per_s"] if speed else [])} <= before.keys()
    if is_complete and before.get("trained", True):
        return None
    runs = [folder.run(job) for job in folder.finished() if job.setup == setup]
    trained = next((run for run in runs if run.newest_intact()[0]), None)
    return trained or (runs[0] if runs and not is_complete else None)


def measure_run(
    run: RunFolder, *, speed: bool = False, runs: Sequence[RunFolder] | None = None
) -> dict[str, Any]:
    """Latency, memory and approximation error of a finished run's model, as JSON values.

    With `speed` also its training speed. `runs`, by default the run alone, determine the number of
    CPU threads.
    """
    config = run.config()
    with set_up_machine(config), _threads_of([run] if runs is None else runs):
        return _measure_run(run, config, speed=speed)


@contextmanager
def _threads_of(runs: Iterable[RunFolder]) -> Iterator[None]:
    """Set the number of CPU threads to the smallest of the runs during the `with` block."""
    before = torch.get_num_threads()
    recorded = (run.environment().get("torch_threads", before) for run in runs)
    torch.set_num_threads(min(before, *recorded))
    try:
        yield
    finally:
        torch.set_num_threads(before)


def _measure_run(run: RunFolder, config: Config, *, speed: bool) -> dict[str, Any]:
    ranks = connect(config.train.device)
    splits = load_run_data(run, parts=("train", "test"))
    loader = make_loader(
        splits.test,
        splits.info,
        batch_size=min(config.train.eval_batch_size, len(splits.test)),
        augment=None,
        seed=0,
        device=ranks.device,
        shuffle=False,
    )
    images = next(loader.epoch(0)).images
    trained = run.newest_intact()[0] is not None
    model = load_model(run)[0] if trained else build_model(config, splits.info).eval()
    model = model.to(ranks.device)
    precision = PRECISIONS[config.train.precision]

    def autocast() -> AbstractContextManager[None]:
        return torch.autocast(ranks.device.type, precision, enabled=precision is not None)

    found = {
        **_latencies(model, images, autocast),
        "approximation_error": None,
        "trained": trained,
        "device": str(ranks.device),
        "threads": torch.get_num_threads(),
    }
    if trained:
        found["approximation_error"] = approximation_error(model, images[:HELD_OUT_IMAGES])
    if speed:
        found["img_per_s"] = training_speed(config, splits, ranks)
    if ranks.device.type == "cuda":
        return {**found, "peak_memory_mib": run.summary().get("peak_memory_mib")}
    return {**found, "peak_memory_mib": _step_memory_mib(run, splits, ranks)}


@torch.no_grad()
def approximation_error(model: nn.Module, images: Tensor) -> float | None:
    """Relative error of the attention to the softmax it approximates, averaged over layers.

    Returns:
        The relative error of the outputs; None if the attention does not approximate softmax.
    """
    errors: list[float] = []

    def compare(core: nn.Module, inputs: tuple[Tensor, ...], options: dict[str, Any]) -> None:
        assert isinstance(core, AttentionCore)
        q, k, v = (x.float() for x in inputs)
        mask = options.get("key_mask")
        exact = core.softmax_counterpart(q, k, v, key_mask=mask)
        if exact is not None:
            found = core.attend(q, k, v, key_mask=mask)
            errors.append(float((found - exact).norm() / exact.norm()))

    cores = [module for module in model.modules() if isinstance(module, AttentionCore)]
    hooks = [core.register_forward_pre_hook(compare, with_kwargs=True) for core in cores]
    try:
        model(images)
    finally:
        for hook in hooks:
            hook.remove()
    return statistics.fmean(errors) if errors else None


@torch.no_grad()
def _latencies(
    model: nn.Module, images: Tensor, autocast: Callable[[], AbstractContextManager[None]]
) -> dict[str, Any]:
    """Wall times of a forward pass of one image and of all; None if they do not fit in memory.

    The spread is the difference between the slowest and the fastest window.
    """

    def window(batch: Tensor) -> list[float]:
        def call() -> None:
            with autocast():
                model(batch)

        return _times(call, batch.device, LATENCY_S, least=1)

    batches = {"latency": images[:1], "latency_eval": images}
    rounds = [[window(batch) for batch in batches.values()] for _ in range(LATENCY_WINDOWS)]
    found: dict[str, Any] = {}
    for (name, batch), windows in zip(batches.items(), zip(*rounds, strict=True), strict=True):
        medians = [1e3 * statistics.median(times) for times in windows if times]
        found[f"{name}_ms"] = round(statistics.median(medians), 4) if medians else None
        found[f"{name}_spread_ms"] = round(max(medians) - min(medians), 4) if medians else None
        found[f"{name}_batch"] = len(batch)
    return found


def _times(
    call: Callable[[], None], device: torch.device, seconds: float, *, least: int
) -> list[float]:
    """Synchronized wall times of calls after warm-up; empty if memory runs out."""

    def timed() -> float:
        start = time.perf_counter()
        call()
        if device.type == "cuda":
            torch.cuda.synchronize(device)
        return time.perf_counter() - start

    try:
        for _ in range(WARM_UPS):  # compile and capture CUDA graphs
            timed()
        times = [timed()]
        while len(times) < least or (sum(times) < seconds and len(times) < MAX_CALLS):
            times.append(timed())
    except (RuntimeError, MemoryError) as error:
        if not is_out_of_memory(error):
            raise
        return []
    return times


def _train_loader(config: Config, splits: Splits, device: torch.device) -> Loader:
    return make_loader(
        splits.train,
        splits.info,
        batch_size=min(config.train.batch_size, len(splits.train)),
        augment=config.augment,
        seed=0,
        device=device,
        shuffle=True,
        drop_last=True,
        workers=config.data.workers,
    )


def training_speed(config: Config, splits: Splits, ranks: Ranks) -> float | None:
    """Images per second over bursts of training steps with learning rate 0.

    None if they do not fit in memory, for example because another process uses the device.
    """
    loader = _train_loader(config, splits, ranks.device)
    network = build_model(config, splits.info).to(ranks.device)
    set_up_training(network, config)
    stepper = Stepper(network, config, ranks)
    batches = enumerate(chain.from_iterable(map(loader.epoch, count())))

    def burst() -> None:
        for step, batch in islice(batches, BURST_STEPS):
            stepper.run(batch, step, 0.0)

    times = _times(burst, ranks.device, SPEED_S, least=MIN_BURSTS)
    return round(BURST_STEPS * loader.batch_size * len(times) / sum(times), 1) if times else None


def _step_memory_mib(run: RunFolder, splits: Splits, ranks: Ranks) -> float:
    """Peak CPU memory of a training step in MiB, including weights and optimizer state."""
    config = with_overrides(run.config(), ["train.compile=false"])  # compiling allocates too
    batch = next(_train_loader(config, splits, ranks.device).epoch(0))

    def take_two_steps() -> None:
        stepper = Stepper(build_model(config, splits.info), config, ranks)
        for step in range(2):  # the optimizer state exists from the second step on
            stepper.run(batch, step, 1.0)

    # Memory that other threads free meanwhile lowers the result: take the higher of two.
    return round(max(_peak_bytes(take_two_steps) for _ in range(2)) / MIB, 2)


def _peak_bytes(call: Callable[[], object]) -> int:
    """Peak number of bytes that a call had allocated on the CPU."""
    gc.collect()
    os.environ.setdefault("KINETO_LOG_LEVEL", "99")  # read at first use; silences startup messages
    from torch.profiler import ProfilerActivity, profile

    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiler:
        call()
    events = profiler.profiler.kineto_results.events()
    now = highest = 0
    for event in sorted(events, key=lambda event: event.start_ns()):
        if event.name() == "[memory]":
            now += event.nbytes()
            highest = max(highest, now)
    return highest
