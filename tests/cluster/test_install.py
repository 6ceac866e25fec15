"""Machines where Slurm cannot be installed: one line says why, and nothing fails."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.cluster.conftest import ROOT, SCRIPT

TOOLS = ("bash", "chmod", "id", "mktemp", "rm", "tail", "timeout")


def install_with(folder: Path, apt_get: str | None) -> tuple[int, str]:
    """`slurm.sh install` on a machine without Slurm, whose apt-get is a script."""
    for name in TOOLS:
        found = shutil.which(name)
        assert found is not None
        (folder / name).symlink_to(found)
    if apt_get is not None:
        (folder / "apt-get").write_text(f"#!/bin/bash\n{apt_get}\n")
        (folder / "apt-get").chmod(0o755)
    done = subprocess.run(
        ["bash", SCRIPT, "install"],
        env={"PATH": str(folder), "TMPDIR": str(folder)},
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.stderr == ""
    return done.returncode, done.stdout


def test_no_apt_get(tmp_path: Path) -> None:
    code, out = install_with(tmp_path, None)
    assert (code, out) == (0, "SKIPPED: tests of Slurm: there is no apt-get\n")


def test_apt_get_fails(tmp_path: Path) -> None:
    why = "apt-get needs root" if os.geteuid() else "apt-get failed: E: no network"
    code, out = install_with(tmp_path, "echo E: no network >&2; exit 100")
    assert (code, out) == (0, f"SKIPPED: tests of Slurm: {why}\n")


@pytest.mark.skipif(os.geteuid() != 0, reason="a Slurm of our own needs root")
def test_daemons_that_do_not_start(tmp_path: Path) -> None:
    """All tests of Slurm are skipped with the reason, and the rest passes."""
    for name in ("slurmctld", "slurmd", "srun", "munged", "sinfo"):
        (tmp_path / name).write_text(f"#!/bin/bash\necho {name}: no such plugin; exit 1\n")
        (tmp_path / name).chmod(0o755)
    done = subprocess.run(
        [
            sys.executable,
            "-m",
            "pytest",
            "-q",
            "-p",
            "no:cacheprovider",
            "tests/cluster/test_short.py",
        ],
        cwd=ROOT,
        env={**os.environ, "PATH": f"{tmp_path}{os.pathsep}{os.environ['PATH']}"},
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stdout
    assert "Slurm cannot run here: munged: no such plugin" in done.stdout
    assert "1 skipped" in done.stdout
