"""One optimiser step: forward and backward in pieces, judge, clip, move, average.

Nothing here waits for the device. Dropout and the like draw from a generator seeded by (seed, step,
rank), so a step can be played again and a resumed run draws what an uninterrupted one would have.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import reduce
from hashlib import blake2b

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils import clip_grads_with_norm_, get_total_norm

from saccade.config import Config
from saccade.data import Batch
from saccade.train.distributed import Ranks
from saccade.train.guard import FiniteGuard, first_bad_layer
from saccade.train.optimisers import build_optimisers, make_recordable, update_learning_rate
from saccade.train.recording import Recording
from saccade.train.weights import MovingAverage

__all__ = ["PRECISIONS", "Stepper", "masked_loss"]

PRECISIONS: dict[str, torch.dtype | None] = {
    "fp32": None,
    "bf16": torch.bfloat16,
    "fp16": torch.float16,
}


def masked_loss(logits: Tensor, targets: Tensor, valid: Tensor, smoothing: float) -> Tensor:
    """The sum of the cross entropies of the valid rows; targets are classes or distributions."""
    loss = F.cross_entropy(logits.float(), targets, reduction="none", label_smoothing=smoothing)
    return (loss * valid).sum()


class Stepper:
    """The network with all that moves it.

    Args:
        network: The bare model, on its device.
        config: Of the run.
        ranks: The processes that share the step.

    Attributes:
        model: The network as it is called in training: wrapped for the ranks.
        guard: Knows of non-finite steps.
        loss_sum: Sum of the losses since the totals were last set, on the device.
        counts: Right predictions and images since then, on the device.
    """

    def __init__(self, network: nn.Module, config: Config, ranks: Ranks) -> None:
        self.network, self.config, self.ranks = network, config, ranks
        self.autocast = PRECISIONS[config.train.precision]
        self.model = ranks.wrap(network, config.train.strategy)
        self.sharded = ranks.world_size > 1 and config.train.strategy == "fsdp"
        self.optimisers = build_optimisers(network, config.optim, fused=not self.sharded)
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
        self._take: Callable[[Batch], Tensor] = self._step
        if ranks.device.type == "cuda" and not self.sharded:
            make_recordable(self.optimisers, ranks.device)
        if self._is_recordable():
            self._take = Recording(self._step)

    def set_totals(self, loss_sum: float, correct: int, seen: int) -> None:
        """Set what this process has summed so far."""
        self.loss_sum.fill_(loss_sum)
        self.counts.copy_(torch.tensor([correct, seen]))

    def totals(self) -> tuple[float, int, int]:
        """Loss sum, right predictions and images over all processes. This waits for the device."""
        loss_sum = self.ranks.sum(self.loss_sum.clone())
        correct, seen = self.ranks.sum(self.counts.clone()).tolist()
        return float(loss_sum), correct, seen

    def run(self, batch: Batch, step: int, factor: float) -> Tensor:
        """Take step number `step` (0 is the first) at `factor` of the base learning rate.

        Returns:
            The loss, still on the device.
        """
        self._seed(step)
        update_learning_rate(self.optimisers, factor)
        self._number.fill_(step)
        if self.average is not None:
            self._share.fill_(self.average.share(step + 1))
        return self._take(batch)

    def _is_recordable(self) -> bool:
        train, ranks = self.config.train, self.ranks
        fit = train.precision != "fp16" and not train.grad_checkpointing
        return train.cuda_graph and fit and ranks.device.type == "cuda" and ranks.world_size == 1

    def _step(self, batch: Batch) -> Tensor:
        """All of a step that the device does; what changes it reads from tensors."""
        try:
            return self._move(batch)
        finally:  # also where a recording failed half way
            self._forget_gradients()

    def _move(self, batch: Batch) -> Tensor:
        loss = self._backward(self.model, batch)
        norm = self._gradient_norm()
        self.guard.watch(self._number, loss, norm)
        if self.sharded and self.guard.bad_step() >= 0:
            return loss
        if self.config.optim.clip_norm is not None:
            clip_grads_with_norm_(self._params, self.config.optim.clip_norm, norm)
        self._step_optimisers()
        self.scaler.update()
        if self.average is not None:
            self.average.update(self._share)
        return loss

    def _step_optimisers(self) -> None:
        """Move the weights; in a recording all optimisers at once, each with weights of its own."""
        if not self.scaler.is_enabled() and not self.sharded:
            for optimiser in self.optimisers:
                optimiser.found_inf = self.guard.found_inf  # type: ignore[attr-defined]
        if len(self.optimisers) == 1 or not self._is_being_recorded():
            for optimiser in self.optimisers:
                self.scaler.step(optimiser)
            return
        first, *others = self.optimisers
        main, side = torch.cuda.current_stream(), torch.cuda.Stream()  # type: ignore[no-untyped-call]
        side.wait_stream(main)
        with torch.cuda.stream(side):
            for optimiser in others:
                optimiser.step()
        first.step()
        main.wait_stream(side)

    def _is_being_recorded(self) -> bool:
        return isinstance(self._take, Recording) and torch.cuda.is_current_stream_capturing()

    def replay(self, batch: Batch, step: int) -> str | None:
        """Play a step again without taking it; say where it first was not finite."""
        self._seed(step)
        self._forget_gradients()
        if self.config.train.compile:
            self.network.set_compiled(False)  # type: ignore[operator]
        return first_bad_layer(self.network, lambda: self._backward(self.network, batch))

    def _seed(self, step: int) -> None:
        words = f"{self.config.run.seed}/{step}/{self.ranks.rank}".encode()
        torch.manual_seed(int.from_bytes(blake2b(words, digest_size=8).digest(), "big") >> 1)

    def _backward(self, model: nn.Module, batch: Batch) -> Tensor:
        """Gradients of the batch's mean loss, one piece of the batch after the other."""
        pieces = self.config.train.accumulation
        rows = batch.images, batch.targets, batch.valid
        chunks = list(zip(*(tensor.chunk(pieces) for tensor in rows), strict=True))
        losses: list[Tensor] = []
        for number, (images, targets, valid) in enumerate(chunks):
            with self.ranks.syncing(self.model, now=number == len(chunks) - 1):
                with torch.autocast(
                    self.ranks.device.type, self.autocast, enabled=self.autocast is not None
                ):
                    logits = model(images)  # (B, K)
                smoothing = self.config.train.label_smoothing
                part = masked_loss(logits, targets, valid, smoothing) / batch.count
                self.scaler.scale(part).backward()  # type: ignore[no-untyped-call]
            losses.append(part.detach())
            self._count(logits.detach(), targets, valid)
        loss = reduce(torch.add, losses)
        self.loss_sum.add_(loss, alpha=batch.count)
        return loss

    def _count(self, logits: Tensor, targets: Tensor, valid: Tensor) -> None:
        classes = targets if targets.ndim == 1 else targets.argmax(1)
        right = (logits.argmax(1) == classes) & valid
        self.counts += torch.stack([right, valid]).sum(1)

    def _gradient_norm(self) -> Tensor:
        """The norm of all gradients; always finite with fp16, whose scaler judges for itself."""
        for optimiser in self.optimisers:
            self.scaler.unscale_(optimiser)
        norm = get_total_norm([p.grad for p in self._params if p.grad is not None])
        norm = norm.full_tensor() if hasattr(norm, "full_tensor") else norm
        return torch.nan_to_num(norm) if self.scaler.is_enabled() else norm

    def _forget_gradients(self) -> None:
        for p in self._params:
            p.grad = None
