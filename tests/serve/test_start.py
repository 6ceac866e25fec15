"""`saccade serve` as a process: where it listens, what it says, how it ends."""

import http.client
import json
import os
import re
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
import pytest
from fastapi.testclient import TestClient

from saccade.config import load_config, with_overrides
from saccade.errors import ConfigError
from saccade.runs import RunFolder
from saccade.serve import create_app, start
from saccade.serve.guard import REPORT_POLICY
from saccade.serve.served import open_models
from saccade.study import compare
from tests.cli.conftest import fresh, saccade
from tests.study.tiny_comparison import tiny_plan
from tests.waiting import PATIENCE_S

__all__ = ["saccade"]

TOKEN = "a-token-of-some-length"


@contextmanager
def served(*words: object, **environment: str) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """The command, once it answers; gives the process and its address."""
    command = [sys.executable, "-m", "saccade", "serve", "--port", "0", *map(str, words)]
    process = subprocess.Popen(
        command, stderr=subprocess.PIPE, text=True, env={**os.environ, **environment}
    )
    assert process.stderr is not None
    try:
        told = ""
        while not (found := re.search(r"(http://\S+)", told)):
            line = process.stderr.readline()
            assert line, told
            told += line
        address = found[1]
        deadline = time.monotonic() + PATIENCE_S
        while not _answers(address):
            assert time.monotonic() < deadline
            time.sleep(0.02)
        yield process, address
    finally:
        process.kill()
        process.wait()
        process.stderr.close()


def _answers(address: str) -> bool:
    host, port = re.search(r"//\[?([^]/]+?)\]?:(\d+)/", address).groups()  # type: ignore[union-attr]
    try:
        socket.create_connection((host, int(port)), 1).close()
    except OSError:
        return False
    return True


def begun(address: str) -> tuple[int, int]:
    """How many requests of /api/explain are answered, and how many wait."""
    told = httpx.get(f"{address}metrics", timeout=PATIENCE_S).text
    answered = re.findall(r'route="/api/explain",status="\d+"} (\d+)', told)
    [waiting] = re.findall(r"^saccade_queue_length (\d+)", told, re.MULTILINE)
    return sum(map(int, answered)), int(waiting)


def test_sigterm_under_load_finishes_what_is_in_flight(runs: list[Path], photo: bytes) -> None:
    count = 120
    with served(*runs) as (process, address):
        port = int(re.search(r":(\d+)/", address)[1])  # type: ignore[index]
        connections = [http.client.HTTPConnection("127.0.0.1", port) for _ in range(count)]
        for connection in connections:
            connection.request("POST", "/api/explain", photo)
        answered = waiting = 0
        while answered + waiting + 1 < count:  # one is being computed
            answered, waiting = begun(address)
        assert waiting > 0
        process.send_signal(signal.SIGTERM)
        for connection in connections:
            with connection.getresponse() as answer:
                assert answer.status == 200
                assert len(json.loads(answer.read())["panels"]) == 3
        assert process.wait(PATIENCE_S) == 143
        assert not _answers(address)


def test_ctrl_c_ends_it_in_one_line(runs: list[Path]) -> None:
    with served(runs[0]) as (process, address):
        assert httpx.get(f"{address}healthz").status_code == 200
        process.send_signal(signal.SIGINT)
        assert process.wait(PATIENCE_S) == 130
        assert process.stderr is not None
        assert "Traceback" not in process.stderr.read()


def test_overload_answers_503_and_recovers(runs: list[Path], photo: bytes) -> None:
    with served(runs[0], "--queue", "2", "--max-batch", "1") as (_, address):
        statuses: list[int] = []
        retry: set[str | None] = set()

        def ask() -> None:
            answer = httpx.post(f"{address}api/explain", content=photo, timeout=PATIENCE_S)
            statuses.append(answer.status_code)
            if answer.status_code == 503:
                retry.add(answer.headers.get("retry-after"))

        threads = [threading.Thread(target=ask) for _ in range(40)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert set(statuses) == {200, 503}
        assert retry == {"1"}
        assert httpx.post(f"{address}api/predict", content=photo).status_code == 200
        counted = httpx.get(f"{address}metrics").text
        refused = re.search(r'route="/api/explain",status="503"} (\d+)', counted)
        assert refused is not None
        assert int(refused[1]) == statuses.count(503)


def test_a_token_in_the_environment(runs: list[Path]) -> None:
    words = (runs[0], "--host", "0.0.0.0")
    with served(*words, SACCADE_SERVE_TOKEN=TOKEN) as (_, address):
        assert address.endswith(f"/?token={TOKEN}")
        root = address.partition("?")[0]
        assert httpx.get(root).status_code == 401
        assert httpx.get(address).status_code == 303


def test_mistakes_are_one_line(runs: list[Path], tmp_path: Path) -> None:
    for words, code, text in (
        (("--host", "0.0.0.0", runs[0]), 2, "token must be given to listen on '0.0.0.0'"),
        ((tmp_path / "none",), 2, "none"),
        ((runs[0], "--device", "tpu"), 2, "device"),
    ):
        done = fresh("serve", *map(str, words))
        assert done.returncode == code, done.stderr
        [line] = done.stderr.decode().splitlines()
        assert text in line


def test_a_study_is_served_with_its_report(tmp_path: Path) -> None:
    """One run for each attention; the report is made in memory."""
    plan = tiny_plan(tmp_path, "train.epochs=1", attentions=("softmax", "taylor"), seeds=1)
    study = tmp_path / "study"
    compare(plan, study)
    models = open_models([study])
    assert [model.id for model in models] == ["softmax", "taylor"]
    assert [model.model.config.attention for model in models] == ["softmax", "taylor"]
    [(name, page)] = start.render_reports([study, tmp_path])
    assert not (study / "report").exists()
    client = TestClient(create_app(models, reports=[(name, page)]), base_url="http://localhost")
    [told] = client.get("/api/models").json()["studies"]
    assert told == {"name": "study", "report": "/reports/0"}
    answer = client.get("/reports/0")
    assert answer.text == page
    assert answer.headers["content-security-policy"] == REPORT_POLICY
    assert "taylor" in page


def test_an_address_that_is_taken() -> None:
    with start.bind("127.0.0.1", 0) as first:
        first.listen()
        with pytest.raises(ConfigError, match="--port 0 takes any free port"):
            start.bind("127.0.0.1", first.getsockname()[1])
    with pytest.raises(ConfigError, match="free address of this machine"):
        start.bind("203.0.113.9", 0)


def test_the_default_model_is_trained_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SACCADE_DATA", str(tmp_path))
    smaller = (
        "train.epochs=1",
        "data.num_train=100",
        "data.num_test=50",
        "model.overrides.depth=1",
    )
    monkeypatch.setattr(start, "OVERRIDES", (*start.OVERRIDES, *smaller))
    said: list[str] = []
    first = start.default_model(said.append)
    assert RunFolder(first).is_finished()
    assert "training a small model" in said[0]
    assert start.default_model(said.append) == first
    assert "serving the digits model" in said[1]


@pytest.mark.slow
def test_the_default_model_reads_digits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SACCADE_DATA", str(tmp_path))
    run = RunFolder(start.default_model(lambda line: None))
    assert run.summary()["test_accuracy"] > 0.95


def test_the_default_model_is_a_valid_recipe() -> None:
    config = load_config(start.RECIPE, start.OVERRIDES)
    assert with_overrides(config, []) == config
