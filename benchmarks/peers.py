"""The same split network in this toolkit, in FATE and in SecretFlow: test accuracy and seconds of an epoch.

Two parties hold half of the columns each, the first one the labels too. The data ship with scikit-learn:
``breast_cancer`` (569 records, 30 columns) and ``digits`` (1,797 images, upper and lower half). Bottoms have one
hidden layer, the server adds the embeddings, the top is linear, all are trained by Adam; a seed sets weights, order of
batches and the test records, a fifth, and the kinds of a seed run in turn. All parties are on this machine: here and in
SecretFlow they share a process, in FATE they are two, which share a database. Nothing is encrypted but in FATE's layer
on secret sharing (SSHE), which is trained for one epoch of ``breast_cancer`` only.

Each platform has an environment of its own; a run leaves out those that it is not given:

    python3.11 -m venv FATE && FATE/bin/pip install torch pyfate==2.2.0
    python3.10 -m venv SF && SF/bin/pip install tensorflow-cpu==2.12.1 'jax[cpu]==0.4.26' 'numpy<2' pandas==1.5.3 \
        ray==2.42.0 spu==0.9.3.dev20241118 sf-heu==0.6.0.dev20241106 secretflow-rayfed==0.2.1a2 \
        pyarrow==14.0.2 duckdb==1.0.0 scikit-learn sqlglot==25.5.1 networkx==2.8.8 tqdm sparse s3fs==2024.2.0
    SF/bin/pip install --no-deps secretflow==1.12.0b0 kuscia==0.0.3b0 secretflow-spec==1.1.0b0 \
        secretflow-dataproxy==0.3.0dev20250326 validator.py==1.3.0 sdc-apis==0.1.0.dev240320 \
        sdc-sdk==0.1.0.dev240320 interconnection==0.2.0.dev0 secretflow_serving_lib==0.9.0b0
    python -m benchmarks.peers [--json FILE] [--seeds 5] [--fate FATE/bin/python] [--secretflow SF/bin/python]
"""

import json
import os
import subprocess
import tempfile
import warnings
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from statistics import mean, median, stdev
from time import perf_counter
from typing import Any

import numpy as np
import torch
from lightning.pytorch import Trainer
from scipy.stats import t
from sklearn import datasets

from benchmarks.harness import arguments, report
from benchmarks.other_platforms.measure import HERE
from lightning_vfl import SplitVFL
from lightning_vfl.aggregators import Aggregator, MaskedSum, Sum
from lightning_vfl.datamodules import ContiguousColumns, Layout, Partitioner, Split, Unchanged, VerticalDataModule
from lightning_vfl.datamodules.base import SplitName
from lightning_vfl.networks import MLP, Linear

EPOCHS, BATCH, WIDTH, HIDDEN, RATE, EPS = 10, 64, 16, 32, 1e-2, 1e-7
LIMIT = 300.0  # seconds of a run of another platform
SLOW = "FATE HeteroNN, SSHE, one epoch"

Arrays = Mapping[str, np.ndarray]


class Given(VerticalDataModule):
    """Two parties' standardised records of ``arrays``."""

    def __init__(self, arrays: Arrays) -> None:
        super().__init__(ContiguousColumns(2), Unchanged(), BATCH)
        self.arrays = arrays

    @property
    def layout(self) -> Layout:
        return Layout((2 * self.arrays["train0"].shape[1],))

    @property
    def num_classes(self) -> int:
        return int(self.arrays["train_labels"].max()) + 1

    def default_partitioner(self) -> Partitioner:
        return ContiguousColumns(2)

    def load(self, names: tuple[SplitName, ...]) -> Mapping[SplitName, Split]:
        return {name: self._split(name) for name in ("train", "test")}

    def _split(self, name: str) -> Split:
        both = np.concatenate([self.arrays[f"{name}{own}"] for own in (0, 1)], axis=1)
        return Split(torch.from_numpy(both), torch.from_numpy(self.arrays[f"{name}_labels"]), np.arange(len(both)))


