"""Law: a process opens and parses the file of each table once, from its ids to its batches."""

import os
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch

from lightning_vfl.datamodules import CSVTables, GivenSplit
from lightning_vfl.datamodules.records.table_files import TableSource
from lightning_vfl.types import Seat

NAMES = ("bank", "telco")
N = 90
opened: Counter[str] | None = None  # an audit hook cannot be removed, so there is one, which counts while this is set


def _count(event: str, arguments: tuple[Any, ...]) -> None:
    if event == "open" and opened is not None and isinstance(arguments[0], str | os.PathLike):
        opened[Path(arguments[0]).name] += 1


sys.addaudithook(_count)


@pytest.fixture
def read(monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[Counter[str], Counter[str]]]:
    """File -> how often it is opened; party -> how often its table is parsed."""
    global opened
    opened, parsed = Counter(), Counter[str]()
    for reader in ("read", "store"):
        own = getattr(TableSource, reader)

        def counted(source: TableSource, *about: Any, own: Any = own) -> Any:
            parsed[source.party] += 1
            return own(source, *about)

        monkeypatch.setattr(TableSource, reader, counted)
    yield opened, parsed
    opened = None


def tables(folder: Path, ending: str) -> dict[str, str]:
    rng = np.random.default_rng(0)
    ids = rng.permutation(N)
    frames: dict[str, dict[str, Any]] = {
        "bank": {"id": ids, "income": rng.normal(size=N).round(3), "zip": [f"{i % 7:05d}" for i in range(N)]},
        "telco": {"id": ids[:80], "calls": rng.integers(0, 90, 80), "plan": rng.choice(["a", "b"], 80)},
        "lab": {"id": ids, "label": np.arange(N) % 2, "split": np.array(["train", "val", "test"])[np.arange(N) % 3]},
    }
    for name, frame in frames.items():
        pd.DataFrame(frame).to_csv(folder / f"{name}{ending}", index=False)
    return {name: str(folder / f"{name}{ending}") for name in frames}


@pytest.mark.parametrize(
    ("preprocess", "where", "ending"),
    [("auto", "memory", ".csv"), ("auto", "disk", ".csv.gz"), (None, "memory", ".csv.gz"), (None, "disk", ".csv")],
)
def test_every_file_is_opened_and_parsed_once(tmp_path, read, ending, where, preprocess):
    paths = tables(tmp_path, ending)
    settings: dict[str, Any] = {"preprocess": preprocess, "split": GivenSplit("split")}
    settings |= {} if preprocess else {"categorical": ["zip", "plan"]}
    settings |= {"work_dir": tmp_path / "work"} if where == "disk" else {}
    opened, parsed = read
    once = {Path(path).name: 1 for path in paths.values()}

    def made() -> CSVTables:
        return CSVTables(paths, "lab", "label", batch_size=8, **settings)

    def counts() -> tuple[dict[str, int], dict[str, int]]:
        both = {name: opened[name] for name in once if opened[name]}, dict(parsed)
        opened.clear()
        parsed.clear()
        return both

    opened.clear()
    whole = made()
    assert whole.party_names == NAMES
    assert len(whole.party_shapes) == 2
    for stage in ("fit", "test", "predict"):
        whole.setup(stage)
    assert counts() == (once, dict.fromkeys(paths, 1))

    seats = {number: made() for number in (0, 1, None)}
    for number, data in seats.items():
        data.take_seat(Seat(number), NAMES)
    ids = {number: data.own_ids() for number, data in seats.items()}
    order = seats[None].split_records({0: ids[0], 1: ids[1]})
    for data in seats.values():
        data.align(order)
    shapes = [seats[party].own_shape() for party in (0, 1)]
    for data in seats.values():
        data.told_shapes(shapes, 2, seats[None].class_names)
        for stage in ("fit", "test"):
            data.setup(stage)
    assert counts() == (once, dict.fromkeys(paths, 1))
    for party in (0, 1):
        for split in ("train", "val", "test"):
            alone, together = seats[party].records(split), whole.records(split)
            every = torch.arange(len(together))
            assert torch.equal(alone.features_of(party, every), together.features_of(party, every))

    for data in (made(), made()):  # a trained model names the columns that are read as text
        fitted, data.fitted = whole.fitted, None
        data.use(fitted)
        assert data.party_names == NAMES
        data.setup("predict")
        assert counts() == (once, dict.fromkeys(paths, 1))
