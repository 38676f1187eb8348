"""Studies: a grid of recipes, overrides and seeds, run in parallel and reported as one table, a summary and figures."""

from lightning_vfl.study.bands import Band, band
from lightning_vfl.study.grid import Run, grid
from lightning_vfl.study.read import read_study
from lightning_vfl.study.spec import Study
from lightning_vfl.study.summary import summarise

__all__ = ["Band", "Run", "Study", "band", "grid", "read_study", "summarise"]
