"""Figures for a paper: one metric against rounds, passes, virtual time and bytes.

A line with a band for each recipe, a panel for each override.
"""

from collections.abc import Iterator, Mapping
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import pandas as pd

from lightning_vfl.errors import ConfigurationError
from lightning_vfl.study.bands import Band, band
from lightning_vfl.study.grid import line_name
from lightning_vfl.study.spec import Study

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

# Okabe and Ito, "Color Universal Design", 2008, without yellow, which is too faint for a line on white; then five of
# Tol, "Colour Schemes", 2021 (muted: wine, olive, indigo, teal; bright: grey)
_COLOURS = (
    *("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#56B4E9", "#E69F00", "#000000"),
    *("#882255", "#999933", "#332288", "#44AA99", "#888888"),
)
_DASHES: tuple[Any, ...] = (
    "-",
    (0, (5, 1.5)),
    (0, (1.2, 1.2)),
    (0, (5, 1.5, 1.2, 1.5)),
    (0, (8, 2)),
    (0, (3, 1, 1, 1, 1, 1)),
    (0, (2, 2)),
)
_MARKERS = "os^Dvpx"
_ACROSS = 5  # panels in a row

_COLUMN = {"rounds": "step"}
_LABEL = {
    "rounds": "rounds",
    "passes": "passes over the data",
    "virtual_seconds": "virtual time",
    "bytes": "bytes sent",
}
_BYTES = ((1e12, "TB"), (1e9, "GB"), (1e6, "MB"), (1e3, "kB"), (1.0, "B"))
_SECONDS = ((3600.0, "h"), (60.0, "min"), (1.0, "s"), (1e-3, "ms"))
_SHARES = ("accuracy", "average_precision", "precision", "recall", "f1", "auroc")  # metrics between 0 and 1, shown in %
_STYLE: Any = {
    "font.size": 8,
    "axes.labelsize": 8,
    "legend.fontsize": 7.5,
    "xtick.labelsize": 7.5,
    "ytick.labelsize": 7.5,
    "axes.linewidth": 0.6,
    "xtick.major.width": 0.6,
    "ytick.major.width": 0.6,
    "lines.linewidth": 1.3,
    "svg.hashsalt": "lightning_vfl",  # the same data give the same file
}


def draw(table: pd.DataFrame, study: Study, folder: Path, metric: str | None = None) -> list[Path]:
    """Draw every figure of a study, as PNG and SVG.

    There is no figure against an axis that was not counted, and none if nothing was measured.

    Raises:
        ConfigurationError: for a metric that no run has measured.
    """
    from matplotlib import rc_context  # imported late: 0.4 s

    metric = metric or study.figure.metric or default_metric(table)
    found = table[table["metric"] == metric]
    if found.empty and len(table):
        raise ConfigurationError(
            f"figure.metric: no run has measured '{metric}'; there are {', '.join(sorted(table['metric'].unique()))}"
        )
    folder.mkdir(parents=True, exist_ok=True)
    written = []
    with rc_context(_STYLE):
        for axis in study.figure.against:
            column = _COLUMN.get(axis, axis)
            if not found[column].any():  # for example virtual time of a protocol without a clock
                continue
            figure = _figure(found, study, metric, axis)
            if figure is None:  # figure.only names recipes without a result
                continue
            for ending, more in (("png", {"dpi": 200}), ("svg", {"metadata": {"Date": None}})):
                path = folder / f"{metric.replace('/', '_')}-{axis}.{ending}"
                figure.savefig(path, **more)
                written.append(path)
    return written


def out_of_sight(table: pd.DataFrame, study: Study, metric: str | None = None) -> list[str]:
    """One line if no value lies in the range of the vertical axis, which is then not used; otherwise nothing."""
    metric = metric or study.figure.metric or default_metric(table)
    share = metric.split("/")[-1] in _SHARES
    values = table.loc[table["metric"] == metric, "value"] * (100.0 if share else 1.0)
    if study.figure.range is None or values.empty or values.between(*study.figure.range).any():
        return []
    lowest, highest = study.figure.range
    return [
        f"figure.range: no value of {metric} lies in [{lowest:g}, {highest:g}]; they go from {values.min():.4g} to "
        f"{values.max():.4g}{', in percent' if share else ''}"
    ]


def default_metric(table: pd.DataFrame) -> str:
    """The first accuracy of the validation, or the first other metric."""
    measured = sorted(table["metric"].unique(), key=lambda m: ("val/" not in m, "loss" in m, m))
    return measured[0] if measured else "val/accuracy"


