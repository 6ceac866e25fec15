"""The two stages of a distillation: their losses, their gradients, the switch between them."""

import pytest
import torch
from torch import Tensor

from saccade.convert.distil import DistillingStepper
from saccade.convert.student import block_inputs, build_student, student_config
from saccade.data.loader import Batch
from saccade.models import VisionTransformer
from saccade.train.distributed import Ranks
from tests.train.tiny_runs import tiny

SIDE = 8


def teacher_and_student(name="taylor", keep=()) -> tuple[VisionTransformer, VisionTransformer]:
    from saccade import create_model

    torch.manual_seed(0)
    sizes = {"img_size": SIDE, "patch_size": 2, "embed_dim": 24, "depth": 3, "num_heads": 2}
    teacher = create_model("vit_tiny_patch16_224", num_classes=4, **sizes).eval()
    with torch.no_grad():
        for block in teacher.blocks:
            block.attn.qkv.weight.mul_(25)
    config = student_config(teacher.config, name, {}, keep=keep)
    return teacher, build_student(teacher, config, images())


def images() -> Tensor:
    return torch.randn(6, 3, SIDE, SIDE, generator=torch.Generator().manual_seed(1))


def stepper(teacher, student, block_steps) -> DistillingStepper:
    made = DistillingStepper(
        student, tiny("train.ema_decay=null"), Ranks(torch.device("cpu")), teacher
    )
    made.block_steps = block_steps
    made._matches_blocks = block_steps > 0
    return made


def loss_of(made, x=None, valid=None) -> Tensor:
    x = images() if x is None else x
    valid = torch.ones(len(x), dtype=torch.bool) if valid is None else valid
    return made.objective(made.model, x, torch.zeros(len(x), dtype=torch.long), valid)[1]


@pytest.mark.parametrize("block_steps", [0, 10])
def test_a_copy_of_the_teacher_has_no_loss(block_steps):
    teacher, student = teacher_and_student("softmax")
    assert float(loss_of(stepper(teacher, student, block_steps))) < 1e-6


def test_block_loss_is_its_definition():
    teacher, student = teacher_and_student(keep=(1,))
    streams, expected = list(block_inputs(teacher, images())), 0.0
    for index in (0, 2):
        x, y = streams[index], streams[index + 1]
        error = (student.blocks[index](x, grid=(4, 4)) - y).square().mean(dim=(1, 2)).sum()
        expected += float(error / (y - x).square().mean())
    found = loss_of(stepper(teacher, student, 10))
    assert float(found) == pytest.approx(expected, rel=1e-4)


def test_blocks_learn_from_the_teachers_inputs_alone():
    """The gradient of a block does not depend on the other blocks of the student."""
    teacher, student = teacher_and_student()
    made = stepper(teacher, student, 10)

    def gradient() -> Tensor:
        student.zero_grad()
        loss_of(made).backward()
        grad = student.blocks[2].attn.qkv.weight.grad
        assert grad is not None
        return grad.clone()

    before = gradient()
    with torch.no_grad():
        student.blocks[0].mlp.fc1.weight.normal_()
    torch.testing.assert_close(gradient(), before, rtol=0, atol=0)
    assert student.head.weight.grad is None
    assert all(parameter.grad is None for parameter in teacher.parameters())


def test_logit_loss_is_the_divergence_and_trains_everything():
    teacher, student = teacher_and_student()
    made = stepper(teacher, student, 0)
    p, q = teacher(images()).softmax(1), student(images()).softmax(1)
    expected = float((p * (p / q).log()).sum())
    loss = loss_of(made)
    assert float(loss) == pytest.approx(expected, rel=1e-3)
    loss.backward()
    assert student.head.weight.grad is not None
    assert student.patch_embed.proj.weight.grad is not None


@pytest.mark.parametrize("block_steps", [0, 10])
def test_unreadable_images_do_not_count(block_steps):
    teacher, student = teacher_and_student()
    made = stepper(teacher, student, block_steps)
    valid = torch.tensor([True, True, True, True, False, False])
    wrong = images()
    wrong[4:] = 100.0
    found = loss_of(made, wrong, valid)
    alone = loss_of(made, images()[:4])
    assert float(found) == pytest.approx(float(alone), rel=1e-4)


def test_the_stage_follows_from_the_step():
    teacher, student = teacher_and_student()
    made = stepper(teacher, student, 2)
    seen: list[bool] = []
    objective = made.objective

    def watched(*args):
        seen.append(made._matches_blocks)
        return objective(*args)

    made.objective = watched  # type: ignore[method-assign]
    x = images()
    batch = Batch(
        x,
        torch.zeros(6, dtype=torch.long),
        index=torch.arange(6),
        valid=torch.ones(6, dtype=torch.bool),
        count=6,
    )
    for step in (0, 1, 2, 3, 1):
        made.run(batch, step, 1.0)
    assert seen == [True, True, False, False, True]


@pytest.mark.parametrize("block_steps", [0, 100])
def test_both_losses_fall(block_steps):
    teacher, student = teacher_and_student()
    made = stepper(teacher, student, block_steps)
    x = images()
    targets, valid = torch.zeros(6, dtype=torch.long), torch.ones(6, dtype=torch.bool)
    batch = Batch(x, targets, index=torch.arange(6), valid=valid, count=6)
    losses = [float(made.run(batch, step, 0.1)) for step in range(25)]
    assert losses[-1] < 0.6 * losses[0]
