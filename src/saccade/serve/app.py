"""The application: API, page, health, metrics, reports, and errors in words."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from importlib.resources import files
from pathlib import Path

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse, PlainTextResponse, Response
from starlette.exceptions import HTTPException

from saccade.errors import SaccadeError, UnknownNameError
from saccade.serve.api import make_api
from saccade.serve.batching import BusyError, Compute, Metrics, TookTooLongError
from saccade.serve.guard import REPORT_POLICY, Guard, Settings
from saccade.serve.pictures import PictureError, PictureStore
from saccade.serve.served import ServedModel
from saccade.serve.state import SlowBodyError, State
from saccade.version import __version__

__all__ = ["create_app"]

MEDIA_TYPES = {
    ".html": "text/html; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".json": "application/json",
    ".svg": "image/svg+xml",
}
RETRY_AFTER_S = 1

_log = logging.getLogger(__name__)


def create_app(
    models: Sequence[ServedModel],
    settings: Settings | None = None,
    *,
    reports: Sequence[tuple[str, str]] = (),
) -> FastAPI:
    """Build the ASGI application.

    Args:
        models: What `open_models` returned.
        settings: Addresses and limits.
        reports: Name and HTML page of each study.
    """
    settings = settings or Settings()
    compute = Compute(
        max_queue=settings.max_queue,
        max_batch=settings.max_batch,
        timeout_s=settings.timeout_s,
    )
    by_id = {model.id: model for model in models}
    state = State(settings, by_id, PictureStore(settings), compute, reports)

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        compute.start()
        yield
        compute.close()

    app = FastAPI(
        title="saccade",
        version=__version__,
        description="Attention maps and predictions of a vision transformer, for each attention.",
        docs_url=None,
        redoc_url=None,
        openapi_url="/api/openapi.json",
        lifespan=lifespan,
    )
    app.state.compute, app.state.settings = compute, settings
    app.include_router(make_api(state))
    _add_page(app)
    _add_watching(app, compute.metrics)
    _add_reports(app, reports)
    _add_errors(app)
    app.add_middleware(Guard, settings=settings, metrics=compute.metrics)
    return app


def _add_page(app: FastAPI) -> None:
    """The page and its parts, read once: what is not among them is not there."""
    folder = files("saccade.serve") / "page"
    parts = {
        part.name: (part.read_bytes(), MEDIA_TYPES[Path(part.name).suffix])
        for part in folder.iterdir()
        if Path(part.name).suffix in MEDIA_TYPES
    }

    @app.get("/", include_in_schema=False)
    async def page() -> Response:
        content, kind = parts["index.html"]
        return Response(content, media_type=kind)

    @app.get("/page/{name}", include_in_schema=False)
    async def part_of_page(name: str) -> Response:
        if name not in parts:
            raise HTTPException(404, "there is no such page")
        content, kind = parts[name]
        return Response(content, media_type=kind, headers={"cache-control": "no-cache"})


def _add_watching(app: FastAPI, metrics: Metrics) -> None:
    @app.get("/healthz")
    async def healthz() -> dict[str, str]:
        """Answer if the server runs."""
        return {"status": "ok"}

    @app.get("/metrics", response_class=PlainTextResponse)
    async def prometheus() -> PlainTextResponse:
        """Return counters in the text format of Prometheus."""
        return PlainTextResponse(metrics.text(), media_type="text/plain; version=0.0.4")


def _add_reports(app: FastAPI, reports: Sequence[tuple[str, str]]) -> None:
    @app.get("/reports/{place}", include_in_schema=False)
    async def report(place: int) -> Response:
        if not 0 <= place < len(reports):
            raise HTTPException(404, "there is no such report")
        headers = {"content-security-policy": REPORT_POLICY}
        return Response(reports[place][1], media_type=MEDIA_TYPES[".html"], headers=headers)


def _add_errors(app: FastAPI) -> None:
    """Every error as `{"detail": words}`."""

    @app.exception_handler(PictureError)
    async def bad_picture(_: Request, error: PictureError) -> Response:
        return _problem(error.status, str(error))

    @app.exception_handler(SaccadeError)
    async def bad_argument(_: Request, error: SaccadeError) -> Response:
        is_model = isinstance(error, UnknownNameError) and error.kind == "model"
        return _problem(404 if is_model else 422, str(error))

    @app.exception_handler(RequestValidationError)
    async def bad_request(_: Request, error: RequestValidationError) -> Response:
        return _problem(422, "; ".join(map(_validation_text, error.errors())))

    @app.exception_handler(HTTPException)
    async def not_found(_: Request, error: HTTPException) -> Response:
        return JSONResponse({"detail": error.detail}, error.status_code, headers=error.headers)

    @app.exception_handler(SlowBodyError)
    async def slow(_: Request, error: SlowBodyError) -> Response:
        return _problem(408, "the picture did not arrive in time; send it again")

    async def busy(_: Request, error: Exception) -> Response:
        text = "the server has too much to do; try again in a moment"
        return _problem(503, text, {"retry-after": str(RETRY_AFTER_S)})

    app.add_exception_handler(BusyError, busy)
    app.add_exception_handler(TookTooLongError, busy)

    @app.exception_handler(Exception)
    async def unexpected(_: Request, error: Exception) -> Response:
        _log.error("unexpected error", exc_info=error)
        return _problem(500, "the server made a mistake; its terminal has the details")


def _problem(status: int, text: str, headers: dict[str, str] | None = None) -> Response:
    return JSONResponse({"detail": text}, status, headers=headers)


def _validation_text(fault: dict[str, object]) -> str:
    """A fault of pydantic as `<argument> must be ..., got ...`."""
    place = fault["loc"]
    name = place[-1] if isinstance(place, tuple) and place else "the request"
    told = str(fault["msg"])
    wanted = told[0].lower() + told[1:]
    for start in ("input should be ", "value should be "):
        wanted = wanted.removeprefix(start)
    return f"{name} must be {wanted}, got {str(fault.get('input'))[:100]!r}"
