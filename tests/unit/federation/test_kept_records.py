"""``overlap: keep`` between processes: the records are those of a simulation, and no party is told an id of another."""

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch

from lightning_vfl.datamodules import CSVTables
from lightning_vfl.errors import ConfigurationError
from lightning_vfl.federation.agreed import Agreed, Limits
from lightning_vfl.federation.alignment import RollCall, align
from lightning_vfl.federation.charter import Alignment
from lightning_vfl.federation.frames import Frame, unpack
from lightning_vfl.federation.hub import Hub
from lightning_vfl.federation.link import Link, Transport
from lightning_vfl.types import Seat
from lightning_vfl.wire.record_ids import ids_from_tensor, known_ids

NAMES = ("bank", "telco")
SPLITS = ("train", "val", "test", "predict")


class Desk(Transport):
    """Calls the server's desk without a network, and keeps what the server has answered."""

    def __init__(self, hub: Hub, party: int) -> None:
        self.hub, self.party = hub, party
        self.heard: list[Frame] = []

    def exchange(self, frame, read):
        answer = self.hub.call(self.party, frame)
        self.heard.append(unpack(answer))
        return read([answer])

    def close(self):
        pass


def write(folder: Path, texts: bool, holder: str, labels: bool = True) -> dict[str, str]:
    """The label holder has 60 records, the bank and the telco some of them and some of their own."""
    draw = np.random.default_rng(5)
    held = {"bank": np.r_[0:45, 100:109], "telco": np.r_[20:60, 200:205], "labels": np.arange(60)}
    held[holder] = np.r_[0:60]
    tables = {}
    for party, ids in held.items():
        own = draw.permutation(ids)
        tables[party] = pd.DataFrame({"id": own, f"{party}_age": own * 37 % 71, f"{party}_wide": np.sin(own) * 1e3})
    if holder != "labels":
        del tables["labels"]
    else:
        tables["labels"] = tables["labels"][["id"]]
    if labels:
        tables[holder]["y"] = np.where(tables[holder]["id"] % 3 == 0, "bad", "good")
    for party, table in tables.items():
        if texts:
            table["id"] = "r" + table["id"].astype(str)
        table.to_csv(folder / f"{party}.csv", index=False)
    return {party: str(folder / f"{party}.csv") for party in tables}


def settings(holder: str, **more: Any) -> dict[str, Any]:
    usual = {"overlap": "keep", "preprocess": "auto", "batch_size": 8}
    return {"label_party": holder, "label_column": "y"} | usual | more


class Processes:
    """A server and two parties, each with its own datamodule, which have been aligned."""

    def __init__(self, tables: dict[str, str], holder: str, active: int | None, trained: "Processes | None" = None):
        agreed = Agreed(NAMES, active, Limits())
        hub = Hub(2, agreed)
        self.data: dict[int | None, CSVTables] = {}
        for seat in (None, 0, 1):
            data = self.data[seat] = CSVTables(tables, **settings(holder))
            data.take_seat(Seat(seat), NAMES, active)
            if trained is not None:
                data.use(trained.data[seat].fitted)
        roll = RollCall(self.data[None], NAMES, Alignment.CLEAR, active)
        hub.greet = roll.answer
        self.desks = [Desk(hub, party) for party in (0, 1)]

        def role(party: int) -> None:
            if party == 2:
                return roll.finish(10.0)
            others = [1 - party] if party == active else ()
            return align(Link(self.desks[party], agreed), self.data[party], Alignment.CLEAR, others)

        with ThreadPoolExecutor(3) as pool:
            assert list(pool.map(role, range(3))) == [None] * 3

    def set_up(self, *stages: str) -> None:
        for data in self.data.values():
            for stage in stages:
                data.setup(stage)


def whole(tables: dict[str, str], holder: str) -> CSVTables:
    data = CSVTables(tables, **settings(holder))
    for stage in ("fit", "test", "predict"):
        data.setup(stage)
    return data


CASES = [("labels", None), ("bank", None), ("bank", 0)]  # the holder's table, and the party that has the labels


