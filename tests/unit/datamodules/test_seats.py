"""Processes of one seat each have the records of one process that has everything, and nothing of the other seats."""

from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch

from lightning_vfl.datamodules import (
    CSVTables,
    Digits,
    Folds,
    Given,
    GivenSplit,
    LimitedOverlap,
    RecordSplit,
    StandardiseParty,
    TimeSplit,
    VerticalDataModule,
)
from lightning_vfl.errors import ConfigurationError
from lightning_vfl.types import Seat, SeatedData
from lightning_vfl.wire.record_ids import IdDigest, ids_from_tensor, ids_to_tensor, refuse_other_ids
from tests.further import further

SPLITS = ("train", "val", "test", "predict")
PARTIES = ("bank", "telco", "shop")
NO_CLASS = torch.iinfo(torch.int64).min


def set_up(data: VerticalDataModule) -> VerticalDataModule:
    for stage in ("fit", "test", "predict"):
        data.setup(stage)
    return data


def rows(data: VerticalDataModule, name: Any) -> tuple[torch.Tensor, ...]:
    records = data.records(name)
    return records.rows(torch.arange(len(records)))


def poisoned(labels: torch.Tensor) -> bool:
    return bool(labels.isnan().all() if labels.is_floating_point() else (labels == NO_CLASS).all())


# ---- one file


@pytest.fixture(scope="module")
def digits() -> VerticalDataModule:
    return set_up(Digits())


@pytest.mark.parametrize(("party", "labels_at"), [(0, None), (2, None), (2, 2), (None, None), (None, 1)])
def test_a_seat_of_one_file_has_its_own_part_and_nothing_else(digits, party, labels_at):
    data = Digits()
    data.take_seat(Seat(party), labels_at=labels_at)
    set_up(data)
    for name in SPLITS:
        for m, (own, whole) in enumerate(zip(rows(data, name), rows(digits, name), strict=True)):
            assert own.shape == whole.shape
            assert torch.equal(own, whole) if m == party else bool(own.isnan().all())
            assert own.is_contiguous() or m != party
        np.testing.assert_array_equal(data.records(name).ids, digits.records(name).ids)
        labels = data.records(name).labels
        assert torch.equal(labels, digits.records(name).labels) if party == labels_at else poisoned(labels)
    assert data.fitted is not None
    assert [bool(fitted.shift.isnan().any()) for fitted in data.fitted.parties] == [m != party for m in range(4)]


def test_a_seat_of_one_file_knows_the_holders_of_all_records():
    whole = set_up(Digits(LimitedOverlap(None, 800)))
    for party in (1, None):
        data = Digits(LimitedOverlap(None, 800))
        data.take_seat(Seat(party))
        set_up(data)
        assert not whole.records("train").present.all()
        assert torch.equal(data.records("train").present, whole.records("train").present)
        batch = next(iter(data.train_dataloader()))
        assert torch.equal(batch.present, whole.records("train").present[batch.record_ids])


def test_labels_of_another_seat_raise_where_they_are_used():
    data = Digits()
    data.take_seat(Seat(1))
    data.setup("fit")
    batch = next(iter(data.train_dataloader()))
    with pytest.raises((IndexError, RuntimeError)):
        torch.nn.functional.cross_entropy(torch.zeros(len(batch.labels), 10), batch.labels)
    with pytest.raises((IndexError, RuntimeError)):
        torch.bincount(batch.labels)


def test_all_seats_walk_the_same_batches_also_after_a_resume_in_the_middle():
    walks, lost = [], []
    for party in (0, 1, 2, 3, None):
        data = Digits(batch_size=100)
        data.take_seat(Seat(party))
        data.setup("fit")
        loader, walk = data.train_dataloader(), []
        for epoch in range(2):
            loader.set_epoch(epoch)
            for number, batch in enumerate(loader):
                walk.append(batch.record_ids)
                if (epoch, number) == (1, 4):
                    state = loader.state_dict()
        again = data.train_dataloader()
        again.load_state_dict(state)
        again.set_epoch(1)
        lost.append([batch.record_ids for batch in again])
        walks.append(walk)
    for walk, rest in zip(walks, lost, strict=True):
        assert all(torch.equal(a, b) for a, b in zip(walk, walks[0], strict=True))
        assert all(torch.equal(a, b) for a, b in zip(rest, walks[0][-len(rest) :], strict=True))


def test_what_a_seat_has_fitted_prepares_its_own_part_again(digits):
    first, again = Digits(), Digits()
    for data in (first, again):
        data.take_seat(Seat(3))
    first.setup("fit")
    again.use(first.fitted)
    again.setup("test")
    assert torch.equal(rows(again, "test")[3], rows(digits, "test")[3])
    assert rows(again, "test")[0].isnan().all()


