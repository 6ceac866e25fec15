"""Export models to ONNX, `torch.export` and the Hub's folder, and run ONNX files without torch."""

from typing import TYPE_CHECKING

from saccade.lazy import lazy_names

if TYPE_CHECKING:
    from saccade.export.classifier import OnnxClassifier
    from saccade.export.hub import export_hub
    from saccade.export.onnx_file import export_onnx
    from saccade.export.options import ExportOptions
    from saccade.export.pt2 import export_pt2
    from saccade.export.report import ExportReport
else:
    __getattr__, __dir__ = lazy_names(
        __name__,
        {
            "classifier": ("OnnxClassifier",),
            "hub": ("export_hub",),
            "onnx_file": ("export_onnx",),
            "options": ("ExportOptions",),
            "pt2": ("export_pt2",),
            "report": ("ExportReport",),
        },
    )

__all__ = [
    "ExportOptions",
    "ExportReport",
    "OnnxClassifier",
    "export_hub",
    "export_onnx",
    "export_pt2",
]