@pytest.fixture(scope="module", params=[(texts, *case) for texts in (False, True) for case in CASES], ids=str)
def aligned(request, tmp_path_factory):
    """Tables, the holder of the labels, and processes that have been aligned."""
    texts, holder, active = request.param
    tables = write(tmp_path_factory.mktemp("tables"), texts, holder)
    return tables, holder, Processes(tables, holder, active)


def test_every_process_has_its_part_of_the_simulated_records(aligned):
    tables, holder, many = aligned
    one = whole(tables, holder)
    many.set_up("fit", "test", "predict")
    for split in SPLITS:
        there = one.records(split)
        features = there.rows(torch.arange(len(there)))
        assert there.present is not None
        assert not there.present.all()  # else this tests nothing
        for seat, data in many.data.items():
            here = data.records(split)
            assert len(here) == len(there)
            if seat is None:
                assert torch.equal(here.present, there.present)
            else:
                assert torch.equal(here.present[:, seat], there.present[:, seat])
                assert torch.equal(here.features_of(seat, torch.arange(len(here))), features[seat])
                held = there.present[:, seat].numpy()
                assert here.ids[held].astype(str).tolist() == there.ids[held].astype(str).tolist()
                assert here.known.tolist() == here.ids[held].tolist()
    assert many.data[1].fitted.trained.among(one.records("train").ids).sum() == one.records("train").present[:, 1].sum()


def test_no_party_is_told_an_id_that_it_does_not_have(aligned):
    tables, _, many = aligned
    everybody = {str(one) for path in tables.values() for one in pd.read_csv(path)["id"]}
    for party, desk in enumerate(many.desks):
        own = set(pd.read_csv(tables[NAMES[party]])["id"].astype(str))
        told = {str(one) for frame in desk.heard for part in frame.tensors for one in ids_from_tensor(part).tolist()}
        assert told & own
        assert not told & (everybody - own)


def test_new_records_without_labels_are_those_of_the_simulation(tmp_path):
    trained = Processes(write(tmp_path, True, "bank"), "bank", None)
    trained.set_up("fit")
    new = tmp_path / "new"
    new.mkdir()
    tables = write(new, True, "bank", labels=False)
    many = Processes(tables, "bank", None, trained)
    many.set_up("predict")
    alone = CSVTables(tables, **settings("bank"))
    simulated = CSVTables(write(tmp_path, True, "bank"), **settings("bank"))
    simulated.setup("fit")
    alone.use(simulated.fitted)
    alone.setup("predict")
    there = alone.records("predict")
    assert many.data[None].records("predict").ids.tolist() == there.ids.tolist()
    assert torch.equal(many.data[None].records("predict").present, there.present)
    for party in (0, 1):
        here = many.data[party].records("predict").features_of(party, torch.arange(len(there)))
        assert torch.equal(here, there.features_of(party, torch.arange(len(there))))
    assert many.data[1].left_out["telco"].tolist() == alone.left_out["telco"].tolist()


def test_splits_of_records_that_are_not_used_are_refused(tmp_path):
    data = CSVTables(write(tmp_path, False, "bank"), **settings("bank"))
    data.take_seat(Seat(1), NAMES)
    with pytest.raises(ConfigurationError, match="the splits told to party 'telco' have records that are not used"):
        data.align({"train": [20, 21, 99], "predict": [20, 21]})


@pytest.mark.parametrize(
    ("ids", "own"), [([1, 2, 3], [2]), ([-1, -2, 5], []), (["a", "not held 1"], ["a"]), ([], [1]), ([-1, 7], [-2, -3])]
)
def test_stand_ins_are_new_and_stand_for_nothing(ids, own):
    ids = np.array(ids, dtype=None if ids else np.int64)
    own = np.array(own, dtype=ids.dtype if not own else None)
    shown = known_ids(ids, own)
    for before, after in zip(ids.tolist(), shown.tolist(), strict=True):
        assert after == before if before in own.tolist() else after not in [*ids.tolist(), *own.tolist()]
    assert len(set(shown.tolist())) == len(ids)
