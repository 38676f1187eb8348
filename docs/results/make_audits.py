"""Audit aggregators and downlinks on three data sets, and write docs/results/audits.md and its figure.

    LIGHTNING_VFL_DATA=DIR python docs/results/make_audits.py [--only Digits] [--seeds 0]

Each run is one ``lightning-vfl audit`` with its usual attacks, and a test. Its rows go to
docs/results/tables/audits.csv; a run that is there is not made again. With --page, nothing is run.
"""

import argparse
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pandas as pd
from kept_rows import add, read, write_between

from lightning_vfl.audit.verdicts import LEAK, NO_MORE, NOT_SHOWN
from lightning_vfl.commands.program import run
from lightning_vfl.datamodules.records.folders import data_folder
from lightning_vfl.errors import ConfigurationError

HERE = Path(__file__).parent
PAGE, TABLE, FIGURE = HERE / "audits.md", HERE / "tables" / "audits.csv", HERE / "audits_frontier.svg"
BEGIN, END = "<!-- audits: made by docs/results/make_audits.py -->", "<!-- audits end -->"
SEEDS = (0, 1, 2)
CUT = 3000  # records of CreditDefault
TEST = "test"  # the attacker of rows that have the scores of the test

LINEAR = ["--model.bottom=Linear", "--model.top=MLP", "--model.top.hidden=[64]", "--model.width=16"]
TANH = ["--model.bottom=MLP", "--model.bottom.hidden=[16]", "--model.bottom.output_activation=torch.nn.Tanh"]
ADAM = ["--model.optimizer=torch.optim.Adam", "--model.optimizer.lr=0.003"]


def split(name: str, bottom: Sequence[str] = (), **settings: object) -> list[str]:
    """The options of ``SplitVFL`` with an aggregator."""
    given = [f"--model.aggregator.{key}={value}" for key, value in settings.items()]
    return ["--model=SplitVFL", f"--model.aggregator={name}", *given, *LINEAR, *bottom, *ADAM]


def downlink(name: str, **settings: float) -> list[str]:
    """The options of ``SplitVFL`` with ``Concat`` and a downlink."""
    given = [f"--model.downlink.{key}={value}" for key, value in settings.items()]
    return [*split("Concat"), f"--model.downlink={name}", *given]


