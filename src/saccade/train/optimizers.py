"""Optimizers by name, which parameters have weight decay, and schedules of the learning rate.

Every optimizer skips its update, on the device, while its `found_inf` tensor is 1. A non-finite
gradient therefore never reaches the weights, and the host does not wait for the device. AdamW, Adam
and SGD are torch's fused versions, which support this. Muon updates the hidden matrices of the
blocks, AdamW the rest. Lion is arXiv:2302.06675, algorithm 2.

Schedules are functions of the step, so that they have no state to save. `plateau` also depends on
how often validation stopped improving, which the trainer counts.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import SGD, Adam, AdamW, Optimizer

from saccade.config import OptimConfig
from saccade.train.muon import BatchedMuon, MaskedMuon

__all__ = [
    "Lion",
    "build_optimizers",
    "hidden_matrices",
    "learning_rate_factor",
    "make_capturable",
    "undecayed",
    "update_learning_rate",
]

Params = Iterable[Tensor] | Iterable[dict[str, Any]]


class Lion(Optimizer):
    """The Lion optimizer: sign of the interpolated momentum, with decoupled weight decay."""

    def __init__(
        self,
        params: Params,
        lr: float = 1e-4,
        betas: tuple[float, float] = (0.9, 0.99),
        weight_decay: float = 0.0,
    ) -> None:
        super().__init__(params, {"lr": lr, "betas": betas, "weight_decay": weight_decay})

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> float | None:  # type: ignore[override]
        """Update every parameter that has a gradient."""
        loss = None if closure is None else torch.enable_grad()(closure)()
        for group in self.param_groups:
            for p in group["params"]:
                if p.grad is not None:
                    self._update(p, p.grad, group)
        return loss

    def _update(self, p: Tensor, grad: Tensor, group: dict[str, Any]) -> None:
        if "momentum" not in self.state[p]:
            self.state[p]["momentum"] = torch.zeros_like(p)
        momentum = self.state[p]["momentum"]
        beta1, beta2 = group["betas"]
        update = momentum.lerp(grad, 1 - beta1).sign_().add_(p, alpha=group["weight_decay"])
        decayed = momentum.lerp(grad, 1 - beta2)
        if (found_inf := getattr(self, "found_inf", None)) is not None:
            update = torch.where(found_inf > 0, 0.0, update)
            decayed = torch.where(found_inf > 0, momentum, decayed)
        p.sub_(update * group["lr"])
        momentum.copy_(decayed)


def undecayed(model: nn.Module) -> set[str]:
    """Names of the parameters without weight decay: vectors, and those that the model lists."""
    listed: set[str] = getattr(model, "no_weight_decay", set)()
    return listed | {name for name, p in model.named_parameters() if p.ndim <= 1}


def hidden_matrices(model: nn.Module) -> set[str]:
    """Names of the 2-D weights inside the blocks, which Muon updates."""
    spared = undecayed(model)
    return {
        name
        for name, p in model.named_parameters()
        if p.ndim == 2 and name.startswith("blocks.") and name not in spared
    }


def build_optimizers(
    model: nn.Module, optim: OptimConfig, *, fused: bool = True
) -> list[Optimizer]:
    """The optimizers of the configuration: one, or Muon and AdamW.

    The names of the parameters of the unwrapped model decide the groups. `fused` uses one kernel
    for all weights; it must be False for sharded weights.
    """
    named = {name: p for name, p in model.named_parameters() if p.requires_grad}
    if optim.name != "muon":
        return [_build(optim.name, _groups(named, model, optim), optim, fused)]
    hidden = hidden_matrices(model)
    rest = {name: p for name, p in named.items() if name not in hidden}
    matrices = {name: p for name, p in named.items() if name in hidden}
    groups = [
        {
            "params": list(part.values()),
            "base_lr": optim.muon_lr * rate,
            "weight_decay": optim.weight_decay,
        }
        for rate, part in _layers(matrices, model, optim)
    ]
    kind = BatchedMuon if fused else MaskedMuon
    muon = kind(groups, lr=optim.muon_lr, momentum=optim.momentum, nesterov=optim.nesterov)
    return [muon, _build("adamw", _groups(rest, model, optim), optim, fused)]


def update_learning_rate(optimizers: Iterable[Optimizer], factor: float) -> None:
    """Set every group's learning rate to its base times `factor`, in place if it is a tensor."""
    for optimizer in optimizers:
        for group in optimizer.param_groups:
            if isinstance(group["lr"], Tensor):
                group["lr"].fill_(group["base_lr"] * factor)
            else:
                group["lr"] = group["base_lr"] * factor


