"""What protection of labels costs, and what it gives: writes docs/results/downlinks.md and its figures.

    LIGHTNING_VFL_DATA=DIR python docs/results/make_downlinks.py [--only CreditDefault]

Each run is a training under one downlink, in which party 1 listens, and a test. Its row goes to
docs/results/tables/downlinks.csv; a row that is there is not made again.
"""

import argparse
import time
from pathlib import Path
from typing import Any

from kept_rows import add, read, write_between

from lightning_vfl.audit import LabelsByDirection, LabelsOverEpochs
from lightning_vfl.callbacks import Audit
from lightning_vfl.commands.vfl_cli import VFLCLI

HERE = Path(__file__).parent
PAGE, TABLE = HERE / "downlinks.md", HERE / "tables" / "downlinks.csv"
BEGIN, END = "<!-- downlinks: made by docs/results/make_downlinks.py -->", "<!-- downlinks end -->"
DATA = {
    "CreditDefault": ["--config=data/credit_default", "--data.partitioner.parties=4", "--trainer.max_epochs=10"],
    "Adult": ["--config=data/adult", "--trainer.max_epochs=10"],
    "MNIST": ["--config=data/mnist", "--trainer.max_epochs=3"],
}
KNOWN = {"CreditDefault": 1, "Adult": 1, "MNIST": 4}  # records of each class that the attacker knows
COMMON = [
    *("--model=SplitVFL", "--model.aggregator=Concat", "--model.width=16", "--model.bottom=MLP"),
    *("--model.bottom.hidden=[64]", "--model.top=MLP", "--model.top.hidden=[64]", "--data.batch_size=256"),
    *("--trainer.logger=false", "--trainer.enable_checkpointing=false", "--trainer.enable_progress_bar=false"),
    *("--trainer.enable_model_summary=false", "--trainer.limit_val_batches=1"),
]
DOWNLINKS: dict[str, list[str]] = {
    "none": [],
    "MaxNorm": ["MaxNorm"],
    "Marvell, power 1": ["Marvell", "power=1.0"],
    "Marvell, power 4": ["Marvell", "power=4.0"],
    "Marvell, power 16": ["Marvell", "power=16.0"],
    "GaussianGradients, clip 0.5, σ 0.5": ["GaussianGradients", "clip=0.5", "sigma=0.5"],
    "GaussianGradients, clip 0.5, σ 2": ["GaussianGradients", "clip=0.5", "sigma=2.0"],
    "GaussianGradients, clip 0.5, σ 8": ["GaussianGradients", "clip=0.5", "sigma=8.0"],
    "RandomizedResponse, ε 3": ["RandomizedResponse", "epsilon=3.0"],
    "RandomizedResponse, ε 1": ["RandomizedResponse", "epsilon=1.0"],
    "RandomizedResponse, ε 0.3": ["RandomizedResponse", "epsilon=0.3"],
    "LaplaceLabels, ε 3": ["LaplaceLabels", "epsilon=3.0"],
    "LaplaceLabels, ε 1": ["LaplaceLabels", "epsilon=1.0"],
}
COLUMNS = ["data", "downlink", "accuracy", "auroc", "epsilon", "direction", "low", "high"]
COLUMNS += ["epochs", "epochs_low", "epochs_high", "unaided", "without", "seconds"]


def train(data: str, downlink: list[str], folder: Path) -> dict[str, Any]:
    """Train under a downlink while party 1 listens; its successes, and the metrics of the test."""
    began = time.monotonic()
    given = (
        [f"--model.downlink={downlink[0]}", *(f"--model.downlink.{one}" for one in downlink[1:])] if downlink else []
    )
    cli = VFLCLI(["fit", *DATA[data], *COMMON, *given, f"--trainer.default_root_dir={folder}"]).build()
    two = data != "MNIST"
    known = KNOWN[data]
    attacks = [LabelsByDirection(known), LabelsOverEpochs(known), *([LabelsOverEpochs(0)] if two else [])]
    audit = Audit("party:1", attacks)
    cli.trainer.callbacks.append(audit)  # type: ignore[attr-defined]  # set in Trainer.__init__
    cli.take_folder()
    cli.trainer.fit(cli.model, datamodule=cli.datamodule)
    (scores,) = cli.trainer.test(cli.model, datamodule=cli.datamodule, verbose=False)
    direction, epochs, *unaided = audit.findings
    return {
        "accuracy": scores["test/accuracy"],
        "auroc": scores.get("test/auroc", ""),
        "epsilon": cli.model.label_privacy.epsilon() or "",
        "direction": direction.success,
        "low": direction.low,
        "high": direction.high,
        "epochs": epochs.success,
        "epochs_low": epochs.low,
        "epochs_high": epochs.high,
        "unaided": unaided[0].success if unaided else "",
        "without": direction.without,
        "seconds": round(time.monotonic() - began),
    }


