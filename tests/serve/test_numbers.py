"""Every number of the API is that of the library for the same picture."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from fastapi.testclient import TestClient
from torch import Tensor

import saccade
from saccade.errors import ConfigError
from saccade.explain.maps import attention_maps
from saccade.explain.maps import rollout as roll_out
from saccade.layers import ATTENTIONS, list_attentions
from saccade.models import VisionTransformer
from saccade.ops.softmax.reference import softmax_weights_reference
from saccade.ops.taylor.reference import taylor_weights_reference
from saccade.serve import create_app, look
from saccade.serve.served import open_models
from saccade.serve.swaps import Swap, swapped
from saccade.serve.walk import walk
from saccade.train import load_model
from saccade.train.image_inputs import open_picture
from saccade.train.inference import Predictor

SENT = 10.0**-look.DIGITS
"""Numbers are rounded to this; batches of other sizes add float32 noise below 1e-5."""


def flat(rows: list[list[float]]) -> list[float]:
    return [value for row in rows for value in row]


def explain(client: TestClient, photo: bytes, **params: Any) -> dict[str, Any]:
    response = client.post("/api/explain", params=params, content=photo)
    assert response.status_code == 200, response.text
    found: dict[str, Any] = response.json()
    return found


def same_weights(run: Path, attention: str) -> VisionTransformer:
    """The run's weights in another model, by the public functions alone."""
    trained, info = load_model(run)
    config = trained.config
    other = saccade.create_model(
        trained.name,
        attention=attention,
        num_classes=info.num_classes,
        img_size=config.img_size,
        in_chans=1,
        embed_dim=config.embed_dim,
        depth=config.depth,
        num_heads=config.num_heads,
        mlp_hidden_dim=config.mlp_hidden_dim,
        patch_size=config.patch_size,
        feature_seed=config.feature_seed,
    )
    old, new = trained.state_dict(), other.state_dict()
    other.load_state_dict({name: old.get(name, new[name]) for name in new})
    return other.eval()


@pytest.fixture
def picture(photo: bytes, tmp_path: Path, runs: list[Path]) -> Tensor:
    """The photo as `saccade predict` reads it from a file, (1, 1, 8, 8)."""
    (tmp_path / "photo.png").write_bytes(photo)
    return open_picture(str(tmp_path / "photo.png"), Predictor(runs[0]).info)[None]


def test_predict_is_that_of_the_command(
    client: TestClient, photo: bytes, runs: list[Path], tmp_path: Path
) -> None:
    (tmp_path / "photo.png").write_bytes(photo)
    for run in runs:
        answer = client.post("/api/predict", params={"model": run.name}, content=photo).json()
        expected = Predictor(run).classes(tmp_path / "photo.png")
        assert [own["name"] for own in answer["classes"]] == [name for name, _ in expected]
        given = [own["probability"] for own in answer["classes"]]
        assert given == pytest.approx([p for _, p in expected], abs=1e-6)


SWAPPABLE = [name for name in list_attentions() if not ATTENTIONS[name].untrained]


@pytest.mark.parametrize("name", [name for name in list_attentions() if name not in SWAPPABLE])
def test_what_needs_training_is_not_swapped_in(client: TestClient, photo: bytes, name: str) -> None:
    found = {own["name"]: own for own in client.get("/api/models").json()["attentions"]}
    assert found[name]["untrained"] == ATTENTIONS[name].untrained
    response = client.post("/api/explain", params={"attention": name}, content=photo)
    assert response.status_code == 422
    assert f"got '{name}': {ATTENTIONS[name].untrained}" in response.text


@pytest.mark.parametrize("attention", SWAPPABLE)
def test_a_swap_is_the_model_with_the_same_weights(
    client: TestClient, photo: bytes, runs: list[Path], picture: Tensor, attention: str
) -> None:
    [panel] = explain(client, photo, attention=attention, layer=1, head=0)["panels"]
    model = same_weights(runs[0], attention)
    maps = attention_maps(model, picture, layers=[1], heads=[0])
    probability = maps.logits[0].softmax(0)
    names = model.config.class_names or [str(i) for i in range(10)]
    given = {own["name"]: own["probability"] for own in panel["classes"]}
    assert [given[name] for name in names] == pytest.approx(probability.tolist(), abs=2 * SENT)
    assert panel["reading"] == pytest.approx(maps.weights[0, 0, 0].tolist(), abs=2 * SENT)
    assert panel["rollout"] == pytest.approx(roll_out(model, picture)[0].tolist(), abs=2 * SENT)
    assert panel["lens"][-1] == pytest.approx(probability.tolist(), abs=2 * SENT)


def first_scores(model: VisionTransformer, picture: Tensor) -> tuple[Tensor, Tensor]:
    """q and k of the first block, in float64."""
    block = model.blocks[0]
    with torch.no_grad():
        q, k, _ = block.attn.heads(block.norm1(model.embed(picture)))
    return q.double(), k.double()


