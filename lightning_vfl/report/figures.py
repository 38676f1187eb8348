"""The figures of a report, each made from plain values of a record."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from numpy.typing import NDArray

# Okabe and Ito, "Color Universal Design", 2008
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#56B4E9", "#E69F00", "#000000")
AXES = {"step": "rounds", "virtual_seconds": "virtual seconds", "bytes": "bytes sent"}
_NUMBERED = 15  # the most classes whose records are written into the confusion matrix


def learning_curves(history: Sequence[Mapping[str, Any]], metrics: Sequence[str]) -> "Figure":
    """Metrics of one kind against rounds, virtual seconds and bytes, side by side."""
    figure = _figure(9.0, 2.6)
    places: Any = figure.subplots(1, len(AXES), sharey=True)
    sent = max((row["bytes"] for row in history), default=0.0)
    size, unit = _unit(sent)
    for axes, (column, words) in zip(places, AXES.items(), strict=True):
        divisor, label = (size, f"{unit} sent") if column == "bytes" else (1.0, words)
        for number, metric in enumerate(metrics):
            rows = [row for row in history if row["metric"] == metric]
            x = [row[column] / divisor for row in rows]
            y = [row["value"] for row in rows]
            marker = "o" if len(x) < 30 else ""
            colour = COLOURS[number % len(COLOURS)]
            axes.plot(x, y, marker=marker, markersize=3, color=colour, label=metric)
        axes.set_xlabel(label)
        axes.grid(alpha=0.25, linewidth=0.5)
    places[0].legend(frameon=False)
    return figure


def confusion_matrix(counts: Sequence[Sequence[int]], names: Sequence[str]) -> "Figure":
    """Records by label (rows) and predicted class (columns); colours are shares of a row."""
    table = np.asarray(counts, float)
    size = min(7.0, 2.2 + 0.35 * len(table))
    figure = _figure(size + 0.8, size)
    axes = figure.subplots()
    shares = table / np.maximum(table.sum(1, keepdims=True), 1)
    shown = axes.imshow(shares, cmap="Blues", vmin=0, vmax=1)
    if len(table) <= _NUMBERED:
        for (row, column), count in np.ndenumerate(table):
            colour = "white" if shares[row, column] > 0.6 else "black"
            axes.text(column, row, f"{int(count):,}", ha="center", va="center", fontsize=7, color=colour)
    every = max(1, len(table) // 20)
    ticks = range(0, len(table), every)
    short_names = max(map(len, names)) < 4
    axes.set_xticks(ticks, names[::every], rotation=0 if short_names else 60)
    axes.set_yticks(ticks, names[::every])
    axes.set_xlabel("predicted class")
    axes.set_ylabel("label")
    figure.colorbar(shown, ax=axes, label="share of the label's records", shrink=0.8)
    return figure


def roc_and_calibration(scores: Sequence[Sequence[int]]) -> "Figure":
    """For two classes, from the records by label and probability in equal bins."""
    counts = np.asarray(scores, float)
    figure = _figure(8.0, 3.4)
    places: Any = figure.subplots(1, 2)
    _roc(places[0], counts)
    _calibration(places[1], counts)
    return figure


def roc(counts: "NDArray[np.float64]") -> tuple["NDArray[np.float64]", "NDArray[np.float64]", float]:
    """False and true positive rates for falling thresholds, and the area under the curve.

    Examples:
        >>> import numpy as np
        >>> roc(np.array([[1.0, 0.0], [0.0, 1.0]]))[2]
        1.0
    """
    passed = np.cumsum(counts[:, ::-1], axis=1) / np.maximum(counts.sum(1, keepdims=True), 1)
    false, true = (np.concatenate([[0.0], rates]) for rates in passed)
    return false, true, float(np.trapezoid(true, false))


def _roc(axes: "Axes", counts: "NDArray[np.float64]") -> None:
    false, true, area = roc(counts)
    _unit_square(axes)
    axes.plot(false, true, color=COLOURS[0], label=f"area {area:.3f}")
    axes.set_title("ROC")
    axes.set_xlabel("false positive rate")
    axes.set_ylabel("true positive rate")
    axes.legend(frameon=False, loc="lower right")


def _calibration(axes: "Axes", counts: "NDArray[np.float64]") -> None:
    tenths = counts.reshape(2, 10, -1)
    records = tenths.sum((0, 2))
    bins = counts.shape[1]
    middles = (np.arange(bins) + 0.5) / bins
    probabilities = (tenths.sum(0) * middles.reshape(10, -1)).sum(1)
    of_second_class = tenths[1].sum(1)
    there = records > 0
    x = probabilities[there] / records[there]
    y = of_second_class[there] / records[there]
    _unit_square(axes)
    axes.plot(x, y, marker="o", markersize=4, color=COLOURS[1])
    axes.set_title("Calibration")
    axes.set_xlabel("mean predicted probability")
    axes.set_ylabel("share of the second class")


def _unit_square(axes: "Axes") -> None:
    """Both axes go from 0 to 1, with their diagonal."""
    axes.set_xlim(0, 1)
    axes.set_ylim(0, 1.01)
    _diagonal(axes, 0, 1)


def _diagonal(axes: "Axes", low: float, high: float) -> None:
    axes.plot([low, high], [low, high], color="#999999", linewidth=0.8, linestyle="--")


def predicted_values(pairs: Sequence[Sequence[float]]) -> "Figure":
    """Predicted values against labels."""
    label, value = np.asarray(pairs, float).T
    figure = _figure(4.4, 3.8)
    axes = figure.subplots()
    _diagonal(axes, min(label.min(), value.min()), max(label.max(), value.max()))
    axes.scatter(label, value, s=8, alpha=0.5, color=COLOURS[0], linewidths=0)
    axes.set_xlabel("label")
    axes.set_ylabel("predicted value")
    return figure


def traffic(counts: Mapping[str, Sequence[int]]) -> "Figure":
    """Bytes of each party, by direction and kind."""
    parties = len(next(iter(counts.values())))
    size, unit = _unit(max(map(max, counts.values())))
    figure = _figure(8.0, 1.4 + 0.28 * parties)
    axes = figure.subplots()
    left = np.zeros(parties)
    for number, (kind, bytes_sent) in enumerate(sorted(counts.items())):
        length = np.asarray(bytes_sent, float) / size
        colour = COLOURS[number % len(COLOURS)]
        axes.barh(range(parties), length, left=left, color=colour, label=kind, height=0.7)
        left += length
    _by_party(axes, parties, f"{unit} sent and received")
    axes.legend(frameon=False, bbox_to_anchor=(1.0, 1.0), loc="upper left", fontsize=8)
    return figure


def attendance(rounds: int, learned: Sequence[int]) -> "Figure":
    """The share of training rounds that each party has learned from."""
    figure = _figure(6.0, 1.2 + 0.28 * len(learned))
    axes = figure.subplots()
    axes.barh(range(len(learned)), [100 * n / rounds for n in learned], color=COLOURS[2], height=0.7)
    axes.set_xlim(0, 100)
    _by_party(axes, len(learned), f"% of {rounds:,} training rounds in which the party learned")
    return figure


_UNITS = ((1e9, "GB"), (1e6, "MB"), (1e3, "kB"), (1.0, "bytes"))


def _unit(largest: float) -> tuple[float, str]:
    return next(pair for pair in _UNITS if largest >= pair[0] or pair[0] == 1)


def _by_party(axes: "Axes", parties: int, label: str) -> None:
    axes.set_yticks(range(parties), [f"party {m}" for m in range(parties)])
    axes.invert_yaxis()
    axes.set_xlabel(label)


def _figure(width: float, height: float) -> "Figure":
    from matplotlib.figure import Figure  # imported late: 0.4 s

    return Figure(figsize=(width, height), layout="constrained")
