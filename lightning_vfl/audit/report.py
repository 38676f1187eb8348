"""The findings of an audit as a table in the terminal, a Parquet file, and a page with figures."""

import html
import io
import re
from collections.abc import Iterator, Sequence
from dataclasses import fields
from math import inf, isnan
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lightning_vfl.audit.verdicts import NOT_SHOWN, Finding
from lightning_vfl.checks import one_of
from lightning_vfl.privacy.digits import shown
from lightning_vfl.terminal import WIDEST, console

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from lightning_vfl.protocols import VFLModule

COLUMNS = ("attack", "attacker", "saw", "success", "95 %", "chance", "without the protocol", "unprotected", "verdict")
_NUMBERS = [field.name for field in fields(Finding) if field.name != "pictures"]
_IMAGES = 8
_POINTS = 400
_BESIDE = 58  # characters that the columns beside the name of an attack need
_UNUSUAL = re.compile(r"[^A-Za-z0-9_-]")  # a party may have any name


def table_of(findings: Sequence[Finding]) -> list[tuple[str, ...]]:
    """One row of texts for each finding, in the order of ``COLUMNS``."""
    rows = list[tuple[str, ...]]()
    for finding in findings:
        success = f"{finding.measure} {_text(finding.success)}"
        if finding.claimed is not None:
            success += f" (claimed {shown(finding.claimed)})"
        if finding.allowed is not None:
            success += f" (ε allows {_text(finding.allowed)})"
        if finding.plain is not None:
            success += f" (uploads as they are: {_text(finding.plain)})"
        interval = f"{_text(finding.low)} to {_text(finding.high)}"
        numbers = success, interval, *map(_text, (finding.chance, finding.without, finding.unprotected))
        rows.append((finding.attack, finding.attacker, finding.saw, *numbers, finding.verdict))
    return rows


def print_findings(findings: Sequence[Finding]) -> None:
    """Print a table for each attacker; what an attack saw, and why nothing is shown, are in the files alone."""
    from rich.cells import cell_len
    from rich.table import Table

    terminal = console()
    for attacker in dict.fromkeys(finding.attacker for finding in findings):
        rows = table_of([finding for finding in findings if finding.attacker == attacker])
        names = [row[0] for row in rows]
        if terminal.width <= WIDEST:  # the settings of an attack in a line of their own
            names = [name.replace("(", "\n(", 1) for name in names]
        longest = max(cell_len(line) for name in names for line in name.splitlines())
        table = Table(title=f"what {attacker} gets", pad_edge=False)
        table.add_column("attack", overflow="fold", no_wrap=longest + _BESIDE <= terminal.width)
        for name in COLUMNS[3:]:
            table.add_column(name, overflow="fold")
        for name, row in zip(names, rows, strict=True):
            *numbers, verdict = row[3:]
            table.add_row(name, *numbers, NOT_SHOWN if verdict.startswith(NOT_SHOWN) else verdict)
        terminal.print(table)


def metrics_of(findings: Sequence[Finding]) -> dict[str, float]:
    """The successes by log name, ``audit/party1/LabelsByNorm``; of two findings of one name, the larger.

    Settings of an attack are not in the name, because some loggers accept letters, digits and few signs alone.
    """
    metrics: dict[str, float] = {}
    for finding in findings:
        if not isnan(finding.success):
            who = _UNUSUAL.sub("_", finding.attacker.replace(":", "").replace("+", "-"))
            name = f"audit/{who}/{finding.attack.partition('(')[0]}"
            metrics[name] = max(finding.success, metrics.get(name, finding.success))
    return metrics


def refuse_report(paths: str | None) -> None:
    """Refuse files of other kinds.

    Raises:
        ConfigurationError: naming the kinds that there are.
    """
    for path in _paths(paths):
        one_of("the ending of report", path.suffix, (".parquet", ".md", ".html"), advice=f"change that of {path}")


