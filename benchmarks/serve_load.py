"""Load `saccade serve` on loopback: throughput, latency, overload, memory, and the end.

    saccade train digits-quick --out runs/digits
    python benchmarks/serve_load.py runs/digits --out results/serve

A server process and this client share the machine. Requests are POST /api/predict with a picture
of the test set as a PNG file. Every answer is read whole and its status counted.

batched     64 clients, each with one connection, for --seconds
one by one  the same with --max-batch 1
overload    more clients than --queue 16 admits: 503 at once, then normal answers again
memory      resident memory of the server after 2,000 and after 12,000 requests
first view  milliseconds until the page in Chromium shows its first picture
the end     SIGTERM while 64 clients send: every request that was sent is answered
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import re
import signal
import subprocess
import sys
import time
import urllib.request
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

import torch

from saccade.environment import describe_environment
from saccade.io import write_json

CLIENTS = 64
CHROMIUM = "/usr/bin/chromium"


@dataclass
class Tally:
    """Answers of a load."""

    statuses: Counter[str] = field(default_factory=Counter)
    times_ms: list[float] = field(default_factory=list)
    seconds: float = 0.0

    def summary(self) -> dict[str, object]:
        """Counts, throughput and percentiles."""
        times = sorted(self.times_ms)

        def percentile(p: float) -> float | None:
            return round(times[min(len(times) - 1, int(p * len(times)))], 2) if times else None

        return {
            "requests": sum(self.statuses.values()),
            "statuses": dict(self.statuses),
            "failed": sum(n for status, n in self.statuses.items() if status != "200"),
            "seconds": round(self.seconds, 2),
            "requests_per_s": round(len(times) / self.seconds, 1),
            "p50_ms": percentile(0.5),
            "p90_ms": percentile(0.9),
            "p99_ms": percentile(0.99),
            "max_ms": round(times[-1], 2) if times else None,
        }


class Server:
    """A server process on a free port."""

    def __init__(self, run: Path, *options: str) -> None:
        command = [sys.executable, "-m", "saccade", "serve", str(run), "--port", "0", *options]
        self.process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
        assert self.process.stderr is not None
        for line in self.process.stderr:
            if found := re.search(r"http://127\.0\.0\.1:(\d+)/", line):
                self.port = int(found[1])
                break
        else:
            sys.exit("the server did not start")
        self._await_answer()

    def _await_answer(self) -> None:
        for _ in range(600):
            try:
                self.get("/healthz")
                return
            except OSError:
                time.sleep(0.05)
        sys.exit("the server does not answer")

    def get(self, path: str) -> bytes:
        """The body of an answer."""
        with urllib.request.urlopen(f"http://127.0.0.1:{self.port}{path}") as answer:
            content: bytes = answer.read()
        return content

    def resident_mib(self) -> float:
        """Resident memory of the process."""
        status = Path(f"/proc/{self.process.pid}/status").read_text()
        return int(status.partition("VmRSS:")[2].split()[0]) / 1024

    def stop(self) -> int:
        """End the server and return its exit code."""
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(60)


def request_of(server: Server) -> bytes:
    """A whole request with a sample of the model as its body."""
    model = json.loads(server.get("/api/models"))["models"][0]
    body = server.get(f"/api/pictures/{model['samples'][0]['picture']}")
    head = (
        f"POST /api/predict HTTP/1.1\r\nHost: 127.0.0.1:{server.port}\r\n"
        f"Content-Type: image/png\r\nContent-Length: {len(body)}\r\n\r\n"
    )
    return head.encode() + body


async def read_answer(reader: asyncio.StreamReader, wanted: bytes = b'"classes"') -> str:
    """Read one answer, which must contain the wanted bytes; returns its status."""
    head = await reader.readuntil(b"\r\n\r\n")
    found = re.search(rb"content-length: (\d+)", head, re.IGNORECASE)
    body = await reader.readexactly(int(found[1]) if found else 0)
    status = head.split(b" ", 2)[1].decode()
    return status if status != "200" or wanted in body else "wrong body"


async def client(
    server: Server, request: bytes, tally: Tally, until: float, most: list[int]
) -> None:
    """Send requests one after the other on one connection until the time or the count is up."""
    reader = writer = None
    while time.monotonic() < until and most[0] > 0:
        most[0] -= 1
        start = time.perf_counter()
        try:
            if writer is None:
                reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
                start = time.perf_counter()
            writer.write(request)
            assert reader is not None
            status = await read_answer(reader)
        except (OSError, asyncio.IncompleteReadError) as error:
            status = type(error).__name__
            writer = None
        if status == "200":
            tally.times_ms.append(1e3 * (time.perf_counter() - start))
        tally.statuses[status] += 1
        if status == "503":
            await asyncio.sleep(0.05)
    if writer is not None:
        writer.close()


async def load(server: Server, clients: int, seconds: float, most: int = 10**9) -> Tally:
    """Many clients at once."""
    request, tally = request_of(server), Tally()
    start, left = time.monotonic(), [most]
    until = start + seconds
    await asyncio.gather(*(client(server, request, tally, until, left) for _ in range(clients)))
    tally.seconds = time.monotonic() - start
    return tally


def measure_throughput(run: Path, seconds: float) -> dict[str, object]:
    """The digits model with batches and one by one."""
    found: dict[str, object] = {}
    for name, options in (("batched", ()), ("one_by_one", ("--max-batch", "1"))):
        server = Server(run, *options)
        asyncio.run(load(server, CLIENTS, 2))
        found[name] = asyncio.run(load(server, CLIENTS, seconds)).summary()
        found[f"{name}_batch_mean"] = _mean_batch(server)
        server.stop()
        print(name, found[name], flush=True)
    rates = [found[name]["requests_per_s"] for name in ("batched", "one_by_one")]  # type: ignore[index]
    found["speed_up"] = round(rates[0] / rates[1], 2)
    return found


def _mean_batch(server: Server) -> float:
    text = server.get("/metrics").decode()
    total, count = (
        float(re.search(rf"saccade_batch_size_{w} (\S+)", text)[1]) for w in ("sum", "count")
    )  # type: ignore[index]
    return round(total / count, 1)


def measure_overload(run: Path) -> dict[str, object]:
    """A short queue and many clients; then few clients again."""
    server = Server(run, "--queue", "16", "--max-batch", "4")
    during = asyncio.run(load(server, 256, 5)).summary()
    after = asyncio.run(load(server, 8, 3)).summary()
    server.stop()
    return {"during": during, "after": after}


def measure_memory(run: Path) -> dict[str, object]:
    """Resident memory as requests go by."""
    server = Server(run)
    sizes = []
    for count in (2_000, 5_000, 5_000):
        asyncio.run(load(server, CLIENTS, 600, count))
        sizes.append(round(server.resident_mib(), 1))
    server.stop()
    return {"after_requests": [2_000, 7_000, 12_000], "resident_mib": sizes}


def measure_first_view(run: Path) -> dict[str, object]:
    """A new browser profile each time: nothing is cached."""
    from playwright.sync_api import sync_playwright

    server, times = Server(run), []
    flags = ["--no-sandbox", "--disable-gpu", "--disable-background-networking"]
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=flags)
        for _ in range(7):
            page = browser.new_page()
            page.goto(f"http://127.0.0.1:{server.port}/")
            page.wait_for_selector("html[data-ready]")
            times.append(round(page.evaluate("window.firstViewMs"), 1))
            page.close()
        browser.close()
    server.stop()
    return {"ms": times, "median_ms": sorted(times)[3]}


async def _until_the_end(server: Server) -> dict[str, object]:
    """SIGTERM while the requests of all clients wait; they are slow ones, /api/explain."""
    request = request_of(server).replace(b"/api/predict", b"/api/explain")
    pairs = [await asyncio.open_connection("127.0.0.1", server.port) for _ in range(CLIENTS)]
    for _, writer in pairs:
        writer.write(request)
        await writer.drain()
    answered = waiting = 0
    while answered + waiting + 1 < CLIENTS:
        told = (await asyncio.to_thread(server.get, "/metrics")).decode()
        answered = sum(map(int, re.findall(r'route="/api/explain",status="\d+"} (\d+)', told)))
        waiting = int(re.findall(r"^saccade_queue_length (\d+)", told, re.MULTILINE)[0])
    server.process.send_signal(signal.SIGTERM)
    statuses = Counter([await read_answer(reader, b'"panels"') for reader, _ in pairs])
    code = await asyncio.to_thread(server.process.wait, 60)
    return {
        "requests": CLIENTS,
        "waiting_at_sigterm": waiting,
        "statuses": dict(statuses),
        "exit_code": code,
    }


def main() -> None:
    """Measure and write the result file."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("run", type=Path)
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--only", choices=["throughput", "rest"], default=None)
    options = parser.parse_args()
    os.environ.pop("OMP_NUM_THREADS", None)
    place = options.out and options.out / "serve_cpu_202611.json"
    result = json.loads(place.read_text()) if place and place.exists() else {}
    result["environment"] = describe_environment(torch.device("cpu"))
    result["environment"]["command"] = (
        "python benchmarks/serve_load.py runs/digits --out results/serve"
    )
    load_before = os.getloadavg()[0]
    if options.only != "rest":
        result["throughput"] = measure_throughput(options.run, options.seconds)
        result["throughput"]["load_average_before"] = load_before
    if options.only != "throughput":
        result["load_average_before_the_rest"] = load_before
        result["overload"] = measure_overload(options.run)
        result["memory"] = measure_memory(options.run)
        result["first_view"] = measure_first_view(options.run)
        result["shutdown"] = asyncio.run(_until_the_end(Server(options.run)))
    print(json.dumps(result, indent=1))
    if place:
        options.out.mkdir(parents=True, exist_ok=True)
        write_json(place, result)


if __name__ == "__main__":
    main()
