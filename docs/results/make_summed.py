"""What sums over a batch tell about labels: writes docs/results/tables/summed.csv and a table of downlinks.md.

    LIGHTNING_VFL_DATA=DIR python docs/results/make_summed.py [--only CreditDefault]

Each run is a training with linear bottoms, in which party 1 listens, and a test: without a downlink, and with
``SummedGradients`` for several sizes of the batch. A row that is in the table is not made again.
"""

import argparse
from pathlib import Path
from typing import Any

from kept_rows import add, read, write_between

from lightning_vfl.audit import Attack, LabelsByDirection, LabelsFromSums
from lightning_vfl.callbacks import Audit
from lightning_vfl.commands.vfl_cli import VFLCLI

HERE = Path(__file__).parent
PAGE, TABLE = HERE / "downlinks.md", HERE / "tables" / "summed.csv"
BEGIN, END = "<!-- sums: made by docs/results/make_summed.py -->", "<!-- sums end -->"
DATA = {
    "CreditDefault": ["--config=data/credit_default", "--data.partitioner.parties=4"],
    "Adult": ["--config=data/adult"],
}
EPOCHS = (1, 5, 20)  # after which the attacker looks at what it has collected
BATCHES = (64, 256, 1024)
COMMON = [
    *("--model=SplitVFL", "--model.aggregator=Concat", "--model.width=16", "--model.bottom=Linear"),
    *("--model.top=MLP", "--model.top.hidden=[64]", f"--trainer.max_epochs={EPOCHS[-1]}", "--data.drop_last=true"),
    *("--trainer.logger=false", "--trainer.enable_checkpointing=false", "--trainer.enable_progress_bar=false"),
    *("--trainer.enable_model_summary=false", "--trainer.limit_val_batches=1"),
]
SUMS = ["--model.downlink=SummedGradients", "--model.downlink.execution=equivalent"]
# Adult's party 1 has as many columns as the smallest batch has records
SUMS += ["--model.downlink.allow_solvable_batches=true"]
COLUMNS = ["data", "downlink", "batch", "inputs", "accuracy", "auroc", "epochs", "success", "low", "high", "without"]


def train(data: str, batch: int, summed: bool, folder: Path) -> list[dict[str, Any]]:
    """The rows of a training: the success after each number of epochs."""
    downlink = SUMS if summed else []
    given = [*DATA[data], *COMMON, f"--data.batch_size={batch}", *downlink, f"--trainer.default_root_dir={folder}"]
    cli = VFLCLI(["fit", *given]).build()
    attacks: list[Attack] = [LabelsFromSums(epochs) for epochs in EPOCHS] if summed else [LabelsByDirection(10)]
    audit = Audit("party:1", attacks)
    cli.trainer.callbacks.append(audit)  # type: ignore[attr-defined]  # set in Trainer.__init__
    cli.take_folder()
    cli.trainer.fit(cli.model, datamodule=cli.datamodule)
    (scores,) = cli.trainer.test(cli.model, datamodule=cli.datamodule, verbose=False)
    inputs = sum(p.numel() for p in cli.model.bottoms.parties[1].parameters()) // cli.model.width
    rows = []
    for epochs, found in zip(EPOCHS if summed else EPOCHS[:1], audit.findings, strict=True):
        tested = {"accuracy": scores["test/accuracy"], "auroc": scores["test/auroc"]}
        attack = {"success": found.success, "low": found.low, "high": found.high, "without": found.without}
        name = "SummedGradients" if summed else "none"
        rows.append(
            {"data": data, "downlink": name, "batch": batch, "inputs": inputs, "epochs": epochs, **tested, **attack}
        )
    return rows


def table(rows: list[dict[str, str]]) -> str:
    """The table of the page."""
    names = "data", "downlink", "batch", "inputs F", "epochs", "equations a label", "test accuracy", "AUROC"
    lines = [f"| {' | '.join((*names, 'labels, AUC', 'own columns'))} |", "| " + " | ".join(["---"] * 10) + " |"]
    for row in rows:
        share = int(row["epochs"]) * int(row["inputs"]) / int(row["batch"])
        attack = f"{float(row['success']):.3f} ({float(row['low']):.3f} to {float(row['high']):.3f})"
        equations = f"{share:.2f}" if row["downlink"] != "none" else "every gradient"
        tested = f"{float(row['accuracy']):.3f}", f"{float(row['auroc']):.3f}"
        cells = row["data"], row["downlink"], row["batch"], row["inputs"], row["epochs"], equations, *tested, attack
        lines.append(f"| {' | '.join(cells)} | {float(row['without']):.3f} |")
    return "\n".join(lines)


def main() -> None:
    """Run what is missing, and write the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", nargs="*", default=list(DATA), choices=list(DATA))
    parser.add_argument("--folder", type=Path, default=Path("runs"), help="where runs are kept")
    given = parser.parse_args()
    for data in given.only:
        for batch, summed in ((256, False), *((batch, True) for batch in BATCHES)):
            name = "SummedGradients" if summed else "none"
            done = {(row["data"], row["downlink"], int(row["batch"])) for row in read(TABLE)}
            if (data, name, batch) in done:
                continue
            rows = train(data, batch, summed, given.folder)
            add(TABLE, COLUMNS, rows)
            print(*rows, sep="\n", flush=True)
    write_between(PAGE, BEGIN, END, table(read(TABLE)))


if __name__ == "__main__":
    main()
