import math

import pytest
import torch
from torch.optim import lr_scheduler

from saccade.config import OptimConfig
from saccade.train.optimizers import learning_rate_factor

STEPS, EPOCHS = 7, 10
TOTAL = STEPS * EPOCHS


def factors(reductions: int = 0, **settings: object) -> list[float]:
    optim = OptimConfig.model_validate(settings)
    return [
        learning_rate_factor(
            optim, step, steps_per_epoch=STEPS, epochs=EPOCHS, reductions=reductions
        )
        for step in range(TOTAL)
    ]


def torch_factors(make: type, **settings: object) -> list[float]:
    optimizer = torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=1.0)
    scheduler = make(optimizer, **settings)
    out = []
    for _ in range(TOTAL):
        out.append(optimizer.param_groups[0]["lr"])
        optimizer.step()
        scheduler.step()
    return out


def test_cosine_equals_torchs() -> None:
    expected = torch_factors(lr_scheduler.CosineAnnealingLR, T_max=TOTAL, eta_min=0.1)
    assert factors(schedule="cosine", min_lr_ratio=0.1) == pytest.approx(expected)


def test_one_cycle_is_two_half_cosines() -> None:
    optim = OptimConfig(schedule="one_cycle")
    rise = 0.3 * TOTAL
    for step in range(TOTAL):
        if step < rise:
            expected = 0.04 + 0.96 * (1 - math.cos(math.pi * step / rise)) / 2
        else:
            expected = (1 + math.cos(math.pi * (step - rise) / (TOTAL - rise))) / 2
        got = learning_rate_factor(optim, step, steps_per_epoch=STEPS, epochs=EPOCHS)
        assert got == pytest.approx(expected)


def test_step_equals_torchs() -> None:
    expected = torch_factors(lr_scheduler.StepLR, step_size=3 * STEPS, gamma=0.2)
    assert factors(schedule="step", step_epochs=3, step_gamma=0.2) == pytest.approx(expected)


def test_warmup_rises_linearly_to_the_peak() -> None:
    values = factors(schedule="constant", warmup_epochs=2)
    assert values[: 2 * STEPS] == pytest.approx([(i + 1) / (2 * STEPS + 1) for i in range(14)])
    assert set(values[2 * STEPS :]) == {1.0}


def test_plateau_counts_reductions() -> None:
    assert set(factors(schedule="plateau", plateau_factor=0.5, reductions=3)) == {0.125}
    assert set(factors(schedule="plateau", plateau_factor=0.5, reductions=9, min_lr_ratio=0.1)) == {
        0.1
    }
