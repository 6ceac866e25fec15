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
    """Raise if the shapes, dtypes or devices of queries, keys and values do not match."""
    check_qk(q, k)
    check_values(v, k)
    if v.dtype != k.dtype:
        raise ConfigError(f"v must have the dtype of k, {k.dtype}, got {v.dtype}")


def check_qk(q: Tensor, k: Tensor, *, names: tuple[str, str] = ("q", "k")) -> None:
    """Raise if the shapes, dtypes or devices of queries and keys do not match."""
    for name, x in zip(names, (q, k), strict=True):
        _check_tensor(name, x)
    if q.shape[:2] != k.shape[:2] or q.shape[-1] != k.shape[-1]:
        raise ConfigError(
            f"{names[1]} must have the batch, heads and width of {names[0]}, {tuple(q.shape)}, got "
            f"{tuple(k.shape)}; only the number of tokens may differ"
        )
    if q.dtype != k.dtype or q.device != k.device:
        raise ConfigError(
            f"{names[1]} must have the dtype and device of {names[0]}, {q.dtype} on {q.device}, "
            f"got {k.dtype} on {k.device}"
        )


def check_values(v: Tensor, k: Tensor, *, keys_name: str = "k") -> None:
    """Raise if the values do not match the keys."""
    _check_tensor("v", v)
    if v.shape[:3] != k.shape[:3]:
        expected = f"({', '.join(map(str, k.shape[:3]))}, E)"
        raise ConfigError(
            f"v must have shape {expected} to match {keys_name}, got {tuple(v.shape)}"
        )
    if v.device != k.device:
        raise ConfigError(f"v must be on {k.device}, as {keys_name}, got {v.device}")


def _check_tensor(name: str, x: Tensor) -> None:
    if x.dim() != 4 or x.shape[3] == 0:
        raise ConfigError(
            f"{name} must have shape (B, H, N, D) with D at least 1, got {tuple(x.shape)}"
        )
    if x.dtype not in _DTYPES:
        accepted = ", ".join(str(dtype).removeprefix("torch.") for dtype in _DTYPES)
        raise ConfigError(f"{name} must have one of the dtypes {accepted}, got {x.dtype}")


def check_key_mask(key_mask: Tensor | None, k: Tensor) -> None:
    """Raise if a mask is not a boolean `(B, N)` on the keys' device."""
    if key_mask is None:
        return
    expected = (k.shape[0], k.shape[2])
    if key_mask.dtype != torch.bool or tuple(key_mask.shape) != expected:
        raise ConfigError(
            f"key_mask must be torch.bool of shape {expected}, True = attend, got {key_mask.dtype} "
            f"of shape {tuple(key_mask.shape)}"
        )
    if key_mask.device != k.device:
        raise ConfigError(f"key_mask must be on {k.device}, as the keys, got {key_mask.device}")


def check_backend(backend: Backend, available: tuple[Backend, ...]) -> None:
    """Raise if the function does not have the backend."""
    if backend not in available:
        raise ConfigError(f"backend must be one of {', '.join(available)}, got {backend!r}")


def resolve_scale(scale: float | None, head_dim: int) -> float:
    """The factor of the scores: as given, or 1/sqrt(D)."""
    return known_size(head_dim) ** -0.5 if scale is None else float(scale)


def known_size(size: int) -> int:
    """A size as a number; for `torch.jit.trace`, whose sizes are tensors, it becomes a constant."""
    return int(size) if is_traced() else size


def in_chunks(x: Tensor, size: int) -> Tensor:
    """Divide the tokens into chunks, padded with zeros: (..., N, D) -> (..., chunks, size, D).

    A graph that is exported for any number of tokens gets one or two more chunks, which stay empty:
    torch treats a count of one as a constant, and cannot prove that a reshape divides evenly.
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
    """True within `torch.jit.trace`."""
    return bool(torch.jit.is_tracing())  # type: ignore[attr-defined, no-untyped-call]


def compute_dtype(dtype: torch.dtype) -> torch.dtype:
    """The dtype of intermediate results: float64 for float64, else float32."""
    return torch.float64 if dtype == torch.float64 else torch.float32


def in_full_precision(function: Callable[P, T]) -> Callable[P, T]:
    """Decorate a function of tensors so that autocast does not lower its precision."""

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
    """True if a device has autocast; works in traced code, unlike the check of torch 2.11."""
    return torch.amp.is_autocast_available(kind)


def select_queries(q: Tensor, queries: Tensor | slice | None) -> Tensor:
    """The chosen rows of q; raises for an index out of range."""
    if queries is None:
        return q
    if isinstance(queries, slice):
        return q[:, :, queries]
    if queries.dim() != 1 or queries.dtype not in (torch.int32, torch.int64):
        raise ConfigError(
            "queries must be a slice or a 1-D integer tensor of token positions, got "
            f"{queries.dtype} of shape {tuple(queries.shape)}"
        )
    return q.index_select(2, queries)
