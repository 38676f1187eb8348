"""``alignment: psi`` without a network: the records are those of ``clear``, and nobody sees more than it should."""

from concurrent.futures import ThreadPoolExecutor
from itertools import count

import numpy as np
import pytest
import torch

from lightning_vfl.align.group import mask, new_key
from lightning_vfl.align.ids import USUAL
from lightning_vfl.errors import ConfigurationError, NoOwnTable
from lightning_vfl.federation.agreed import Agreed, Limits
from lightning_vfl.federation.alignment import RollCall, align
from lightning_vfl.federation.charter import Alignment
from lightning_vfl.federation.frames import pack, unpack
from lightning_vfl.federation.hub import Hub
from lightning_vfl.federation.letters import Seals
from lightning_vfl.federation.link import Link, Transport

NAMES = ("bank", "telco", "shop")
TABLES = {0: ["a", "b", "c", "d", "e"], 1: ["c", "e", "x", "b"], 2: ["e", "z", "c", "b", "w", "a"]}
LABELS = ["q", "e", "b", "c", "w"]


class Ids:
    """The part of a datamodule that the alignment needs: sorted ids, and splits drawn from them."""

    num_classes, class_names = 2, (0, 1)
    everybody_holds = True
    copies = False

    def __init__(self, ids):
        self.ids = None if ids is None else np.sort(np.array(ids))

    def own_ids(self):
        if self.ids is None:
            raise NoOwnTable("no table")
        return self.ids

    def split_records(self, told):
        common = next(iter(told.values())) if self.ids is None else self.ids
        for ids in told.values():
            common = np.intersect1d(common, ids)
        if not len(common):
            raise ConfigurationError("the parties have no record in common")
        self.order = {"train": common[1:], "test": common[:1]}
        return self.order

    def align(self, order, ids_by_party=None):
        self.order = order

    def own_shape(self):
        return (3,)

    def told_shapes(self, shapes, num_classes, class_names):
        self.told = shapes, num_classes, class_names


class Tapped(Transport):
    """Calls the server's desk without a network, and keeps all frames; ``changed`` replaces what a party sends."""

    def __init__(self, hub, party, changed=lambda header, tensors: (header, tensors)):
        self.hub, self.party, self.changed, self.seen = hub, party, changed, []

    def exchange(self, frame, read):
        asked = unpack(frame)
        frame = pack(*self.changed(dict(asked.header), list(asked.tensors)))
        answer = self.hub.call(self.party, frame)
        self.seen.append((asked, unpack(answer)))
        return read([answer])

    def close(self):
        pass


class Run:
    """A federation's alignment; ``ended`` has the error of each process, the server's last, or None."""

    def __init__(
        self,
        folder,
        tables=TABLES,
        labels=LABELS,
        active=None,
        kind=Alignment.PSI,
        changed=None,
        away=(),
        steps=((), ()),
        patience=1.5,
        limits=None,
    ):
        self.parties = len(tables)
        self.agreed = Agreed(NAMES[: self.parties], active, limits or Limits())
        self.hub = Hub(self.parties, self.agreed)
        self.data = {m: Ids(ids) for m, ids in tables.items()} | {"server": Ids(labels)}
        self.roll = RollCall(self.data["server"], NAMES[: self.parties], kind, active, steps[0])
        self.hub.greet = self.roll.answer
        self.active, self.kind, self.folder, self.steps, self.patience = active, kind, folder, steps[1], patience
        self.lines = {m: Tapped(self.hub, m, *([changed[m]] if m in (changed or {}) else [])) for m in tables}
        self.seals = {m: Seals(m, b"session") for m in tables}
        self.learn()
        with ThreadPoolExecutor(self.parties + 1) as pool:
            finished = pool.submit(self.finish)
            self.ended = [*pool.map(self.seat, [m for m in tables if m not in away]), finished.result()]

    def learn(self):
        for one in self.seals.values():
            one.learn({m: other.pair.public for m, other in self.seals.items() if m != one.party})

    def finish(self):
        try:
            return self.roll.finish(self.patience)
        except ConfigurationError as error:
            return str(error)

    def seat(self, m):
        others = [other for other in range(self.parties) if other != m] if m == self.active else ()
        keep = self.folder / f"{m}.alignment"
        try:
            return align(
                Link(self.lines[m], self.agreed), self.data[m], self.kind, others, self.seals[m], keep, self.steps
            )
        except ConfigurationError as error:
            return str(error)

    def orders(self):
        return {m: {name: part.tolist() for name, part in one.order.items()} for m, one in self.data.items()}