def make_capturable(optimizers: Iterable[Optimizer], device: torch.device) -> None:
    """Keep values that change between steps in device tensors, for capture in a CUDA graph."""
    for optimizer in optimizers:
        for group in optimizer.param_groups:
            group["lr"] = torch.tensor(group["lr"], dtype=torch.float32, device=device)
            if "capturable" in group:
                group["capturable"] = True


def _groups(
    named: Mapping[str, Tensor], model: nn.Module, optim: OptimConfig
) -> list[dict[str, Any]]:
    """Parameter groups: by rate of the layer, with and without weight decay."""
    spared, found = undecayed(model), []
    for rate, part in _layers(named, model, optim):
        decayed = [p for name, p in part.items() if name not in spared]
        others = [p for name, p in part.items() if name in spared]
        found += [
            {"params": params, "weight_decay": decay, "base_lr": optim.lr * rate}
            for params, decay in ((decayed, optim.weight_decay), (others, 0.0))
            if params
        ]
    return found


def _layers(
    named: Mapping[str, Tensor], model: nn.Module, optim: OptimConfig
) -> Iterator[tuple[float, dict[str, Tensor]]]:
    """The factor of the learning rate of each layer, with its parameters."""
    if optim.layer_decay == 1:
        yield 1.0, dict(named)
        return
    blocks = max((layer_of(name, 0) for name, _ in model.named_parameters()), default=0)
    depth = blocks + 1
    layers: dict[int, dict[str, Tensor]] = {}
    for name, p in named.items():
        layer = layer_of(name, blocks)
        layers.setdefault(layer, {})[name] = p
    for layer, part in sorted(layers.items()):
        yield optim.layer_decay ** (depth - layer), part


def layer_of(name: str, blocks: int) -> int:
    """0 before the blocks, i + 1 in block i and `blocks` + 1 in the head.

    The final norm belongs to the last block, as in timm.
    """
    parts = name.split(".")
    if parts[0] == "blocks":
        return int(parts[1]) + 1
    return {"norm": blocks, "head": blocks + 1, "attn_pool": blocks + 1}.get(parts[0], 0)


def _build(name: str, groups: list[dict[str, Any]], optim: OptimConfig, fused: bool) -> Optimizer:
    if name == "lion":
        return Lion(groups, lr=optim.lr, betas=optim.betas)
    if name == "sgd":
        nesterov = optim.nesterov
        return SGD(groups, lr=optim.lr, momentum=optim.momentum, nesterov=nesterov, fused=fused)
    kind = AdamW if name == "adamw" else Adam
    return kind(groups, lr=optim.lr, betas=optim.betas, eps=optim.eps, fused=fused)


ONE_CYCLE_START = 1 / 25  # of the peak
ONE_CYCLE_RISE = 0.3  # of the run, if `warmup_epochs` is 0


def learning_rate_factor(
    optim: OptimConfig, step: int, *, steps_per_epoch: int, epochs: int, reductions: int = 0
) -> float:
    """The factor on the base learning rate at `step`."""
    total = steps_per_epoch * epochs
    warmup = optim.warmup_epochs * steps_per_epoch
    if optim.schedule == "one_cycle":
        return _one_cycle(step, warmup or ONE_CYCLE_RISE * total, total, optim.min_lr_ratio)
    if step < warmup:
        return (step + 1) / (warmup + 1)
    if optim.schedule == "cosine":
        done = (step - warmup) / max(1, total - warmup)
        return _anneal(1.0, optim.min_lr_ratio, done)
    if optim.schedule == "step":
        return float(optim.step_gamma ** (step // (optim.step_epochs * steps_per_epoch)))
    if optim.schedule == "plateau":
        return float(max(optim.plateau_factor**reductions, optim.min_lr_ratio))
    return 1.0


def _one_cycle(step: int, rise: float, total: int, last: float) -> float:
    if step < rise:
        return _anneal(ONE_CYCLE_START, 1.0, step / rise)
    return _anneal(1.0, last, (step - rise) / max(1.0, total - rise))


def _anneal(start: float, end: float, done: float) -> float:
    """Half a cosine wave from `start` at 0 to `end` at 1, and `end` after that."""
    return end + (start - end) * (1 + math.cos(math.pi * min(done, 1.0))) / 2