def _figure(found: pd.DataFrame, study: Study, metric: str, axis: str) -> "Figure | None":
    from matplotlib.figure import Figure

    panels = {title: dict(_bands(found, names, _COLUMN.get(axis, axis))) for title, names in _panels(study).items()}
    drawn = [one for lines in panels.values() for one, _ in lines.values()]
    if not drawn:
        return None
    x_size, x_label = _scale(axis, max(one.x[-1] for one in drawn))
    share = metric.split("/")[-1] in _SHARES
    across = min(len(panels), _ACROSS)
    down = -(-len(panels) // across)
    width = study.figure.width * (1 + 0.6 * (across - 1))
    figure = Figure(figsize=(width, study.figure.width * (0.2 + 0.6 * down)), layout="constrained")
    grid = figure.subplots(down, across, sharex=True, sharey=True, squeeze=False).flat
    for place, axes in enumerate(grid):
        if place >= len(panels):
            axes.set_visible(False)
    for axes, (title, lines) in zip(grid[: len(panels)], panels.items(), strict=True):
        axes.set_title(title, fontsize=8)
        for name, (one, style) in lines.items():
            _line(axes, name, one, style, (x_size, 0.01 if share else 1.0))
        axes.set_xlim(left=0)
        axes.grid(alpha=0.25, linewidth=0.5)
        axes.spines[["top", "right"]].set_visible(False)
    first = grid[0]
    if study.figure.range and not out_of_sight(found, study, metric):
        first.set_ylim(*study.figure.range)
    elif share:
        first.set_ylim(top=min(first.get_ylim()[1], 100.5))
    figure.supxlabel(f"{x_label}\n{_footnote([one.seeds for one in drawn])}", fontsize=7.5)
    figure.supylabel(_words(metric) + (" (%)" if share else ""), fontsize=8)
    names = {name: handle for axes in grid for handle, name in zip(*axes.get_legend_handles_labels(), strict=True)}
    columns = min(len(names), 4 if max(map(len, names)) < 12 else 2)
    layout: Any = {"loc": "outside upper center", "ncols": columns, "frameon": False}
    figure.legend(names.values(), names.keys(), handlelength=2.6, columnspacing=1.2, **layout)
    return figure


def _panels(study: Study) -> dict[str, dict[str, str]]:
    """Title -> name of a line -> its run. A panel for each override; one panel if there is one recipe or override."""
    recipes = study.figure.only or tuple(study.recipes)
    overrides = study.overrides
    if len(recipes) > 1 and len(overrides) > 1:
        return {o: {r: line_name(r, o) for r in recipes} for o in overrides}
    names = [line_name(r, o) for r, o in product(recipes, overrides)]
    return {"": {name: name for name in names}}


def _bands(found: pd.DataFrame, names: Mapping[str, str], column: str) -> Iterator[tuple[str, tuple[Band, Any]]]:
    """Name of a line -> band and style. A line has the same style in every panel."""
    for number, (name, run) in enumerate(names.items()):
        cell = found[found["run"] == run]
        if cell.empty:
            continue
        one = band([(seed[column], seed["value"]) for _, seed in cell.sort_values("step").groupby("seed")])
        # colours repeat from the 13th line on, with other dashes
        style = {
            "color": _COLOURS[number % len(_COLOURS)],
            "linestyle": _DASHES[(number + number // len(_COLOURS)) % len(_DASHES)],
            "marker": _MARKERS[number % len(_MARKERS)],
        }
        yield name, (one, style)


def _line(axes: "Axes", name: str, one: Band, style: dict[str, Any], units: tuple[float, float]) -> None:
    x = one.x / units[0]
    mean = one.mean / units[1]
    reach = 2 * one.sd / units[1]
    every = max(1, len(x) // 8)
    first = len(axes.lines) * max(1, every // 4) % every  # lines that overlap have their markers beside each other
    if not one.together:  # the mean changes only where a seed was measured, so it is drawn as steps
        style = {**style, "drawstyle": "steps-post"}
    axes.plot(x, mean, label=name, markersize=3.2, markevery=(first, every), markeredgewidth=0.6, **style)
    if one.seeds > 1:
        step: Literal["post"] | None = None if one.together else "post"
        axes.fill_between(x, mean - reach, mean + reach, color=style["color"], alpha=0.15, linewidth=0, step=step)


def _scale(axis: str, largest: float) -> tuple[float, str]:
    """The unit as a divisor, and the label of the axis with the unit."""
    if axis not in ("bytes", "virtual_seconds"):
        return 1.0, _LABEL[axis]
    units = _BYTES if axis == "bytes" else _SECONDS
    size, unit = next((pair for pair in units if largest >= 2 * pair[0]), units[-1])
    return size, f"{_LABEL[axis]} ({unit})"


def _words(metric: str) -> str:
    """The name of a metric on an axis.

    Examples:
        >>> _words("val/accuracy"), _words("train/loss_epoch")
        ('validation accuracy', 'training loss epoch')
    """
    stage, _, name = metric.rpartition("/")
    return f"{ {'val': 'validation', 'train': 'training'}.get(stage, stage) } {name.replace('_', ' ')}".strip()


def _footnote(seeds: list[int]) -> str:
    fewest, most = min(seeds), max(seeds)
    if most == 1:
        return "one seed"
    return f"mean of {most if fewest == most else f'{fewest} to {most}'} seeds, band: ± 2 sd"