@pytest.mark.parametrize(("parties", "active"), [(1, None), (2, None), (3, None), (2, 0), (3, 1)])
def test_the_records_and_their_order_are_those_of_ids_in_the_clear(tmp_path, parties, active):
    tables = {m: TABLES[m] for m in range(parties)}
    labels = LABELS if active is None else None
    runs = [Run(tmp_path, tables, labels, active, kind) for kind in (Alignment.PSI, Alignment.CLEAR)]
    assert [run.ended for run in runs] == [[None] * (parties + 1)] * 2
    private, clear = (run.orders() for run in runs)
    assert {m: private[m] for m in tables} == {m: clear[m] for m in tables}
    if active is None:
        assert private["server"] == clear["server"]
    else:  # the server has no ids, and is told how many records each split has
        sizes = [len(part) for part in clear["server"].values()]
        numbers = iter(range(sum(sizes)))
        assert private["server"] == {name: [next(numbers) for _ in part] for name, part in clear["server"].items()}
    assert runs[0].data[0].told == runs[1].data[0].told


def test_ids_that_are_written_in_different_ways_are_made_equal_as_all_have_agreed(tmp_path):
    labels = [f"k{i}" for i in range(40)]
    tables = {0: [f"K{i} " for i in range(5, 45)], 1: [f"\uff4b{i}" for i in range(30)]}
    run = Run(tmp_path, tables, labels, steps=(USUAL, USUAL))
    assert run.ended == [None] * 3
    orders = run.orders()
    records = {m: [part for name in sorted(order) for part in order[name]] for m, order in orders.items()}
    assert sorted(records["server"]) == sorted(f"k{i}" for i in range(5, 30))
    assert records[0] == [f"K{one[1:]} " for one in records["server"]]
    assert records[1] == [f"\uff4b{one[1:]}" for one in records["server"]]


def test_a_server_that_normalises_otherwise_is_refused(tmp_path):
    run = Run(tmp_path, steps=((), USUAL))
    assert "normalises ids by nothing, federation.yaml says nfkc, strip, casefold; check who" in run.ended[0]


def test_new_records_without_labels_are_found_without_a_table_of_the_server(tmp_path):
    run = Run(tmp_path, labels=None)
    assert run.ended == [None] * 4
    assert sorted(run.orders()[0]["train"] + run.orders()[0]["test"]) == ["b", "c", "e"]
    assert sorted(run.orders()["server"]["train"] + run.orders()["server"]["test"]) == [0, 1, 2]


def test_whole_numbers_and_texts_of_the_same_digits_match(tmp_path):
    run = Run(tmp_path, {0: [7, 8], 1: ["7", "08"]}, ["7", "x"])
    assert run.ended == [None] * 3
    assert run.orders() == {
        0: {"train": [], "test": [7]},
        1: {"train": [], "test": ["7"]},
        "server": {"train": [], "test": ["7"]},
    }


def test_no_id_and_no_list_below_all_keys_is_seen_by_the_server(tmp_path):
    """The server relays letters, and what it receives in the open has the keys of all parties."""
    run = Run(tmp_path)
    open_steps = set()
    for line in run.lines.values():
        for asked, _ in line.seen:
            if asked.header["say"] != "psi":
                assert not asked.tensors
                continue
            content = b"".join(tensor.numpy().tobytes() for tensor in asked.tensors)
            for ids in TABLES.values():
                assert not any(one.encode("utf-32-le") in content for one in ids)
            if asked.header["step"] == "give" and asked.header["to"] != -1:
                (sealed,) = asked.tensors
                assert sealed.ndim == 1  # bytes of AES-GCM, no points
            elif asked.tensors:
                open_steps.add((asked.header["step"], asked.header.get("of"), asked.header.get("what")))
    lists = {("list", str(owner), None) for owner in (0, 1, 2, "the server")}
    assert open_steps == {*lists, ("give", None, "places of the server")}


def test_the_server_learns_of_its_own_ids_only_which_all_parties_have(tmp_path):
    """Its list comes back in an order of the last party: equal points do not lead to its ids."""
    places = set()
    for number in range(12):
        run = Run(tmp_path / str(number), {0: ["a"], 1: ["a"]}, ["a", "b", "c", "d"])
        (told,) = [asked for asked, _ in run.lines[1].seen if asked.header.get("of") == "the server"]
        (asked,) = [
            answer
            for asked, answer in run.lines[1].seen
            if asked.header.get("what") == "places of the server" and asked.header["step"] == "fetch"
        ]
        assert told.tensors[0].shape == (4, 32)
        places.add(asked.tensors[0].tolist()[0])
    assert len(places) > 1


@pytest.mark.parametrize(("ids", "line"), [(["y", "y2"], "have no record in common")])
def test_an_empty_intersection_is_one_line_for_all(tmp_path, ids, line):
    run = Run(tmp_path, TABLES | {1: ids})
    assert len(set(run.ended)) == 1
    assert line in run.ended[0]
    assert "\n" not in run.ended[0]
    assert not list(tmp_path.iterdir())


