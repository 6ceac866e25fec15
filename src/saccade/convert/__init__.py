"""Convert trained softmax ViTs to another attention: diagnose, swap, distill."""

from typing import TYPE_CHECKING

from saccade.lazy import lazy_names

if TYPE_CHECKING:
    from saccade.convert.conversion import Conversion, Inspection, convert, inspect
    from saccade.convert.diagnosis import Diagnosis, LayerDiagnosis, diagnose
    from saccade.convert.source import Source, open_source
else:
    __getattr__, __dir__ = lazy_names(
        __name__,
        {
            "conversion": ("Conversion", "Inspection", "convert", "inspect"),
            "diagnosis": ("Diagnosis", "LayerDiagnosis", "diagnose"),
            "source": ("Source", "open_source"),
        },
    )

__all__ = [
    "Conversion",
    "Diagnosis",
    "Inspection",
    "LayerDiagnosis",
    "Source",
    "convert",
    "diagnose",
    "inspect",
    "open_source",
]
