"""What the tests without parties and with disturbances print and write: tables, files, and figures as SVG."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from rich.table import Table

from lightning_vfl.absence.contribution import Contributions
from lightning_vfl.absence.measure import Measured
from lightning_vfl.absence.robustness import ABSENT, NOBODY, Robustness, name_of
from lightning_vfl.datamodules.party_number import shown
from lightning_vfl.errors import ConfigurationError
from lightning_vfl.terminal import console
from lightning_vfl.trained.predictions import write_table

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.axes import Axes

SHOWN = 16  # subsets in the printed table of absent parties; the file has all
GRID = "robustness.csv"  # which later commands compare
STYLE: dict[Any, Any] = {
    "font.size": 9,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "svg.hashsalt": "lightning_vfl",
}


@contextmanager
def _figure(path: Path, width: float, height: float) -> Iterator["Axes"]:
    """Axes of a figure that is written when the context ends."""
    from matplotlib import rc_context  # imported late: 0.4 s
    from matplotlib.figure import Figure

    with rc_context(STYLE):
        figure = Figure(figsize=(width, height), layout="constrained")
        yield figure.subplots()
        path.parent.mkdir(parents=True, exist_ok=True)
        figure.savefig(path, metadata={"Date": None})


def _table(title: str, *columns: str, words: int = 1) -> Table:
    """An empty table for the terminal, whose first columns have words and the others numbers."""
    printed = Table(title=title, title_justify="left")
    for place, column in enumerate(columns):
        printed.add_column(column, justify="left" if place < words else "right")
    return printed


def _of_first_metric(table: "pd.DataFrame") -> "tuple[str, pd.DataFrame]":
    """The first metric of a table, and its rows."""
    metric = table["metric"].iloc[0]
    return str(metric), table[table["metric"] == metric]


# ---- absent parties


def write_absent(measured: Measured, folder: Path, names: Sequence[str]) -> list[Path]:
    """Print the table, and write ``absent.parquet`` and ``absent.svg`` into a folder; returns their paths.

    ``names``: of the parties, for the printed table; the files have numbers.
    """
    show_absent(measured, names)
    table = folder / "absent.parquet"
    write_table(measured.table, table)
    figure = folder / "absent.svg"
    metric, first = _of_first_metric(measured.table)
    subsets = first[first["what"] == "subset"]
    numbers = first[first["what"] == "number"]
    with _figure(figure, 4, 2.8) as axes:  # a dot for each subset, a line for the means
        axes.plot(subsets["number"], subsets["value"], "o", color="#56B4E9", markersize=4, label="one subset")
        if len(numbers):
            axes.errorbar(numbers["number"], numbers["value"], numbers["half_width"], color="#0072B2", label="mean")
        axes.set_xlabel("absent parties")
        axes.set_ylabel(metric)
        axes.set_xticks(sorted(set(subsets["number"])))
        axes.legend(frameon=False)
    return [table, figure]


def show_absent(measured: Measured, names: Sequence[str]) -> None:
    """Print a row for each subset, number absent and probability, with a column for each metric."""
    table = measured.table
    metrics = list(dict.fromkeys(table["metric"]))
    how = "" if measured.exact else ", 95 % intervals over sampled subsets"
    printed = _table(f"Parties absent at the test{how}", "absent", "subsets", *metrics, "left out")
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
        values = []
        for name in metrics:
            row = same[same["metric"] == name].iloc[0]
            half = f" ± {row['half_width']:.4f}" if row["half_width"] else ""
            values.append(f"{row['value']:.4f}{half}")
        printed.add_row(label, str(first["subsets"]), *values, f"{first['left_out']:,}" if first["left_out"] else "")
    console().print(printed)
    if hidden > SHOWN:
        print(f"{hidden - SHOWN} more subsets are in the file")


# ---- contributions


def write_contributions(found: Contributions, folder: Path, names: Sequence[str]) -> list[Path]:
    """Print the table, and write ``contribution.parquet`` and ``contribution.svg`` into a folder; returns their paths.

    ``names``: of the parties.
    """
    how = "exact" if found.exact else "± standard error over sampled orders"
    title = f"Shapley values of the parties ({how})"
    printed = _table(title, "metric", "party", "value", "95 % interval", words=2)
    for name, same in found.table.groupby("metric", sort=False):
        row = same.iloc[0]
        printed.add_row(str(name), "nobody", f"{row['nobody']:.4f}", "")
        for _, own in same.iterrows():
            error = f" ± {own['standard_error']:.4f}" if own["standard_error"] else ""
            interval = "" if own["low"] != own["low"] else f"{own['low']:+.4f} to {own['high']:+.4f}"
            printed.add_row("", shown(int(own["party"]), names), f"{own['value']:+.4f}{error}", interval)
        printed.add_row("", "everybody", f"{row['everybody']:.4f}", "")
    console().print(printed)
    folder.mkdir(parents=True, exist_ok=True)
    table = folder / "contribution.parquet"
    write_table(found.table, table)
    figure = folder / "contribution.svg"
    metric, first = _of_first_metric(found.table)
    with _figure(figure, 4, 0.8 + 0.3 * len(first)) as axes:
        axes.barh([shown(int(party), names) for party in first["party"]], first["value"], color="#56B4E9")
        for place, (low, high) in enumerate(zip(first["low"], first["high"], strict=True)):
            axes.plot([low, high], [place, place], color="#0072B2")
        axes.invert_yaxis()
        axes.axvline(0, color="black", linewidth=0.8)
        axes.set_xlabel(f"share of {metric}")
    return [table, figure]


def write_columns(table: "pd.DataFrame", folder: Path, name: str) -> Path:
    """Write what the columns of one party add, for this party alone; returns the path."""
    path = folder / f"columns_{name}.parquet"
    write_table(table, path)
    return path


# ---- robustness


class Cells(NamedTuple):
    """What is shown of a grid.

    Args:
        harm: a row for each party or method, a column for each disturbance.
        unclear: whether 0 is in the interval of a harm; None: there are no intervals.
    """

    harm: "pd.DataFrame"
    unclear: "pd.DataFrame | None"

    @classmethod
    def of(cls, table: "pd.DataFrame", by: str) -> "Cells":
        """The harm by party or method; disturbances have the order of the table, absence comes first."""
        named = table[table["fault"] != NOBODY].copy()
        named["name"] = [name_of(*one) for one in zip(named["fault"], named["strength"], strict=True)]
        order = sorted(dict.fromkeys(named["name"]), key=lambda name: name != ABSENT)
        harm = named.pivot_table(values="harm", index=by, columns="name", aggfunc="mean", sort=False)[order]
        if "low" not in named or named["low"].isna().all():
            return cls(harm, None)
        named["unclear"] = (named["low"] <= 0) & (named["high"] >= 0)
        return cls(harm, named.pivot_table(values="unclear", index=by, columns="name", sort=False)[order] > 0)

    def text(self, row: int, column: int, form: str) -> str:
        """The number of a cell, in brackets if it is unclear; empty where nothing was measured."""
        value: Any = self.harm.iloc[row, column]
        if value != value:  # an active party is never absent
            return ""
        unclear = self.unclear is not None and self.unclear.iloc[row, column]
        return f"({value:{form}})" if unclear else f"{value:{form}}"


def write_robustness(found: Robustness, method: str, folder: Path, names: Sequence[str]) -> list[Path]:
    """Print the grid, and write ``robustness.csv`` and ``robustness.svg`` into a folder; returns their paths.

    Args:
        found: the grid.
        method: the name of the model, for comparisons.
        folder: of the files.
        names: of the parties.
    """
    metric, first = _of_first_metric(found.table)
    usual = first[first["fault"] == NOBODY]["value"].iloc[0]
    grid = Cells.of(first, "party")
    grid.harm.index = [shown(int(party), names) for party in grid.harm.index]
    _show_grid(grid, f"By how much {metric} is worse than {usual:.4f} if one party is disturbed")
    for _, row in found.ranking().iterrows():
        who = shown(int(row["party"]), names)
        print(f"{who}: worse by {row['mean_harm']:.4f} on average, at most by {row['harm']:.4f} ({row['worst']})")
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / GRID
    found.table.assign(method=method).to_csv(path, index=False)
    return [path, _draw_grid(grid, metric, folder / "robustness.svg")]


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
        path = folder / GRID
        if not path.is_file():
            raise ConfigurationError(f"{folder} has no {GRID}; run lightning-vfl robustness with its checkpoint")
        table = pd.read_csv(path)
        tables.append(table.assign(method=f"{table['method'].iloc[0]} ({folder.name})"))
    joined = pd.concat(tables)
    metric, first = _of_first_metric(joined)
    cells = Cells.of(first, "method").harm.dropna(axis=1)
    if cells.empty or len(cells) < joined["method"].nunique():
        raise ConfigurationError("these folders have no disturbance and metric in common; give the same options")
    usual = first[first["fault"] == NOBODY].set_index("method")["value"]
    grid = Cells(cells, None)
    _show_grid(grid, f"By how much {metric} is worse, mean over the parties")
    for method, value in usual.items():
        print(f"{method}: {metric} {value:.4f} undisturbed")
    out.mkdir(parents=True, exist_ok=True)
    path = out / "methods.csv"
    cells.assign(undisturbed=usual).to_csv(path, index_label="method")
    return [path, _draw_grid(grid, metric, out / "methods.svg")]


def _draw_grid(grid: Cells, metric: str, path: Path) -> Path:
    """A heat map: rows as in the table, a darker cell is a greater harm; an improvement is as light as no harm."""
    cells = grid.harm
    most = max(float(cells.max().max()), 1e-9)
    with _figure(path, 2.2 + 0.65 * len(cells.columns), 1.6 + 0.32 * len(cells)) as axes:
        picture = axes.imshow(cells.to_numpy(), cmap="Blues", vmin=0, vmax=most, aspect="auto")
        axes.set_xticks(range(len(cells.columns)), cells.columns, rotation=35, ha="right", rotation_mode="anchor")
        axes.set_yticks(range(len(cells)), cells.index)
        for row, values in enumerate(cells.to_numpy()):
            for column, value in enumerate(values):
                colour = "white" if value > 0.6 * most else "black"
                text = grid.text(row, column, ".3f")
                axes.text(column, row, text, ha="center", va="center", color=colour, fontsize=7)
        axes.spines[:].set_visible(False)
        axes.tick_params(length=0)
        axes.set_title(f"by how much {metric} is worse", loc="left", fontsize=9)
        axes.figure.colorbar(picture)
    return path


def _show_grid(grid: Cells, title: str) -> None:
    """Print the grid with its longer side downwards, so that it fits a terminal."""
    rows, columns = list(grid.harm.index), list(grid.harm.columns)
    texts = [[grid.text(row, column, "+.4f") for column in range(len(columns))] for row in range(len(rows))]
    if len(columns) > len(rows):
        rows, columns, texts = columns, rows, [list(one) for one in zip(*texts, strict=True)]
    printed = _table(title, "", *map(str, columns))
    for label, row_texts in zip(rows, texts, strict=True):
        printed.add_row(str(label), *row_texts)
    console().print(printed)
    if grid.unclear is not None:
        print("in brackets: 0 is in the 95 % interval over resampled test records")
