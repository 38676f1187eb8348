"""The grid of disturbances on the terminal, as a CSV file, and as a heat map."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from rich.table import Table

from lightning_vfl.absence.report import figure_style
from lightning_vfl.absence.robustness import ABSENT, NOBODY, Robustness, name_of
from lightning_vfl.datamodules.party_number import shown
from lightning_vfl.errors import ConfigurationError
from lightning_vfl.terminal import console

if TYPE_CHECKING:
    import pandas as pd

NAME = "robustness"  # of the files


class Cells(NamedTuple):
    """What is shown of a grid.

    Args:
        harm: a row for each party or method, a column for each disturbance.
        unclear: whether 0 is in the interval of a harm; None: there are no intervals.
    """

    harm: "pd.DataFrame"
    unclear: "pd.DataFrame | None"

    def text(self, row: int, column: int, number: str) -> str:
        """The number of a cell, in brackets if it is unclear."""
        unclear = self.unclear is not None and self.unclear.iloc[row, column]
        return f"({number})" if number and unclear else number


def write_report(found: Robustness, method: str, folder: Path, names: Sequence[str]) -> list[Path]:
    """Print the grid, and write ``robustness.csv`` and ``robustness.svg`` into a folder; returns their paths.

    Args:
        found: the grid.
        method: the name of the model, for comparisons.
        folder: of the files.
        names: of the parties.
    """
    table = found.table
    metric = table["metric"].iloc[0]
    first = table[table["metric"] == metric]
    usual = first[first["fault"] == NOBODY]["value"].iloc[0]
    grid = _cells(first[first["fault"] != NOBODY], "party")
    grid.harm.index = [shown(int(party), names) for party in grid.harm.index]
    _show(grid, f"By how much {metric} is worse than {usual:.4f} if one party is disturbed")
    for _, row in found.ranking().iterrows():
        who = shown(int(row["party"]), names)
        print(f"{who}: worse by {row['mean_harm']:.4f} on average, at most by {row['harm']:.4f} ({row['worst']})")
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{NAME}.csv"
    table.assign(method=method).to_csv(path, index=False)
    return [path, draw(grid, str(metric), folder / f"{NAME}.svg")]


def compare(folders: Sequence[Path], out: Path) -> list[Path]:
    """Print and draw the grids of several folders side by side: for each method the mean over the parties.

    Args:
        folders: each with the ``robustness.csv`` of an earlier command.
        out: the folder of the files.

    Raises:
        ConfigurationError: for a folder without a grid, and for grids that have nothing in common.
    """
    import pandas as pd

    tables = []
    for folder in folders:
        path = folder / f"{NAME}.csv"
        if not path.is_file():
            raise ConfigurationError(f"{folder} has no {NAME}.csv; run lightning-vfl robustness with its checkpoint")
        table = pd.read_csv(path)
        tables.append(table.assign(method=f"{table['method'].iloc[0]} ({folder.name})"))
    joined = pd.concat(tables)
    metric = joined["metric"].iloc[0]
    first = joined[joined["metric"] == metric]
    cells = _cells(first[first["fault"] != NOBODY], "method").harm.dropna(axis=1)
    if cells.empty or len(cells) < len(set(joined["method"])):
        raise ConfigurationError("these folders have no disturbance and metric in common; give the same options")
    usual = first[first["fault"] == NOBODY].set_index("method")["value"]
    grid = Cells(cells, None)
    _show(grid, f"By how much {metric} is worse, mean over the parties")
    for method, value in usual.items():
        print(f"{method}: {metric} {value:.4f} undisturbed")
    out.mkdir(parents=True, exist_ok=True)
    path = out / "methods.csv"
    cells.assign(undisturbed=usual).to_csv(path, index_label="method")
    return [path, draw(grid, str(metric), out / "methods.svg")]


def draw(grid: Cells, metric: str, path: Path) -> Path:
    """A heat map: rows as in the table, a darker cell is a greater harm; an improvement is as light as no harm."""
    from matplotlib import rc_context  # imported late: 0.4 s
    from matplotlib.figure import Figure

    cells = grid.harm
    with rc_context(figure_style()):
        width = 2.2 + 0.65 * len(cells.columns)
        figure = Figure(figsize=(width, 1.6 + 0.32 * len(cells)), layout="constrained")
        axes = figure.subplots()
        most = max(float(cells.max().max()), 1e-9)
        picture = axes.imshow(cells.to_numpy(), cmap="Blues", vmin=0, vmax=most, aspect="auto")
        axes.set_xticks(range(len(cells.columns)), cells.columns, rotation=35, ha="right", rotation_mode="anchor")
        axes.set_yticks(range(len(cells)), cells.index)
        for row, values in enumerate(cells.to_numpy()):
            for column, value in enumerate(values):
                if value == value:  # an active party is never absent
                    colour = "white" if value > 0.6 * most else "black"
                    text = grid.text(row, column, f"{value:.3f}")
                    axes.text(column, row, text, ha="center", va="center", color=colour, fontsize=7)
        axes.spines[:].set_visible(False)
        axes.tick_params(length=0)
        axes.set_title(f"by how much {metric} is worse", loc="left", fontsize=9)
        figure.colorbar(picture)
        figure.savefig(path, metadata={"Date": None})
    return path


def _cells(table: "pd.DataFrame", by: str) -> Cells:
    """The harm, with a row for each party or method, and a column for each disturbance in the order of the table."""
    named = table.assign(name=[name_of(*one) for one in zip(table["fault"], table["strength"], strict=True)])
    order = list(dict.fromkeys(named["name"]))
    order.sort(key=lambda name: name != ABSENT)
    harm = named.pivot_table(values="harm", index=by, columns="name", aggfunc="mean", sort=False)[order]
    if "low" not in named or named["low"].isna().all():
        return Cells(harm, None)
    named["unclear"] = (named["low"] <= 0) & (named["high"] >= 0)
    return Cells(harm, named.pivot_table(values="unclear", index=by, columns="name", sort=False)[order] > 0)


def _show(grid: Cells, title: str) -> None:
    """Print the grid with its longer side downwards, so that it fits a terminal."""
    harm = grid.harm.to_numpy()
    texts = [
        [grid.text(row, column, f"{value:+.4f}" if value == value else "") for column, value in enumerate(values)]
        for row, values in enumerate(harm)
    ]
    rows, columns = list(grid.harm.index), list(grid.harm.columns)
    if len(columns) > len(rows):
        rows, columns, texts = columns, rows, [list(one) for one in zip(*texts, strict=True)]
    printed = Table(title=title, title_justify="left")
    printed.add_column("")
    for column in columns:
        printed.add_column(str(column), justify="right")
    for label, row_texts in zip(rows, texts, strict=True):
        printed.add_row(str(label), *row_texts)
    console().print(printed)
    if grid.unclear is not None:
        print("in brackets: 0 is in the 95 % interval over resampled test records")
