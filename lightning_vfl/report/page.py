"""One HTML page of a run, with its figures inside: it needs no server and no other file."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lightning_vfl.report import figures
from lightning_vfl.report.read import RunFiles, read_run
from lightning_vfl.report.svg import STYLE, inline_svg
from lightning_vfl.whole_files import whole_path

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_PRIVACY = ("privacy", "protection")  # beginnings of lines of the summary
_TEMPLATE = """<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>{{ title }}</title>
<style>
body { font: 15px/1.5 system-ui, sans-serif; color: #1a1a1a; max-width: 62rem; margin: 2rem auto; padding: 0 1rem; }
h1 { font-size: 1.5rem; margin-bottom: 0; } h2 { font-size: 1.15rem; margin: 2rem 0 .4rem; }
p.path { color: #666; margin-top: .2rem; overflow-wrap: anywhere; }
table { border-collapse: collapse; } td, th { padding: .15rem 1rem .15rem 0; text-align: left; vertical-align: top; }
tr { border-bottom: 1px solid #eee; } td:last-child { overflow-wrap: anywhere; }
figure { margin: .5rem 0; overflow-x: auto; } figcaption { color: #666; font-size: .9rem; }
svg { max-width: 100%; height: auto; }
pre { background: #f6f6f6; padding: 1rem; overflow-x: auto; font-size: 12px; line-height: 1.35; }
</style>
</head>
<body>
<h1>{{ title }}</h1>
<p class="path">{{ folder }}</p>
{% for section in sections %}
<section>
<h2>{{ section.title }}</h2>
{% if section.rows %}
<table>
{% for name, value in section.rows %}<tr><th scope="row">{{ name }}</th><td>{{ value }}</td></tr>
{% endfor %}</table>
{% endif %}
{% for caption, svg in section.drawn %}
<figure>{{ svg | safe }}<figcaption>{{ caption }}</figcaption></figure>
{% endfor %}
{% if section.text %}<details><summary>Show</summary><pre>{{ section.text }}</pre></details>{% endif %}
</section>
{% endfor %}
</body>
</html>
"""


@dataclass(frozen=True)
class Section:
    """A part of the page.

    Args:
        title: its heading.
        rows: names and values of a table.
        drawn: captions and SVG elements.
        text: shown as it is, when it is opened.
    """

    title: str
    rows: tuple[tuple[str, str], ...] = ()
    drawn: tuple[tuple[str, str], ...] = ()
    text: str = ""


def write_report(folder: Path, out: Path | None = None) -> Path:
    """Write the page of a run; returns its path.

    Args:
        folder: of the run.
        out: the file to write; None: ``report.html`` in the folder of the run.

    Raises:
        ConfigurationError: if the folder holds no record of a run.
    """
    files = read_run(folder)
    path = out or folder / "report.html"
    with whole_path(path) as whole:
        whole.write_text(page(files), encoding="utf-8")
    return path


def page(files: RunFiles) -> str:
    """The page as a text."""
    from jinja2 import Environment
    from matplotlib import rc_context  # imported late: 0.4 s

    with rc_context(STYLE):
        sections = [section for section in _sections(files) if section.rows or section.drawn or section.text]
    title = dict(map(tuple, files.latest["summary"])).get("protocol", "Run")
    template = Environment(autoescape=True).from_string(_TEMPLATE)
    return template.render(title=title, folder=str(files.folder.resolve()), sections=sections)


def _sections(files: RunFiles) -> Iterator[Section]:
    summaries = {stage: [(k, v) for k, v in record["summary"]] for stage, record in files.records.items()}
    everything = [line for lines in summaries.values() for line in lines]
    private = tuple({k: v for k, v in everything if k.startswith(_PRIVACY)}.items())
    yield Section("Result", tuple({k: v for k, v in everything if not k.startswith(_PRIVACY)}.items()))
    yield Section("Learning curves", drawn=tuple(_curves(files.latest["history"])))
    for outcomes in files.outcomes():
        yield Section(f"Predictions of the {_RECORDS[outcomes['split']]} records", drawn=tuple(_outcomes(outcomes)))
    record = files.latest
    sent = {kind: counts for kind, counts in record["traffic"].items() if any(counts)}
    if sent:
        yield Section("Traffic of each party", drawn=(_drawn("traffic", figures.traffic(sent), "Whole training"),))
    rounds = record["attendance"]["rounds"]
    learned = record["attendance"]["learned"]
    if rounds and learned:
        words = f"{record['given_up']:,} of {rounds:,} rounds were given up"
        yield Section("Attendance", drawn=(_drawn("attendance", figures.attendance(rounds, learned), words),))
    yield Section("Privacy", private)
    yield Section("Environment", tuple(record["environment"].items()))
    yield Section("Recipe", text=files.recipe)


_RECORDS = {"val": "validation", "test": "test"}


def _curves(history: list[Mapping[str, Any]]) -> Iterator[tuple[str, str]]:
    kinds: dict[str, list[str]] = {}
    for metric in dict.fromkeys(row["metric"] for row in history):
        stage, _, name = metric.partition("/")
        if stage in ("train", "val"):
            kinds.setdefault(name.removesuffix("_epoch"), []).append(metric)
    for number, (name, metrics) in enumerate(sorted(kinds.items())):
        figure = figures.learning_curves(history, sorted(metrics))
        yield _drawn(f"curve{number}", figure, name.replace("_", " "))


def _outcomes(outcomes: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    split = outcomes["split"]
    if counts := outcomes.get("confusion"):
        names = outcomes.get("names") or [str(c) for c in range(len(counts))]
        right, total = sum(counts[i][i] for i in range(len(counts))), sum(map(sum, counts))
        caption = f"{right:,} of {total:,} records are predicted correctly"
        yield _drawn(f"{split}-confusion", figures.confusion_matrix(counts, names), caption)
    if scores := outcomes.get("scores"):
        caption = f"From probabilities in {len(scores[0])} equal bins"
        yield _drawn(f"{split}-roc", figures.roc_and_calibration(scores), caption)
    if pairs := outcomes.get("pairs"):
        caption = f"{len(pairs):,} records"
        yield _drawn(f"{split}-values", figures.predicted_values(pairs), caption)


def _drawn(name: str, figure: "Figure", caption: str) -> tuple[str, str]:
    return caption, inline_svg(figure, name)