@pytest.mark.parametrize("temperature", [0.25, 1.0, 4.0])
def test_temperature_and_order_are_the_equations(
    client: TestClient, photo: bytes, runs: list[Path], picture: Tensor, temperature: float
) -> None:
    q, k = first_scores(same_weights(runs[0], "softmax"), picture)
    scale = q.shape[-1] ** -0.5 / temperature
    series = {"0": (0.0, 0.0, 1.0), "1": (0.0, 1.0, 1.0), "2": (0.5, 1.0, 1.0)}
    expected = {
        order: taylor_weights_reference(q, k, scale=scale, coefficients=series[order])
        for order in series
    } | {"exact": softmax_weights_reference(q, k, scale=scale)}
    for order, weights in expected.items():
        params = {"temperature": temperature, "order": order, "attention": "taylor"}
        for head in (None, 0, 1):
            chosen = {} if head is None else {"head": head}
            [panel] = explain(client, photo, layer=0, **params, **chosen)["panels"]
            rows = weights[0].mean(dim=0) if head is None else weights[0, head]
            torch.testing.assert_close(
                torch.tensor(panel["weights"], dtype=torch.float64), rows, atol=1e-6, rtol=1e-5
            )


def test_the_orders_differ_and_the_exact_one_is_softmax(client: TestClient, photo: bytes) -> None:
    def maps(order: str) -> list[Any]:
        found = explain(client, photo, order=order, temperature=0.1, layer=0, head=0)
        return [panel["weights"] for panel in found["panels"][:2]]

    softmax, exact = maps("exact")
    assert flat(softmax) == pytest.approx(flat(exact), abs=2 * SENT)
    assert all(maps(order)[1] != exact for order in ("0", "1", "2"))
    uniform = maps("0")[1][0]
    assert uniform == pytest.approx([1 / len(uniform)] * len(uniform), abs=SENT)


def test_order_one_says_how_much_is_negative(runs: list[Path], picture: Tensor) -> None:
    model, _ = load_model(runs[0])
    with torch.no_grad():
        model.blocks[0].attn.qkv.weight.mul_(30)  # scores far below -1, as in a sharp model
    swaps = [Swap("softmax"), Swap("taylor", 1.0, "1"), Swap("taylor", 1.0, "2")]
    panels = look.look([(s, swapped(model, s)) for s in swaps], picture, look.Focus(0, 0))
    assert panels[1].negative == float((panels[1].weights < 0).double().mean())
    assert panels[1].negative > 0
    assert panels[0].negative == panels[2].negative == 0


@pytest.mark.parametrize("order", ["0", "1", "2", "exact"])
def test_orders_of_taylorshift_use_its_own_scores(
    client: TestClient, photo: bytes, runs: list[Path], picture: Tensor, order: str
) -> None:
    """Unit q and k, and the learned temperature; here |s| < 1, so that no weight is negative."""
    params = {"model": "second", "attention": "taylorshift", "temperature": 2.0, "order": order}
    [panel] = explain(client, photo, layer=0, head=1, **params)["panels"]
    model, _ = load_model(runs[1])
    q, k = (x / x.norm(dim=-1, keepdim=True) for x in first_scores(model, picture))
    scores = model.blocks[0].attn.core.temperature.double() * (q @ k.mT) / 2.0
    powers = {"0": 1 + 0 * scores, "1": 1 + scores, "2": 1 + scores + scores**2 / 2}
    weights = {**powers, "exact": scores.exp()}[order]
    expected = (weights / weights.sum(dim=-1, keepdim=True))[0, 1]
    given = torch.tensor(panel["weights"], dtype=torch.float64)
    torch.testing.assert_close(given, expected.detach(), atol=1e-6, rtol=1e-5)


def test_order_two_of_taylorshift_is_the_trained_model(
    client: TestClient, photo: bytes, runs: list[Path], picture: Tensor
) -> None:
    [plain] = explain(client, photo, model="second", attention="taylorshift")["panels"]
    [two] = explain(client, photo, model="second", attention="taylorshift", order="2")["panels"]
    for own, other in zip(plain["classes"], two["classes"], strict=True):
        assert own["probability"] == pytest.approx(other["probability"], abs=1e-6)


def test_variation_is_half_the_distance_of_rows(
    client: TestClient, photo: bytes, runs: list[Path], picture: Tensor
) -> None:
    panels = explain(client, photo, attention=["softmax", "performer"])["panels"]
    assert panels[0]["variation"] is None
    models = [same_weights(runs[0], name) for name in ("softmax", "performer")]
    for layer in range(2):
        rows = []
        for model in models:
            with torch.no_grad():
                tokens = model.embed(picture)
                for block in model.blocks[:layer]:
                    tokens = block(tokens)
                block = model.blocks[layer]
                rows.append(block.attn.attention_weights(block.norm1(tokens))[0])
        expected = (rows[0] - rows[1]).abs().sum(-1).mean(-1) / 2
        assert panels[1]["variation"][layer] == pytest.approx(expected.tolist(), abs=1e-6)


