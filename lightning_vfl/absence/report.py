"""The table of ``--absent`` on the terminal and as a Parquet file, and its figure as SVG."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.table import Table

from lightning_vfl.absence.measure import Measured
from lightning_vfl.datamodules.party_number import shown
from lightning_vfl.terminal import console
from lightning_vfl.trained.predictions import write_table

if TYPE_CHECKING:
    import pandas as pd

NAME = "absent"  # of the files
SHOWN = 16  # subsets in the printed table; the file has all


def write_report(measured: Measured, folder: Path, names: Sequence[str]) -> list[Path]:
    """Print the table, and write ``absent.parquet`` and ``absent.svg`` into a folder; returns their paths.

    ``names``: of the parties, for the printed table; the files have numbers.
    """
    show(measured, names)
    table = folder / f"{NAME}.parquet"
    write_table(measured.table, table)
    return [table, draw(measured.table, folder / f"{NAME}.svg")]


def show(measured: Measured, names: Sequence[str]) -> None:
    """Print a row for each subset, number absent and probability, with a column for each metric."""
    table, metrics = measured.table, list(dict.fromkeys(measured.table["metric"]))
    how = "" if measured.exact else ", 95 % intervals over sampled subsets"
    printed = Table(title=f"Parties absent at the test{how}", title_justify="left")
    for name in ("absent", "subsets", *metrics, "left out"):
        printed.add_column(name, justify="left" if name == "absent" else "right")
    keys = ["what", "absent", "number", "p"]
    hidden = 0
    for (what, absent, number, p), same in table.groupby(keys, sort=False, dropna=False):
        if what == "subset":
            hidden += 1
            if hidden > SHOWN:
                continue
        first = same.iloc[0]
        subset = ", ".join(shown(int(m), names) for m in str(absent).split()) or "nobody"
        label = {"subset": subset, "number": f"any {number:.0f}"}.get(str(what), f"each with p = {p:g}")
        values = [_cell(same[same["metric"] == name].iloc[0]) for name in metrics]
        printed.add_row(label, str(first["subsets"]), *values, f"{first['left_out']:,}" if first["left_out"] else "")
    console().print(printed)
    if hidden > SHOWN:
        print(f"{hidden - SHOWN} more subsets are in the file")


def draw(table: "pd.DataFrame", path: Path) -> Path:
    """The first metric against the number of absent parties: a dot for each subset, a line for the means."""
    from matplotlib import rc_context  # imported late: 0.4 s
    from matplotlib.figure import Figure

    first = table[table["metric"] == table["metric"].iloc[0]]
    subsets, numbers = first[first["what"] == "subset"], first[first["what"] == "number"]
    with rc_context(figure_style()):
        figure = Figure(figsize=(4, 2.8), layout="constrained")
        axes = figure.subplots()
        axes.plot(subsets["number"], subsets["value"], "o", color="#56B4E9", markersize=4, label="one subset")
        if len(numbers):
            axes.errorbar(numbers["number"], numbers["value"], numbers["half_width"], color="#0072B2", label="mean")
        axes.set_xlabel("absent parties")
        axes.set_ylabel(str(first["metric"].iloc[0]))
        axes.set_xticks(sorted(set(subsets["number"])))
        axes.legend(frameon=False)
        path.parent.mkdir(parents=True, exist_ok=True)
        figure.savefig(path, metadata={"Date": None})
    return path


def figure_style() -> Any:
    """Settings of matplotlib for the figures of this package."""
    return {"font.size": 9, "axes.spines.top": False, "axes.spines.right": False, "svg.hashsalt": "lightning_vfl"}


def _cell(row: "pd.Series[float]") -> str:
    half = f" ± {row['half_width']:.4f}" if row["half_width"] else ""
    return f"{row['value']:.4f}{half}"
