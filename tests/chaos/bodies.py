"""What the processes of the harness do: saccade's commands as functions, on a tiny task."""

from __future__ import annotations

import gzip
import io
import json
import pickle
import random
import resource
import signal
import sys
from collections.abc import Callable
from contextlib import redirect_stderr, suppress
from pathlib import Path

import numpy as np
from PIL import Image

from saccade.cli.sources import open_run
from saccade.config import dump_config, parse_config
from saccade.data.images import BadImageError, read_image
from saccade.data.pickles import unpickle
from saccade.data.split_record import SplitRecord
from saccade.errors import SaccadeError, TrainingError, is_out_of_memory
from saccade.io import parse_arrays, parse_json, parse_yaml
from saccade.report.collect import collect
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


def train_run(folder: Path, *, seed: int = 0) -> int:
    """A run, begun or gone on with."""
    try:
        train(tiny(EPOCHS, f"run.seed={seed}"), folder / "run", resume=True, quiet=True)
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


def use_results(folder: Path) -> int:
    """Evaluate, report and go on with a run; write beside the folder what each of them found."""
    run = folder / "run"

    def resumed() -> float:
        return float(train(RunFolder(run).config(), run, resume=True, quiet=True)["test_accuracy"])

    def reported() -> list[float | None]:
        return [found.measured("test_accuracy") for found in collect(folder).runs]

    def evaluated() -> float | str:
        with redirect_stderr(io.StringIO()) as told:
            open_run(run)  # says on stderr if an older checkpoint is used
        is_told = "not that of its last step" in told.getvalue()
        return "told" if is_told else float(evaluate_run(run)["accuracy"])

    found: dict[str, object] = {}
    was_finished = _is_said_finished(run)
    for name, use in (
        ("evaluated", evaluated),
        ("reported", reported),
        ("resumed", resumed),
        ("evaluated again", evaluated),
        ("reported again", reported),
    ):
        try:
            value: object = use()
        except SaccadeError as error:
            _told(error)
            value = "refused"
        if was_finished or name not in ("evaluated", "reported"):  # a killed run has other weights
            found[name] = value
    folder.with_name(f"{folder.name}.digest").write_text(json.dumps(found))
    return 0


def _is_said_finished(run: Path) -> bool:
    try:
        return RunFolder(run).is_finished()
    except SaccadeError:
        return False


def read_hostile_files(folder: Path, *, seed: int, number: int) -> int:
    """Read files with changed bytes, with a gigabyte to spare; each is read or refused."""
    rng = random.Random(seed)
    spare_memory(1024)
    nested = b"N" + b"".join(b"q%ch%c\x86" % (n, n) for n in range(60))
    arrays = io.BytesIO()
    np.savez(arrays, target=np.arange(9), confidence=np.ones(9))
    batch = {"data": np.zeros((2, 12), np.uint8), "labels": [0, 1]}
    originals: list[tuple[bytes, Callable[[bytes], object]]] = [
        (dump_config(tiny()).encode(), lambda c: parse_config(c, folder / "x.yaml")),
        (b"a: 0x" + b"f" * 500_000, lambda c: parse_yaml(c.decode(errors="replace"), "x")),
        (b"a: " + b"1:" * 400_000, lambda c: parse_yaml(c.decode(errors="replace"), "x")),
        (b'{"a": [1, 2.5, {"b": null}]}', lambda c: parse_json(c.decode(errors="replace"), "x")),
        (b"[" * 200_000, lambda c: parse_json(c.decode(errors="replace"), "x")),
        (arrays.getvalue(), lambda c: parse_arrays(c, folder / "x.npz")),
        (pickle.dumps(batch, 2), lambda c: unpickle(c, "x")),
        (b"\x80\x02}" + nested + b"Ns.", lambda c: unpickle(c, "x")),
        (b"\x80\x02T\xff\xff\xff\x7f" + b"." * 6, lambda c: unpickle(c, "x")),
        (gzip.compress(b"[" + b"{}," * 5_000_000), lambda c: SplitRecord.decode(c, "x")),
    ]
    for _ in range(number):
        original, read = rng.choice(originals)
        content = bytearray(original)
        for _ in range(rng.randint(0, 4)):
            content[rng.randrange(len(content))] = rng.randrange(256)
        signal.alarm(20)
        with suppress(SaccadeError):
            read(bytes(content))
    return 0


def spare_memory(mib: int) -> None:
    """Limit the memory of this process to what it has and this much more."""
    size = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (size + (mib << 20), size + (mib << 20)))


def compare_large_models(folder: Path, *, room_mib: int) -> int:
    """A comparison of models of some 100 MiB with little memory to spare."""
    spare_memory(room_mib)
    try:
        return compare_runs(folder, "model.overrides.embed_dim=1024", "model.overrides.num_heads=8")
    except (MemoryError, RuntimeError) as error:
        if not is_out_of_memory(error):
            raise
        return TrainingError.exit_code  # as the command line does


def compare_runs(folder: Path, *overrides: str) -> int:
    """A comparison of two attentions, begun or gone on with."""
    recipe = folder / "tiny.yaml"
    if not recipe.exists():
        recipe.write_text(dump_config(tiny("train.epochs=2", "train.ema_decay=null", *overrides)))
    plan = make_plan(str(recipe), attentions=("softmax", "taylorshift"), seeds=1)
    try:
        results = compare(plan, folder / "study", resume=True, quiet=True)
    except SaccadeError as error:
        return _told(error)
    return 0 if results["complete"] else TrainingError.exit_code


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
