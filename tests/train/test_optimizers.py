import pytest
import torch
from torch import nn

from saccade.config import OptimConfig
from saccade.models import create_model
from saccade.train.checkpoint import MovingAverage, snapshot, swapped_in
from saccade.train.optimizers import (
    Lion,
    build_optimizers,
    hidden_matrices,
    undecayed,
    update_learning_rate,
)

NAMES = ["adamw", "adam", "sgd", "lion", "muon"]


def small_model() -> nn.Module:
    torch.manual_seed(0)
    return create_model("vit_cifar", num_classes=10, img_size=8, embed_dim=16, depth=2, num_heads=2)


def test_lion_follows_the_paper() -> None:
    torch.manual_seed(0)
    p = torch.randn(5, dtype=torch.float64, requires_grad=True)
    expected, momentum = p.detach().clone(), torch.zeros(5, dtype=torch.float64)
    optimizer = Lion([p], lr=0.1, betas=(0.9, 0.99), weight_decay=0.2)
    for _ in range(4):
        g = torch.randn(5, dtype=torch.float64)
        p.grad = g.clone()
        optimizer.step()
        update = torch.sign(0.9 * momentum + 0.1 * g)
        expected = expected - 0.1 * (update + 0.2 * expected)
        momentum = 0.99 * momentum + 0.01 * g
        torch.testing.assert_close(p.detach(), expected)


def test_muon_updates_the_matrices_of_blocks_and_adamw_the_rest() -> None:
    model = small_model()
    names = {p: name for name, p in model.named_parameters()}
    muon, adamw = build_optimizers(model, OptimConfig(name="muon", lr=1e-3, muon_lr=0.05))
    moved = {names[p] for group in muon.param_groups for p in group["params"]}
    rest = {names[p] for group in adamw.param_groups for p in group["params"]}
    assert moved == hidden_matrices(model)
    assert "blocks.0.attn.qkv.weight" in moved
    assert "blocks.1.mlp.fc2.weight" in moved
    assert {"head.weight", "pos_embed", "cls_token", "norm.weight"} <= rest
    assert moved | rest == set(names.values())
    assert not moved & rest
    update_learning_rate([muon, adamw], 0.5)
    assert {g["lr"] for g in muon.param_groups} == {0.025}
    assert {g["lr"] for g in adamw.param_groups} == {5e-4}


def test_vectors_and_listed_parameters_have_no_weight_decay() -> None:
    model = small_model()
    (optimizer,) = build_optimizers(model, OptimConfig(weight_decay=0.3))
    names = {p: name for name, p in model.named_parameters()}
    decay = {names[p]: g["weight_decay"] for g in optimizer.param_groups for p in g["params"]}
    assert {name for name, value in decay.items() if value == 0} == undecayed(model)
    assert {"pos_embed", "cls_token", "head.bias"} <= undecayed(model)
    assert decay["head.weight"] == 0.3


def masked_step(name: str, found_inf: float, bad: bool) -> tuple[dict, dict]:
    """Weights before and after a second step whose gradient may be non-finite."""
    model = small_model()
    optimizers = build_optimizers(model, OptimConfig.model_validate({"name": name}))
    for turn in range(2):
        before = snapshot(model)
        for p in model.parameters():
            p.grad = torch.randn_like(p)
            if bad and turn:
                p.grad.view(-1)[0] = float("nan")
        for optimizer in optimizers:
            optimizer.found_inf = torch.tensor(found_inf * turn)
            optimizer.step()
    return before, snapshot(model)


@pytest.mark.parametrize("name", NAMES)
def test_non_finite_gradient_changes_no_weights(name: str) -> None:
    before, after = masked_step(name, found_inf=1.0, bad=True)
    for key, tensor in before.items():
        assert torch.equal(tensor, after[key]), key


@pytest.mark.parametrize("name", NAMES)
def test_finite_gradient_changes_all_weights(name: str) -> None:
    before, after = masked_step(name, found_inf=0.0, bad=False)
    for key, tensor in before.items():
        assert not torch.equal(tensor, after[key]), key


def test_unmasked_non_finite_gradient_changes_weights() -> None:
    _, after = masked_step("adamw", found_inf=0.0, bad=True)
    assert not all(tensor.isfinite().all() for tensor in after.values())


def test_moving_average_is_the_recurrence() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4)).double()
    average = MovingAverage(model, decay=0.5)
    expected = snapshot(model)
    for step in range(1, 20):
        for p in model.parameters():
            p.data.add_(torch.randn_like(p))
        model(torch.randn(8, 3, dtype=torch.float64))
        average.update(torch.tensor(average.share(step), dtype=torch.float64))
        decay = min(0.5, (1 + step) / (10 + step))
        for key, live in model.state_dict().items():
            kept = decay * expected[key] + (1 - decay) * live
            expected[key] = kept if live.is_floating_point() else live.clone()
    for key, tensor in expected.items():
        torch.testing.assert_close(average.weights[key], tensor)
    assert average.weights["1.num_batches_tracked"] == 19


def test_swapped_weights_come_back_after_an_error() -> None:
    model = nn.Linear(2, 2)
    before = snapshot(model)
    other = {name: tensor + 1 for name, tensor in before.items()}
    seen = []

    def look_and_fail() -> None:
        seen.append(model.weight.detach().clone())
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError), swapped_in(model, other):
        look_and_fail()
    assert torch.equal(seen[0], other["weight"])
    assert torch.equal(model.weight, before["weight"])


@pytest.mark.parametrize("name", ["adamw", "muon"])
def test_layer_decay_gives_the_rates_of_timm(name: str) -> None:
    from timm.optim import param_groups_layer_decay

    model = small_model()
    wanted = {
        id(p): group["lr_scale"]
        for group in param_groups_layer_decay(model, layer_decay=0.5)
        for p in group["params"]
    }
    optim = OptimConfig(name=name, lr=0.25, muon_lr=0.25, layer_decay=0.5)
    found = {
        id(p): group["base_lr"] / 0.25
        for optimizer in build_optimizers(model, optim)
        for group in optimizer.param_groups
        for p in group["params"]
    }
    assert found == pytest.approx(wanted)
    assert sorted(set(found.values())) == [0.125, 0.25, 0.5, 1.0]


@pytest.mark.parametrize("name", ["adamw", "muon"])
def test_equal_rates_keep_the_groups_of_older_runs(name: str) -> None:
    groups = [len(o.param_groups) for o in build_optimizers(small_model(), OptimConfig(name=name))]
    assert groups == ([2] if name == "adamw" else [1, 2])
