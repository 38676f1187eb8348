"""Alignments are the plain join of sets, whoever pads, and whatever the ids look like."""

import random

import numpy as np
import pytest

from lightning_vfl.align.ids import Step
from lightning_vfl.align.matching import empty, matched
from lightning_vfl.align.ring import PointList, passed
from lightning_vfl.align.session import COMPARER, Reveal, Session
from lightning_vfl.errors import ConfigurationError
from tests.further import further
from tests.unit.align.plays import Play

NAMES = ("bank", "shop", "telco", "club", "city")
HOSTILE = [
    "7",
    "007",
    "7 ",
    "Ｎｏ",
    "No",
    "no",
    "a,b",
    "a",
    "b",
    "\0",
    "\0\0",
    "é",
    "e\u0301",
    "🜁",
    "x" * 500,
    "NaN",
    "-1",
    "'; --",
]


def tables_of(number):
    """Sets of a random or hostile case, in random orders, and the lengths of padded lists."""
    draw = random.Random(number)
    parties = NAMES[: draw.randint(2, 5)]
    pool = HOSTILE if number % 2 else [str(i) for i in range(draw.choice([3, 12, 25]))]
    tables = {party: draw.sample(pool, draw.randint(1, len(pool))) for party in parties}
    pads = {party: len(ids) + draw.choice([0, 1, 7]) for party, ids in tables.items() if draw.random() < 0.5}
    return tables, pads


def check_is_the_join(number):
    tables, pads = tables_of(number)
    play = Play(Session(f"case {number}", tuple(tables)), tables, number, pads)
    common = set.intersection(*map(set, tables.values()))
    rows = {party: {row: ids[record] for row, record in play.taken(party).items()} for party, ids in tables.items()}
    assert {*rows[NAMES[0]].values()} == common
    assert [*rows[NAMES[0]]] == [*range(len(common))]
    assert all(own == rows[NAMES[0]] for own in rows.values())
    assert {told.size for told in play.told.values()} == {len(common)}


@pytest.mark.parametrize("number", [n if n < 6 else further(n) for n in range(16)])
def test_all_parties_get_the_rows_of_the_plain_join(number):
    check_is_the_join(number)


@pytest.mark.slow
@pytest.mark.parametrize("number", range(16, 100))
def test_all_parties_get_the_rows_of_the_plain_join_of_more_cases(number):
    check_is_the_join(number)


@pytest.mark.parametrize("number", [0, further(3), 6, further(9)])
def test_with_the_label_party_every_party_gets_its_pair(number):
    tables, pads = tables_of(number)
    label = NAMES[number % len(tables)]
    session = Session("pairs", tuple(tables), reveal=Reveal.LABEL_PARTY, label_party=label)
    play = Play(session, tables, number, pads)
    of_label = {row: tables[label][record] for row, record in play.taken(label).items()}
    assert sorted(of_label.values()) == sorted(tables[label])
    assert sorted(play.told[label].rows) == list(range(pads.get(label, len(tables[label]))))
    for party, ids in tables.items():
        rows = {row: ids[record] for row, record in play.taken(party).items()}
        assert rows == {row: one for row, one in of_label.items() if one in ids}


def test_only_the_size_is_told():
    session = Session("size", NAMES[:2], reveal=Reveal.SIZE)
    told = Play(session, {"bank": [1, 2, 3], "shop": [2, 3, 4, 5]}).told
    assert [(one.size, len(one.places), len(one.rows)) for one in told.values()] == [(2, 0, 0)] * 2


def in_turn(tables):
    """Records with equal ids by the first key, then by the second among the records that are left."""
    left = {party: dict(enumerate(records)) for party, records in tables.items()}
    found = set()
    for key in range(2):
        ids = [{row[key] for row in records.values() if row[key] is not None} for records in left.values()]
        for common in set.intersection(*ids):
            at = tuple(next(n for n, row in records.items() if row[key] == common) for records in left.values())
            found.add(at)
        for m, records in enumerate(left.values()):
            for at in found:
                records.pop(at[m], None)
    return found


@pytest.mark.parametrize("number", range(6))
def test_keys_are_tried_in_turn(number):
    draw, tables = random.Random(number), {}
    for party in NAMES[: 2 + number % 2]:
        ids, mails = draw.sample(range(14), 9), draw.sample(range(14), 9)
        rows = [
            (i if draw.random() < 0.7 else None, m if draw.random() < 0.8 else None)
            for i, m in zip(ids, mails, strict=True)
        ]
        tables[party] = [row for row in rows if row != (None, None)]
    play = Play(Session("keys", tuple(tables), (1, 1)), tables, number)
    taken = [play.taken(party) for party in tables]
    assert {tuple(own[row] for own in taken) for row in taken[0]} == in_turn(tables)


