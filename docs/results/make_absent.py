"""The page absent.md and its figures, made from tables/absent_STUDY.csv.

python docs/results/make_absent.py
"""

from pathlib import Path
from typing import Any

import pandas as pd
import yaml
from matplotlib import rc_context
from matplotlib.figure import Figure

HERE = Path(__file__).parent
TEXTS = yaml.safe_load((HERE / "absent_page.yaml").read_text(encoding="utf-8"))
TITLES = {
    "digits": "Digits, 4 parties, 30 epochs",
    "mnist": "MNIST, 12,000 training records, 4 parties, batches of 256, 7 epochs",
    "mnist_long": "MNIST, the same with batches of 128 and 10 epochs",
    "fashion_mnist": "FashionMNIST, 12,000 training records, 4 parties, 10 epochs",
    "handwritten": "Handwritten, 6 parties, 20 epochs",
}
STUDIES = tuple(study for study in TITLES if (HERE / f"tables/absent_{study}.csv").is_file())
# Figures of an earlier prototype, accuracy in %, for 0 to 3 absent parties, against which these are checked
PROTOTYPE = {
    "digits": {"ordinary": (97.2, 86.8, 68.8, 42.6), "rounds without half": (97.8, 96.2, 90.1, 68.8)},
    "mnist": {
        "ordinary": (94.8, 78.6, 58.1, 34.7),
        "drop by record, p = 0.5": (94.1, 91.2, 84.3, 67.2),
        "task sampling": (94.9, 92.5, 85.9, 69.1),
        "LASER heads": (94.9, 92.5, 86.1, 69.6),
    },
}
CREDIT_PROTOTYPE = {
    (0.0, "standard"): (54.8, 44.7, 32.4),
    (0.0, "mean of those there"): (54.8, 52.6, 44.2),
    (0.0, "LASER heads"): (53.9, 52.9, 48.0),
    (0.0, "one head, task sampling"): (54.0, 53.0, 48.3),
}
STYLE: Any = {  # matplotlib types each of its settings by name
    "font.size": 8,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "svg.hashsalt": "lightning_vfl",
    "lines.linewidth": 1.3,
}
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#56B4E9", "#E69F00", "#000000", "#882255", "#999933", "#332288")


def read(study: str) -> pd.DataFrame:
    """The rows of a study."""
    return pd.read_csv(HERE / f"tables/absent_{study}.csv")


METHODS = list(dict.fromkeys(method for study in STUDIES for method in read(study)["method"]))
"""The methods of all studies; each has one colour."""


def curve_table(study: str) -> list[str]:
    """Mean over seeds of the accuracy by number of absent parties, and the CPU seconds of a fit."""
    table = read(study)
    numbers = table[table["what"] == "number"].copy()
    seeds, most = numbers["seed"].nunique(), int(numbers["number"].max())
    head = " | ".join(f"{n} absent" for n in range(most + 1))
    lines = [f"| trained with | {head} | each with p = 0.3 | fit, CPU s |", "| --- |" + " --- |" * (most + 3)]
    for method in dict.fromkeys(table["method"]):
        own = numbers[numbers["method"] == method]
        cells = []
        for n in range(most + 1):
            values = own[own["number"] == n]["value"] * 100
            cells.append(f"{values.mean():.1f}" + (f" ± {2 * values.std():.1f}" if seeds > 1 else ""))
            expected = PROTOTYPE.get(study, {}).get(method)
            if expected is not None:
                cells[-1] += f" *({expected[n]})*"
        chance = table[(table["method"] == method) & (table["what"] == "probability") & (table["p"] == 0.3)]
        cells.append(f"{chance['value'].mean() * 100:.1f}")
        lines.append(f"| {method} | {' | '.join(cells)} | {own['cpu_seconds'].mean():.1f} |")
    return lines


def credit_table() -> list[str]:
    """F1 x 100 by method, p in training and p in the test."""
    table = read("credit")
    tested = sorted(table["p_test"].unique())
    head = " | ".join(f"p test {p:g}" for p in tested)
    lines = [f"| p train | method | {head} |", "| --- | --- |" + " --- |" * len(tested)]
    for p in sorted(table["p_train"].unique()):
        for method in ("standard", *(m for m in dict.fromkeys(table["method"]) if m != "standard")):
            own = table[(table["p_train"] == p) & (table["method"] == method)]
            cells = []
            for i, q in enumerate(tested):
                cells.append(f"{own[own['p_test'] == q]['f1'].mean():.1f}")
                expected = CREDIT_PROTOTYPE.get((p, method))
                if p == 0.5 and q == 0.5:
                    at = {"standard": 38.5, "LASER heads": 47.9, "one head, task sampling": 47.9}.get(method)
                    cells[-1] += f" *({at})*" if at else ""
                elif expected is not None:
                    cells[-1] += f" *({expected[i]})*"
            lines.append(f"| {p:g} | {method} | {' | '.join(cells)} |")
    return lines


