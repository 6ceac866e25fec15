"""What the processes of the harness do: saccade's commands as functions, on a tiny task."""

from __future__ import annotations

import io
import random
import sys
from contextlib import suppress
from pathlib import Path

import numpy as np
from PIL import Image

from saccade.config import dump_config
from saccade.data.images import BadImageError, read_image
from saccade.errors import SaccadeError
from saccade.runs import RunFolder
from saccade.study import compare, make_plan
from saccade.study.tuning import Settings, TuningFolder, join_search, start_search, tune
from saccade.train import train
from saccade.train.inference import evaluate_run
from tests.study.tiny_search import tiny_search
from tests.train.tiny_runs import tiny

EPOCHS = "train.epochs=3"
FILES = ("model", "average", "best", "optimizer")


def _told(error: SaccadeError) -> int:
    print(f"{type(error).__name__}: {error}", file=sys.stderr)
    return error.exit_code


def train_run(folder: Path) -> int:
    """A run, begun or gone on with."""
    try:
        train(tiny(EPOCHS), folder / "run", resume=True, quiet=True)
    except SaccadeError as error:
        return _told(error)
    return 0


def run_state(folder: Path) -> dict[str, bytes]:
    """The bytes that a run ended with."""
    newest, _ = RunFolder(folder / "run").newest_intact()
    assert newest is not None
    return {name: (newest.path / f"{name}.safetensors").read_bytes() for name in FILES}


def is_run_finished(folder: Path) -> bool:
    """True if a finished run says so in one voice and has its result."""
    run = RunFolder(folder / "run")
    rows = run.metrics("test")
    return (
        run.status().get("state") == "finished"
        and len(rows) == 1
        and run.summary()["test_accuracy"] == rows[0]["accuracy"]
    )


def use_run(folder: Path) -> int:
    """Go on with a run, and evaluate it."""
    try:
        train(tiny(EPOCHS), folder / "run", resume=True, quiet=True)
        evaluate_run(folder / "run")
    except SaccadeError as error:
        return _told(error)
    return 0


def compare_runs(folder: Path) -> int:
    """A comparison of two attentions, begun or gone on with."""
    recipe = folder / "tiny.yaml"
    if not recipe.exists():
        recipe.write_text(dump_config(tiny("train.epochs=2", "train.ema_decay=null")))
    plan = make_plan(str(recipe), attentions=("softmax", "taylorshift"), seeds=1)
    try:
        results = compare(plan, folder / "study", resume=True, quiet=True)
    except SaccadeError as error:
        return _told(error)
    return 0 if results["complete"] else 1


def search_settings(folder: Path) -> int:
    """A search of two trials, begun or gone on with."""
    out = folder / "study"
    try:
        if TuningFolder(out).exists():
            search = join_search(out)
        else:
            search = start_search(out, tiny_search(), Settings("tiny", 2))
        tune(search)
    except SaccadeError as error:
        return _told(error)
    return 0


def open_mutated_images(folder: Path, *, seed: int, number: int) -> int:
    """Open images with changed bytes; each is read, or refused by its name."""
    rng = random.Random(seed)
    pixels = np.random.default_rng(0).integers(0, 255, (24, 24, 3), dtype=np.uint8)
    originals = []
    for kind in ("PNG", "JPEG", "WEBP", "GIF", "BMP"):
        buffer = io.BytesIO()
        Image.fromarray(pixels).save(buffer, kind)
        originals.append(buffer.getvalue())
    for _ in range(number):
        content = bytearray(rng.choice(originals))
        for _ in range(rng.randint(1, 6)):
            content[rng.randrange(len(content))] = rng.randrange(256)
        path = folder / "image"
        path.write_bytes(content[: rng.randint(8, len(content))] if rng.random() < 0.3 else content)
        with suppress(BadImageError):
            read_image(path, 24)
    return 0
