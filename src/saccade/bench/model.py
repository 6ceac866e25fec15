"""`saccade bench model`: images/s and memory of a model for each attention, size and patch."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import asdict, dataclass, field, replace
from typing import Any

import torch
import torch.nn.functional as F

from saccade.bench.clock import time_calls
from saccade.bench.memory import cuda_peak_mib, probe_peak_mib
from saccade.bench.results import Timing
from saccade.bench.shapes import Pass
from saccade.bench.tables import Table, markdown_table, number, provenance
from saccade.errors import ConfigError
from saccade.models import MODELS, VisionTransformer, ViTConfig, create_model

__all__ = [
    "ModelCase",
    "ModelResult",
    "ModelRow",
    "check_cases",
    "make_model_call",
    "run_models",
]

FORMAT = "saccade.bench.model"
VERSION = 1
COLUMNS = (
    "model",
    "attention",
    "px",
    "patch",
    "tokens",
    "batch",
    "pass",
    "compiled",
    "ms (p20-p80)",
    "images/s",
    "x softmax",
    "peak MiB",
)


@dataclass(frozen=True)
class ModelCase:
    """One configuration to measure.

    Attributes:
        model: A name from `list_models()` that takes images.
        attention: A name from `list_attentions()`.
        image_size: Height and width in pixels.
        patch_size: Patch size of the stem; None keeps the default of the model.
        batch: Number of images in a batch.
        direction: `forward` without gradients, or `training`: forward, backward and AdamW.
        compiled: True to use torch.compile.
        autocast: True to use `torch.autocast` with bfloat16.
    """

    model: str
    attention: str
    image_size: int
    patch_size: int | None
    batch: int
    direction: Pass
    compiled: bool
    autocast: bool


@dataclass(frozen=True)
class ModelRow:
    """Measurements of a case; `reason` explains missing values."""

    case: ModelCase
    tokens: int | None = None
    timing: Timing | None = None
    img_per_s: float | None = None
    peak_mib: float | None = None
    reason: str = ""


@dataclass
class ModelResult:
    """All rows of one call of the command, and the environment."""

    environment: Mapping[str, Any]
    rows: list[ModelRow] = field(default_factory=list)
    complete: bool = False

    def speedup(self, row: ModelRow) -> float | None:
        """Images/s divided by those of softmax in an otherwise equal case."""
        wanted = replace(row.case, attention="softmax")
        peers = [other.img_per_s for other in self.rows if other.case == wanted]
        if not peers or peers[0] is None or row.img_per_s is None:
            return None
        return row.img_per_s / peers[0]

    def to_json(self) -> str:
        """The result as a JSON document."""
        document = {"format": FORMAT, "version": VERSION, **asdict(self)}
        for values, row in zip(document["rows"], self.rows, strict=True):
            values["speedup_over_softmax"] = self.speedup(row)
        return json.dumps(document, indent=1) + "\n"

    def table(self) -> Table:
        """All rows as a table."""
        return Table("Models", COLUMNS, [self._line(row) for row in self.rows])

    def _line(self, row: ModelRow) -> tuple[str, ...]:
        case, timing = row.case, row.timing
        words = (case.model, case.attention, case.image_size, case.patch_size or "own")
        head = (
            *words,
            row.tokens or "-",
            case.batch,
            case.direction,
            "yes" if case.compiled else "no",
        )
        spread = row.reason
        if timing is not None:
            low, high = number(timing.p20_ms), number(timing.p80_ms)
            spread = f"{number(timing.median_ms)} ({low}-{high})"
        tail = (number(row.img_per_s), number(self.speedup(row)), number(row.peak_mib))
        return (*map(str, head), spread, *tail)

    def as_markdown(self, targets: Table | None = None) -> str:
        """The result as a Markdown page, with the table of targets if given."""
        facts = self.environment
        state = "" if self.complete else "\n**Interrupted: later rows are missing.**\n"
        heading = (
            f"# Models on {facts['device_name']}\n\n{provenance(facts)}\n\n"
            "`training` is forward, backward and an AdamW step. `tokens` counts patches, without "
            "the class token. Peak memory of a GPU includes the model; on the CPU it is the "
            "memory that the step adds.\n" + state
        )
        page = heading + "\n" + markdown_table(COLUMNS, self.table().lines)
        if targets is None:
            return page
        return page + f"\n## {targets.title}\n\n" + markdown_table(targets.columns, targets.lines)


def run_models(
    result: ModelResult,
    cases: Sequence[ModelCase],
    device: torch.device,
    *,
    seconds: float,
    report: Callable[[ModelRow, int, int], None],
) -> None:
    """Measure every case and append it to the result, which keeps the rows if interrupted."""
    check_cases(cases)
    for case in cases:
        try:
            row = _measure(case, device, seconds)
        except torch.OutOfMemoryError:
            row = ModelRow(case, reason="out of memory")
        result.rows.append(row)
        report(row, len(result.rows), len(cases))
        if device.type == "cuda":
            torch.cuda.empty_cache()
    result.complete = True


def check_cases(cases: Sequence[ModelCase]) -> None:
    """Raise `ConfigError` for a case that cannot be built, before anything is measured."""
    for case in cases:
        if case.batch < 1:
            raise ConfigError(f"batch must be at least 1, got {case.batch}")
        with torch.device("meta"):
            build_model(case)


def build_model(case: ModelCase) -> VisionTransformer:
    """The newly initialized model of a case."""
    overrides: dict[str, Any] = {"img_size": case.image_size}
    if case.patch_size is not None:
        overrides["patch_size"] = case.patch_size
    if not isinstance(MODELS[case.model].config, ViTConfig):
        raise ConfigError(
            f"model must be a vision transformer, got {case.model!r}, which takes no images"
        )
    model = create_model(case.model, case.attention, **overrides)
    assert isinstance(model, VisionTransformer)
    return model


def make_model_call(case: ModelCase, batch: int, device: torch.device) -> Callable[[], object]:
    """A function without arguments that runs one pass over a batch of random images."""
    torch.manual_seed(0)
    model = build_model(case).to(device)
    images = torch.randn(
        batch, model.config.in_chans, case.image_size, case.image_size, device=device
    )
    labels = torch.randint(max(1, model.config.num_classes), (batch,), device=device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=device.type == "cuda")
    model.train(case.direction == "training")
    run = _compiled(model) if case.compiled else model

    def precision() -> Any:
        kind = device.type
        return torch.autocast(kind, dtype=torch.bfloat16) if case.autocast else nullcontext()

    def forward() -> object:
        with torch.inference_mode(), precision():
            return run(images)

    def training() -> object:
        with precision():
            loss = F.cross_entropy(run(images), labels)
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        return loss

    return forward if case.direction == "forward" else training


def _compiled(model: VisionTransformer) -> Callable[[torch.Tensor], torch.Tensor]:
    """Compile the model: block by block for training, as `saccade train` does; else as a whole."""
    torch.compiler.reset()
    if not model.training:
        return torch.compile(model)
    model.set_compiled()
    return model


def _measure(case: ModelCase, device: torch.device, seconds: float) -> ModelRow:
    with torch.device("meta"):
        tokens = build_model(case).patch_embed.num_patches
    before = torch.cuda.memory_allocated(device) if device.type == "cuda" else 0
    call = make_model_call(case, case.batch, device)
    call()
    timing = time_calls(call, device, seconds=seconds, warm=True)
    reason = ""
    if device.type == "cuda":
        resident = (torch.cuda.memory_allocated(device) - before) / 2**20
        peak: float | None = resident + cuda_peak_mib(call, device)
    else:
        request = {"case": asdict(case), "threads": torch.get_num_threads()}
        peak, reason = _probe(request)
    rate = 1e3 * case.batch / timing.median_ms
    return ModelRow(case, tokens, timing, img_per_s=rate, peak_mib=peak, reason=reason)


def _probe(request: Mapping[str, Any]) -> tuple[float | None, str]:
    try:
        return probe_peak_mib("model", request), ""
    except RuntimeError as error:
        return None, f"memory was not measured: {error}"
