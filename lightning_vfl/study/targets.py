"""When the runs reached their targets, and at what cost."""

from collections.abc import Iterator
from itertools import product

import numpy as np
import pandas as pd

from lightning_vfl.errors import ConfigurationError
from lightning_vfl.study.grid import line_name
from lightning_vfl.study.spec import Study

RUN = ["recipe", "override", "seed"]
COSTS = ["step", "passes", "virtual_seconds", "bytes"]


def reached(table: pd.DataFrame, study: Study) -> pd.DataFrame:
    """One line a target and run: the first measured point that reaches the target; without one, costs are empty.

    Values are compared in float32, as metrics are measured: 19 right of 20 reach 0.95.

    Raises:
        ConfigurationError: for a metric that is not in the table.
    """
    runs = table[RUN].drop_duplicates()
    found = []
    for metric, target in study.targets.items():
        points = table[table["metric"] == metric].sort_values("step", kind="stable")
        if points.empty:
            raise ConfigurationError(
                f"targets: the table has no {metric}; it has {', '.join(sorted(table['metric'].unique()))}. "
                "Run lightning-vfl study again to add metrics that its finished runs have measured"
            )
        values = points["value"].astype("float32")
        goal = np.float32(target.value)
        first = points[values <= goal if target.falls else values >= goal].drop_duplicates(RUN)
        lines = runs.assign(metric=metric, target=target.value)
        found.append(lines.merge(first[[*RUN, *COSTS]], how="left", on=RUN))
    return pd.concat(found, ignore_index=True).astype({"step": "Int64"})  # whole numbers, some of them missing


def in_words(found: pd.DataFrame, study: Study) -> str:
    """A Markdown table for each target: how many seeds of a recipe with an override reached it, and at what cost.

    Guarantee: means and ranges are over all seeds of the study. If one seed has not reached the target, or has no
        result, there is no mean, because the mean of the other seeds would be too good.
    """
    words = "First measured point of every seed that reaches the target: mean (least to most), if all seeds do.\n"
    for metric, target in study.targets.items():
        lines = [f"| {' | '.join(line)} |" for line in _lines(found[found["metric"] == metric], study)]
        words += "\n".join([f"\n**{metric} {target}**\n", *lines, ""])
    return words


def _lines(found: pd.DataFrame, study: Study) -> Iterator[list[str]]:
    yield ["run", "reached", "rounds", "passes", "virtual time (s)", "sent (MB)"]
    yield ["---"] * 6
    for recipe, override in product(study.recipes, study.overrides):
        cell = found[(found["recipe"] == recipe) & (found["override"] == override)]
        seeds = len({*study.seeds, *cell["seed"]})
        there = int(cell["step"].notna().sum())
        missing = f", {seeds - len(cell)} without a result" if seeds > len(cell) else ""
        costs = [(cell["step"], ",.0f"), (cell["passes"], ".2f")]
        costs += [(cell["virtual_seconds"], ".4g"), (cell["bytes"] / 1e6, ".4g")]
        told = [_spread(cost, shape) if there == seeds else "-" for cost, shape in costs]
        yield [line_name(recipe, override).replace("|", "\\|"), f"{there} of {seeds}{missing}", *told]


def _spread(cost: "pd.Series[float]", shape: str) -> str:
    mean, least, most = (format(float(value), shape) for value in (cost.mean(), cost.min(), cost.max()))
    return mean if least == most else f"{mean} ({least} to {most})"