def test_swapping_leaves_the_model_as_it_was(runs: list[Path]) -> None:
    model, _ = load_model(runs[0])
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    for swap in (Swap("taylorshift", 0.3, "1"), Swap("performer", 2.0), Swap("softmax", 0.5)):
        new = swapped(model, swap)
        assert new.blocks[0].attn.proj.weight.data_ptr() == (
            model.blocks[0].attn.proj.weight.data_ptr()
        )
    for name, tensor in model.state_dict().items():
        torch.testing.assert_close(tensor, before[name], rtol=0, atol=0)


def test_long_sequences_send_the_row_that_is_asked_for(
    client: TestClient, photo: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = explain(client, photo, attention="softmax", layer=0)["panels"][0]
    monkeypatch.setattr(look, "MAX_WHOLE_MAP", 10)
    part = explain(client, photo, attention="softmax", layer=0, query=7)["panels"][0]
    assert part["queries"] == [7]
    assert part["weights"] == [whole["weights"][7]]
    assert part["reading"] == whole["reading"]


def test_the_example_is_what_explain_answers(client: TestClient) -> None:
    example = client.get("/api/example").json()
    picture = client.get("/api/models").json()["models"][0]["samples"][0]["picture"]
    assert example["picture"]["id"] == picture
    again = client.post("/api/explain", params={"picture": picture, "order": "2"}).json()
    for own, other in zip(example["panels"], again["panels"], strict=True):
        assert flat(own["weights"]) == pytest.approx(flat(other["weights"]), abs=1e-6)


WALKED = {
    "light_vit": {"img_size": 28, "in_chans": 1},
    "vit_micro_patch4_32": {"img_size": 32, "in_chans": 3},
    "taylorir_small": {"img_size": 8, "in_chans": 3},
}


@pytest.mark.parametrize("name", WALKED)
@pytest.mark.parametrize("attention", ["softmax", "taylorshift", "performer"])
def test_the_walk_ends_at_the_prediction(name: str, attention: str) -> None:
    options = WALKED[name]
    model = saccade.create_model(name, attention=attention, num_classes=10, **options).eval()
    images = torch.randn(1, options["in_chans"], options["img_size"], options["img_size"])
    steps = {step.id: step for step in walk(model, images, look.Focus(1, 0))}
    tensors = {f"{s.id}.{t.name}": t.values for s in steps.values() for t in s.tensors}
    with torch.no_grad():
        logits = model(images)
        entering = model.blocks[0](model.embed(images))
        leaving = model.blocks[1](entering)
        weights = model.blocks[1].attn.attention_weights(model.blocks[1].norm1(entering))
    torch.testing.assert_close(tensors["pixels.x"], images[0])
    torch.testing.assert_close(tensors["norm.X"], entering[0])
    torch.testing.assert_close(tensors["weights.A"], weights[0, 0])
    torch.testing.assert_close(tensors["residual.X"], leaving[0])
    torch.testing.assert_close(tensors["head.logits"], logits)
    torch.testing.assert_close(tensors["head.probabilities"], logits.softmax(-1))
    assert ("class_token" in steps) == model.config.class_token


def test_the_lines_of_code_are_there(runs: list[Path]) -> None:
    root = Path(saccade.__file__).parent.parent
    for name in SWAPPABLE:
        model = swapped(load_model(runs[0])[0], Swap(name))
        for step in walk(model, torch.zeros(1, 1, 8, 8), look.Focus(0, 0)):
            lines = (root / step.line.file).read_text().splitlines()
            assert lines[step.line.number - 1].strip() == step.line.text
            assert step.line.text
    assert len({ATTENTIONS[name].equation for name in list_attentions()}) > 3


def test_both_models_of_the_lessons_are_served(photo: bytes, tmp_path: Path) -> None:
    """Saved by `save_pretrained`, without a record of training and without samples."""
    for name in ("light_vit", "vit_micro_patch4_32"):
        saccade.create_model(name, num_classes=10).save_pretrained(tmp_path / name)
    models = open_models([tmp_path / "light_vit", tmp_path / "vit_micro_patch4_32"])
    client = TestClient(create_app(models), base_url="http://localhost")
    assert client.get("/api/example").json() is None
    for model in models:
        assert model.samples == []
        response = client.post("/api/walk", params={"model": model.id}, content=photo)
        assert response.status_code == 200, response.text
        assert len(response.json()["steps"]) == 12
        json.dumps(response.json(), allow_nan=False)


def test_what_is_no_model_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError):
        open_models([tmp_path])


def test_the_h200_times_are_those_of_the_result_file() -> None:
    script = Path(__file__).parents[2] / "benchmarks" / "page_times.py"
    done = subprocess.run([sys.executable, script, "--check"], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
