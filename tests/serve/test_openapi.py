"""The API keeps to its own description, whatever it is sent."""

from pathlib import Path
from typing import Any

import pytest
import schemathesis
from fastapi import FastAPI
from hypothesis import HealthCheck, settings
from schemathesis.checks import not_a_server_error

from saccade.serve import Settings, create_app, measure
from saccade.serve.served import open_models


@pytest.fixture
def described(runs: list[Path], monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setattr(measure, "SECONDS", 0.001)
    monkeypatch.setattr(measure, "MAX_TOKENS", 128)
    app: FastAPI = create_app(open_models(runs[:1]), Settings(allow_hosts=("testserver",)))
    return schemathesis.openapi.from_asgi("/api/openapi.json", app)


schema = schemathesis.pytest.from_fixture("described")


@schema.parametrize()
@settings(max_examples=12, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
def test_no_request_breaks_the_server(case: Any) -> None:
    response = case.call()
    case.validate_response(
        response,
        checks=[not_a_server_error, *_of_the_schema()],
    )


def _of_the_schema() -> list[Any]:
    from schemathesis.specs.openapi.checks import (
        content_type_conformance,
        response_schema_conformance,
        status_code_conformance,
    )

    return [content_type_conformance, response_schema_conformance, status_code_conformance]
