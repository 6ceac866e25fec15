"""`python -m saccade.bench.probe KIND`: peak memory of calls in a fresh process.

KIND is `attention` or `model`. Stdin contains a JSON list of requests; each is answered with one
line of JSON. A small call comes first, so that torch loads and allocates its permanent data.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Mapping
from typing import Any

import torch

from saccade.bench.memory import resident_peak_mib

__all__ = ["main"]

WARM_UP_TOKENS = 64


def _attention(request: Mapping[str, Any]) -> Callable[[], object]:
    from saccade.bench.attention import make_call, prepare
    from saccade.bench.shapes import Shape

    shape = Shape(**request["shape"])
    small = Shape(1, shape.heads, min(WARM_UP_TOKENS, shape.tokens), shape.head_dim)
    calls = []
    for size in (small, shape):
        problem, operation = prepare(request["mechanism"], size, request["dtype"], "cpu")
        calls.append(make_call(problem, operation, request["direction"]))
    calls[0]()
    return calls[1]


def _model(request: Mapping[str, Any]) -> Callable[[], object]:
    from saccade.bench.model import ModelCase, make_model_call

    case = ModelCase(**request["case"])
    small, call = (make_model_call(case, size, torch.device("cpu")) for size in (1, case.batch))
    small()
    return call


def main() -> None:
    """Answer the requests in order."""
    make = {"attention": _attention, "model": _model}[sys.argv[1]]
    for request in json.load(sys.stdin):
        if request.get("threads") is not None:
            torch.set_num_threads(request["threads"])
        peak = resident_peak_mib(make(request))
        sys.stdout.write(json.dumps({"peak_extra_mib": peak}) + "\n")


if __name__ == "__main__":
    main()
