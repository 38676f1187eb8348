"""Audit every aggregator on two data sets, and write docs/results/audits.md: ``python docs/results/make_audits.py``.

Each run is one ``lightning-vfl audit``; its findings go to a Parquet file in --folder, and a file that exists is not
made again. The data sets are read from $LIGHTNING_VFL_DATA.
"""

import argparse
import json
import re
import time
from pathlib import Path

import pandas as pd

from lightning_vfl.commands.program import run

PAGE, TABLES = Path(__file__).parent / "audits.md", Path(__file__).parent / "tables"
BEGIN, END = "<!-- audits: made by docs/results/make_audits.py -->", "<!-- audits end -->"
WIDTH = ["--model.width=16"]
MLPS = ["--model.bottom=MLP", "--model.bottom.hidden=[64]", "--model.top=MLP", "--model.top.hidden=[64]"]
TANH = [*MLPS, "--model.bottom.output_activation=torch.nn.Tanh"]
POLYNOMIAL = ["--model.bottom=PolynomialNetwork", "--model.top=MLP", "--model.top.hidden=[64]"]
SPLIT = "--model=SplitVFL"


def aggregator(name: str, **settings: object) -> list[str]:
    """The options of an aggregator in SplitVFL."""
    given = [f"--model.aggregator.{key}={value}" for key, value in settings.items()]
    return [SPLIT, f"--model.aggregator={name}", *given, *WIDTH]


PBM = "PoissonBinomial"
AGGREGATORS = {
    "Concat": [*aggregator("Concat"), *MLPS],
    "Mean": [*aggregator("Mean"), *MLPS],
    "MaskedSum": [*aggregator("MaskedSum"), *MLPS],
    "LagrangeCoded": [*aggregator("LagrangeCoded", blocks=1, privacy=1), *POLYNOMIAL],
    "PoissonBinomial (16, .1)": [*aggregator(PBM, levels=16, beta=0.1), *TANH, "--model.evaluate=plain"],
    "PoissonBinomial (16, .25)": [*aggregator(PBM, levels=16, beta=0.25), *TANH, "--model.evaluate=plain"],
    "PoissonBinomial (2, .05)": [*aggregator(PBM, levels=2, beta=0.05), *TANH, "--model.evaluate=plain"],
    "LocalGaussian, ε = 5": [*aggregator("LocalGaussian"), *MLPS, "--model.evaluate=plain"],
    "DVFL": ["--config=protocol/dvfl", "--model.guest_epochs=5", "--trainer.max_epochs=10"],
}
DATA = {
    "CreditDefault": ["--config=data/credit_default", "--data.partitioner.parties=4"],
    "MNIST": ["--config=data/mnist"],
}
PUBLIC = ["--data.normaliser=Standardise", "--data.normaliser.public=true"]


def normaliser(data: str, name: str) -> list[str]:
    """Scaling that is not fitted to the training records, which aggregators that account for privacy ask for."""
    if data == "CreditDefault":
        return PUBLIC
    return ["--data.normaliser=Given"] if "Poisson" in name or "Gaussian" in name else []


def attacks(data: str, protocol: str) -> list[str]:
    """The attacks as one JSON list, the same for every aggregator."""
    two = data == "CreditDefault"
    wanted: list[tuple[str, dict[str, int]]] = [("LabelsByNorm", {})] if two else []
    wanted += [("LabelsByDirection", {"known": 1 if two else 4}), ("ModelCompletion", {})]
    wanted += [(name, {}) for name in ("FeatureReconstruction", "SingleUpload", "KnownPlaintext", "MembershipByLoss")]
    if "Poisson" in protocol or "Gaussian" in protocol:
        wanted += [("EpsilonLowerBound", {"trials": 1_000_000, "uploads": uploads}) for uploads in (1, 5)]
    return ["--attacks", json.dumps([{"class_path": name, "init_args": settings} for name, settings in wanted])]


COLUMNS = {
    "labels by norm, AUC": ("party:1", "LabelsByNorm"),
    "labels by direction": ("party:1", "LabelsByDirection"),
    "model completion": ("party:1", "ModelCompletion"),
    "features from aggregates, R²": ("server", "FeatureReconstruction"),
    "features from one upload, R²": ("server", "SingleUpload"),
    "known embeddings, R²": ("server", "KnownPlaintext"),
    "membership, AUC": ("server", "MembershipByLoss"),
}


