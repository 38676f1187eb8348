"""What happens to a prediction when parties are absent: the studies behind docs/results/absent.md.

Each run trains a recipe of the command line and measures it exactly over all subsets of absent parties, as
``lightning-vfl test --absent all`` does. The credit study follows the setting of LASER-VFL: records miss the columns
of each party at random, in training and in the test.

    python -m benchmarks.absent digits mnist credit fashion_mnist handwritten [--out DIR] [--seeds 3]
                                [--methods "LASER heads" "task sampling"]

With ``--methods`` the rows of these methods replace those in the tables, and the others stay. Data sets are read from
``$LIGHTNING_VFL_DATA``.
"""

import argparse
import contextlib
import io
import json
import tempfile
import time
import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pandas as pd
import torch
from sklearn.metrics import f1_score

from lightning_vfl.absence import embed, measure, parse
from lightning_vfl.cli import run
from lightning_vfl.datamodules import ContiguousColumns, CreditDefault, MissingAtRandom
from lightning_vfl.types import Roll

Options = tuple[str, ...]

HALF_ABSENT: Options = (
    "--trainer.callbacks+=PartyDropout",
    "--trainer.callbacks.probability=1.0",
    "--trainer.callbacks.proportion=0.5",
)
METHODS: dict[str, Options] = {
    "ordinary": ("--config=protocol/mean",),
    "rounds without half": ("--config=protocol/mean", *HALF_ABSENT),
    "drop by record": ("--config=protocol/drop_parties",),
    "drop by record, p = 0.5": ("--config=protocol/drop_parties", "--model.subsets.p=0.5"),
    "task sampling": ("--config=protocol/task_sampling",),
    "task sampling, disjoint": ("--config=protocol/task_sampling", "--model.subsets.each_size=disjoint"),
    "task sampling, all": ("--config=protocol/task_sampling", "--model.subsets.each_size=all"),
    "LASER heads": ("--config=protocol/laser",),
    "ensemble": ("--config=protocol/ensemble",),
    "local": ("--config=protocol/local",),
}
SMALL_TRAINING = (
    "--data.partitioner=LimitedOverlap",
    "--data.partitioner.aligned=12000",
    "--data.partitioner.only_aligned=true",
)
OTHERS: dict[str, Options] = {
    "concat": ("--config=protocol/concat",),
    "DVFL": ("--config=protocol/dvfl",),
    "PBM-VFL": ("--config=protocol/pbm", "--data.normaliser=Standardise", "--data.normaliser.public=true"),
    "masked sum, drop by round": (
        "--config=protocol/mean",
        "--model.aggregator=MaskedSum",
        "--model.subsets=DropParties",
        "--model.subsets.p=0.3",
        "--model.subsets.by=round",
        "--model.allow_embeddings_by_subtraction=true",
    ),
}
STUDIES: Mapping[str, tuple[Options, Mapping[str, Options]]] = {
    "digits": (("--config=data/digits", "--trainer.max_epochs=30"), METHODS),
    "mnist": (("--config=data/mnist", *SMALL_TRAINING, "--data.batch_size=256", "--trainer.max_epochs=7"), METHODS),
    "mnist_long": (("--config=data/mnist", *SMALL_TRAINING, "--trainer.max_epochs=10"), METHODS),
    "fashion_mnist": (("--config=data/fashion_mnist", *SMALL_TRAINING, "--trainer.max_epochs=10"), METHODS | OTHERS),
    "handwritten": (("--config=data/handwritten", "--trainer.max_epochs=20"), METHODS | OTHERS),
}
CREDIT: Options = ("--config=data/credit_default", "--data.batch_size=128", "--trainer.max_epochs=8")
QUIET: Options = (
    "--trainer.logger=false",
    "--trainer.enable_checkpointing=false",
    "--trainer.enable_progress_bar=false",
    "--trainer.enable_model_summary=false",
    "--trainer.limit_val_batches=0",
    "--summary.enabled=false",
    "--record.enabled=false",
)


def fitted(options: Options, seed: int) -> tuple[Any, Any, float]:
    """The module and the data after a fit, and the CPU seconds of the fit."""
    begun = time.process_time()
    with tempfile.TemporaryDirectory() as folder, contextlib.redirect_stdout(io.StringIO()):
        given = [f"--trainer.default_root_dir={folder}", f"--seed_everything={seed}", *QUIET, *options]
        cli = run(["fit", *given])
    return cli.model, cli.datamodule, time.process_time() - begun


def runs(
    study: str, common: Options, methods: Mapping[str, Options], seeds: int, chosen: Sequence[str] | None
) -> Iterator[pd.DataFrame]:
    """The rows of a study by number of absent parties, run by run; ``chosen``: the methods, None: all."""
    for seed in range(seeds):
        for method, options in methods.items():
            if chosen is not None and method not in chosen:
                continue
            module, data, seconds = fitted((*common, *options), seed)
            data.setup("test")
            table = measure(module, data.test_dataloader(), parse("all")).table
            rows = table[(table["what"] != "subset") & table["metric"].str.endswith("accuracy")]
            print(study, seed, method, f"{seconds:.1f} s", (rows["value"] * 100).round(1).tolist(), flush=True)
            yield rows.assign(study=study, method=method, seed=seed, cpu_seconds=round(seconds, 2))


