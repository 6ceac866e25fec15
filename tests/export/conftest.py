"""A finished run, exported once."""

from pathlib import Path

import pytest

from saccade.export.run_export import export_run
from saccade.runs import RunFolder
from tests.cli.conftest import run, saccade
from tests.cli.test_full_disk import full_disk

__all__ = ["exported", "full_disk", "run", "saccade"]


@pytest.fixture(scope="session")
def exported(run: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The ONNX file of the run."""
    path = tmp_path_factory.mktemp("exported") / "model.onnx"
    return export_run(RunFolder.open(run), path).path
