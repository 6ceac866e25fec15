"""Sets read over the network, by the package's own client, from a small hub on this machine."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("datasets", reason="the datasets package is not installed")

from tests.data.shards import write_shards
from tests.data.small_hub import SET, SmallHub, small_hub

READER = """
import json, psutil, sys
from saccade.config import DataConfig
from saccade.data import load_splits, make_loader

def load(**data):
    global splits
    splits = load_splits(DataConfig.model_validate(data))
    return len(splits.train)

def batches(start):
    loader = make_loader(splits.train, splits.info, batch_size=20, augment=None, seed=0,
                         device="cpu", shuffle=True, workers=0)
    return loader.epoch(0, start_batch=start)

def epoch(start):
    return [int(i) for batch in batches(start) for i in batch.index]

def mib():
    return psutil.Process().memory_info().rss / 2**20

def mib_during_an_epoch():
    return max(mib() for _ in batches(0))

for line in sys.stdin:
    what, options = json.loads(line)
    print(json.dumps(globals()[what](**options)), flush=True)
"""
Ask = Callable[..., Any]


@contextmanager
def reader(environment: dict[str, str]) -> Iterator[Ask]:
    """A fresh process that loads sets and goes through epochs when asked to."""
    with subprocess.Popen(
        [sys.executable, "-c", READER],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env=os.environ | environment,
        text=True,
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None

        def ask(what: str, /, **options: object) -> Any:
            print(json.dumps([what, options]), file=process.stdin, flush=True)
            return json.loads(process.stdout.readline())

        yield ask
        process.stdin.close()


def noise(number: int, side: int = 64) -> bytes:
    """A picture that does not compress; of 12 kB, as a rule."""
    pixels = np.random.default_rng(number).integers(0, 256, side * side * 3, dtype=np.uint8)
    return b"P6 %d %d 255\n" % (side, side) + pixels.tobytes()


def environment(hub: SmallHub, folder: Path) -> dict[str, str]:
    own = {"HF_HOME": str(folder / "hf"), "SACCADE_DATA": str(folder / "cache")}
    return {"HF_ENDPOINT": hub.url, "HF_HUB_OFFLINE": "0", "OMP_NUM_THREADS": "1", **own}


def counts(hub: SmallHub) -> dict[str, int]:
    """How often the hub was asked for images and for labels since the last time."""
    sizes = [size for _, size in hub.sent]
    hub.sent.clear()
    images = sum(20_000 < size < 40_000 for size in sizes)  # the end of a file is 64 KiB
    return {"images": images, "labels": sum(size < 2_000 for size in sizes)}


def test_only_what_is_needed_is_fetched(tmp_path: Path) -> None:
    root = tmp_path / "set"
    write_shards(root, "train", [*map(noise, range(400))], [*range(10)] * 40, files=4, group=2)
    write_shards(root, "test", [*map(noise, range(20))], [*range(10)] * 2, files=1, group=2)
    data = {"name": f"hf:{SET}", "image_size": 8, "val_fraction": 0.0}
    streamed = {**data, "resident_gib": 0, "buffer_mib": 1}
    with small_hub(root) as hub, reader(environment(hub, tmp_path)) as ask:
        assert ask("load", **streamed) == 400
        assert counts(hub) == {"images": 32, "labels": 210}
        assert ask("load", **streamed) == 400
        assert counts(hub) == {"images": 32, "labels": 0}
        whole = ask("epoch", start=0)
        assert sorted(whole) == list(range(400))
        assert counts(hub) == {"images": 200, "labels": 0}
        assert ask("epoch", start=15) == whole[300:]
        assert 50 <= counts(hub)["images"] <= 70  # a window has twenty row groups of two
        assert ask("load", **data) == 400
        assert counts(hub) == {"images": 210, "labels": 0}
        assert "v1" not in hub.revisions
        assert ask("load", **streamed | {"name": f"hf:{SET}@v1"}) == 400
        assert "v1" in hub.revisions


@pytest.mark.slow
def test_memory_is_bounded_by_the_buffer(tmp_path: Path) -> None:
    images = [noise(number, 256) for number in range(500)]
    set_mib = sum(map(len, images)) / 2**20
    write_shards(tmp_path, "train", images, [*range(10)] * 50, files=4, group=5)
    write_shards(tmp_path, "test", images[:5], [0] * 5, files=1, group=5)
    data = {"name": f"hf:{tmp_path}", "image_size": 8, "val_fraction": 0.0, "resident_gib": 0}
    needed = {}
    with reader({"OMP_NUM_THREADS": "1"}) as ask:
        for buffer_mib in (4, 400):
            assert ask("load", **data, buffer_mib=buffer_mib) == 500
            before = ask("mib")
            needed[buffer_mib] = ask("mib_during_an_epoch") - before
    assert set_mib > 90
    assert needed[4] < 30
    assert needed[400] > 60  # the measure sees a buffer that is too large


def test_without_a_network_the_error_is_one_line(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "saccade", "train", "digits-quick", f"data.name=hf:{SET}"]
    result = subprocess.run(
        [*command, "--out", str(tmp_path / "run")],
        env=os.environ | {"HF_HUB_OFFLINE": "1", "HF_HOME": str(tmp_path)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert result.returncode == 3
    (line,) = result.stderr.splitlines()
    assert f"hf:{SET}: the hub cannot be reached" in line
    assert "the path of a folder of parquet files" in line
    assert not (tmp_path / "run").exists()