def test_a_party_that_is_lost_ends_it_for_all(tmp_path):
    run = Run(tmp_path, away=(1,), patience=0.2)
    assert len(set(run.ended)) == 1
    assert "the lists of bank, telco, shop, the server have not been raised by the parties in time" in run.ended[0]


def spoiled(step, spoil):
    """Replace the first tensor of a step that a party sends."""

    def changed(header, tensors):
        if header["say"] == "psi" and header["step"] == step and tensors:
            tensors[0] = spoil(tensors[0])
        return header, tensors

    return changed


@pytest.mark.parametrize(
    ("step", "spoil", "line"),
    [
        ("list", torch.zeros_like, "the list of party telco: point 0 is the identity"),
        ("list", lambda t: torch.full_like(t, 255), "the list of party telco: point 0 is no point"),
        ("list", lambda t: t[:, :31], "party bank cannot be aligned: points are"),
        ("list", lambda t: t[[0, 0, 1]], "duplicate points in the list of party telco: 1"),
        ("give", lambda t: t.flip(0), "cannot be opened"),
    ],
)
def test_lists_that_cannot_be_used_are_refused_and_named(tmp_path, step, spoil, line):
    run = Run(tmp_path, {m: TABLES[m] for m in (0, 1)}, changed={0: spoiled(step, spoil)})
    assert any(line in str(ended) for ended in run.ended), run.ended
    assert all(ended is not None for ended in run.ended)


@pytest.mark.parametrize(
    "asked",
    [torch.arange(5), torch.arange(5)[None].expand(3, 5).clone(), torch.tensor([0, 0, 1]), torch.tensor([0, 1, 9])],
    ids=["more", "several in one", "one twice", "none of the list"],
)
def test_a_server_that_asks_for_other_records_is_refused(tmp_path, monkeypatch, asked):
    from lightning_vfl.federation import private_ring

    give = private_ring.PrivateRing._give
    more = lambda ring, party, what, t: give(ring, party, what, asked if t.dtype == torch.int64 else t)  # noqa: E731
    monkeypatch.setattr(private_ring.PrivateRing, "_give", more)
    run = Run(tmp_path)
    assert "the server asks for records that are not the common ones" in run.ended[2]


def test_more_ids_of_the_server_than_are_allowed_are_refused(tmp_path):
    assert Run(tmp_path, limits=Limits(server_ids=len(LABELS))).ended == [None] * 4
    ended = Run(tmp_path, limits=Limits(server_ids=len(LABELS) - 1)).ended
    assert "asks for 5 ids of its own, and this party compares at most 4" in ended[0]
    assert None not in ended


def test_a_server_that_puts_a_list_of_its_own_into_the_ring_is_found(tmp_path):
    """Otherwise it could have ids that it guesses raised to the keys of the parties."""
    key = new_key()

    def replaced(header, tensors):
        if header.get("what") == "list 0 hop 1":
            tensors[0] = torch.from_numpy(mask([b"guess"], bytes, key, b"").copy())
        return header, tensors

    run = Run(tmp_path, changed={0: replaced})
    assert all("sealed" in str(ended) or "cannot be opened" in str(ended) for ended in run.ended), run.ended


@pytest.mark.parametrize("active", [None, 1])
def test_a_party_comes_back_with_the_order_that_it_keeps(tmp_path, active):
    run = Run(tmp_path, labels=LABELS if active is None else None, active=active)
    assert run.ended == [None] * 4
    before = run.orders()
    for m in TABLES:
        kept = tmp_path / f"{m}.alignment"
        assert kept.stat().st_mode & 0o777 == 0o600
        run.data[m], run.lines[m], run.seals[m] = Ids(TABLES[m]), Tapped(run.hub, m), Seals(m, b"session")
        run.seals[m].learn({o: Seals(o, b"session").pair.public for o in TABLES if o != m})
        assert run.seat(m) is None
        assert run.orders() == before
        kept.unlink()
        assert "comes back without the order of the records" in run.seat(m)


def test_a_party_that_is_started_again_in_between_ends_it_for_all(tmp_path):
    processes = count()

    def again(header, tensors):
        """The party asks for the session twice, as two processes do."""
        if header.get("step") == "session" and not next(processes):
            other = {**header, "process": "0123456789abcdef", "call": 99}
            run_hub[0].call(0, pack(other, []))
        return header, tensors

    run_hub = []

    class Hubs(Hub):
        def __init__(self, parties, agreed):
            super().__init__(parties, agreed)
            run_hub.append(self)

    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(globals(), "Hub", Hubs)
        run = Run(tmp_path, changed={0: again})
    assert "party bank was started again while records were aligned" in run.ended[0]
    assert all("started again" in str(ended) for ended in run.ended)