PLAIN = ["--model.evaluate=plain"]
ABSENT = ["--config=faults/vfedsec_dropout"]
LATE = ["--config=faults/fedvs_stragglers"]
RISKS = ["--model.allow_embeddings_by_subtraction=true"]  # sums with and without a party are accepted
GROUPED = ["--model.allow_invertible_updates=true"]
CODED = split("LagrangeCoded", ["--model.bottom=PolynomialNetwork"], blocks=1, privacy=1)
CASCADE = ["--model=CascadeVFL", *LINEAR, *ADAM]
COUNTED = "PoissonBinomial", "LocalGaussian"  # aggregators that account for privacy
ROWS: dict[str, list[str]] = {
    "Concat": split("Concat"),
    "Sum": split("Sum"),
    "Mean": split("Mean"),
    "Max": split("Max"),
    "MaskedSum": split("MaskedSum"),
    "vFedSec": ["--config=protocol/vfedsec", *LINEAR, *ADAM],
    "vFedSec, parties absent": ["--config=protocol/vfedsec", "--config=faults/vfedsec_dropout", *LINEAR, *ADAM],
    "vFedSec, groups": ["--config=protocol/vfedsec", *LINEAR, *ADAM, *GROUPED],
    "MaskedSum, groups": [*split("MaskedSum"), *GROUPED],
    "MaskedSum, recovery, parties absent": [*split("MaskedSum", recovery="auto"), *RISKS, *ABSENT],
    "LagrangeCoded": CODED,
    "LagrangeShared": split("LagrangeShared", blocks=1, privacy=1),
    "PoissonBinomial (16, .25)": [*split("PoissonBinomial", TANH, levels=16, beta=0.25), *PLAIN],
    "PoissonBinomial (2, .05)": [*split("PoissonBinomial", TANH, levels=2, beta=0.05), *PLAIN],
    "LocalGaussian, ε = 5": [*split("LocalGaussian"), *PLAIN],
    "AsyncVFL": ["--model=AsyncVFL", "--model.aggregator=Mean", *LINEAR, *ADAM],
    "AsyncVFL, parties late": ["--model=AsyncVFL", "--model.aggregator=Mean", *LINEAR, *ADAM, *LATE],
    "Concat, parties late, Stale": [*split("Concat"), "--config=policy/stale", *LATE],
    "Concat, parties late, Zeros": [*split("Concat"), "--config=policy/stale", "--model.missing=Zeros", *LATE],
    "Mean, the 2 fastest": [*split("Mean"), "--model.waiting=Fastest", "--model.waiting.n=2", *LATE],
    "LagrangeCoded, parties late, Threshold": [*CODED, "--model.waiting=Threshold", *RISKS, *LATE],
    "LocalGaussian, ε = 5, parties late, Stale": [*split("LocalGaussian"), *PLAIN, "--config=policy/stale", *LATE],
    "CascadeVFL, one active party": [*CASCADE, "--model.aggregator=Concat"],
    "CascadeVFL, one active party, MaskedSum": [*CASCADE, "--model.aggregator=MaskedSum"],
    "CascadeVFL, one active party, batches of 8": [*CASCADE, "--model.aggregator=Concat"],
    "CascadeVFL, one active party, MaskedSum, batches of 8": [*CASCADE, "--model.aggregator=MaskedSum"],
    "CascadeVFL, all parties active": [*CASCADE, "--model.aggregator=Concat"],
    "DVFL": ["--config=protocol/dvfl", "--model.guest_epochs=5", "--trainer.max_epochs=10"],
    "MaxNorm": downlink("MaxNorm"),
    "Marvell, power 4": downlink("Marvell", power=4.0),
    "GaussianGradients, σ 0.5": downlink("GaussianGradients", clip=0.5, sigma=0.5),
    "GaussianGradients, σ 8": downlink("GaussianGradients", clip=0.5, sigma=8.0),
    "RandomizedResponse, ε 3": downlink("RandomizedResponse", epsilon=3.0),
    "RandomizedResponse, ε 1": downlink("RandomizedResponse", epsilon=1.0),
    "LaplaceLabels, ε 1": downlink("LaplaceLabels", epsilon=1.0),
}
DATA = {
    "BreastCancer": ["--config=data/breast_cancer", "--trainer.max_epochs=5"],
    "Digits": ["--config=data/digits", "--trainer.max_epochs=5"],
    "CreditDefault": [
        *("--config=data/credit_default", "--trainer.max_epochs=3", "--data.batch_size=64"),
        f"--data.expected_records={CUT}",
    ],
}
TWO_CLASSES = "BreastCancer", "CreditDefault"
PARTS = {
    "BreastCancer": ("ContiguousColumns", 3),
    "Digits": ("RowStrips", 4),
    "CreditDefault": ("ContiguousColumns", 4),
}
QUIET = [
    *("--trainer.logger=false", "--trainer.enable_checkpointing=false", "--trainer.enable_progress_bar=false"),
    *("--trainer.enable_model_summary=false", "--trainer.limit_val_batches=0"),
]

LABELS = {
    "norms": ("party:1", "LabelsByNorm"),
    "direction": ("party:1", "LabelsByDirection"),
    "all epochs, 0 known": ("party:1", "LabelsOverEpochs(known=0"),
    "1 known": ("party:1", "LabelsOverEpochs"),
    "20 known": ("party:1", "LabelsOverEpochs(known=20"),
    "completion, 20 known": ("party:1", "ModelCompletion(known=20"),
    "membership": ("party:1", "MembershipByLoss"),
}
FEATURES = {
    "alike, 0 known": ("server", "DriftNeighbours"),
    "few values, 0 known": ("server", "DriftColumns"),
    "drift, R²": ("server", "DriftFeatures"),
    "aggregates, R²": ("server", "FeatureReconstruction"),
    "one upload, R²": ("server", "SingleUpload"),
    "known embeddings, R²": ("server", "KnownPlaintext"),
    "records of a group": ("server", "GroupInversion"),
    "joined embeddings": ("server", "TopGradientInversion"),
    "by a chosen top": ("server", "ChosenTop"),
    "ε, lower bound": ("server", "EpsilonLowerBound"),
}
ON_LABELS = "Labels", "ModelCompletion"
OF_A_PARTY = "Drift", "FeatureReconstruction", "SingleUpload", "KnownPlaintext"
COLUMNS = ["data", "row", "seed", "attacker", "attack", "measure", "success", "low", "high", "chance", "without"]
COLUMNS += ["unprotected", "plain", "claimed", "allowed", "verdict"]
NUMBERS = COLUMNS[6:15]


