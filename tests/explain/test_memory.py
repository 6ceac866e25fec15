"""Maps of 4,096 tokens need less than 1 GiB beyond the forward pass, in a fresh process."""

import json
import subprocess
import sys

import pytest

from tests.waiting import PATIENCE_S

SCRIPT = """
import json, resource, sys
import torch
from saccade.explain import attention_maps, maps
from saccade.models import create_model

attention, method, chunk_bytes = sys.argv[1], sys.argv[2], int(sys.argv[3])
torch.set_num_threads(1)
model = create_model(
    "vit_micro_patch4_32", attention=attention, img_size=512, patch_size=8, embed_dim=128,
    depth=2, num_heads=8, num_classes=4, class_token=False, global_pool="avg",
).eval()
images = torch.randn(1, 3, 512, 512)
with torch.no_grad():
    model(images)
def peak_mib(): return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
before = peak_mib()
maps.CHUNK_BYTES = chunk_bytes or maps.CHUNK_BYTES
found = attention_maps(model, images, method=method, layers=[1])
print(json.dumps({"tokens": found.summary.shape[1], "extra_mib": peak_mib() - before}))
"""


def measure(attention: str, method: str, chunk_bytes: int = 0) -> dict[str, float]:
    command = [sys.executable, "-c", SCRIPT, attention, method, str(chunk_bytes)]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=PATIENCE_S)
    result: dict[str, float] = json.loads(done.stdout)
    return result


@pytest.mark.parametrize(
    ("attention", "method"),
    [
        ("taylorshift", "attention"),
        *(
            pytest.param(attention, method, marks=pytest.mark.slow)
            for attention in ("softmax", "taylor", "performer", "performer_ftheta")
            for method in ("attention", "rollout", "gradient")
        ),
    ],
)
def test_maps_of_4096_tokens_need_less_than_a_gibibyte(attention: str, method: str) -> None:
    found = measure(attention, method)
    assert found["tokens"] == 4096
    assert found["extra_mib"] < 1024


@pytest.mark.slow
def test_measurement_catches_a_map_formed_at_once() -> None:
    assert measure("taylor", "attention", chunk_bytes=1 << 40)["extra_mib"] > 1024
