"""Raw run folders of committed results, unpacked from their archives."""

import atexit
import shutil
import tarfile
import tempfile
from functools import cache
from pathlib import Path

RESULTS = Path(__file__).parent.parent / "results"


@cache
def unpacked(archive: str) -> Path:
    """Unpack an archive below `results/`, once a process; the folder is removed at its end."""
    folder = Path(tempfile.mkdtemp(prefix="saccade-results-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    with tarfile.open(RESULTS / archive) as files:
        files.extractall(folder, filter="data")
    return folder


def cifar10_runs() -> list[Path]:
    """The run folders of the recipes for CIFAR-10."""
    return sorted(unpacked("cifar10/runs.tar.gz").iterdir())


def comparison(name: str) -> Path:
    """A committed comparison with its run folders, as `saccade compare` wrote it."""
    folder = unpacked(f"{name}/runs.tar.gz")
    for file in (RESULTS / name).iterdir():
        if file.suffix in {".json", ".yaml"}:
            shutil.copy(file, folder / file.name)
    return folder