def test_a_value_of_one_key_is_not_that_of_another():
    play = Play(Session("keys", NAMES[:2], (1, 1)), {"bank": [("a", "b")], "shop": [("b", "a")]})
    assert empty(play.told) is not None


def test_ids_match_that_are_equal_after_the_steps():
    tables = {"bank": [" Jo  Ann ", "007", "ｘ"], "shop": ["JO ANN", "7", "X"]}
    for steps, size in (((), 0), ((Step.NFKC, Step.STRIP, Step.CASEFOLD), 2), (tuple(Step), 3)):
        assert Play(Session("steps", NAMES[:2], normalise=steps), tables).told["bank"].size == size


def test_sessions_do_not_mix():
    tables = {party: [1, 2] for party in NAMES[:2]}
    one, two = (Play(Session(name, NAMES[:2]), tables).seen[COMPARER] for name in ("one", "two"))
    with pytest.raises(ConfigurationError, match="are of two sessions: its name is two, not one"):
        matched([one[0], two[1]])


def test_lists_that_do_not_belong_together_are_refused():
    session = Session("again", NAMES[:3])
    tables = {party: [1, 2, 3] for party in session.parties}
    old, new = Play(session, tables, "old"), Play(session, tables, "new")
    by_owner = [{one.owner: one for one in play.seen[COMPARER]} for play in (old, new)]
    with pytest.raises(
        ConfigurationError, match=r"of bank and shop were raised to two keys of .*, which has begun again"
    ):
        matched([by_owner[0]["bank"], by_owner[1]["shop"], by_owner[1]["telco"]])
    final = by_owner[1]
    with pytest.raises(ConfigurationError, match="the list of telco is missing"):
        matched([final["bank"], final["shop"]])
    with pytest.raises(ConfigurationError, match="has two lists"):
        matched([*final.values(), final["bank"]])
    with pytest.raises(ConfigurationError, match="no list to compare"):
        matched([])
    unfinished = new.seen["shop"][0]
    with pytest.raises(ConfigurationError, match="the list of bank has not been raised by shop yet"):
        matched([unfinished, final["shop"], final["telco"]])


def test_a_key_is_used_once_and_in_the_order_of_the_ring():
    play = Play(Session("twice", NAMES[:3]), {party: [1, 2] for party in NAMES[:3]})
    of_bank, secrets = next(o for o in play.seen["shop"] if o.owner == "bank"), play.secrets
    raised = passed(secrets["shop"], of_bank)
    with pytest.raises(ConfigurationError, match="the list of bank has the key of shop already"):
        passed(secrets["shop"], raised)
    with pytest.raises(ConfigurationError, match="the list of bank is for shop, not for telco"):
        passed(secrets["telco"], of_bank)
    with pytest.raises(ConfigurationError, match="the list of bank has the key of bank already"):
        passed(secrets["bank"], of_bank)
    twice = PointList(of_bank.session, "bank", (*raised.used, secrets["shop"].used), raised.points)
    with pytest.raises(ConfigurationError, match="raised to the key of shop twice"):
        twice.refuse_wrong_order()
    skipped = PointList(of_bank.session, "bank", (*of_bank.used, secrets["telco"].used), raised.points)
    with pytest.raises(
        ConfigurationError, match="has the keys of bank, telco; the order of the ring is bank, shop, telco"
    ):
        skipped.refuse_wrong_order()


def test_the_comparer_refuses_points_twice_and_what_is_no_point():
    play = Play(Session("wrong", NAMES[:2]), {"bank": [1, 2, 3], "shop": [1, 2]})
    one, two = sorted(play.seen[COMPARER], key=lambda o: o.owner)
    for wrong, line in (
        (one.points[[0, 1, 1]], "duplicate points in the list of bank: 1; keep one"),
        (np.zeros_like(one.points), "the list of bank: point 0 is the identity"),
        (np.full_like(one.points, 255), "the list of bank: point 0 is no point"),
    ):
        with pytest.raises(ConfigurationError, match=line):
            matched([PointList(one.session, "bank", one.used, wrong), two])
