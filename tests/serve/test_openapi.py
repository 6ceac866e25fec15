"""The API keeps to its own description, whatever it is sent."""

from pathlib import Path
from typing import Any

import pytest
import schemathesis
from hypothesis import HealthCheck, given, settings
from schemathesis.checks import not_a_server_error
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    response_schema_conformance,
    status_code_conformance,
)

from saccade.serve import Settings, create_app, measure
from saccade.serve.served import open_models

OPERATIONS = {
    "GET /api/example",
    "GET /api/models",
    "GET /api/pictures/{picture}",
    "GET /healthz",
    "GET /metrics",
    "POST /api/explain",
    "POST /api/latency",
    "POST /api/measure",
    "POST /api/pictures",
    "POST /api/predict",
    "POST /api/walk",
}
CHECKS = [
    not_a_server_error,
    content_type_conformance,
    response_schema_conformance,
    status_code_conformance,
]


@pytest.fixture(scope="module")
def operations(runs: list[Path]) -> dict[str, Any]:
    app = create_app(open_models(runs[:1]), Settings(allow_hosts=("testserver",)))
    schema = schemathesis.openapi.from_asgi("/api/openapi.json", app)
    return {one.ok().label: one.ok() for one in schema.get_all_operations()}


def test_every_operation_is_tried(operations: dict[str, Any]) -> None:
    assert set(operations) == OPERATIONS


@pytest.mark.parametrize("label", sorted(OPERATIONS))
def test_no_request_breaks_the_server(
    operations: dict[str, Any], label: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(measure, "SECONDS", 0.001)
    monkeypatch.setattr(measure, "LONGEST_MS", 0.01)  # a few points of each curve

    @settings(
        max_examples=25, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck)
    )
    @given(case=operations[label].as_strategy())
    def send(case: Any) -> None:
        case.validate_response(case.call(), checks=CHECKS)

    send()
