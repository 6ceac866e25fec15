"""The processes of a run, one or many, behind one face.

`torchrun` or `accelerate launch` starts them; accelerate connects them (NCCL on GPUs, gloo on CPU)
and wraps the model for DDP. FSDP2 is torch's `fully_shard`, a block at a time. With one process
nothing is connected and every method is free.
"""

from __future__ import annotations

import atexit
import gc
import os
from contextlib import AbstractContextManager, nullcontext
from typing import Any, Literal

import torch
from torch import Tensor, nn

from saccade.errors import ConfigError

__all__ = ["Ranks", "connect", "full", "like"]


_LEFT: list[object] = []
"""Groups that were left. A wrapped model that outlives its group would otherwise own it alone, and
end it with the interpreter's lock held while a thread of the group waits for that lock: a deadlock.
"""


@atexit.register
def _forget() -> None:
    """End the groups while their threads can take that lock.

    Once the interpreter is being finalised, asking for it ends a thread and with it the process:
    one in six runs of two processes under load ended with SIGABRT after all was written.
    """
    gc.collect()  # models in cycles
    _LEFT.clear()


class Ranks:
    """This process among its peers.

    Args:
        device: Where this process computes.
        accelerator: accelerate's handle where there is more than one process.
    """

    def __init__(self, device: torch.device, accelerator: Any = None) -> None:
        self.device = device
        self._accelerator = accelerator
        self.rank: int = accelerator.process_index if accelerator else 0
        self.world_size: int = accelerator.num_processes if accelerator else 1

    @property
    def is_main(self) -> bool:
        """Whether this is the process that writes."""
        return self.rank == 0

    def wrap(self, model: nn.Module, strategy: Literal["ddp", "fsdp"]) -> nn.Module:
        """The model as it is to be called: itself, DDP around it, or sharded in place."""
        if self.world_size == 1:
            return model
        if strategy == "fsdp":
            return _shard(model, self.device, self.world_size)
        wrapped: nn.Module = self._accelerator.prepare_model(model)
        return wrapped

    def syncing(self, model: nn.Module, *, now: bool) -> AbstractContextManager[None]:
        """Exchange gradients in this backward pass, or hold them back for a later one."""
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
        if self.world_size == 1:
            return value
        values: list[Any] = [None] * self.world_size
        torch.distributed.all_gather_object(values, value)
        return next((v for v in values if v is not None), None)

    def from_main(self, value: Any) -> Any:
        """The main process's value."""
        if self.world_size == 1:
            return value
        box = [value]
        torch.distributed.broadcast_object_list(box, src=0)
        return box[0]

    def share_buffers(self, model: nn.Module) -> None:
        """Give every process the main one's buffers, such as running means."""
        if self.world_size > 1:
            for buffer in model.buffers():
                torch.distributed.broadcast(buffer, src=0)

    def close(self) -> None:
        """Take leave of the other processes."""
        if self.world_size > 1 and torch.distributed.is_initialized():
            _LEFT.append(torch.distributed.group.WORLD)
            torch.distributed.destroy_process_group()


def connect(device: Literal["auto", "cpu", "cuda"]) -> Ranks:
    """Join the other processes of the launch, if there are any, and pick the device."""
    if device == "cuda" and not torch.cuda.is_available():
        raise ConfigError("device='cuda': torch sees no CUDA device here; use cpu or auto")
    on_cpu = device == "cpu" or not torch.cuda.is_available()
    if int(os.environ.get("WORLD_SIZE", "1")) == 1:
        return Ranks(torch.device("cpu" if on_cpu else "cuda"))
    from accelerate import Accelerator

    accelerator = Accelerator(cpu=on_cpu)
    return Ranks(accelerator.device, accelerator)


def full(tensor: Tensor) -> Tensor:
    """A tensor's whole value in host memory; every process must ask when it is sharded."""
    whole = tensor.full_tensor() if hasattr(tensor, "full_tensor") else tensor
    return whole.detach().cpu().contiguous().clone()


def like(whole: Tensor, target: Tensor) -> Tensor:
    """A whole tensor moved, or sharded, as `target` is."""
    if not hasattr(target, "device_mesh"):
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
