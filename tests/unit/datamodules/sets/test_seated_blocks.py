"""Laws of tables of any length in a federation: each seat reads its own file, and has the bits of one process."""

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch

from lightning_vfl.datamodules import Given, ParquetTables, StandardiseParty
from lightning_vfl.errors import ConfigurationError, NoOwnTable
from lightning_vfl.types import Seat, SeatedData
from lightning_vfl.wire.record_ids import ids_from_tensor, ids_to_tensor

N, CELL = 900, 100
PARTIES = ("bank", "telco")
SPLITS = ("train", "val", "test", "predict")
SETTINGS: dict[str, Any] = {"label_column": "y", "batch_size": 64, "window_mb": 1, "fit_records": 200}


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nine blocks of these tables, in windows of four."""
    monkeypatch.setattr("lightning_vfl.datamodules.records.row_split._CELL", CELL)
    monkeypatch.setattr("lightning_vfl.datamodules.records.block_tables._MEGABYTE", 4 * 4 * 4 * 70)


def write(folder: Path, labels: str = "labels", kind: str = "numbers", ending: str = "parquet") -> dict[str, Path]:
    """Party -> its file; ids do not ascend, and each file has row groups of its own."""
    draw = np.random.default_rng(1)
    ids = draw.permutation(N) + 5
    named = {"numbers": ids, "texts": [f"c{i}" for i in ids], "none": None}[kind]
    tables: dict[str, dict[str, Any]] = {
        "bank": {"age": draw.normal(40, 9, N), "income": draw.normal(size=N), "wide": draw.normal(size=N) * 1e3},
        "telco": {"age": draw.integers(0, 90, N)},
    }
    tables.setdefault(labels, {})["y"] = draw.integers(0, 2, N)
    paths = {name: folder / f"{name}.{ending}" for name in tables}
    for size, (name, columns) in zip((7, 130, 1000), tables.items(), strict=False):
        table = pd.DataFrame(({} if named is None else {"id": named}) | columns)
        if ending == "csv":
            table.to_csv(paths[name], index=False)
        else:
            table.to_parquet(paths[name], row_group_size=size, index=False)
    return paths


def ready(data: ParquetTables) -> ParquetTables:
    for stage in ("fit", "test", "predict"):
        data.setup(stage)
    return data


def federation(
    folder: Path, paths: dict[str, Path], labels_at: int | None = None, given: bool = False, **settings: Any
) -> dict[int | None, ParquetTables]:
    """The data of all seats, each with its own file alone; told each other what the wire carries."""
    seats: dict[int | None, ParquetTables] = {}
    for party in (0, 1, None):
        host = folder / f"host {party}"
        host.mkdir()
        reads = settings["label_party"] if party is None else PARTIES[party]
        if party is not None or labels_at is None:
            (host / paths[reads].name).write_bytes(paths[reads].read_bytes())
        seats[party] = ParquetTables({name: path.name for name, path in paths.items()}, data_dir=host, **settings)
        seats[party].take_seat(Seat(party), PARTIES, labels_at)
    ids = {m: ids_from_tensor(ids_to_tensor(seats[m].own_ids())) for m in (0, 1)}
    order = seats[labels_at].split_records({} if given else {m: own for m, own in ids.items() if m != labels_at})
    order = {name: ids_from_tensor(ids_to_tensor(own)) for name, own in order.items()}
    for party, data in seats.items():
        if party != labels_at:
            data.align(order)
    shapes = [seats[m].own_shape() for m in (0, 1)]
    for data in seats.values():
        data.told_shapes(shapes, seats[labels_at].num_classes)
        ready(data)
    return seats


@pytest.mark.parametrize(
    ("kind", "label_party", "labels_at", "more"),
    [
        ("numbers", "labels", None, {}),
        ("texts", "bank", 0, {"normaliser": StandardiseParty()}),
        ("none", "bank", None, {"id_column": None}),
        ("none", "telco", 1, {"id_column": None, "num_classes": None}),
        ("numbers", "labels", None, {"given": True, "ending": "csv"}),
        ("numbers", "bank", 0, {"normaliser": Given({"bank.age": 0.0, "wide": -1.0}, {"bank.age": 9.0, "wide": 2.0})}),
    ],
)
def test_seats_have_the_bits_of_one_process(tmp_path, kind, label_party, labels_at, more):
    more = {"id_column": "id"} | more
    given = more.pop("given", False)
    paths = write(tmp_path, label_party, kind, more.pop("ending", "parquet"))
    settings = SETTINGS | {"label_party": label_party} | more
    whole = ready(ParquetTables(paths, **settings))
    assert whole.records("train").blocks.together == 4
    for party, data in federation(tmp_path, paths, labels_at, given, **settings).items():
        assert (data.party_shapes, data.party_names) == (whole.party_shapes, whole.party_names)
        for name in SPLITS:
            own, there = data.records(name), whole.records(name)
            assert np.array_equal(own.ids, there.ids)
            assert own.blocks == there.blocks
            every = torch.arange(len(there))
            for m in (0, 1):
                part = own.features_of(m, every)
                assert torch.equal(part, there.features_of(m, every)) if m == party else bool(part.isnan().all())
            if name != "predict":
                assert torch.equal(own.labels, there.labels) == (party == labels_at)
        for batch, there in zip(data.train_dataloader(), whole.train_dataloader(), strict=True):
            assert torch.equal(batch.record_ids, there.record_ids)


def test_a_trained_seat_prepares_new_records_without_labels(tmp_path):
    paths = write(tmp_path)
    settings = SETTINGS | {"label_party": "labels", "id_column": "id"}
    whole = ready(ParquetTables(paths, **settings))
    seats = federation(tmp_path, paths, **settings)
    for name in paths:
        table = pd.read_parquet(paths[name]).drop(columns="y", errors="ignore").iloc[:3]
        table[table.columns[::-1]].to_parquet(paths[name], index=False)
    again = ParquetTables(paths, **settings)
    again.use(whole.fitted)
    again.setup("predict")
    told: dict[int | None, ParquetTables] = {}
    for party in (0, 1, None):
        told[party] = ParquetTables(paths, **settings)
        told[party].take_seat(Seat(party), PARTIES)
        told[party].use(seats[party].fitted)
    order = told[None].split_records({m: told[m].own_ids() for m in (0, 1)})
    assert list(order) == ["predict"]
    for party in (0, 1):
        told[party].align(order)
        told[party].told_shapes([(3,), (1,)])
        told[party].setup("predict")
        own, there = told[party].records("predict"), again.records("predict")
        assert np.array_equal(own.ids, there.ids)
        assert torch.equal(own.features_of(party, torch.arange(3)), there.features_of(party, torch.arange(3)))


def seat(paths: dict[str, Path], party: int | None, **more: Any) -> ParquetTables:
    usual = SETTINGS | {"label_party": "labels", "id_column": "id"}
    data = ParquetTables(paths, **usual | more)
    data.take_seat(Seat(party), PARTIES)
    return data


def test_files_with_other_records_are_refused(tmp_path):
    paths = write(tmp_path)
    server = seat(paths, None)
    ids = {m: seat(paths, m).own_ids() for m in (0, 1)}
    with pytest.raises(ConfigurationError, match="party 'telco' has told 899 ids, which are not the 900 of 'labels'"):
        server.split_records(ids | {1: ids[1][1:]})
    order = server.split_records(ids)
    table = pd.read_parquet(paths["telco"])
    for changed, message in (
        (table.iloc[[1, 0, *range(2, N)]], r"\(row 0 has id \d+ here and \d+ there\); write all files in the same or"),
        (table.iloc[:-1], r"\(899 and 900 records\); write all files in the same order, or use CSVTables"),
        (table.assign(id=7), "has id 7 in row 0 and in row 1"),
        (table.assign(id=table["id"] / 2), "ids of party 'telco' are float64; write them as text or as whole numbers"),
        (table.assign(x="a"), "column 'x' of party 'telco' is of type"),
    ):
        changed.to_parquet(paths["telco"], index=False)
        data = seat(paths, 1)
        with pytest.raises(ConfigurationError, match=message) as error:
            data.own_shape() if "x" in changed else data.align(order)
        assert "\n" not in str(error.value)


def test_orders_that_are_no_orders_are_refused(tmp_path):
    paths = write(tmp_path)
    order = seat(paths, None).split_records({})
    bank, aligned = seat(paths, 0), seat(paths, 0)
    aligned.align(order)
    for call, message in (
        (lambda: bank.align({"train": order["train"], "val": order["test"]}), "told to party 'bank' are divided other"),
        (lambda: bank.align({}), "has no ids; align again"),
        (lambda: bank.align({"rest": [1]}), "there is no split 'rest'"),
        (lambda: bank.split_records({}), "party 'bank' has no labels to divide the records by; ask the server"),
        (lambda: bank.setup("fit"), "party 'bank' does not know the common records yet; call align before setup"),
        (lambda: aligned.setup("fit"), "party 'bank' does not know the parties' shapes yet; call told_shapes before"),
        (lambda: seat(paths, 0).told_shapes([(3,), (2, 0)]), "are not those of tables of 2 parties"),
        (seat(paths, None).own_shape, "the server has no features"),
    ):
        with pytest.raises(ConfigurationError, match=message):
            call()
    with pytest.raises(ConfigurationError, match="needs the labels at every party; use CSVTables with label_copies"):
        ParquetTables(paths, **SETTINGS, label_party="labels").take_seat(Seat(0), PARTIES, None, True)
    server = ParquetTables(write(tmp_path, "bank"), **SETTINGS, label_party="bank")
    server.take_seat(Seat(None), PARTIES, 0)
    with pytest.raises(NoOwnTable):
        server.own_ids()
    data: SeatedData = server
    assert data.own_files


def test_a_file_that_changes_while_a_seat_uses_it_is_refused(tmp_path):
    paths = write(tmp_path)
    bank = seat(paths, 0)
    bank.align(seat(paths, None).split_records({}))
    bank.told_shapes([(3,), (1,)], 2)
    pd.read_parquet(paths["bank"]).assign(wide=0.0).to_parquet(paths["bank"], row_group_size=7, index=False)
    with pytest.raises(ConfigurationError, match=r"bank\.parquet of party 'bank' has changed while it was used; start"):
        bank.setup("fit")
