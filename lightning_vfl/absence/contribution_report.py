"""The table of contributions on the terminal and as Parquet files, and its figure as SVG."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from rich.table import Table

from lightning_vfl.absence.contribution import Contributions
from lightning_vfl.absence.report import figure_style
from lightning_vfl.datamodules.party_number import shown
from lightning_vfl.terminal import console
from lightning_vfl.trained.predictions import write_table

if TYPE_CHECKING:
    import pandas as pd

NAME = "contribution"  # of the files


def write_report(found: Contributions, folder: Path, names: Sequence[str]) -> list[Path]:
    """Print the table, and write ``contribution.parquet`` and ``contribution.svg`` into a folder; returns their paths.

    ``names``: of the parties.
    """
    how = "exact" if found.exact else "± standard error over sampled orders"
    printed = Table(title=f"Shapley values of the parties ({how})", title_justify="left")
    for column in ("metric", "party", "value", "95 % interval"):
        printed.add_column(column, justify="left" if column in ("metric", "party") else "right")
    for metric, same in found.table.groupby("metric", sort=False):
        first = same.iloc[0]
        printed.add_row(str(metric), "nobody", f"{first['nobody']:.4f}", "")
        for _, row in same.iterrows():
            error = f" ± {row['standard_error']:.4f}" if row["standard_error"] else ""
            interval = "" if row["low"] != row["low"] else f"{row['low']:+.4f} to {row['high']:+.4f}"
            printed.add_row("", shown(int(row["party"]), names), f"{row['value']:+.4f}{error}", interval)
        printed.add_row("", "everybody", f"{first['everybody']:.4f}", "")
    console().print(printed)
    table = folder / f"{NAME}.parquet"
    folder.mkdir(parents=True, exist_ok=True)
    write_table(found.table, table)
    return [table, draw(found.table, folder / f"{NAME}.svg", names)]


def write_columns(table: "pd.DataFrame", folder: Path, name: str) -> Path:
    """Write what the columns of one party add, for this party alone; returns the path."""
    path = folder / f"columns_{name}.parquet"
    write_table(table, path)
    return path


def draw(table: "pd.DataFrame", path: Path, names: Sequence[str]) -> Path:
    """A bar for each party: its share of the first metric."""
    from matplotlib import rc_context  # imported late: 0.4 s
    from matplotlib.figure import Figure

    first = table[table["metric"] == table["metric"].iloc[0]]
    with rc_context(figure_style()):
        figure = Figure(figsize=(4, 0.8 + 0.3 * len(first)), layout="constrained")
        axes = figure.subplots()
        labels = [shown(int(party), names) for party in first["party"]]
        axes.barh(labels, first["value"], color="#56B4E9")
        for place, (low, high) in enumerate(zip(first["low"], first["high"], strict=True)):
            axes.plot([low, high], [place, place], color="#0072B2")
        axes.invert_yaxis()
        axes.axvline(0, color="black", linewidth=0.8)
        axes.set_xlabel(f"share of {first['metric'].iloc[0]}")
        figure.savefig(path, metadata={"Date": None})
    return path