# ---- the runs


def cut_credit_default(folder: Path) -> list[str]:
    """The options that read the first records of CreditDefault, in the order of the file."""
    whole = data_folder(None, "credit_default") / "UCI_Credit_Card.csv"
    lines = whole.read_text(encoding="utf-8").splitlines(keepends=True)
    (folder / whole.name).write_text("".join(lines[: CUT + 1]), encoding="utf-8")
    return [f"--data.data_dir={folder}"]


def division(data: str, row: str) -> list[str]:
    """Who holds which columns, records and labels."""
    partitioner, parts = PARTS[data]
    inner = f"--data.partitioner.partitioner={partitioner}", f"--data.partitioner.partitioner.parties={parts}"
    if row.endswith("groups"):  # party 0 alone, and for each other part of the columns three parties
        return ["--data.partitioner=Groups", f"--data.partitioner.members={[1] + [3] * (parts - 1)}", *inner]
    if row.startswith("CascadeVFL, one active party"):
        small = ["--data.batch_size=8"] if row.endswith("batches of 8") else []
        return ["--data.partitioner=LabelPartition", "--data.partitioner.active=1", *inner, *small]
    batch = ["--data.batch_size=16"] if row.startswith("CascadeVFL") and data == "BreastCancer" else []
    return [f"--data.partitioner.parties={parts}", *batch]  # an active party of a shadow training has 19 labels


def on_features(row: str) -> str:
    """Who attacks the features: of a cascade an active party, which joins embeddings, with the collaborator."""
    return "server+party:0" if row.startswith("CascadeVFL") else "server"


def normaliser(data: str, row: str) -> list[str]:
    """Scaling that is not fitted to the training records, which aggregators that account for privacy ask for."""
    if not row.startswith(COUNTED):
        return []
    if data == "Digits":
        return ["--data.normaliser=Given"]
    return ["--data.normaliser=Standardise", "--data.normaliser.public=true"]


def audit(data: str, row: str, seed: int, folder: Path, given: Sequence[str]) -> list[dict[str, Any]]:
    """The rows of one run."""
    report = folder / "audit.parquet"
    arguments = [
        *("audit", *DATA[data], *division(data, row), *normaliser(data, row), *ROWS[row], *QUIET, *given),
        *(f"--seed_everything={seed}", "--attacker", "party:1", on_features(row)),
        *("--report", str(report), f"--trainer.default_root_dir={folder}/runs"),
    ]
    cli = run(arguments)
    findings = pd.read_parquet(report)
    own_labels = findings["attacker"].str.contains("+", regex=False) & findings["attack"].str.startswith(ON_LABELS)
    findings = findings[~own_labels]  # an active party has its labels
    if row.endswith("groups"):  # of a party that holds a third of the records, zeros would be asked for
        findings = findings[~findings["attack"].str.startswith(OF_A_PARTY)]
    (scores,) = cli.trainer.test(cli.model, datamodule=cli.datamodule, verbose=False)
    key = {"data": data, "row": row, "seed": seed}
    rows = [{**key, **{name: kept(finding, name) for name in COLUMNS[3:]}} for _, finding in findings.iterrows()]
    for score in ("accuracy", "auroc"):
        value = scores.get(f"test/{score}")
        if value is not None:
            rows.append({**key, "attacker": TEST, "attack": score, "success": f"{value:.4f}"})
    return rows


def kept(finding: Any, name: str) -> Any:
    """A value of a finding as it is kept: numbers with three digits, verdicts without their reasons."""
    value = finding[name]
    if name in NUMBERS:
        return "" if pd.isna(value) else f"{value:.3f}"
    return value.partition(":")[0] if name == "verdict" else value


