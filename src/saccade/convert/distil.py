"""Distill a softmax teacher into its student, in two stages of one run.

    blocks    sum over changed blocks of |student_i(x_i) - teacher_i(x_i)|^2 / var(branch_i),
              x_i the teacher's own inputs
    logits    KL(teacher || student) of the same augmented view

The first `block_share` of the steps match blocks: each student block gets the teacher's input, so
all blocks learn at the same time and errors do not accumulate. The remaining steps train the whole
student end to end.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from saccade.config import Config
from saccade.convert.student import block_inputs
from saccade.data import Splits
from saccade.errors import ConfigError
from saccade.models import VisionTransformer
from saccade.train.distributed import Ranks
from saccade.train.loop import Trainer
from saccade.train.step import Stepper

__all__ = ["BLOCK_SHARE", "CONVERSION", "DistillingTrainer"]

CONVERSION = "conversion.json"
BLOCK_SHARE = 0.4
"""Share of the steps that match blocks."""


class DistillingStepper(Stepper):
    """A `Stepper` whose loss compares the network with a teacher.

    Attributes:
        block_steps: Number of steps that match blocks; the later ones match logits.
    """

    def __init__(
        self, network: nn.Module, config: Config, ranks: Ranks, teacher: VisionTransformer
    ) -> None:
        assert isinstance(network, VisionTransformer)
        self.student, self.teacher = network, teacher.to(ranks.device).eval().requires_grad_(False)
        self.teacher.set_compiled(config.train.compile, evaluation=True)
        self.block_steps = 0
        self._matches_blocks = False
        kept = network.config.softmax_blocks
        self._changed = [i for i in range(len(network.blocks)) if i not in kept]
        super().__init__(network, config, ranks)

    def run(self, batch: Any, step: int, factor: float) -> Tensor:
        """As in `Stepper`; the stage follows from the step."""
        matches = step < self.block_steps
        if matches != self._matches_blocks:
            self._matches_blocks = matches
            self.renew_capture()  # a captured graph holds one stage
        return super().run(batch, step, factor)

    def objective(
        self, model: nn.Module, images: Tensor, targets: Tensor, valid: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Logits, and the sum of the losses of the stage over the valid rows."""
        del targets
        if self._matches_blocks:
            return self._match_blocks(images, valid)
        with self.autocasting():
            with torch.no_grad():
                wanted = self.teacher(images)
            logits = model(images)
        log_p, log_q = (x.float().log_softmax(dim=1) for x in (logits, wanted))
        loss = F.kl_div(log_p, log_q, reduction="none", log_target=True).sum(dim=1)
        return logits, (loss * valid).sum()

    def _match_blocks(self, images: Tensor, valid: Tensor) -> tuple[Tensor, Tensor]:
        grid = self.student.patch_embed.dynamic_feat_size((images.shape[2], images.shape[3]))
        losses = torch.zeros(len(images), device=images.device)
        compare = self.student.part(_relative_error)
        with self.autocasting():
            with torch.no_grad():
                streams = list(block_inputs(self.teacher, images))
            last = streams[-1]
            for index in self._changed:
                x, wanted = streams[index], streams[index + 1]
                found = self.student.run_block(self.student.blocks[index], x, grid=grid)
                losses = losses + compare(found, wanted, x, valid)
                last = found if index == len(streams) - 2 else last
            with torch.no_grad():
                logits = self.student.forward_head(self.student.norm(last))
        return logits, (losses * valid).sum()


def _relative_error(found: Tensor, wanted: Tensor, x: Tensor, valid: Tensor) -> Tensor:
    """Squared error of each image (B,), relative to the mean square of the teacher's branch."""
    error = (found.float() - wanted.float()).square().mean(dim=(1, 2))
    branch = (wanted.float() - x.float()).square().mean(dim=(1, 2))
    size = (branch * valid).sum() / valid.sum().clamp(min=1)
    return error / size.clamp(min=1e-12)


class DistillingTrainer(Trainer):
    """A `Trainer` of a student.

    Images are normalized as the teacher expects them.

    Args:
        config: The configuration of the run.
        splits: The data.
        teacher: The softmax model.
        block_share: Share of the steps that match blocks.
        record: Content of `conversion.json`, which is written when training starts.
        **others: The other arguments of `Trainer`.
    """

    stepper: DistillingStepper

    def __init__(
        self,
        config: Config,
        splits: Splits,
        *,
        teacher: VisionTransformer,
        block_share: float = BLOCK_SHARE,
        record: Mapping[str, Any] | None = None,
        **others: Any,
    ) -> None:
        self.teacher, self.record = teacher, record
        known = teacher.config
        splits = replace(splits, info=replace(splits.info, mean=known.mean, std=known.std))
        if (count := others["ranks"].world_size) > 1:
            raise ConfigError(f"a conversion must run in one process, got {count}")
        super().__init__(config, splits, **others)
        steps = config.train.epochs * len(self.train_loader)
        self.stepper.block_steps = round(block_share * steps)

    def fit(self) -> dict[str, Any]:
        """As in `Trainer`."""
        if self.record is not None and self.ranks.is_main:
            self.run.write(CONVERSION, self.record)
        return super().fit()

    def _make_stepper(self, network: nn.Module) -> Stepper:
        return DistillingStepper(network, self.config, self.ranks, self.teacher)
