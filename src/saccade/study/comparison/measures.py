"""What a trained variant costs and how near it is to softmax, measured one at a time, at the end.

While runs train side by side they disturb each other's times, so latency waits until all are done.

- Training speed, where runs trained side by side: images a second over some steps of training as
  the run took them, compiled and recorded alike. Where none did, the runs' own epochs tell it.
- Latency: median wall time of one forward pass in evaluation mode, the device waited for, for one
  image and for a batch as evaluation uses it. Both are timed in short windows in turn, so that a
  spell of a busy host is not the whole of one; the median of the windows counts. On a CPU it has
  as many threads as the run had.
- Memory: of training. On a GPU torch's peak over the run's epochs, evaluation left out; on a CPU
  the tensors that live at once in one training step, weights and optimiser included, as torch's
  profiler sees them.
- Approximation error: |core(q, k, v) - softmax(q, k, v)| / |softmax(q, k, v)|, mean over the
  layers, for the q, k, v that the trained model itself forms from held-out images. The softmax is
  that of the mechanism's own scores (`AttentionCore.softmax_counterpart`); attentions that do not
  set out to approximate softmax have none.

An attention none of whose runs has its weights any more is measured with new ones, which take as
long; only its approximation error is left out.
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
from saccade.layers import AttentionCore
from saccade.runs import RunFolder
from saccade.study.comparison.folder import ComparisonFolder
from saccade.study.comparison.work import tidy
from saccade.study.workers import leave_if_asked
from saccade.train import build_model, load_model
from saccade.train.build import set_up_training
from saccade.train.distributed import Ranks, connect
from saccade.train.machine import set_up_machine
from saccade.train.memory import MIB, is_out_of_memory
from saccade.train.run_data import load_run_data
from saccade.train.step import PRECISIONS, Stepper
from saccade.train.stops import StopRequest

__all__ = ["approximation_error", "measure", "measure_run"]

LATENCY_S, SPEED_S = 0.1, 1.0
LATENCY_WINDOWS = 5
BURST_STEPS, LEAST_BURSTS = 5, 3
MOST_CALLS, WARM_UPS = 50, 2
HELD_OUT_IMAGES = 64


def measure(folder: ComparisonFolder, stop: StopRequest) -> bool:
    """Measure every attention that was not measured yet and has a finished run.

    Returns:
        Whether it was left to us; False where another process is at it.
    """
    claim = folder.claims.take("measures")
    if claim is None:
        return False
    try:
        together = folder.trained_together()
        for attention in folder.plan.attentions:
            leave_if_asked(stop, "two measurements")
            known = folder.measures()
            before = known.get(attention, {})
            wanted = {"latency_ms", *(["img_per_s"] if together else [])}
            is_complete = wanted <= before.keys()
            if is_complete and before.get("trained", True):
                continue
            runs = [folder.run(job) for job in folder.finished() if job.attention == attention]
            trained = next((run for run in runs if run.newest_intact()[0]), None)
            if trained is not None or (runs and not is_complete):
                run = trained or runs[0]
                everything = [folder.run(job) for job in folder.finished()]
                found = measure_run(run, speed=together, runs=everything)
                folder.write("measures.json", {**known, attention: found})
                tidy(compiled=together and run.config().train.compile)
    finally:
        claim.give_back()
    return True


def measure_run(
    run: RunFolder, *, speed: bool = False, runs: Sequence[RunFolder] | None = None
) -> dict[str, Any]:
    """Latency, memory and approximation error of a finished run's model, as JSON values.

    Args:
        run: The run.
        speed: Whether to measure the speed of training as well.
        runs: Those that it is compared with, which it is timed with the same threads as; itself.
    """
    config = run.config()
    with set_up_machine(config), _threads_of([run] if runs is None else runs):
        return _measure_run(run, config, speed=speed)


@contextmanager
def _threads_of(runs: Iterable[RunFolder]) -> Iterator[None]:
    """As few CPU threads as any of the runs had, while a block lasts; no more than there are."""
    before = torch.get_num_threads()
    told = (run.environment().get("torch_threads", before) for run in runs)
    torch.set_num_threads(min(before, *told))
    try:
        yield
    finally:
        torch.set_num_threads(before)


def _measure_run(run: RunFolder, config: Config, *, speed: bool) -> dict[str, Any]:
    ranks = connect(config.train.device)
    splits = load_run_data(run)
    loader = _test_loader(splits, config.train.eval_batch_size, ranks.device)
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
        found["img_per_s"] = _training_speed(run, splits, ranks)
    if ranks.device.type == "cuda":
        return {**found, "peak_memory_mib": run.summary().get("peak_memory_mib")}
    return {**found, "peak_memory_mib": _step_memory_mib(run, splits, ranks)}


@torch.no_grad()
def approximation_error(model: nn.Module, images: Tensor) -> float | None:
    """How far the attention is from the softmax it approximates, mean over the layers.

    Args:
        model: In evaluation mode.
        images: Held-out ones; the model forms q, k and v from them.

    Returns:
        The relative error of the outputs; None where the attention approximates no softmax.
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


