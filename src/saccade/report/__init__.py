"""Reports on run folders as HTML, Markdown, CSV and LaTeX; this package does not import torch."""

from saccade.report.write import FORMATS, Report, render_report, write_report

__all__ = ["FORMATS", "Report", "render_report", "write_report"]