@pytest.mark.parametrize("ask", ["own_ids", "own_shape"])
def test_one_file_is_not_aligned(ask):
    data = Digits()
    data.take_seat(Seat(0))
    with pytest.raises(ConfigurationError, match="Digits is one file that a simulation cuts; run lightning-vfl cut"):
        getattr(data, ask)()


def test_refusals_of_one_file():
    data = Digits()
    with pytest.raises(ConfigurationError, match="no seat yet; call take_seat first"):
        data.own_ids()
    data.take_seat(Seat(4))
    with pytest.raises(ConfigurationError, match="there is no party 4, the data have 4 parties; use 0 to 3"):
        data.setup("fit")
    whole = Digits()
    whole.setup("fit")
    with pytest.raises(ConfigurationError, match="call take_seat before setup"):
        whole.take_seat(Seat(0))


# ---- a table for each party


def write_tables(folder: Path, texts: bool = False, labels: str = "labels") -> dict[str, Path]:
    """Three parties with 90 records in common and some of their own, each in an order of its own."""
    draw = np.random.default_rng(3)
    own = {name: draw.permutation(np.r_[0:90, 100 + 10 * m : 104 + 10 * m]) for m, name in enumerate(PARTIES)}
    tables = {name: pd.DataFrame({"id": ids}) for name, ids in own.items()}
    for name, table in tables.items():
        table["age"] = (table["id"] * 37 % 71) + len(name) / 7
        table["wide"] = np.sin(table["id"] * len(name)) * 1e3
    tables["telco"]["plan"] = np.array(["a", "b", "c"])[tables["telco"]["id"] % 3]
    tables["shop"] = tables["shop"].drop(columns="wide")
    about = pd.DataFrame({"id": draw.permutation(np.arange(-5, 95))})
    about["y"] = np.where(about["id"] % 3 == 0, "bad", "good")
    about["value"] = about["id"] / 8
    about["part"] = np.array(["train", "train", "val", "test"])[about["id"] % 4]
    if labels == "labels":
        tables[labels] = about
    else:
        tables[labels] = tables[labels].merge(about, on="id", how="left").dropna()
    if texts:
        for table in tables.values():
            table["id"] = "r" + table["id"].astype(str)
    paths = {name: folder / f"{name}.csv" for name in tables}
    for name, table in tables.items():
        table.to_csv(paths[name], index=False)
    return paths


def federation(
    folder: Path, paths: dict[str, Path], labels_at: int | None = None, given: bool = False, **settings: Any
) -> dict[int | None, CSVTables]:
    """The datamodules of all seats, each with its own file alone; told each other what the wire carries."""
    seats: dict[int | None, CSVTables] = {}
    label_party = settings["label_party"]
    for party in (*range(len(PARTIES)), None):
        host = folder / f"host {party}"
        host.mkdir()
        reads = PARTIES[party] if party is not None else label_party
        if party is not None or labels_at is None:
            (host / paths[reads].name).write_bytes(paths[reads].read_bytes())
        tables = {name: path.name for name, path in paths.items()}
        seats[party] = CSVTables(tables, data_dir=host, **settings)
        seats[party].take_seat(Seat(party), PARTIES, labels_at, "label_copies" in settings)
    ids = {m: ids_from_tensor(ids_to_tensor(seats[m].own_ids())) for m in range(len(PARTIES))}
    order = seats[labels_at].split_records({} if given else {m: own for m, own in ids.items() if m != labels_at})
    order = {name: ids_from_tensor(ids_to_tensor(own)) for name, own in order.items()}
    for party, data in seats.items():
        if party != labels_at:
            data.align(order)
    shapes = [seats[m].own_shape() for m in range(len(PARTIES))]
    told = (seats[labels_at].num_classes, seats[labels_at].class_names)
    for data in seats.values():
        data.told_shapes(shapes, *told)
        set_up(data)
    return seats


