"""The results of the runs: mean ± 2 sd over seeds, and differences to a baseline, paired by seed."""

from collections.abc import Iterator, Sequence
from math import nan, sqrt
from typing import NamedTuple

import numpy as np
import pandas as pd
from numpy.typing import ArrayLike, NDArray

from lightning_vfl.study.spec import Study

CONFIDENCE = 0.95


class Difference(NamedTuple):
    """Mean difference of pairs, and the ends of its confidence interval (Student's t)."""

    mean: float
    low: float
    high: float
    pairs: int


def inside_fences(values: ArrayLike) -> NDArray[np.bool_]:
    """Which values lie within 1.5 interquartile ranges of the quartiles.

    DVFL reports after "filtering outliers by IQR" (Amalanshu et al., table 1) without saying how far; 1.5 is Tukey's.

    Examples:
        >>> inside_fences([1.0, 2.0, 3.0, 4.0, 50.0]).tolist()
        [True, True, True, True, False]
    """
    values = np.asarray(values, dtype=np.float64)
    low, high = np.quantile(values, [0.25, 0.75])
    reach = 1.5 * (high - low)
    inside: NDArray[np.bool_] = (values >= low - reach) & (values <= high + reach)
    return inside


def paired_difference(values: Sequence[float], baseline: Sequence[float]) -> Difference:
    """The mean difference to the baseline's values of the same seeds, in the same order; one pair has no interval."""
    differences = np.asarray(values, dtype=np.float64) - np.asarray(baseline, dtype=np.float64)
    pairs = len(differences)
    mean = float(differences.mean()) if pairs else nan
    if pairs < 2:
        return Difference(mean, nan, nan, pairs)
    from scipy import stats  # imported late: 0.6 s

    half = float(stats.t.ppf(0.5 + CONFIDENCE / 2, pairs - 1) * differences.std(ddof=1) / sqrt(pairs))
    return Difference(mean, mean - half, mean + half, pairs)


def summarise(table: pd.DataFrame, study: Study) -> pd.DataFrame:
    """One line a metric, recipe and override: the last values of the seeds, and their costs up to then.

    With ``outliers: iqr``, seeds outside the fences are left out of mean, sd and pairs, and counted.
    """
    return pd.DataFrame(_lines(table, study))


def _lines(table: pd.DataFrame, study: Study) -> Iterator[dict[str, object]]:
    if table.empty:
        return
    ordered = table.sort_values("step", kind="stable")
    last = ordered.groupby(["metric", "recipe", "override", "seed"], sort=False).tail(1)
    cells = {
        (str(metric), str(recipe), str(override)): _kept(cell.set_index("seed"), study)
        for (metric, recipe, override), cell in last.groupby(["metric", "recipe", "override"])
    }
    for metric in study.metrics or sorted(table["metric"].unique()):
        for recipe in study.recipes:
            for override in study.overrides:
                if (metric, recipe, override) not in cells:
                    continue
                cell, left_out = cells[metric, recipe, override]
                mean = cell["value"].mean(skipna=False)  # NaN of a seed that has diverged makes the mean NaN
                sd = cell["value"].std(ddof=1, skipna=False)
                line = {"metric": metric, "run": cell["run"].iloc[0], "seeds": len(cell), "outliers": left_out}
                line |= {"mean": mean, "sd": sd, "low": mean - 2 * sd, "high": mean + 2 * sd}
                line |= {what: cell[what].mean() for what in ("step", "passes", "virtual_seconds", "bytes")}
                other = _partner(study, recipe, override)
                if study.baseline is not None:
                    line |= _compared(cell, cells.get((metric, *other))) if other else _compared(cell, None)
                yield line


def _kept(cell: pd.DataFrame, study: Study) -> tuple[pd.DataFrame, int]:
    inside = inside_fences(cell["value"]) if study.outliers == "iqr" else np.ones(len(cell), dtype=bool)
    return cell[inside], int((~inside).sum())


def _partner(study: Study, recipe: str, override: str) -> tuple[str, str] | None:
    """The recipe and override that a line is compared with: one of the two is the baseline, the other is the line's."""
    if study.baseline is None:
        return None
    other = (study.baseline, override) if study.baseline in study.recipes else (recipe, study.baseline)
    return None if other == (recipe, override) else other


def _compared(cell: pd.DataFrame, other: tuple[pd.DataFrame, int] | None) -> dict[str, float]:
    if other is None:
        return {"difference": nan, "difference_low": nan, "difference_high": nan, "pairs": 0}
    both = cell.join(other[0]["value"].rename("baseline"), how="inner").sort_index()
    found = paired_difference(both["value"].tolist(), both["baseline"].tolist())
    return {
        "difference": found.mean,
        "difference_low": found.low,
        "difference_high": found.high,
        "pairs": found.pairs,
    }
