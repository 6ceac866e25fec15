"""A comparison whose runs take half a second, and bodies of processes that work on it."""

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file
from torch import Tensor

from saccade.config import dump_config
from saccade.errors import SaccadeError
from saccade.layers import AttentionCore
from saccade.runs import RunFolder
from saccade.study import compare, make_plan
from saccade.study.comparison import ComparisonFolder, Plan
from saccade.study.comparison.work import work
from tests.train.tiny_runs import tiny

NAMES = ("softmax", "taylorshift", "performer")


def tiny_plan(folder: Path, *overrides: str, recipe: Sequence[str] = (), **options: Any) -> Plan:
    """A plan of the tiny recipe, two epochs of two hundred digits; `recipe` changes the file."""
    path = folder / "tiny.yaml"
    path.write_text(dump_config(tiny("train.epochs=2", "train.ema_decay=null", *recipe)))
    options = {"attentions": NAMES, "seeds": 2, **options}
    return make_plan(str(path), overrides, **options)


def compare_and_exit(plan: Plan, out: Path) -> None:
    """Body of a child process: start or resume a comparison."""
    sys.stderr = (out.parent / "stderr").open("a")
    try:
        compare(plan, out, resume=True)
    except SaccadeError as error:
        sys.exit(error.exit_code)


def work_and_exit(out: Path) -> None:
    """Body of a child process: a worker."""
    work(ComparisonFolder.open(out), since=0)


def end_states(out: Path) -> dict[str, dict[str, bytes]]:
    """Final weights and optimizer state of every run, as bytes."""
    folder = ComparisonFolder.open(out)
    states = {}
    for job in folder.plan.jobs():
        last = folder.run(job).checkpoints()[-1]
        assert last.fault() is None
        names = ("model", "best", "optimizer")
        states[job.name] = {n: (last.path / f"{n}.safetensors").read_bytes() for n in names}
    return states


def last_weights(run: RunFolder) -> dict[str, Tensor]:
    checkpoint, _ = run.newest_intact()
    assert checkpoint is not None
    return load_file(checkpoint.weights("last"))


class UniformCore(AttentionCore):
    """An attention that learns nothing: every token attends equally to all tokens."""

    def attend(self, q: Tensor, k: Tensor, v: Tensor, *, key_mask: Tensor | None) -> Tensor:
        return v.mean(dim=2, keepdim=True).expand(*q.shape[:3], v.shape[-1])

    def attention_weights(
        self,
        q: Tensor,
        k: Tensor,
        *,
        queries: Tensor | slice | None = None,
        key_mask: Tensor | None = None,
    ) -> Tensor:
        return torch.full((*q.shape[:3], k.shape[2]), 1 / k.shape[2])

    def flops(self, num_tokens: int) -> int:
        return 0