def run_missing(only: Sequence[str], seeds: Sequence[int]) -> None:
    """Make the runs that are missing: all rows and data sets with the first seed, then with the next."""
    made = {(row["data"], row["row"], int(row["seed"])) for row in read(TABLE)}
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        options = {"CreditDefault": cut_credit_default(folder) if "CreditDefault" in only else []}
        for seed in seeds:
            for data in only:
                for row in ROWS:
                    if (data, row, seed) in made or not suits(data, row):
                        continue
                    print(f"#### {data}, {row}, seed {seed}", flush=True)
                    began = time.process_time()
                    try:
                        add(TABLE, COLUMNS, audit(data, row, seed, folder, options.get(data, [])))
                    except ConfigurationError as refused:
                        print(f"refused: {refused}", flush=True)
                    print(f"#### {time.process_time() - began:.0f} s of CPU", flush=True)


def suits(data: str, row: str) -> bool:
    """Whether a row can be run: ``Marvell`` is for two classes."""
    return data in TWO_CLASSES or not row.startswith("Marvell")


# ---- the page


def runs_of(data: str, row: str, rows: Sequence[dict[str, str]]) -> list[dict[str, str]]:
    """The kept rows of all seeds of a run."""
    return [one for one in rows if (one["data"], one["row"]) == (data, row)]


def named(rows: Sequence[dict[str, str]], attacker: str, attack: str) -> list[dict[str, str]]:
    """The findings of an attack, one for each seed.

    Args:
        rows: of a run.
        attacker: who attacks, alone or as the first of several.
        attack: its name, with the first of its settings if this tells it from others.
    """
    found: dict[str, dict[str, str]] = {}
    for one in rows:
        own = one["attack"] if "(" in attack else one["attack"].partition("(")[0]
        exact = own.startswith((f"{attack},", f"{attack})")) if "(" in attack else own == attack
        settings_wanted = "(" in attack or attack != "LabelsOverEpochs" or "known=" not in one["attack"]
        if one["attacker"].startswith(attacker) and exact and settings_wanted:
            found[one["seed"]] = one  # of several settings the last, which knows most
    return list(found.values())


def mean(rows: Sequence[dict[str, str]], column: str) -> float | None:
    """The mean of a column over seeds; None: no seed has a number."""
    values = [float(one[column]) for one in rows if one[column]]
    return sum(values) / len(values) if values else None


def shown(rows: Sequence[dict[str, str]]) -> str:
    """A cell: the mean over seeds, the outermost ends of the intervals, and the worst verdict."""
    if not rows:
        return "-"
    success = mean(rows, "success")
    if success is None or rows[0]["verdict"] in ("nothing to attack", "not attacked"):
        return rows[0]["verdict"]
    claimed = mean(rows, "claimed")
    if claimed is not None:
        return f"{two_digits(success)} (accountant: {two_digits(claimed)})"
    low = min(float(one["low"]) for one in rows if one["low"])
    high = max(float(one["high"]) for one in rows if one["high"])
    return f"{two_digits(success)} ({two_digits(low)} to {two_digits(high)}) {verdict_of(rows)}"


def two_digits(value: float) -> str:
    """A number of a cell, without a sign before zero."""
    return f"{round(value, 2) + 0.0:.2f}"


def verdict_of(rows: Sequence[dict[str, str]]) -> str:
    """The worst verdict over seeds, in one or two words."""
    verdicts = {one["verdict"] for one in rows}
    for verdict, words in ((LEAK, "**leak**"), (NOT_SHOWN, "not shown"), (NO_MORE, "no more")):
        if verdict in verdicts:
            return words
    return "not measured"


def utility(rows: Sequence[dict[str, str]]) -> list[str]:
    """Mean test accuracy and AUROC."""
    means = [mean([one for one in rows if one["attack"] == score], "success") for score in ("accuracy", "auroc")]
    return ["" if value is None else f"{value:.3f}" for value in means]


