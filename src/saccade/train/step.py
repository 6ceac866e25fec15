"""One optimizer step: forward and backward, finiteness check, clipping, update, weight average.

On a GPU the step is captured once as a CUDA graph and replayed for every batch.

Nothing here waits for the device. Dropout and stochastic depth draw from a generator seeded by
(seed, step, rank), so that a step can be repeated and a resumed run draws the same numbers.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from functools import reduce
from hashlib import blake2b

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils import clip_grads_with_norm_, get_total_norm

from saccade.config import Config
from saccade.data import Batch
from saccade.errors import is_out_of_memory
from saccade.train.checkpoint import MovingAverage
from saccade.train.distributed import Ranks
from saccade.train.guard import FiniteGuard, first_bad_layer
from saccade.train.optimizers import build_optimizers, make_capturable, update_learning_rate
from saccade.train.teacher import Teacher

__all__ = ["PRECISIONS", "CudaGraphStep", "Stepper", "masked_loss"]

PRECISIONS: dict[str, torch.dtype | None] = {
    "fp32": None,
    "bf16": torch.bfloat16,
    "fp16": torch.float16,
}


def masked_loss(logits: Tensor, targets: Tensor, valid: Tensor, smoothing: float) -> Tensor:
    """Sum of the cross entropies of the valid rows; targets are class indices or probabilities."""
    loss = F.cross_entropy(logits.float(), targets, reduction="none", label_smoothing=smoothing)
    return (loss * valid).sum()


class Stepper:
    """The network, its optimizers, loss scaler and weight average.

    Attributes:
        model: The network as it is called in training, wrapped for several processes.
        guard: Detects steps that are not finite.
        loss_sum: Sum of the losses since `set_totals`, on the device.
        counts: Correct predictions and images since then, on the device.
    """

    def __init__(
        self, network: nn.Module, config: Config, ranks: Ranks, teacher: Teacher | None = None
    ) -> None:
        self.network, self.config, self.ranks = network, config, ranks
        self._taught_by = teacher
        self.autocast = PRECISIONS[config.train.precision]
        self.model = ranks.wrap(network, config.train.strategy)
        self.sharded = ranks.world_size > 1 and config.train.strategy == "fsdp"
        self.optimizers = build_optimizers(network, config.optim, fused=not self.sharded)
        self.scaler = torch.amp.GradScaler(
            ranks.device.type, enabled=config.train.precision == "fp16"
        )
        decay = config.train.ema_decay
        self.average = MovingAverage(network, decay) if decay is not None else None
        self.guard = FiniteGuard(ranks.device)
        self._params = [p for p in network.parameters() if p.requires_grad]
        self.loss_sum = torch.zeros((), dtype=torch.float64, device=ranks.device)
        self.counts = torch.zeros(2, dtype=torch.int64, device=ranks.device)
        self._number = torch.zeros((), dtype=torch.int64, device=ranks.device)
        self._share = torch.zeros((), device=ranks.device)
        self._take: Callable[[Batch], Tensor]
        if ranks.device.type == "cuda" and not self.sharded:
            make_capturable(self.optimizers, ranks.device)
        self.renew_capture()

    def renew_capture(self) -> None:
        """Capture the following steps as a new CUDA graph, where steps are captured at all."""
        self._take = CudaGraphStep(self._step) if self._can_capture() else self._step

    def set_totals(self, loss_sum: float, correct: int, seen: int) -> None:
        """Set the sums of this process for the current epoch."""
        self.loss_sum.fill_(loss_sum)
        self.counts.copy_(torch.tensor([correct, seen]))

    def totals(self) -> tuple[float, int, int]:
        """Loss sum, correct predictions and images of all processes. This waits for the device."""
        loss_sum = self.ranks.sum(self.loss_sum.clone())
        correct, seen = self.ranks.sum(self.counts.clone()).tolist()
        return float(loss_sum), correct, seen

    def run(self, batch: Batch, step: int, factor: float) -> Tensor:
        """Take step number `step` (0 is the first) at `factor` of the base learning rate.

        The loss is still on the device.
        """
        self._seed(step)
        update_learning_rate(self.optimizers, factor)
        self._number.fill_(step)
        if self.average is not None:
            self._share.fill_(self.average.share(step + 1))
        return self._take(batch)

    def _can_capture(self) -> bool:
        train, ranks = self.config.train, self.ranks
        fit = train.precision != "fp16" and not train.grad_checkpointing
        return train.cuda_graph and fit and ranks.device.type == "cuda" and ranks.world_size == 1

    def _step(self, batch: Batch) -> Tensor:
        """The device's part of a step, which a CUDA graph can capture.

        Values that change from step to step are read from tensors.
        """
        try:
            return self._update(batch)
        finally:  # also after a failed capture
            self._forget_gradients()

    def _update(self, batch: Batch) -> Tensor:
        loss = self._backward(self.model, batch)
        norm = self._gradient_norm()
        self.guard.watch(self._number, loss, norm)
        if self.sharded and self.guard.bad_step() >= 0:
            return loss
        if self.config.optim.clip_norm is not None:
            clip_grads_with_norm_(self._params, self.config.optim.clip_norm, norm)
        self._step_optimizers()
        self.scaler.update()
        if self.average is not None:
            self.average.update(self._share)
        return loss

    def _step_optimizers(self) -> None:
        """Update the weights; in a CUDA graph the optimizers run in parallel streams."""
        if not self.scaler.is_enabled() and not self.sharded:
            for optimizer in self.optimizers:
                optimizer.found_inf = self.guard.found_inf  # type: ignore[attr-defined]
        if len(self.optimizers) == 1 or not self._is_capturing():
            for optimizer in self.optimizers:
                self.scaler.step(optimizer)
            return
        first, *others = self.optimizers
        main, side = torch.cuda.current_stream(), torch.cuda.Stream()  # type: ignore[no-untyped-call]
        side.wait_stream(main)
        with torch.cuda.stream(side):
            for optimizer in others:
                optimizer.step()
        first.step()
        main.wait_stream(side)

    def _is_capturing(self) -> bool:
        return isinstance(self._take, CudaGraphStep) and torch.cuda.is_current_stream_capturing()

    def replay(self, batch: Batch, step: int) -> str | None:
        """Repeat a step without an update; return where the first non-finite number appeared."""
        self._seed(step)
        self._forget_gradients()
        if self.config.train.compile:
            self.network.set_compiled(False)  # type: ignore[operator]
        return first_bad_layer(self.network, lambda: self._backward(self.network, batch))

    def _seed(self, step: int) -> None:
        words = f"{self.config.run.seed}/{step}/{self.ranks.rank}".encode()
        torch.manual_seed(int.from_bytes(blake2b(words, digest_size=8).digest(), "big") >> 1)

    def _backward(self, model: nn.Module, batch: Batch) -> Tensor:
        """Compute the gradients of the batch's mean loss, piece by piece; return the loss."""
        pieces = self.config.train.accumulation
        rows = batch.images, batch.targets, batch.valid
        chunks = list(zip(*(tensor.chunk(pieces) for tensor in rows), strict=True))
        losses: list[Tensor] = []
        for number, (images, targets, valid) in enumerate(chunks):
            with self.ranks.syncing(self.model, now=number == len(chunks) - 1):
                logits, total = self.objective(model, images, targets, valid)
                part = total / batch.count
                self.scaler.scale(part).backward()  # type: ignore[no-untyped-call]
            losses.append(part.detach())
            self._count(logits.detach(), targets, valid)
        loss = reduce(torch.add, losses)
        self.loss_sum.add_(loss, alpha=batch.count)
        return loss

    def objective(
        self, model: nn.Module, images: Tensor, targets: Tensor, valid: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Logits (B, K), and the sum of the losses of the valid rows."""
        teacher = self._taught_by
        with self.autocasting():
            wanted = teacher(images) if teacher is not None else None
            logits = model(images)
        loss = masked_loss(logits, targets, valid, self.config.train.label_smoothing)
        if teacher is None or wanted is None:
            return logits, loss
        return logits, teacher.loss(logits, wanted, valid, loss)

    def autocasting(self) -> torch.autocast:
        """The context of a forward pass in the precision of the run."""
        return torch.autocast(
            self.ranks.device.type, self.autocast, enabled=self.autocast is not None
        )

    def _count(self, logits: Tensor, targets: Tensor, valid: Tensor) -> None:
        classes = targets if targets.ndim == 1 else targets.argmax(1)
        right = (logits.argmax(1) == classes) & valid
        self.counts += torch.stack([right, valid]).sum(1)

    def _gradient_norm(self) -> Tensor:
        """The norm of all gradients; made finite with fp16, whose scaler does its own check."""
        for optimizer in self.optimizers:
            self.scaler.unscale_(optimizer)
        norm = get_total_norm([p.grad for p in self._params if p.grad is not None])
        norm = norm.full_tensor() if hasattr(norm, "full_tensor") else norm
        return torch.nan_to_num(norm) if self.scaler.is_enabled() else norm

    def _forget_gradients(self) -> None:
        for p in self._params:
            p.grad = None


WARM_UPS = 3


class CudaGraphStep:
    """A training step that is captured as a CUDA graph after a few batches of the same shape.

    A step of a small network has more than a thousand kernel launches, and the host takes longer to
    launch them than the device to run them. Replaying a graph is a single launch.

    The first steps run normally: they compile kernels and create the optimizer state, which cannot
    be captured. Batches of another shape, such as the last of an epoch, always run normally.

    Args:
        step: One step on the device, including random draws. It must not wait for the device.
            Between two calls, tensors that it reads besides the batch may only change in place.
    """

    def __init__(self, step: Callable[[Batch], Tensor]) -> None:
        self._step = step
        self._shape: object = None
        self._alike = 0
        self._graph: torch.cuda.CUDAGraph | None = None
        self._possible = True

    def __call__(self, batch: Batch) -> Tensor:
        """Take a step on this batch; return its loss, which the next call may overwrite."""
        shape = [(tensor.shape, tensor.dtype) for tensor in _tensors(batch)]
        if self._graph is None and self._possible:
            self._alike = self._alike + 1 if shape == self._shape else 1
            self._shape = shape
            if self._alike > WARM_UPS:
                self._capture(batch)
        if self._graph is None or shape != self._shape:
            return self._step(batch)
        for place, tensor in zip(_tensors(self._batch), _tensors(batch), strict=True):
            place.copy_(tensor)
        self._graph.replay()
        return self._loss

    def _capture(self, batch: Batch) -> None:
        """Capture a step without running it; warn if it cannot be captured."""
        images, targets, valid = (torch.empty_like(tensor) for tensor in _tensors(batch))
        self._batch = Batch(images, targets, index=batch.index, valid=valid, count=batch.count)
        torch.cuda.empty_cache()
        graph = torch.cuda.CUDAGraph()
        try:
            with torch.cuda.graph(graph, capture_error_mode="thread_local"):
                self._loss = self._step(self._batch)
        except RuntimeError as error:
            if is_out_of_memory(error):
                raise
            self._possible = False
            reason = str(error).splitlines()[0]
            warnings.warn(
                f"steps cannot be captured as a CUDA graph and may be slower: {reason}",
                RuntimeWarning,
                stacklevel=2,
            )
        else:
            self._graph = graph


def _tensors(batch: Batch) -> tuple[Tensor, Tensor, Tensor]:
    return batch.images, batch.targets, batch.valid
