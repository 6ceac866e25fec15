"""The checks and conventions that all attention functions share.

Layout is `(B, H, N, D)`: batch, heads, tokens, head dim; values may have their own width E.
"""

import functools
from collections.abc import Callable
from typing import Literal, ParamSpec, TypeVar, cast

import torch
import torch.nn.functional as F
from torch import Tensor

from saccade.errors import ConfigError
from saccade.ops.compilation import constant_when_compiled

__all__ = [
    "Backend",
    "check_backend",
    "check_key_mask",
    "check_qk",
    "check_qkv",
    "check_values",
    "compute_dtype",
    "in_chunks",
    "in_full_precision",
    "is_traced",
    "known_size",
    "resolve_scale",
    "select_queries",
]

P = ParamSpec("P")
T = TypeVar("T")

Backend = Literal["auto", "torch", "triton"]

_DTYPES = (torch.float64, torch.float32, torch.bfloat16, torch.float16)


def check_qkv(q: Tensor, k: Tensor, v: Tensor) -> None:
    """Refuse queries, keys and values that do not fit each other."""
    check_qk(q, k)
    check_values(v, k)
    if v.dtype != k.dtype:
        raise ConfigError(f"k is {k.dtype} and v is {v.dtype}; one dtype is expected")


def check_qk(q: Tensor, k: Tensor, *, names: tuple[str, str] = ("q", "k")) -> None:
    """Refuse queries and keys that do not fit each other."""
    for name, x in zip(names, (q, k), strict=True):
        _check_tensor(name, x)
    if q.shape[:2] != k.shape[:2] or q.shape[-1] != k.shape[-1]:
        raise ConfigError(
            f"{names[0]} {tuple(q.shape)} and {names[1]} {tuple(k.shape)} differ in batch, heads "
            "or width; only the number of tokens may differ"
        )
    if q.dtype != k.dtype or q.device != k.device:
        raise ConfigError(
            f"{names[0]} is {q.dtype} on {q.device} and {names[1]} is {k.dtype} on {k.device}; "
            "one dtype and device are expected"
        )


def check_values(v: Tensor, k: Tensor, *, keys_name: str = "k") -> None:
    """Refuse values that do not go with the keys."""
    _check_tensor("v", v)
    if v.shape[:3] != k.shape[:3]:
        expected = f"({', '.join(map(str, k.shape[:3]))}, E)"
        raise ConfigError(f"v has shape {tuple(v.shape)}; expected {expected} to match {keys_name}")
    if v.device != k.device:
        raise ConfigError(f"v is on {v.device}; expected {k.device}, as {keys_name}")


def _check_tensor(name: str, x: Tensor) -> None:
    if x.dim() != 4 or x.shape[3] == 0:
        raise ConfigError(f"{name} has shape {tuple(x.shape)}; expected (B, H, N, D), D at least 1")
    if x.dtype not in _DTYPES:
        accepted = ", ".join(str(dtype).removeprefix("torch.") for dtype in _DTYPES)
        raise ConfigError(f"{name} has dtype {x.dtype}; accepted: {accepted}")


def check_key_mask(key_mask: Tensor | None, k: Tensor) -> None:
    """Refuse a mask that is not a boolean `(B, N)` on the keys' device."""
    if key_mask is None:
        return
    expected = (k.shape[0], k.shape[2])
    if key_mask.dtype != torch.bool or tuple(key_mask.shape) != expected:
        raise ConfigError(
            f"key_mask is {key_mask.dtype} of shape {tuple(key_mask.shape)}; "
            f"expected torch.bool of shape {expected}, True = attend"
        )
    if key_mask.device != k.device:
        raise ConfigError(f"key_mask is on {key_mask.device}; expected {k.device}, as the keys")


def check_backend(backend: Backend, available: tuple[Backend, ...]) -> None:
    """Refuse a backend that the function does not have."""
    if backend not in available:
        raise ConfigError(f"backend={backend!r} cannot run here; accepted: {', '.join(available)}")


def resolve_scale(scale: float | None, head_dim: int) -> float:
    """The factor of the scores: as given, or 1/sqrt(D)."""
    return known_size(head_dim) ** -0.5 if scale is None else float(scale)


def known_size(size: int) -> int:
    """A size as a number; `torch.jit.trace`, for which sizes are tensors, takes it as constant."""
    return int(size) if is_traced() else size


def in_chunks(x: Tensor, size: int) -> Tensor:
    """Cut the tokens into chunks, filled up with zeros: (..., N, D) -> (..., chunks, size, D).

    A graph that is exported for any number of tokens gets one or two more chunks, which stay empty:
    torch takes a count of one for a constant. It also cannot prove there that a reshape divides.
    """
    tokens = x.shape[-2]
    is_known = not isinstance(cast("object", tokens), torch.SymInt)
    if is_known:
        padded = F.pad(x, (0, 0, 0, -tokens % size))
        return padded.reshape(*x.shape[:-2], padded.shape[-2] // size, size, x.shape[-1])
    count = tokens // size + 2
    place = torch.arange(count, device=x.device)[:, None] * size
    place = place + torch.arange(size, device=x.device)
    return F.pad(x, (0, 0, 0, count * size - tokens))[..., place, :]


def is_traced() -> bool:
    """Whether `torch.jit.trace` records what is called now."""
    return bool(torch.jit.is_tracing())  # type: ignore[attr-defined, no-untyped-call]


def compute_dtype(dtype: torch.dtype) -> torch.dtype:
    """The dtype of everything between input and output: float64 stays, the rest is float32."""
    return torch.float64 if dtype == torch.float64 else torch.float32


def in_full_precision(function: Callable[P, T]) -> Callable[P, T]:
    """Decorate a function of tensors so that autocast does not lower what it computes."""

    @functools.wraps(function)
    def run(*args: P.args, **kwargs: P.kwargs) -> T:
        kind = next(x.device.type for x in args if isinstance(x, Tensor))
        if not (_has_autocast(kind) and torch.is_autocast_enabled(kind)):
            return function(*args, **kwargs)
        with torch.autocast(kind, enabled=False):
            return function(*args, **kwargs)

    return run


@constant_when_compiled
def _has_autocast(kind: str) -> bool:
    """Whether a device has autocast; asked while a graph is traced, which torch 2.11 cannot."""
    return torch.amp.is_autocast_available(kind)


def select_queries(q: Tensor, queries: Tensor | slice | None) -> Tensor:
    """The chosen rows of q; an index out of range raises."""
    if queries is None:
        return q
    if isinstance(queries, slice):
        return q[:, :, queries]
    if queries.dim() != 1 or queries.dtype not in (torch.int32, torch.int64):
        raise ConfigError(
            f"queries is {queries.dtype} of shape {tuple(queries.shape)}; "
            "expected a slice or a 1-D integer tensor of token positions"
        )
    return q.index_select(2, queries)