def table(findings: dict[str, pd.DataFrame]) -> str:
    """One row for each aggregator, one column for each attack; without the protocol and chance behind them."""
    used = {name: key for name, key in COLUMNS.items() if any(len(_of(own, *key)) for own in findings.values())}
    lines = [["aggregator", *used], ["---"] * (len(used) + 1)]
    for name, own in findings.items():
        lines.append([name, *(_cell(own, *key) for key in used.values())])
    first = next(iter(findings.values()))
    for word, column in (("without the protocol", "without"), ("chance", "chance")):
        cells = [_of(first, *key)[column] for key in used.values()]
        lines.append([f"*{word}*", *("-" if cell.isna().all() else f"{cell.iloc[0]:.3f}" for cell in cells)])
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def epsilon_table(findings: dict[str, dict[str, pd.DataFrame]]) -> str:
    """The lower bounds on ε and the accountant's."""
    lines = [["aggregator", "uploads", "lower bound", "accountant", "bound / accountant"], ["---"] * 5]
    for name, own in findings["CreditDefault"].items():
        for _, row in own[own.attack.str.startswith("Epsilon") & own.claimed.notna()].iterrows():
            uploads = "5" if "uploads=5" in row.attack else "1"
            ratio = row.success / row.claimed
            lines.append([name, uploads, f"{row.success:.3f}", f"{row.claimed:.3f}", f"{ratio:.2f}"])
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def _of(own: pd.DataFrame, attacker: str, attack: str) -> pd.DataFrame:
    return own[(own.attacker == attacker) & own.attack.str.startswith(attack)]


def _cell(own: pd.DataFrame, attacker: str, attack: str) -> str:
    rows = _of(own, attacker, attack)
    if not len(rows):
        return "-"
    row = rows.iloc[0]
    if row.verdict.startswith("nothing"):
        return str(row.verdict).removeprefix("nothing to attack: ")
    return f"{row.success:.3f} ({row.low:.3f} to {row.high:.3f})"


def write_page(folder: Path) -> None:
    """Replace the tables between the two marks of the page."""
    findings: dict[str, dict[str, pd.DataFrame]] = {}
    for data in DATA:
        paths = {name: folder / file_of(data, name) for name in AGGREGATORS}
        findings[data] = {name: pd.read_parquet(path) for name, path in paths.items() if path.exists()}
    parts = [f"### {data}\n\n{table(own)}" for data, own in findings.items() if own]
    parts.append(f"### Lower bounds on ε\n\n{epsilon_table(findings)}")
    text, tables = PAGE.read_text(encoding="utf-8"), "\n\n".join(parts)
    before, after = text.partition(BEGIN)[0], text.partition(END)[2]
    PAGE.write_text(f"{before}{BEGIN}\n\n{tables}\n\n{END}{after}", encoding="utf-8")


def file_of(data: str, name: str) -> str:
    """The file of the findings of one run."""
    return f"{data}_{re.sub('[^A-Za-z0-9.]+', '_', name).strip('_')}.parquet"


def main() -> None:
    """Run what is missing, and write the page."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--folder", type=Path, default=TABLES / "audits", help="where the findings are kept")
    parser.add_argument("--only", nargs="*", default=list(DATA), choices=list(DATA))
    parser.add_argument("--epochs", type=int, default=10)
    given = parser.parse_args()
    given.folder.mkdir(parents=True, exist_ok=True)
    for data in given.only:
        for name, model in AGGREGATORS.items():
            path = given.folder / file_of(data, name)
            if path.exists():
                continue
            began = time.monotonic()
            arguments = [
                "audit", *DATA[data], *normaliser(data, name), "--data.batch_size=256",
                f"--trainer.max_epochs={given.epochs}", *model, "--attacker", "party:1", "server",
                *attacks(data, name), "--report", str(path), "--trainer.logger=false",
                "--trainer.enable_checkpointing=false", "--trainer.enable_progress_bar=false",
                "--trainer.enable_model_summary=false", "--trainer.limit_val_batches=1",
                f"--trainer.default_root_dir={given.folder}/runs",
            ]  # fmt: skip
            print(data, name, flush=True)
            run(arguments)
            print(f"{data} {name}: {time.monotonic() - began:.0f} s", flush=True)
    write_page(given.folder)


if __name__ == "__main__":
    main()
