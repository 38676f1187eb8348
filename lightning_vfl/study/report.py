"""The report of a study: summary, targets and figures."""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pandas as pd

from lightning_vfl.study import table as tables
from lightning_vfl.study import targets
from lightning_vfl.study.figures import default_metric, draw
from lightning_vfl.study.search import of_best
from lightning_vfl.study.spec import Study
from lightning_vfl.study.summary import CONFIDENCE, summarise


def report(table: pd.DataFrame, study: Study, out: Path, metric: str | None = None) -> list[Path]:
    """Write summary and figures below ``out``; returns the files to look at.

    A metric that no run has measured is left out of summary and targets. If it is the metric of the figures, they show
    another one (``default_metric``).

    Raises:
        ConfigurationError: for a ``metric`` that no run has measured.
    """
    if study.search is not None:
        study = of_best(study, out)
    measured = set(table["metric"].unique())
    study = replace(study, targets={name: goal for name, goal in study.targets.items() if name in measured})
    if metric is None and study.figure.metric not in measured:
        metric = default_metric(table)
    summary = summarise(table, study)
    tables.write(summary, out, "summary")
    words = in_words(summary, study)
    if study.targets:
        found = targets.reached(table, study)
        tables.write(found, out, "targets")
        words += f"\n{targets.in_words(found, study)}"
    (out / "summary.md").write_text(words, encoding="utf-8")
    return [out / "summary.md", *draw(table, study, out / "figures", metric)]


def in_words(summary: pd.DataFrame, study: Study) -> str:
    """The summary as a Markdown table.

    Values are given with four decimals; ``summary.csv`` has all.
    """
    head = ["metric", "run", "seeds", "mean ± 2 sd", "rounds", "passes", "virtual time (s)", "sent (MB)"]
    if study.outliers:
        head.insert(3, "outliers")
    if study.baseline is not None:
        head.append(f"against {study.baseline} ({CONFIDENCE:.0%} interval)")
    lines = [head, ["---"] * len(head)]
    for line in summary.to_dict("records"):
        spread = f" ± {2 * line['sd']:.4f}" if line["seeds"] > 1 else ""
        cells = [line["metric"], line["run"], str(line["seeds"]), f"{line['mean']:.4f}{spread}"]
        cells += [f"{line['step']:,.0f}", f"{line['passes']:.2f}"]
        cells += [f"{line['virtual_seconds']:.4g}", f"{line['bytes'] / 1e6:.4g}"]
        if study.outliers:
            cells.insert(3, str(line["outliers"]))
        if study.baseline is not None:
            cells.append(_difference(line) if line["pairs"] else "")
        lines.append([str(cell).replace("|", "\\|") for cell in cells])
    body = "\n".join(f"| {' | '.join(line)} |" for line in lines)
    return f"Last value of every seed; costs are those of that moment, means over seeds.\n\n{body}\n"


def _difference(line: Mapping[Any, Any]) -> str:
    interval = f" ({line['difference_low']:+.4f} to {line['difference_high']:+.4f})" if line["pairs"] > 1 else ""
    return f"{line['difference']:+.4f}{interval}"
