"""`saccade bench model`: images/s and memory of a model for each attention, size and patch."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from saccade.bench.clock import Call, Timing, time_calls
from saccade.bench.memory import cuda_peak_mib, probe_peaks_mib
from saccade.bench.shapes import Pass
from saccade.bench.tables import Table, markdown_table, number, provenance, spread
from saccade.errors import ConfigError
from saccade.models import MODELS, SequenceTransformer, VisionTransformer, ViTConfig, create_model

__all__ = [
    "ModelCase",
    "ModelResult",
    "ModelRow",
    "check_cases",
    "make_model_call",
    "measure_pass",
    "model_pass",
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
        direction: `forward` without gradients, or `training`: forward, backward and AdamW.
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
        case = row.case
        words = (case.model, case.attention, case.image_size, case.patch_size or "own")
        head = (
            *words,
            row.tokens or "-",
            case.batch,
            case.direction,
            "yes" if case.compiled else "no",
        )
        times = row.reason if row.timing is None else spread(row.timing)
        tail = (number(row.img_per_s), number(self.speedup(row)), number(row.peak_mib))
        return (*map(str, head), times, *tail)

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


def make_model_call(case: ModelCase, batch: int, device: torch.device) -> Call:
    """A function without arguments that runs one pass over a batch of random images."""
    torch.manual_seed(0)
    model = build_model(case).to(device)
    size = (batch, model.config.in_chans, case.image_size, case.image_size)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=device.type == "cuda")
    return model_pass(
        model,
        torch.randn(size, device=device),
        case.direction,
        autocast=case.autocast,
        compiled=case.compiled,
        optimizer=optimizer,
    )


def model_pass(
    model: VisionTransformer | SequenceTransformer,
    x: Tensor,
    direction: Pass,
    *,
    autocast: bool,
    compiled: bool = False,
    optimizer: torch.optim.Optimizer | None = None,
) -> Call:
    """A function without arguments that runs one pass of a model over a batch.

    Args:
        model: The model.
        x: The batch.
        direction: `forward` without gradients, or `training`: forward and backward.
        autocast: True to use `torch.autocast` with bfloat16.
        compiled: True to use torch.compile.
        optimizer: Makes a step at the end of a training pass; None makes no step.
    """
    labels = torch.randint(max(1, model.config.num_classes), x.shape[:1], device=x.device)
    model.train(direction == "training")
    run = _compiled(model) if compiled else model
    precision = partial(torch.autocast, x.device.type, torch.bfloat16, enabled=autocast)

    def forward() -> object:
        with torch.inference_mode(), precision():
            return run(x)

    def training() -> object:
        with precision():
            loss = F.cross_entropy(run(x), labels)
        loss.backward()  # type: ignore[no-untyped-call]
        if optimizer is not None:
            optimizer.step()
        model.zero_grad(set_to_none=True)
        return loss

    return forward if direction == "forward" else training


def _compiled(
    model: VisionTransformer | SequenceTransformer,
) -> Callable[[Tensor], Tensor]:
    """Compile the model: block by block for training, as `saccade train` does; else as a whole."""
    torch.compiler.reset()
    if not model.training:
        return torch.compile(model)
    model.set_compiled()
    return model


def measure_pass(
    make: Callable[[], Call],
    kind: str,
    request: Mapping[str, Any],
    device: torch.device,
    seconds: float,
) -> tuple[Timing, float | None, str]:
    """Time of a pass and its peak memory, or why that was not measured.

    Args:
        make: Builds the model and the pass. On a GPU the peak includes the model.
        kind: On the CPU: which request of `saccade.bench.memory` this is.
        request: Values of that request.
        device: Device to run on.
        seconds: Approximate time of the measurement.
    """
    before = torch.cuda.memory_allocated(device) if device.type == "cuda" else 0
    call = make()
    call()
    timing = time_calls(call, device, seconds=seconds, warm=True)
    if device.type == "cuda":
        resident = (torch.cuda.memory_allocated(device) - before) / 2**20
        return timing, resident + cuda_peak_mib(call, device), ""
    del call
    try:
        threads = {"threads": torch.get_num_threads()}
        return timing, probe_peaks_mib(kind, [{**request, **threads}])[0], ""
    except RuntimeError as error:
        return timing, None, f"memory was not measured: {error}"


def _measure(case: ModelCase, device: torch.device, seconds: float) -> ModelRow:
    with torch.device("meta"):
        tokens = build_model(case).patch_embed.num_patches
    make = partial(make_model_call, case, case.batch, device)
    found = measure_pass(make, "model", {"case": asdict(case)}, device, seconds)
    timing, peak, reason = found
    rate = 1e3 * case.batch / timing.median_ms
    return ModelRow(case, tokens, timing, img_per_s=rate, peak_mib=peak, reason=reason)
