"""The report of a run: one HTML page with figures, made from the files in the folder of the run."""

from lightning_vfl.report.page import write_report

__all__ = ["write_report"]