def store(rows: Iterable[pd.DataFrame], file: Path, chosen: Sequence[str] | None, order: Sequence[str]) -> None:
    """Write the rows; with ``chosen`` methods, those of other methods stay in the file. ``order``: of the methods."""
    table = pd.concat(list(rows))
    if chosen is not None and file.is_file():
        before = pd.read_csv(file, float_precision="round_trip")
        table = pd.concat([before[~before["method"].isin(chosen)], table])
        place = table["method"].map({method: number for number, method in enumerate(order)})
        table = table.assign(place=place).sort_values(["seed", "place"], kind="stable").drop(columns="place")
    file.parent.mkdir(parents=True, exist_ok=True)
    table.to_csv(file, index=False)


# ---- the credit study

CREDIT_RECORDS = 21_000  # of the training records: 70 % of 30,000
CREDIT_MODEL: Options = (
    "--model.width=16",
    "--model.bottom.hidden=[32]",
    "--model.top.hidden=[16]",
    "--model.objective=Binary",
    "--model.objective.class_weights=balanced",
)
CREDIT_METHODS: dict[str, Options] = {
    "mean of those there": METHODS["ordinary"],
    "LASER heads": METHODS["LASER heads"],
    "one head, task sampling": METHODS["task sampling"],
    "standard": METHODS["ordinary"],
}


def credit(seeds: int, missing: Sequence[float] = (0.0, 0.1, 0.5)) -> Iterator[pd.DataFrame]:
    """F1 x 100 by the probability that a party lacks a record, in training and in the test.

    The standard model is trained on the records that all parties hold, and guesses if a party lacks the record.
    """
    for seed in range(seeds):
        for p_train in missing:
            for method, options in CREDIT_METHODS.items():
                standard = method == "standard"
                with tempfile.TemporaryDirectory() as folder:
                    recipe = Path(folder) / "cut.yaml"
                    recipe.write_text(json.dumps(_cut(p_train, seed, standard)))  # JSON is YAML
                    given = (*CREDIT, f"--config={recipe}", *options, *CREDIT_MODEL)
                    module, data, seconds = fitted(given, seed)
                data.setup("test")
                about: dict[str, Any] = {
                    "study": "credit",
                    "seed": seed,
                    "method": method,
                    "p_train": p_train,
                    "cpu_seconds": seconds,
                }
                rows = [about | {"p_test": p, **_scores(module, data, p, seed, standard)} for p in missing]
                print(seed, p_train, method, f"{seconds:.1f} s", [round(row["f1"], 1) for row in rows], flush=True)
                yield pd.DataFrame(rows)


def _cut(p: float, seed: int, complete: bool) -> Mapping[str, Any]:
    """Four parties of five columns each; the last three of the 23 columns are left out, as in the authors' code."""
    columns = CreditDefault().layout.columns[:20]
    named = {"columns": {str(m): list(columns[5 * m : 5 * m + 5]) for m in range(4)}, "drop_rest": True}
    inner = {"class_path": "NamedColumns", "init_args": named}
    whole = {"aligned": round(CREDIT_RECORDS * (1 - p) ** 4), "only_aligned": True, "seed": seed}
    lacking = {"p": p, "splits": ["train"], "seed": seed}
    name, given = ("LimitedOverlap", whole) if complete else ("MissingAtRandom", lacking)
    partitioner = {"class_path": name, "init_args": {"partitioner": inner, **given}}
    return {"data": {"class_path": "CreditDefault", "init_args": {"partitioner": partitioner}}}


def _scores(module: Any, data: Any, p: float, seed: int, guess: bool) -> Mapping[str, float]:
    """F1 x 100 on the test records, of which each party lacks a share; records that nobody holds are left out."""
    with torch.no_grad():
        records = embed(module.eval(), data.test_dataloader())
        parties = module.roster.parties
        held = MissingAtRandom(ContiguousColumns(parties), p=p, seed=seed).held("test", len(records.labels), parties)
        present = torch.ones(len(records.labels), parties).bool() if held is None else torch.from_numpy(held)
        used = present.any(1)
        h, labels, present = tuple(x[used] for x in records.h), records.labels[used], present[used]
        predicted = module.objective.predict(module.output_of(h, Roll.everyone(parties), present))
    if guess:
        random = torch.rand(len(labels), generator=torch.Generator().manual_seed(seed))
        predicted = torch.where(present.all(1), predicted, random)
    return {"f1": 100 * f1_score(labels, predicted >= 0.5), "left_out": int((~used).sum())}


def main() -> None:
    warnings.filterwarnings("ignore")
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("studies", nargs="+", choices=[*STUDIES, "credit"])
    parser.add_argument("--out", type=Path, default=Path("docs/results/tables"))
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--methods", nargs="+", choices=[*METHODS, *OTHERS])
    given = parser.parse_args()
    if given.methods is not None and "credit" in given.studies:
        parser.error("credit runs all of its methods; leave out --methods")
    torch.set_num_threads(1)
    for study in given.studies:
        file = given.out / f"absent_{study}.csv"
        if study == "credit":
            store(credit(given.seeds), file, None, ())
            continue
        common, methods = STUDIES[study]
        store(runs(study, common, methods, given.seeds, given.methods), file, given.methods, [*methods])


if __name__ == "__main__":
    main()
