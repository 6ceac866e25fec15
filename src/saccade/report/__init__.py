"""Reports: run folders to one self-contained page, Markdown, CSV and LaTeX. No torch in here."""

from saccade.report.write import FORMATS, Report, write_report

__all__ = ["FORMATS", "Report", "write_report"]