def arrays_of(name: str, seed: int) -> Arrays:
    """``train0``, ``train1``, ``train_labels`` and the same of ``test``: (records, columns) floats, int64 classes."""
    x, y = getattr(datasets, f"load_{name}")(return_X_y=True)
    order = np.random.default_rng(seed).permutation(len(x))
    parts = dict(zip(("test", "train"), np.split(order, [len(x) // 5]), strict=True))
    scale = np.maximum(x[parts["train"]].std(0), 1e-6)
    x = np.clip((x - x[parts["train"]].mean(0)) / scale, -10, 10).astype(np.float32)
    halves = {f"{part}{own}": half for part, ids in parts.items() for own, half in enumerate(np.split(x[ids], 2, 1))}
    return halves | {f"{part}_labels": y[ids].astype(np.int64) for part, ids in parts.items()}


def here(aggregator: Callable[[], Aggregator], arrays: Arrays, seed: int) -> dict[str, float]:
    torch.manual_seed(seed)
    data = Given(arrays)
    adam = partial(torch.optim.Adam, lr=RATE, eps=EPS)
    module = SplitVFL(aggregator(), partial(MLP, hidden=(HIDDEN,)), Linear, WIDTH, optimizer=adam, seed=seed)
    trainer = Trainer(
        accelerator="cpu",
        max_epochs=EPOCHS,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    start = perf_counter()
    trainer.fit(module, datamodule=data)
    seconds = (perf_counter() - start) / EPOCHS
    meter = module.books.meter
    sent = int((meter.total("up") + meter.total("down")).sum())
    (tested,) = trainer.test(module, datamodule=data, verbose=False)
    return {"accuracy": tested["test/accuracy"], "seconds": seconds, "bytes": sent}


def elsewhere(
    programs: list[list[str]], arrays: Arrays, seed: int, epochs: int = EPOCHS, protected: bool = False
) -> dict[str, float]:
    """What the last of ``programs`` prints; all of them run at the same time.

    Raises:
        RuntimeError: one has failed, with the end of what it has printed.
    """
    with tempfile.TemporaryDirectory() as folder:
        records, settings = Path(folder, "records.npz"), Path(folder, "settings.json")
        np.savez(records, **arrays)  # type: ignore[arg-type]
        chosen = {"epochs": epochs, "batch": BATCH, "width": WIDTH, "hidden": HIDDEN, "lr": RATE, "eps": EPS}
        chosen |= {"protected": protected, "seed": seed, "classes": int(arrays["train_labels"].max()) + 1}
        settings.write_text(json.dumps(chosen))
        environment = {**os.environ, "OMP_NUM_THREADS": "1", "TF_CPP_MIN_LOG_LEVEL": "3"}
        started = []
        for number, program in enumerate(programs):
            with Path(folder, f"{number}.txt").open("w") as log:
                command = [*program, str(records), str(settings), folder]
                started.append(subprocess.Popen(command, stdout=log, stderr=log, env=environment, cwd=folder))
        try:
            for number, process in enumerate(started):
                if process.wait(LIMIT):
                    raise RuntimeError(Path(folder, f"{number}.txt").read_text()[-2000:])
        finally:
            for process in started:
                process.kill()
        lines = Path(folder, f"{len(programs) - 1}.txt").read_text().splitlines()
        printed: dict[str, float] = json.loads(next(line for line in lines if line.startswith('{"accuracy"')))
        return printed


def main() -> None:
    parser = arguments(__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--fate", type=Path, help="the interpreter of an environment with pyfate")
    parser.add_argument("--secretflow", type=Path, help="the interpreter of an environment with secretflow")
    chosen = parser.parse_args()
    warnings.filterwarnings("ignore")
    torch.set_num_threads(1)
    kinds = {"here, Sum": partial(here, Sum), "here, MaskedSum": partial(here, MaskedSum)}
    if chosen.secretflow:
        program = [str(chosen.secretflow.absolute()), str(HERE / "secretflow_sfl.py")]
        kinds["SecretFlow SFL, Sum"] = partial(elsewhere, [program])
    if chosen.fate:
        program = [str(chosen.fate.absolute()), str(HERE / "fate_hetero_nn.py")]
        parties = [[*program, "host"], [*program, "guest"]]
        kinds["FATE HeteroNN, sum"] = partial(elsewhere, parties)
        kinds[SLOW] = partial(elsewhere, parties, epochs=1, protected=True)
    rows = compare("breast_cancer", chosen.seeds, kinds)
    kinds.pop(SLOW, None)
    rows += compare("digits", chosen.seeds, kinds)
    report(rows, [], chosen.json, by="data")


def compare(name: str, seeds: int, kinds: Mapping[str, Callable[..., dict[str, float]]]) -> list[dict[str, Any]]:
    """A row for each kind: the mean accuracy with its interval of 95 %, and seconds beside those of the first."""
    runs: dict[str, list[dict[str, float]]] = {kind: [] for kind in kinds}
    for seed in range(seeds):
        arrays = arrays_of(name, seed)
        for kind, train in kinds.items():
            runs[kind].append(train(arrays, seed))
    first = [run["seconds"] for run in next(iter(runs.values()))]
    rows = []
    for kind, its in runs.items():
        right = [100 * run["accuracy"] for run in its]
        seconds = [run["seconds"] for run in its]
        half = float(t.ppf(0.975, seeds - 1)) * stdev(right) / seeds**0.5 if seeds > 1 else float("nan")
        ratios = sorted(a / b for a, b in zip(seconds, first, strict=True))
        row: dict[str, Any] = {"data": name, "kind": kind, "test accuracy, %": f"{mean(right):.1f} ± {half:.1f}"}
        row |= {"s/epoch": median(seconds), "beside the first": median(ratios)}
        row["spread"] = f"{ratios[0]:.1f}..{ratios[-1]:.1f}"
        row["MB"] = its[0]["bytes"] / 1e6 if "bytes" in its[0] else None
        rows.append(row)
    return rows


if __name__ == "__main__":
    main()