CASES: dict[str, dict[str, Any]] = {
    "plain": {"categorical": ["plan"]},
    "auto": {"preprocess": "auto"},
    "steps": {"preprocess": {"bank": {"age": ["log"]}, "telco": {"plan": "one_hot"}}},
    "woe": {"preprocess": {"bank": {"age": {"woe": 4}}}},
    "party": {"categorical": ["plan"], "normaliser": StandardiseParty()},
    "bounds": {
        "categorical": ["plan"],
        "normaliser": Given({"bank.age": 0.0, "shop.age": 1.0}, {"bank.age": 80.0, "shop.age": 90.0}),
    },
    "column": {"categorical": ["plan"], "split": GivenSplit("part"), "drops": ["value"]},
    "time": {"categorical": ["plan"], "split": TimeSplit("value"), "drops": ["part"]},
    "weights": {"categorical": ["plan"], "sample_weight": "value"},
    "stored": {"preprocess": "auto", "sample_weight": "value", "work_dir": "work"},
    "folds": {"categorical": ["plan"], "split": Folds(1, 4)},
    "values": {"categorical": ["plan"], "task": "regression", "label_column": "value"},
    "copies": {"preprocess": "auto", "label_copies": PARTIES},
    "targets": {"categorical": ["plan"], "task": "regression", "label_column": ["value", "twice"]},
}


SLOW = ("plain", "steps", "party", "column", "time", "folds", "values")  # each a part of another case


def arranged(folder: Path, case: str, texts: bool, label_party: str) -> tuple[dict[str, Path], dict[str, Any]]:
    paths = write_tables(folder, texts, label_party)
    settings: dict[str, Any] = {"label_party": label_party, "label_column": "y", "batch_size": 8} | CASES[case]
    settings.pop("drops", None)
    if "work_dir" in settings:
        settings["work_dir"] = folder / settings["work_dir"]
    labels = [settings["label_column"]] if isinstance(settings["label_column"], str) else settings["label_column"]
    split = settings.get("split")
    table = pd.read_csv(paths[label_party])
    if "twice" in labels:
        table["twice"] = table["value"] * 2
    used = {*labels, settings.get("sample_weight"), split.column if isinstance(split, RecordSplit) else None}
    unused = {"y", "value", "part"} - used
    table.drop(columns=list(unused)).to_csv(paths[label_party], index=False)
    for party in settings.get("label_copies", ()):
        if party != label_party:
            own = pd.read_csv(paths[party]).merge(table[["id", *labels]], on="id", how="left")
            own.to_csv(paths[party], index=False)
    return paths, settings


@pytest.mark.parametrize(
    ("case", "texts", "label_party", "labels_at"),
    [
        *((case, False, "labels", None) for case in CASES if case not in (*SLOW, "woe")),
        *(further(case, False, "labels", None) for case in SLOW),
        ("plain", True, "labels", None),
        ("column", False, "bank", None),
        ("plain", True, "bank", 0),
        ("copies", True, "bank", None),
        ("woe", False, "bank", 0),  # the party with the labels counts them itself
        ("time", False, "telco", 1),
        ("weights", False, "bank", 0),
        ("weights", False, "telco", None),  # the party reads a file with labels and weights that are the server's
    ],
)
def test_seats_of_tables_have_the_bits_of_one_process(tmp_path, case, texts, label_party, labels_at):
    paths, settings = arranged(tmp_path, case, texts, label_party)
    whole = set_up(CSVTables(paths, **settings))
    for party, data in federation(tmp_path, paths, labels_at, **settings).items():
        assert data.party_shapes == whole.party_shapes
        assert data.num_classes == whole.num_classes
        assert data.party_groups == whole.party_groups
        for name in SPLITS:
            np.testing.assert_array_equal(data.records(name).ids.astype(str), whole.records(name).ids.astype(str))
            for m, (own, there) in enumerate(zip(rows(data, name), rows(whole, name), strict=True)):
                assert own.shape == there.shape
                assert torch.equal(own, there) if m == party else bool(own.isnan().all())
            labels, there = data.records(name).labels, whole.records(name).labels
            if name == "predict":
                assert labels is None
            else:
                assert labels.shape == there.shape
                assert labels.dtype == there.dtype
                known = party == labels_at or case == "copies"
                assert torch.equal(labels, there) if known else poisoned(labels)
        for batch, there in zip(data.train_dataloader(), whole.train_dataloader(), strict=True):
            assert torch.equal(batch.record_ids, there.record_ids)
            if party == labels_at and "sample_weight" in settings:
                assert torch.equal(batch.weights, there.weights)
            else:
                assert batch.weights is None


