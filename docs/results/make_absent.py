"""The page absent.md and its figures, made from tables/absent_STUDY.csv.

python docs/results/make_absent.py
"""

from pathlib import Path

import pandas as pd
import yaml
from matplotlib import rc_context
from matplotlib.figure import Figure

HERE = Path(__file__).parent
TEXTS = yaml.safe_load((HERE / "absent_page.yaml").read_text(encoding="utf-8"))
TITLES = {
    "digits": "Digits, 4 parties, 20 epochs",
    "mnist": "MNIST, 12,000 training records, 4 parties, 5 epochs",
    "mnist_long": "MNIST, the same with 10 epochs",
    "fashion_mnist": "FashionMNIST, 12,000 training records, 4 parties, 10 epochs",
    "handwritten": "Handwritten, 6 parties, 20 epochs",
}
STUDIES = tuple(study for study in TITLES if (HERE / f"tables/absent_{study}.csv").is_file())
# Figures of an earlier prototype, accuracy in %, for 0 to 3 absent parties, against which these are checked
PROTOTYPE = {
    "digits": {"ordinary": (97.2, 86.8, 68.8, 42.6), "rounds without half": (97.8, 96.2, 90.1, 68.8)},
    "mnist": {
        "ordinary": (94.8, 78.6, 58.1, 34.7),
        "drop by record": (94.1, 91.2, 84.3, 67.2),
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
STYLE = {
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
        figure = Figure(figsize=(4.4, 3), layout="constrained")
        axes = figure.subplots()
        for colour, method in zip(COLOURS * 2, dict.fromkeys(table["method"]), strict=False):
            means = numbers[numbers["method"] == method].groupby("number")["value"].mean() * 100
            axes.plot(means.index, means, "o-", color=colour, markersize=3, label=method)
        axes.set_xlabel("absent parties")
        axes.set_ylabel("test accuracy, %")
        axes.set_xticks(sorted(set(numbers["number"])))
        axes.legend(frameon=False, fontsize=7)
        figure.savefig(HERE / f"absent_{study}.svg", metadata={"Date": None})


def gap(study: str) -> str:
    """The largest and smallest distance between one head and LASER's heads, by number absent."""
    numbers = read(study).query("what == 'number'")
    means = numbers.groupby(["method", "number"])["value"].mean() * 100
    apart = (means["LASER heads"] - means["task sampling"]).round(1)
    return ", ".join(f"{value:+.1f}" for value in apart)


def main() -> None:
    """Write the page and the figures."""
    for study in STUDIES:
        draw(study)
    parts = [TEXTS["head"]]
    for study in STUDIES:
        seeds = read(study)["seed"].nunique()
        words = f"Mean over {seeds} seeds ± 2 standard deviations." if seeds > 1 else "One seed."
        parts += [f"## {TITLES[study]}", f"{words} Test accuracy in %.", "\n".join(curve_table(study))]
        parts.append(f"LASER's heads minus one head, in points, by number absent: {gap(study)}.")
        parts.append(f"![Accuracy by number of absent parties, {study}](absent_{study}.svg)")
    if (HERE / "tables/absent_credit.csv").is_file():
        seeds = read("credit")["seed"].nunique()
        parts += [
            "## Credit default, LASER-VFL's setting",
            TEXTS["credit"].strip() + f" F1 x 100, mean over {seeds} seed{'s' * (seeds > 1)}.",
            "\n".join(credit_table()),
        ]
    parts.append(TEXTS["foot"])
    (HERE / "absent.md").write_text("\n\n".join(parts) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
