"""Absurd sizes are refused by formula, before anything is allocated."""

import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
from tests.saved_configs import change_config
from tests.waiting import PATIENCE_S
from tiny_models import tiny_model

from saccade import SequenceTransformer, TaylorShiftViT, create_model
from saccade.config import load_config
from saccade.errors import ConfigError
from saccade.models import MODELS, load_model
from saccade.models.size_limits import estimate_parameters

ABSURD = {
    "depth": {"depth": 10**6},
    "width": {"embed_dim": 10**9},
    "heads": {"embed_dim": 10**9, "num_heads": 10**9},
    "head_dim": {"head_dim": 10**9},
    "mlp": {"mlp_hidden_dim": 10**9},
    "mlp_ratio": {"mlp_ratio": 1e9},
    "head": {"head_hidden_dim": 10**9},
    "classes": {"num_classes": 10**12},
    "image": {"img_size": 10**7},
    "patch": {"img_size": 10**7, "patch_size": 10**7},
    "channels": {"in_chans": 10**9},
    "stem": {"stem": "conv_residual", "stem_dim": 10**9},
    "features": {"attention": "performer", "attention_options": {"num_features": 10**10}},
    "hidden": {"attention": "performer_ftheta", "attention_options": {"hidden": 10**10}},
    "a number of 400 digits": {"embed_dim": 10**400, "num_heads": 1},
}
REFUSED = (
    r"(must have at most 4,000,000,000 parameters, got (about|over) .*|depth must be at most 1)"
)

BOUNDED = """
import resource, sys, time
from saccade import create_model
from saccade.errors import ConfigError
used = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
create_model("vit_cifar", depth=1)
for overrides in {absurd!r}:
    start = time.process_time()
    try:
        create_model("vit_cifar", **overrides)
    except ConfigError as error:
        print(len(str(error)), time.process_time() - start)
    else:
        sys.exit(f"built {{overrides}}")
print((resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - used) / 1024)
"""


@pytest.mark.parametrize("name", ABSURD)
def test_absurd_sizes_are_refused_with_the_limit(name: str) -> None:
    with pytest.raises(ConfigError, match=REFUSED) as caught:
        create_model("vit_cifar", **ABSURD[name])
    assert "SACCADE_MAX_" in str(caught.value)


def test_refusing_takes_neither_memory_nor_time() -> None:
    code = BOUNDED.format(absurd=list(ABSURD.values()))
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=PATIENCE_S
    )
    assert done.returncode == 0, done.stderr
    *rows, extra_mib = done.stdout.splitlines()
    assert len(rows) == len(ABSURD)
    for row in rows:
        length, seconds = row.split()
        assert int(length) < 500
        assert float(seconds) < 1
    assert float(extra_mib) < 150


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"depth": 10**6}, "depth must be at most 10,000, got 1,000,000; .*SACCADE_MAX_DEPTH"),
        (
            {"embed_dim": 10**9},
            "embed_dim=1,000,000,000, depth=1, .* SACCADE_MAX_PARAMETERS raises",
        ),
        ({"img_size": [10**7, 10**7]}, "image height=10,000,000, image width=10,000,000"),
    ],
    ids=str,
)
def test_a_hostile_folder_is_refused(
    tmp_path: Path, changes: dict[str, object], message: str
) -> None:
    tiny_model("light_vit").save_pretrained(tmp_path)
    change_config(tmp_path, **changes)
    with pytest.raises(ConfigError, match=rf"config\.json: .*{message}"):
        load_model(tmp_path)


def test_weights_are_compared_before_the_model_is_built(tmp_path: Path) -> None:
    """2.4 billion parameters are below the limit, and the file has 2,000."""
    tiny_model("light_vit").save_pretrained(tmp_path)
    change_config(tmp_path, embed_dim=16_000, num_heads=1)
    start = time.process_time()
    with pytest.raises(ConfigError, match=r"safetensors does not fit config\.json: \d+ tensors"):
        load_model(tmp_path)
    assert time.process_time() - start < 2


def test_other_ways_to_build_a_model_are_held_to_the_limit() -> None:
    with pytest.raises(ConfigError, match=REFUSED):
        TaylorShiftViT(10**7)
    with pytest.raises(ConfigError, match=REFUSED):
        SequenceTransformer(10**12, 8)
    with pytest.raises(ConfigError, match=REFUSED):
        SequenceTransformer(8, 10**12, embedding="token")
    model, sequence = tiny_model("vit_cifar"), tiny_model("taylorshift_imdb")
    with pytest.raises(ConfigError, match=REFUSED):
        model.set_input_size(4 * 10**7)
    with pytest.raises(ConfigError, match=REFUSED):
        sequence.max_seq_len = 10**12
    with pytest.raises(ConfigError, match=REFUSED):
        model.reset_classifier(10**12)
    with pytest.raises(ConfigError, match=r"data\.image_size=10000000: .*less than or equal"):
        load_config("digits-quick", ["data.image_size=10000000"])


def test_the_environment_raises_the_limits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SACCADE_MAX_PARAMETERS", "1e10")
    monkeypatch.setenv("SACCADE_MAX_DEPTH", "20000")
    with torch.device("meta"):
        model = create_model("vit_cifar", embed_dim=24_000, num_heads=1, depth=2)
    assert 4e9 < sum(parameter.numel() for parameter in model.parameters()) < 1e10
    with pytest.raises(ConfigError, match="at most 10,000,000,000 parameters"):
        create_model("vit_cifar", embed_dim=10**6)
    with pytest.raises(ConfigError, match="depth must be at most 20,000"):
        create_model("vit_cifar", depth=20_001)
    monkeypatch.setenv("SACCADE_MAX_PARAMETERS", "many")
    with pytest.raises(ConfigError, match=r"SACCADE_MAX_PARAMETERS must be a number .* got 'many'"):
        create_model("vit_cifar")


@pytest.mark.parametrize("name", list(MODELS))
def test_the_estimate_is_near_the_truth(name: str) -> None:
    with torch.device("meta"):
        model = create_model(name)
    tables = sum(buffer.numel() for buffer in model.buffers())
    exact = sum(parameter.numel() for parameter in model.parameters()) + tables
    assert estimate_parameters(model.config) == pytest.approx(exact, rel=0.1, abs=1000)