def test_a_copy_of_the_labels_is_no_feature_and_must_be_the_same(tmp_path):
    paths, settings = arranged(tmp_path, "copies", False, "labels")
    whole = set_up(CSVTables(paths, **settings))
    seats = federation(tmp_path, paths, **settings)
    assert len({data.labels_digest() for data in seats.values()}) == 1
    (tmp_path / "plain").mkdir()
    plain, others = arranged(tmp_path / "plain", "auto", False, "labels")
    assert whole.party_shapes == set_up(CSVTables(plain, **others)).party_shapes
    table = pd.read_csv(paths["telco"])
    place = table.index[table["id"] == 7][0]
    table.loc[place, "y"] = "good" if table.loc[place, "y"] == "bad" else "bad"
    table.to_csv(paths["telco"], index=False)
    with pytest.raises(ConfigurationError, match="the labels of party 'telco' are not those of 'labels'"):
        set_up(CSVTables(paths, **settings))
    (tmp_path / "again").mkdir()
    changed = federation(tmp_path / "again", paths, **settings)
    digests = {party: data.labels_digest() for party, data in changed.items()}
    assert [party for party in digests if digests[party] != digests[None]] == [1]


def test_a_party_without_its_copy_of_the_labels_is_refused(tmp_path):
    paths, settings = arranged(tmp_path, "copies", False, "labels")
    data = CSVTables(paths, **settings | {"label_copies": ["bank", "shop"]})
    with pytest.raises(ConfigurationError, match="party 'telco' needs the labels in its table"):
        data.take_seat(Seat(0), PARTIES, None, True)
    with pytest.raises(ConfigurationError, match="label_copies names party 'tele', which has no table; "):
        CSVTables(paths, **settings | {"label_copies": ["tele"]})


def test_seats_do_not_share_a_work_folder(tmp_path):
    paths, settings = arranged(tmp_path, "stored", False, "labels")
    folders = [data._files._reader.work.path for data in federation(tmp_path, paths, **settings).values()]
    assert len(set(folders)) == 4
    assert {folder.parent for folder in folders} == {settings["work_dir"]}


def test_new_records_are_prepared_with_what_the_seats_have_fitted(tmp_path):
    paths, settings = arranged(tmp_path, "auto", False, "labels")
    seats = federation(tmp_path, paths, **settings)
    whole = set_up(CSVTables(paths, **settings))
    (tmp_path / "new").mkdir()
    new_paths, _ = arranged(tmp_path / "new", "auto", False, "labels")
    for path in new_paths.values():
        pd.read_csv(path).query("id % 5 == 1").to_csv(path, index=False)
    pd.read_csv(new_paths["labels"]).drop(columns="y").to_csv(new_paths["labels"], index=False)
    again = CSVTables(new_paths, **settings)
    again.use(whole.fitted)
    again.setup("predict")
    told: dict[int | None, CSVTables] = {}
    for party in (0, 1, 2, None):
        told[party] = data = CSVTables(new_paths, **settings)
        data.take_seat(Seat(party), PARTIES)
        data.use(seats[party].fitted)
    order = told[None].split_records({m: told[m].own_ids() for m in range(3)})
    assert list(order) == ["predict"]
    for m in range(3):
        told[m].align(order)
    for party, data in told.items():
        data.told_shapes([told[m].own_shape() for m in range(3)], 2)
        data.setup("predict")
        np.testing.assert_array_equal(data.records("predict").ids, again.records("predict").ids)
        if party is not None:
            assert torch.equal(rows(data, "predict")[party], rows(again, "predict")[party])


def test_names_of_the_parties_are_the_tables_with_features(tmp_path):
    paths, settings = arranged(tmp_path, "column", False, "labels")
    assert CSVTables(paths, **settings).party_names == PARTIES
    (tmp_path / "own").mkdir()
    paths, settings = arranged(tmp_path / "own", "column", False, "bank")
    assert CSVTables(paths, **settings).party_names == PARTIES
    assert Digits().party_names == ("0", "1", "2", "3")


def test_given_alignment_tells_counts_alone(tmp_path):
    own = IdDigest.of([3, 1, 2])
    refuse_other_ids(own, {"bank": IdDigest.of(np.array([1, 2, 3]))})
    with pytest.raises(ConfigurationError, match="party 'shop' has 2 ids, the server 3; alignment: given needs equal"):
        refuse_other_ids(own, {"bank": own, "shop": IdDigest.of([1, 2])})
    with pytest.raises(ConfigurationError, match="'shop' has 3 ids, the server 3, but not the same ones; alignment"):
        refuse_other_ids(own, {"shop": IdDigest.of([1, 2, 4])})
    paths, settings = arranged(tmp_path, "plain", False, "labels")
    for path in paths.values():
        pd.read_csv(path).query("0 <= id < 60").to_csv(path, index=False)
    whole = set_up(CSVTables(paths, **settings))
    data = federation(tmp_path, paths, given=True, **settings)[1]
    assert torch.equal(rows(data, "train")[1], rows(whole, "train")[1])


