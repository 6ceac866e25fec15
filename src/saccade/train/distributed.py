"""The processes of a run, one or many, with one interface.

`torchrun` or `accelerate launch` starts them; accelerate connects them (NCCL on GPUs, gloo on CPU)
and wraps the model for DDP. FSDP2 is torch's `fully_shard`, one block at a time. With one process
there is no process group and the methods cost nothing.
"""

from __future__ import annotations

import atexit
import gc
import os
import signal
from contextlib import AbstractContextManager, nullcontext
from typing import Any, Literal

import torch
from torch import Tensor, nn

from saccade.errors import ConfigError
from saccade.train.signals import end_with_parent

__all__ = ["Ranks", "connect", "full", "like"]


LAUNCHED = "TORCHELASTIC_RUN_ID"
"""Set by `torchrun` and `accelerate launch`, whose processes have the launcher as their parent."""

LAUNCHER_GONE_S = 60.0
"""Seconds that a process may take to save after its launcher has ended."""

_LEFT: list[object] = []
"""Destroyed process groups. Without this list a wrapped model could hold the last reference to its
group; freeing it would wait, with the GIL held, for a thread that waits for the GIL: a deadlock.
"""


_is_tied = [False]
"""True once this process is set to end with its launcher."""


@atexit.register
def _forget() -> None:
    """Free the groups while their threads can still take the GIL.

    During interpreter shutdown a thread that asks for the GIL is ended, and the process with it: it
    may exit with SIGABRT after everything was written.
    """
    gc.collect()  # models in reference cycles
    _LEFT.clear()


class Ranks:
    """This process and the others of the run.

    Args:
        device: The device of this process.
        accelerator: accelerate's `Accelerator`, if there is more than one process.
    """

    def __init__(self, device: torch.device, accelerator: Any = None) -> None:
        self.device = device
        self._accelerator = accelerator
        self.rank: int = accelerator.process_index if accelerator else 0
        self.world_size: int = accelerator.num_processes if accelerator else 1

    @property
    def is_main(self) -> bool:
        """True in the process that writes files."""
        return self.rank == 0

    def wrap(self, model: nn.Module, strategy: Literal["ddp", "fsdp"]) -> nn.Module:
        """The model to call: unchanged, wrapped by DDP, or sharded in place."""
        if self.world_size == 1:
            return model
        if strategy == "fsdp":
            return _shard(model, self.device, self.world_size)
        wrapped: nn.Module = self._accelerator.prepare_model(model)
        return wrapped

    def syncing(self, model: nn.Module, *, now: bool) -> AbstractContextManager[None]:
        """Context in which a backward pass exchanges gradients only if `now`."""
        if self.world_size == 1:
            return nullcontext()
        if set_sync := getattr(model, "set_requires_gradient_sync", None):
            set_sync(now)
            return nullcontext()
        return nullcontext() if now else model.no_sync()  # type: ignore[operator]

    def sum(self, tensor: Tensor) -> Tensor:
        """The sum of a tensor over all processes."""
        if self.world_size > 1:
            torch.distributed.all_reduce(tensor)
        return tensor

    def highest(self, *values: int) -> list[int]:
        """The largest of each value over all processes."""
        if self.world_size == 1:
            return list(values)
        tensor = torch.tensor(values, device=self.device)
        torch.distributed.all_reduce(tensor, torch.distributed.ReduceOp.MAX)
        return [int(v) for v in tensor.tolist()]

    def first(self, value: Any) -> Any:
        """The first value, in the order of ranks, that is not None."""
        return next((v for v in self.gather(value) if v is not None), None)

    def gather(self, value: Any) -> list[Any]:
        """The values of all processes, in the order of ranks."""
        values: list[Any] = [value] * self.world_size
        if self.world_size > 1:
            torch.distributed.all_gather_object(values, value)
        return values

    def from_main(self, value: Any) -> Any:
        """The main process's value."""
        if self.world_size == 1:
            return value
        box = [value]
        torch.distributed.broadcast_object_list(box, src=0)
        return box[0]

    def share_buffers(self, model: nn.Module) -> None:
        """Copy the buffers of the main process, such as running means, to all processes."""
        if self.world_size > 1:
            for buffer in model.buffers():
                torch.distributed.broadcast(buffer, src=0)

    def close(self) -> None:
        """Destroy the process group."""
        if self.world_size > 1 and torch.distributed.is_initialized():
            _LEFT.append(torch.distributed.group.WORLD)
            torch.distributed.destroy_process_group()


def connect(device: Literal["auto", "cpu", "cuda"]) -> Ranks:
    """Connect to the other processes of the launch, if there are any, and choose the device.

    If the launcher is killed, this process gets SIGTERM, and is killed if it does not end.
    """
    if device == "cuda" and not torch.cuda.is_available():
        raise ConfigError(
            "device must be 'cpu' or 'auto' here, got 'cuda': torch finds no CUDA device"
        )
    on_cpu = device == "cpu" or not torch.cuda.is_available()
    if int(os.environ.get("WORLD_SIZE", "1")) == 1:
        return Ranks(torch.device("cpu" if on_cpu else "cuda"))
    if LAUNCHED in os.environ and not _is_tied[0]:
        _is_tied[0] = True
        end_with_parent(os.getppid(), signal.SIGTERM, grace_s=LAUNCHER_GONE_S)
    from accelerate import Accelerator

    accelerator = Accelerator(cpu=on_cpu)
    return Ranks(accelerator.device, accelerator)


def full(tensor: Tensor) -> Tensor:
    """The unsharded tensor in host memory; every process must call it if the tensor is sharded."""
    whole = tensor.full_tensor() if hasattr(tensor, "full_tensor") else tensor
    return whole.detach().cpu().contiguous().clone()


def like(whole: Tensor, target: Tensor) -> Tensor:
    """The tensor on the device of `target`, and sharded like it unless it is sharded already."""
    if not hasattr(target, "device_mesh") or hasattr(whole, "device_mesh"):
        return whole.to(target.device)
    from torch.distributed.tensor import DTensor, distribute_tensor

    assert isinstance(target, DTensor)
    return distribute_tensor(whole.to(target.device), target.device_mesh, target.placements)


def _shard(model: nn.Module, device: torch.device, world_size: int) -> nn.Module:
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    mesh = init_device_mesh(device.type, (world_size,))
    blocks = getattr(model, "blocks", ())
    for block in blocks if isinstance(blocks, nn.ModuleList | nn.Sequential) else ():
        fully_shard(block, mesh=mesh)
    fully_shard(model, mesh=mesh)
    return model