def table(data: str, rows: Sequence[dict[str, str]], columns: dict[str, tuple[str, str]]) -> str:
    """One line for each row of the matrix, one column for each attack."""
    lines = [["protocol or downlink", "seeds", "test accuracy", "test AUROC", *columns]]
    lines.append(["---"] * len(lines[0]))
    for row in ROWS:
        own = runs_of(data, row, rows)
        if not suits(data, row):
            continue
        if not own:
            lines.append([row, "0", "not run", "", *[""] * len(columns)])
            continue
        seeds = len({one["seed"] for one in own})
        lines.append([row, str(seeds), *utility(own), *(shown(named(own, *key)) for key in columns.values())])
    clear = runs_of(data, "Concat", rows)
    for words, column in (("without the protocol", "without"), ("chance", "chance")):
        values = [mean(named(clear, *key), column) for key in columns.values()]
        lines.append([f"*{words}*", "", "", "", *("-" if value is None else two_digits(value) for value in values)])
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def excess(rows: Sequence[dict[str, str]], columns: dict[str, tuple[str, str]]) -> float | None:
    """The largest success above what is known anyway, in the mean over seeds; None: no attack has a number."""
    means = []
    for attacker, attack in columns.values():
        findings = [
            one for one in named(rows, attacker, attack) if one["success"] and one["measure"].startswith(SCALED)
        ]
        above = [
            float(one["success"]) - max(float(one[name] or 0) for name in ("chance", "without")) for one in findings
        ]
        if above and attack != "MembershipByLoss":
            means.append(sum(above) / len(above))
    return max(0.0, *means) if means else None


def draw(rows: Sequence[dict[str, str]]) -> None:
    """Test accuracy against what the best attack tells: labels above, features below, by data set."""
    from matplotlib import rc_context
    from matplotlib.figure import Figure

    style: Any = {"svg.hashsalt": "audits", "font.size": 8, "axes.spines.top": False, "axes.spines.right": False}
    attacked = {"labels": LABELS, "features": FEATURES}
    with rc_context(style):
        figure = Figure(figsize=(10, 6.4), layout="constrained")
        panels = figure.subplots(len(attacked), len(DATA))
        for number, data in enumerate(DATA):
            panels[0][number].set_title(data)
            for place, (what, columns) in enumerate(attacked.items()):
                panel = panels[place][number]
                for place_of_row, row in enumerate(ROWS):
                    own = runs_of(data, row, rows)
                    accuracy = mean([one for one in own if one["attack"] == "accuracy"], "success")
                    above = excess(own, columns)
                    dot = ([], []) if accuracy is None or above is None else ([above], [100 * accuracy])
                    panel.plot(
                        *dot, linestyle="", label=row if number + place == 0 else None, **marker(place_of_row, row)
                    )
                panel.set_xlabel(what)
                panel.set_ylabel("test accuracy, %")
                panel.set_xlim(-0.03, 1.03)
        figure.supxlabel("success of the best attack above what is known anyway", fontsize=9)
        figure.legend(loc="outside right center", frameon=False, fontsize=7)
        figure.savefig(FIGURE, metadata={"Date": None})


SCALED = "AUC", "accuracy", "R²"  # measures that stand beside each other in the figure
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
SHAPES = "osD^vP*hp8<>dH", "xX+1234"  # of protocols, filled and then hollow; of downlinks


def marker(number: int, row: str) -> dict[str, Any]:
    """How a row is drawn."""
    downlinks = [one for one in ROWS if any("--model.downlink=" in option for option in ROWS[one])]
    shapes = SHAPES[row in downlinks]
    fill = "none" if number >= len(shapes) and row not in downlinks else "full"
    return {"color": COLOURS[number % 7], "marker": shapes[number % len(shapes)], "fillstyle": fill, "markersize": 6}


def tables(rows: Sequence[dict[str, str]]) -> str:
    """The figure and the tables of the page."""
    what = "Test accuracy against what the best attack tells above what is known anyway, on labels and on features"
    parts = [f"![{what}]({FIGURE.name})"]
    for data in DATA:
        parts.append(f"### {data}, labels\n\n{table(data, rows, LABELS)}")
        parts.append(f"### {data}, features\n\n{table(data, rows, FEATURES)}")
    return "\n\n".join(parts)


def write_page() -> None:
    """Replace what is between the two marks of the page, and draw the figure."""
    rows = read(TABLE)
    draw(rows)
    write_between(PAGE, BEGIN, END, tables(rows))


def main() -> None:
    """Run what is missing, and write the page."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", nargs="*", default=list(DATA), choices=list(DATA))
    parser.add_argument("--seeds", nargs="*", type=int, default=list(SEEDS))
    parser.add_argument("--page", action="store_true", help="run nothing, write the page alone")
    given = parser.parse_args()
    if not given.page:
        run_missing(given.only, given.seeds)
    write_page()


if __name__ == "__main__":
    main()