def open_seat(
    paths: dict[str, Path], party: int | None, names: Any = PARTIES, at: int | None = None, **more: Any
) -> Any:
    usual: dict[str, Any] = {"label_party": "labels", "label_column": "y", "categorical": ["plan"]}
    data = CSVTables(paths, **usual | more)
    data.take_seat(Seat(party), names, at)
    return data


@pytest.mark.parametrize(
    ("names", "at", "more", "told"),
    [
        (PARTIES, None, {"groups": [["bank", "shop"]]}, "groups of tables are simulated only, not between processes"),
        (("bank", "telco"), None, {}, "tables names 'shop', which is not a party of the federation; leave it out"),
        (("shop", "telco", "bank"), None, {}, "the parties of the federation are shop, telco, bank, tables names bank"),
        ((*PARTIES, "club"), None, {}, "party 'club' of the federation has no table"),
        (PARTIES, 1, {}, "the labels are at party 'telco', but label_party is 'labels'"),
        (PARTIES[:1], None, {}, "there is no party 1 in the federation of bank"),
    ],
)
def test_refused_settings(tmp_path, names, at, more, told):
    with pytest.raises(ConfigurationError, match=told) as error:
        open_seat(write_tables(tmp_path), 1, names, at, **more)
    assert "\n" not in str(error.value)


def test_refused_orders_and_shapes(tmp_path):
    paths, _ = arranged(tmp_path, "plain", False, "labels")
    server, bank = open_seat(paths, None), open_seat(paths, 0)
    for call, told in (
        (lambda: bank.setup("fit"), "does not know the common records yet; call align before setup"),
        (bank.own_shape, "party 'bank' does not know the common records yet; call align before setup"),
        (lambda: bank.split_records({}), "party 'bank' has no labels to divide the records by; ask the server"),
        (lambda: bank.align({"train": [1, 2, 777]}), "1 of the 3 train records told to party 'bank' are not in its"),
        (lambda: bank.align({"train": ["x"]}), "the ids of party 'bank' are whole numbers, those told are texts"),
        (lambda: bank.align({"train": [1, 2], "val": [2]}), "told to party 'bank' repeats ids; align again"),
        (lambda: bank.align({}), "told to party 'bank' has no ids; align again"),
        (lambda: bank.align({"rest": [1]}), "there is no split 'rest'; use train, val, test, predict"),
        (lambda: server.split_records({0: [1, 1]}), "party 'bank' has told an id twice; correct it"),
        (lambda: server.split_records({0: []}), "party 'bank' has told no ids; correct it"),
        (lambda: server.split_records({0: ["a"]}), "ids of party 'labels' are whole numbers but those of party 'bank'"),
        (lambda: server.split_records({0: [5000]}), "the tables have no id in common"),
        (lambda: server.split_records({7: [1]}), "there is no party 7 in the federation of bank, telco, shop"),
        (server.own_shape, "the server has no features, so it has no shape; ask the parties"),
    ):
        with pytest.raises(ConfigurationError, match=told) as error:
            call()
        assert "\n" not in str(error.value)
    bank.align({"train": [1, 2, 3, 4]})
    with pytest.raises(ConfigurationError, match="not know the parties' shapes yet; call told_shapes before setup"):
        bank.setup("fit")
    with pytest.raises(ConfigurationError, match=r"party 'bank' has features of shape \(2,\), and was told \(5,\)"):
        bank.told_shapes([(5,), (1,), (1,)])
    with pytest.raises(ConfigurationError, match="are not those of tables of 3 parties"):
        bank.told_shapes([(2,), (1,)])
    pd.read_csv(paths["bank"]).query("id != 3").to_csv(paths["bank"], index=False)
    bank.told_shapes([(2,), (1,), (1,)])
    bank.setup("fit")  # of the table as it was read
    bank.forget()
    with pytest.raises(ConfigurationError, match="table of party 'bank' has changed since the records were aligned"):
        bank.setup("fit")
    pd.read_csv(paths["labels"]).assign(more=1).to_csv(paths["labels"], index=False)
    with pytest.raises(ConfigurationError, match="'labels' has the further columns more, but it is no party of the fe"):
        open_seat(paths, None).own_ids()


def test_datamodules_are_seated_data():
    data: SeatedData = Digits()
    assert not data.own_files
    assert CSVTables.own_files


@pytest.mark.parametrize(("label_party", "labels_at"), [("labels", None), ("bank", 0)])
def test_each_process_tells_once_what_it_reads(tmp_path, label_party, labels_at, told):
    paths, settings = arranged(tmp_path, "auto", False, label_party)
    federation(tmp_path, paths, labels_at, **settings)
    times = Counter(told)
    assert sum("joined records" in text for text in times) >= len(PARTIES)
    assert max(times.values()) == 1