def _paths(listed: str | None) -> list[Path]:
    return [Path(path) for path in (listed or "").split(",") if path]


def write_reports(findings: Sequence[Finding], paths: str | None, module: "VFLModule") -> list[Path]:
    """Write the files of a comma-separated list; returns them."""
    title = f"Audit of {type(module).__name__} with {type(module.aggregator).__name__}"
    written = _paths(paths)
    for path in written:
        path.parent.mkdir(parents=True, exist_ok=True)
        if path.suffix == ".parquet":
            write_parquet(findings, path)
        else:
            page = markdown_page if path.suffix == ".md" else html_page
            path.write_text(page(findings, title), encoding="utf-8")
    return written


def write_parquet(findings: Sequence[Finding], path: Path) -> None:
    """One row for each finding; an absent number is null."""
    import pandas as pd

    rows = [{name: getattr(finding, name) for name in _NUMBERS} for finding in findings]
    pd.DataFrame(rows, columns=_NUMBERS).to_parquet(path, index=False)


def markdown_page(findings: Sequence[Finding], title: str) -> str:
    """The table and the figures, which are in the page itself."""
    rows = [COLUMNS, ("---",) * len(COLUMNS), *table_of(findings)]
    table = "\n".join(f"| {' | '.join(row)} |" for row in rows)
    figures = [f"## {attack}\n\n{figure}" for attack, figure in _figures(findings)]
    return "\n\n".join([f"# {title}", table, *figures]) + "\n"


def html_page(findings: Sequence[Finding], title: str) -> str:
    """The same as one HTML file that loads nothing."""
    import pandas as pd

    title = html.escape(title)
    table = pd.DataFrame(table_of(findings), columns=COLUMNS).to_html(index=False, border=0)
    figures = "".join(f"<h2>{html.escape(attack)}</h2>{figure}" for attack, figure in _figures(findings))
    style = "body{font-family:sans-serif;margin:2em}td,th{border:1px solid #999;padding:.3em .6em;text-align:left}"
    return (
        f'<!doctype html><html lang="en"><head><meta charset="utf-8"><title>{title}</title>'
        f"<style>{style}table{{border-collapse:collapse}}</style></head><body><h1>{title}</h1>"
        f"{table}{figures}</body></html>\n"
    )


def _figures(findings: Sequence[Finding]) -> Iterator[tuple[str, str]]:
    """The attack, and an SVG element, of each finding with pictures."""
    for finding in findings:
        if finding.pictures is not None:
            guesses, truth = finding.pictures
            yield finding.attack, _figure(guesses.numpy(), truth.numpy())


def _figure(guesses: Any, truth: Any) -> str:
    """An SVG element: reconstructed images above the true ones, or guesses against true values."""
    from matplotlib.figure import Figure

    if guesses.ndim > 2:
        figure = Figure(figsize=(_IMAGES, 2.2))
        for place in range(min(_IMAGES, len(guesses))):
            for row, images in enumerate((guesses, truth)):
                axes: Axes = figure.add_subplot(2, _IMAGES, row * _IMAGES + place + 1)
                image = images[place]
                axes.imshow(image.mean(0) if image.ndim > 2 else image, cmap="gray")
                axes.set_axis_off()
        figure.suptitle("reconstructed (above) and true (below)")
    else:
        figure = Figure(figsize=(4, 4))
        axes = figure.add_subplot()
        axes.scatter(truth[:_POINTS].ravel(), guesses[:_POINTS].ravel(), s=2, alpha=0.4, rasterized=True)
        axes.set_xlabel("true value, standardised")
        axes.set_ylabel("guess")
    buffer = io.StringIO()
    figure.savefig(buffer, format="svg", dpi=96, metadata={"Date": None})
    text = buffer.getvalue()
    return text[text.index("<svg") :]


def _text(value: float | None) -> str:
    if value is None or isnan(value):
        return "-"
    return "∞" if value == inf else f"{value:.3f}"