def draw(study: str) -> None:
    """Accuracy against the number of absent parties, a line for each method."""
    table = read(study)
    numbers = table[table["what"] == "number"]
    with rc_context(STYLE):
        figure = Figure(figsize=(5.8, 3), layout="constrained")
        axes = figure.subplots()
        for method in dict.fromkeys(table["method"]):
            number = METHODS.index(method)
            means = numbers[numbers["method"] == method].groupby("number")["value"].mean() * 100
            line = "o-" if number < len(COLOURS) else "s--"
            axes.plot(means.index, means, line, color=COLOURS[number % len(COLOURS)], markersize=3, label=method)
        axes.set_xlabel("absent parties")
        axes.set_ylabel("test accuracy, %")
        axes.set_xticks(sorted(set(numbers["number"])))
        figure.legend(frameon=False, fontsize=7, loc="outside right center")
        figure.savefig(HERE / f"absent_{study}.svg", metadata={"Date": None})


def means_of(study: str) -> pd.DataFrame:
    """Mean accuracy in %, a row for each method and a column for each number of absent parties."""
    numbers = read(study).query("what == 'number'")
    return numbers.groupby(["method", "number"], sort=False)["value"].mean().unstack() * 100


def gap_table(study: str) -> list[str]:
    """How many points LASER's heads are ahead of one head, by number absent."""
    means = means_of(study)
    head = " | ".join(f"{n:.0f} absent" for n in means.columns)
    lines = [f"| LASER heads minus | {head} |", "| --- |" + " --- |" * len(means.columns)]
    for method in ("task sampling", "task sampling, disjoint", "task sampling, all"):
        if method in means.index:
            apart = (means.loc["LASER heads"] - means.loc[method]).round(1) + 0.0  # no -0.0
            lines.append(f"| {method} | {' | '.join(f'{value:+.1f}' for value in apart)} |")
    return lines


def causes_table() -> list[str]:
    """Accuracy with one thing changed, and how many points LASER's heads are ahead."""
    same = means_of("mnist").loc[["task sampling", "task sampling, disjoint", "task sampling, all", "LASER heads"]]
    means = pd.concat([same.iloc[:1], means_of("causes"), same.iloc[1:]])
    head = " | ".join(f"{n:.0f} absent" for n in means.columns)
    lines = [f"| one head, with | {head} | LASER heads minus it |", "| --- |" + " --- |" * (len(means.columns) + 1)]
    for method, own in means.iterrows():
        laser = means.loc["LASER heads, twice the epochs" if "twice the epochs" in str(method) else "LASER heads"]
        apart = ", ".join(f"{value:+.1f}" for value in (laser - own).round(1) + 0.0)
        lines.append(
            f"| {method} | {' | '.join(f'{value:.1f}' for value in own)} | {'' if 'LASER' in str(method) else apart} |"
        )
    return lines


def main() -> None:
    """Write the page and the figures."""
    for study in STUDIES:
        draw(study)
    parts = [TEXTS["head"]]
    for study in STUDIES:
        seeds = read(study)["seed"].nunique()
        words = f"Mean over {seeds} seeds ± 2 standard deviations." if seeds > 1 else "One seed."
        parts += [f"## {TITLES[study]}", f"{words} Test accuracy in %.", "\n".join(curve_table(study))]
        parts.append("\n".join(gap_table(study)))
        parts.append(f"![Accuracy by number of absent parties, {study}](absent_{study}.svg)")
    if (HERE / "tables/absent_credit.csv").is_file():
        seeds = read("credit")["seed"].nunique()
        parts += [
            "## Credit default, LASER-VFL's setting",
            TEXTS["credit"].strip() + f" F1 x 100, mean over {seeds} seed{'s' * (seeds > 1)}.",
            "\n".join(credit_table()),
        ]
    if (HERE / "tables/absent_causes.csv").is_file():
        parts += ["## Why one head was behind", TEXTS["causes"].strip(), "\n".join(causes_table())]
    parts.append(TEXTS["foot"])
    (HERE / "absent.md").write_text("\n\n".join(parts) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