def _test_loader(splits: Splits, batch_size: int, device: torch.device) -> Loader:
    return make_loader(
        splits.test,
        splits.info,
        batch_size=min(batch_size, len(splits.test)),
        augment=None,
        seed=0,
        device=device,
        shuffle=False,
    )


@torch.no_grad()
def _latencies(
    model: nn.Module, images: Tensor, autocast: Callable[[], AbstractContextManager[None]]
) -> dict[str, Any]:
    """Wall times of a forward pass of one image and of all; None where they do not fit in memory.

    A spread is between the fastest and the slowest window.
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
    """Wall times of calls, the device waited for, after warm-ups; none where memory runs out."""

    def timed() -> float:
        start = time.perf_counter()
        call()
        if device.type == "cuda":
            torch.cuda.synchronize(device)
        return time.perf_counter() - start

    try:
        for _ in range(WARM_UPS):  # they compile and record
            timed()
        times = [timed()]
        while len(times) < least or (sum(times) < seconds and len(times) < MOST_CALLS):
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


def _training_speed(run: RunFolder, splits: Splits, ranks: Ranks) -> float | None:
    """Images a second over some bursts of training steps; nothing is learned.

    None where they do not fit in memory, beside what another process holds.
    """
    config = run.config()
    loader = _train_loader(config, splits, ranks.device)
    network = build_model(config, splits.info).to(ranks.device)
    set_up_training(network, config)
    stepper = Stepper(network, config, ranks)
    batches = enumerate(chain.from_iterable(map(loader.epoch, count())))

    def burst() -> None:
        for step, batch in islice(batches, BURST_STEPS):
            stepper.run(batch, step, 0.0)

    times = _times(burst, ranks.device, SPEED_S, least=LEAST_BURSTS)
    return round(BURST_STEPS * loader.batch_size * len(times) / sum(times), 1) if times else None


def _step_memory_mib(run: RunFolder, splits: Splits, ranks: Ranks) -> float:
    """What is allocated at most in a training step on the CPU, weights and optimiser included."""
    config = with_overrides(run.config(), ["train.compile=false"])  # compiling allocates too
    batch = next(_train_loader(config, splits, ranks.device).epoch(0))

    def take_two_steps() -> None:
        stepper = Stepper(build_model(config, splits.info), config, ranks)
        for step in range(2):  # the optimiser's state is there from the second on
            stepper.run(batch, step, 1.0)

    # What others free meanwhile counts as less: the higher of two is nearer.
    return round(max(_peak_bytes(take_two_steps) for _ in range(2)) / MIB, 2)


def _peak_bytes(call: Callable[[], object]) -> int:
    """The most that a call had allocated on the CPU at a time."""
    gc.collect()
    os.environ.setdefault("KINETO_LOG_LEVEL", "99")  # read at first use; it prints when it starts
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