def number(text: str, digits: int = 3) -> str:
    """A figure for the page."""
    return f"{float(text):.{digits}f}" if text else ""


def table(rows: list[dict[str, str]]) -> str:
    """The rows of one data set."""
    head = "| downlink | test accuracy | test AUROC | ε of a label | first epoch | all epochs | no label known |"
    lines = [head, "| --- | --- | --- | --- | --- | --- | --- |"]
    for row in rows:
        epsilon = number(row["epsilon"], 1) or (row["downlink"].partition("ε ")[2])
        attack = f"{number(row['epochs'])} ({number(row['epochs_low'])} to {number(row['epochs_high'])})"
        cells = [row["downlink"], number(row["accuracy"]), number(row["auroc"]), epsilon]
        cells += [number(row["direction"]), attack, number(row["unaided"])]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join([*lines, f"| *own columns alone* | | | | *{number(rows[0]['without'])}* | | |"])


def draw(data: str, rows: list[dict[str, str]]) -> str:
    """The frontier of one data set; returns the name of the figure."""
    import matplotlib

    matplotlib.use("svg")
    matplotlib.rcParams["svg.hashsalt"] = "downlinks"
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(figsize=(7, 4.2), layout="constrained")
    kinds = list(dict.fromkeys(row["downlink"].partition(",")[0] for row in rows))
    for kind, mark in zip(kinds, "osD^vP", strict=False):
        own = [row for row in rows if row["downlink"].partition(",")[0] == kind]
        x, y = [float(row["epochs"]) for row in own], [100 * float(row["accuracy"]) for row in own]
        axes.plot(x, y, mark, linestyle=":", label=kind)
    axes.axvline(float(rows[0]["without"]), color="gray", linewidth=1)
    axes.text(
        float(rows[0]["without"]), axes.get_ylim()[0], " own columns alone", rotation=90, va="bottom", color="gray"
    )
    success = "AUC" if data != "MNIST" else "accuracy"
    axes.set(xlabel=f"success over all epochs ({success})", ylabel="test accuracy, %", title=data)
    axes.legend(fontsize=8)
    name = f"downlinks_{data.lower()}.svg"
    figure.savefig(HERE / name, metadata={"Date": None})
    return name


def write_page() -> None:
    """Replace the tables between the two marks of the page."""
    rows, parts = read(TABLE), []
    order = list(DOWNLINKS)
    for data in DATA:
        own = sorted((row for row in rows if row["data"] == data), key=lambda row: order.index(row["downlink"]))
        if own:
            what = f"Test accuracy against the success of an attack on labels, {data}"
            parts.append(f"### {data}\n\n{table(own)}\n\n![{what}]({draw(data, own)})")
    write_between(PAGE, BEGIN, END, "\n\n".join(parts))


def main() -> None:
    """Run what is missing, and write the page."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", nargs="*", default=list(DATA), choices=list(DATA))
    parser.add_argument("--folder", type=Path, default=Path("runs"), help="where runs and ledgers are kept")
    given = parser.parse_args()
    for data in given.only:
        for name, downlink in DOWNLINKS.items():
            if name.startswith("Marvell") and data == "MNIST":
                continue  # it is for two classes
            if any(row["data"] == data and row["downlink"] == name for row in read(TABLE)):
                continue
            row = {"data": data, "downlink": name, **train(data, downlink, given.folder)}
            add(TABLE, COLUMNS, [row])
            print(row, flush=True)
    write_page()


if __name__ == "__main__":
    main()
