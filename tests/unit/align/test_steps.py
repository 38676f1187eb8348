"""The steps on files: what is wrong is told in one line, nothing is half written, and every step can be repeated."""

import json
import os
import shutil
from contextlib import contextmanager

import numpy as np
import pytest

from lightning_vfl.align import files
from lightning_vfl.align.files import list_path, read_list, read_rows, read_secret, write_list, write_whole
from lightning_vfl.align.ids import Step, messages_of
from lightning_vfl.align.ring import PointList
from lightning_vfl.align.session import COMPARER, Reveal, Session
from lightning_vfl.align.steps import mask_list, match_lists, pass_lists, records_at, take_rows, tell_parties
from lightning_vfl.errors import ConfigurationError

TABLES = {"bank": ["a", "b", "c", "d"], "shop": ["d", "b", "x"], "telco": ["y", "b", "d", "z", "w"]}
SESSION = Session("steps", tuple(TABLES))


@contextmanager
def no_bar(title, points):
    yield lambda done: None


def messages(party, tables=TABLES):
    return messages_of([[list(tables[party])]], (), party)


def mask(folder, party, session=SESSION, tables=TABLES, pad_to=None):
    return mask_list(folder, session, party, messages(party, tables), {"path": f"{party}.csv"}, no_bar, pad_to)


def raise_all(folder):
    for _ in TABLES:
        for party in TABLES:
            pass_lists(folder, party, no_bar)


def matched_and_told(folder):
    found, _ = match_lists(folder)
    return tell_parties(folder, found)


def ids(folder, party):
    secret, _, told = take_rows(folder, party)
    records, rows = records_at(secret, told)
    return dict(zip(rows.tolist(), [TABLES[party][record] for record in records], strict=True))


@pytest.fixture
def whole(tmp_path):
    """A folder with all lists, ready for the comparer."""
    for party in TABLES:
        mask(tmp_path, party)
    raise_all(tmp_path)
    return tmp_path


def content(folder):
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def test_hosts_that_are_given_the_files_alone_that_are_for_them(tmp_path):
    hosts = {name: tmp_path / name for name in (*TABLES, COMPARER)}
    for party in TABLES:
        mask(hosts[party], party)

    def carry():
        for path in tmp_path.rglob("*.for-*.points"):
            receiver = path.name.split(".for-")[1].removesuffix(".points")
            hosts[receiver].mkdir(exist_ok=True)
            if path.parent != hosts[receiver]:
                shutil.copy(path, hosts[receiver])

    for _ in range(2):
        carry()
        for party in TABLES:
            pass_lists(hosts[party], party, no_bar)
    carry()
    assert len([*hosts[COMPARER].iterdir()]) == 3
    told = matched_and_told(hosts[COMPARER])
    for path in told:
        shutil.copy(path, hosts[path.stem])
    taken = {party: ids(hosts[party], party) for party in TABLES}
    assert sorted(taken["bank"].values()) == ["b", "d"]
    assert taken["bank"] == taken["shop"] == taken["telco"]


def test_a_hop_costs_32_bytes_an_id_and_a_header(tmp_path):
    large = {"bank": [str(i) for i in range(1000)]}
    path, _ = mask(tmp_path, "bank", Session("size", ("bank", "shop")), large)
    assert 0 < path.stat().st_size - 32 * 1000 < 500


def test_the_secret_is_for_its_owner_alone(tmp_path):
    mask(tmp_path, "bank")
    assert (tmp_path / "bank.key").stat().st_mode & 0o777 == 0o600
    secret, _ = read_secret(tmp_path, "bank")
    lists = b"".join(path.read_bytes() for path in tmp_path.glob("*.points"))
    assert secret.key not in lists
    assert secret.key.hex().encode() not in lists
    assert secret.key.hex() not in repr(secret)
    assert secret.seed.hex() not in repr(secret)


def test_every_step_writes_the_same_files_again(whole):
    matched_and_told(whole)
    before = content(whole)
    for party in TABLES:
        mask(whole, party)
    raise_all(whole)
    matched_and_told(whole)
    assert content(whole) == before


@pytest.mark.parametrize("number", range(1, 11))
def test_a_process_that_is_killed_at_any_write_is_run_again(tmp_path, monkeypatch, number):
    """Every write may be the one in which the process ends: a part is then on the disk, and the file is not."""

    class Killed(BaseException):
        pass

    replace, left = os.replace, [number]

    def killed(part, path):
        left[0] -= 1
        if not left[0]:
            raise Killed
        replace(part, path)

    monkeypatch.setattr(files.Path, "replace", lambda part, path: killed(part, path))

    def run():
        for party in TABLES:
            mask(tmp_path, party)
        raise_all(tmp_path)
        matched_and_told(tmp_path)

    with pytest.raises(Killed):
        run()
    run()
    assert sorted(ids(tmp_path, "bank").values()) == ["b", "d"]
    assert ids(tmp_path, "bank") == ids(tmp_path, "shop") == ids(tmp_path, "telco")
    assert not [path for path in tmp_path.iterdir() if path.name.endswith(".part")]


@pytest.mark.parametrize(
    "again",
    [
        {"session": Session("another", tuple(TABLES))},
        {"session": Session("steps", tuple(TABLES), normalise=(Step.STRIP,))},
        {"tables": {"bank": ["a", "b", "c", "e"]}},
        {"tables": {"bank": ["b", "a", "c", "d"]}},
        {"pad_to": 9},
    ],
)
def test_a_key_masks_one_list_and_no_other(tmp_path, again):
    mask(tmp_path, "bank")
    before = content(tmp_path)
    with pytest.raises(
        ConfigurationError, match=r"has a key of bank (of another|for other).*a key masks one list"
    ) as told:
        mask(tmp_path, "bank", **again)
    assert "\n" not in str(told.value)
    assert content(tmp_path) == before


def test_padded_lists_have_the_length_that_is_asked_for(tmp_path):
    for party in TABLES:
        mask(tmp_path, party, pad_to=20)
    raise_all(tmp_path)
    assert {len(read_list(tmp_path, party, COMPARER).points) for party in TABLES} == {20}
    matched_and_told(tmp_path)
    assert sorted(ids(tmp_path, "telco").values()) == ["b", "d"]
    with pytest.raises(ConfigurationError, match="--pad-to 3 is less than the 4 records"):
        mask(tmp_path / "new", "bank", pad_to=3)
    assert not (tmp_path / "new").exists()


def test_counts_are_told_before_anything_is_written(whole):
    before = content(whole)
    found, _ = match_lists(whole)
    assert ({told.size for told in found.values()}, content(whole)) == ({2}, before)


def test_an_empty_intersection_is_one_line(tmp_path):
    session, tables = Session("empty", ("bank", "shop")), {"bank": ["a"], "shop": ["b"]}
    for party in tables:
        mask(tmp_path, party, session, tables)
    for party in tables:
        pass_lists(tmp_path, party, no_bar)
    before = content(tmp_path)
    with pytest.raises(ConfigurationError, match="all parties have no record in common; check that"):
        matched_and_told(tmp_path)
    assert content(tmp_path) == before
    assert {told.size for told in match_lists(tmp_path)[0].values()} == {0}


# ---- steps in the wrong order, and files that are missing


def test_steps_in_the_wrong_order_say_what_is_first(tmp_path):
    with pytest.raises(ConfigurationError, match=r"bank\.key is not there; run lightning-vfl align mask --party bank"):
        pass_lists(tmp_path, "bank", no_bar)
    with pytest.raises(ConfigurationError, match="has no list for the comparer"):
        matched_and_told(tmp_path)
    mask(tmp_path, "bank")
    with pytest.raises(ConfigurationError, match=r"bank\.rows is not there; the comparer writes it"):
        take_rows(tmp_path, "bank")
    done = pass_lists(tmp_path, "bank", no_bar)
    assert (done.written, done.awaited) == ({}, {"shop": "telco", "telco": "telco"})


def test_a_missing_list_is_named(whole):
    list_path(whole, "shop", COMPARER).unlink()
    with pytest.raises(ConfigurationError, match="the list of shop is missing"):
        matched_and_told(whole)


def test_a_list_of_another_session_is_refused(tmp_path):
    mask(tmp_path, "bank", Session("steps", tuple(TABLES), normalise=(Step.STRIP,)))
    mask(tmp_path, "shop")
    before = content(tmp_path)
    with pytest.raises(
        ConfigurationError, match="the list of bank is of another session: its normalise is strip, not none"
    ):
        pass_lists(tmp_path, "shop", no_bar)
    assert content(tmp_path) == before


def test_a_party_that_begins_again_in_between_is_found(whole, tmp_path):
    new = tmp_path / "new"
    mask(new, "shop")
    shutil.copy(new / "shop.key", whole)
    (whole / "bank.for-telco.points").unlink()
    (whole / "bank.for-comparer.points").unlink()
    raise_all(whole)
    with pytest.raises(ConfigurationError, match="raised to two keys of shop, which has begun again"):
        matched_and_told(whole)


def test_rows_of_another_key_or_session_are_refused(whole, tmp_path):
    matched_and_told(whole)
    secret, _ = read_secret(whole, "bank")
    other = tmp_path / "other"
    mask(other, "bank")
    shutil.copy(whole / "bank.rows", other)
    with pytest.raises(ConfigurationError, match=r"bank\.rows is of another key of bank"):
        take_rows(other, "bank")
    elsewhere = tmp_path / "elsewhere"
    mask(elsewhere, "bank", Session("else", tuple(TABLES)))
    shutil.copy(whole / "bank.rows", elsewhere)
    with pytest.raises(ConfigurationError, match="of another session: its name is steps, not else"):
        take_rows(elsewhere, "bank")
    assert read_rows(whole, secret).size == 2


# ---- files that were damaged, and hostile ones


@pytest.mark.parametrize(
    ("change", "line"),
    [
        (lambda whole: whole[:-1], "truncated or was changed"),
        (lambda whole: whole[:20], "truncated or was changed"),
        (lambda whole: whole[:5], "truncated or was changed"),
        (lambda whole: b"", "truncated or was changed"),
        (lambda whole: whole + b"\0", "truncated or was changed"),
        (lambda whole: whole[:100] + bytes([whole[100] ^ 1]) + whole[101:], "truncated or was changed"),
        (lambda whole: b"PK" + whole, "not a file of lightning-vfl align"),
    ],
)
def test_a_damaged_list_is_one_line_and_leaves_everything(tmp_path, change, line):
    for party in ("bank", "shop"):
        mask(tmp_path, party)
    path = list_path(tmp_path, "bank", "shop")
    path.write_bytes(change(path.read_bytes()))
    before = content(tmp_path)
    with pytest.raises(ConfigurationError, match=rf"bank\.for-shop\.points cannot be used: it .*{line}") as told:
        pass_lists(tmp_path, "shop", no_bar)
    assert "\n" not in str(told.value)
    assert content(tmp_path) == before


@pytest.mark.parametrize(
    ("header", "line"),
    [
        ({"places": 7}, "7 places of 1 points, but 128 bytes"),
        ({"places": -4}, "-4 places"),
        ({"places": "x"}, "invalid literal"),
        ({"keys": 5}, "not iterable"),
        ({"keys": []}, "has the keys of nobody"),
        ({"owner": "shop"}, "it is not the points of bank"),
        ({"kind": "rows"}, "it is not the points of bank"),
        ({"session": {}}, "settings of the session"),
        ({"session": {**SESSION.told(), "parties": ["bank"]}}, "two parties or more"),
        ({"session": {**SESSION.told(), "parties": ["../x", "bank"]}}, "cannot be the name of a party"),
        ({"session": {**SESSION.told(), "reveal": "all"}}, "'all' is not a valid Reveal"),
        ({"session": {**SESSION.told(), "keys": [10**9]}}, "1 to 255 keys"),
    ],
)
def test_a_forged_header_is_one_line(tmp_path, header, line):
    for party in ("bank", "shop"):
        mask(tmp_path, party)
    given = read_list(tmp_path, "bank", "shop")
    said = {"kind": "points", "session": SESSION.told(), "owner": "bank"}
    said |= {"keys": [[used.party, used.mark] for used in given.used], "places": 4, **header}
    whole = files._START.pack(b"LVFLPSI", 1, len(json.dumps(said))) + json.dumps(said).encode() + given.points.tobytes()
    list_path(tmp_path, "bank", "shop").write_bytes(whole + files.sha256(whole).digest())
    with pytest.raises(ConfigurationError, match=line) as told:
        pass_lists(tmp_path, "shop", no_bar)
    assert "\n" not in str(told.value)


@pytest.mark.parametrize(("byte", "line"), [(0, "point 0 is the identity"), (255, "point 0 is no point")])
def test_points_off_the_group_are_refused_by_the_next_party_and_the_comparer(whole, byte, line):
    for receiver in ("shop", COMPARER):
        given = read_list(whole, "bank", receiver)
        write_list(whole, PointList(SESSION, "bank", given.used, np.full_like(given.points, byte)))
    with pytest.raises(ConfigurationError, match=f"the list of bank: {line}"):
        matched_and_told(whole)
    (whole / "bank.for-telco.points").unlink()
    with pytest.raises(ConfigurationError, match=f"the list of bank: {line}"):
        pass_lists(whole, "shop", no_bar)
    assert not (whole / "bank.for-telco.points").exists()


def test_a_comparer_that_tells_nonsense_is_refused(tmp_path):
    for party in TABLES:
        mask(tmp_path, party, pad_to=9)
    raise_all(tmp_path)
    matched_and_told(tmp_path)
    secret, _ = read_secret(tmp_path, "bank")
    honest = read_rows(tmp_path, secret)
    random_point = int(np.flatnonzero(secret.order >= 4)[0])
    for places, rows, line in (
        ([0, 0], [0, 1], "some twice"),
        ([0, 9], [0, 1], "does not have"),
        ([-1, 0], [0, 1], "does not have"),
        ([0, 1], [1, 1], "some twice"),
        ([random_point], [0], "other parties have 1 random points of bank"),
    ):
        told = type(honest)(SESSION, "bank", honest.used, 2, np.array(places), np.array(rows))
        files.write_rows(tmp_path, told)
        with pytest.raises(ConfigurationError, match=line):
            ids(tmp_path, "bank")


@pytest.mark.parametrize(
    ("change", "line"),
    [
        (lambda said: {**said, "key": "00" * 32}, "not a number from 1"),
        (lambda said: {**said, "seed": "00"}, "not one that this version"),
        (lambda said: {**said, "records": 9}, "not one that this version"),
        (lambda said: {**said, "party": "shop"}, "not a secret of bank"),
        (lambda said: {name: said[name] for name in said if name != "table"}, "no 'table'"),
        (lambda said: [], "not a secret of bank"),
    ],
)
def test_a_damaged_secret_is_one_line(tmp_path, change, line):
    mask(tmp_path, "bank")
    path = tmp_path / "bank.key"
    path.write_text(json.dumps(change(json.loads(path.read_text()))))
    with pytest.raises(ConfigurationError, match=line):
        pass_lists(tmp_path, "bank", no_bar)


@pytest.mark.parametrize(
    ("settings", "line"),
    [
        ({"parties": ("bank",)}, "two parties or more; got bank"),
        ({"parties": ("bank", "Bank")}, "a party is named twice"),
        ({"parties": ("bank", "a/b")}, "'a/b' cannot be the name of a party"),
        ({"parties": ("bank", "")}, "'' cannot be the name of a party"),
        ({"parties": ("bank", "comparer")}, "'comparer' cannot be the name"),
        ({"parties": tuple(f"p{i}" for i in range(63))}, "up to 62 parties; got 63"),
        ({"reveal": Reveal.LABEL_PARTY}, "belong together"),
        ({"label_party": "bank"}, "belong together"),
        ({"reveal": Reveal.LABEL_PARTY, "label_party": "club"}, "--label-party club is not one of the parties"),
    ],
)
def test_settings_that_are_not_allowed_are_one_line(settings, line):
    with pytest.raises(ConfigurationError, match=line):
        Session(**{"name": "x", "parties": ("bank", "shop"), **settings})


def test_a_file_replaces_the_part_of_a_killed_process_and_keeps_its_mode(tmp_path):
    (tmp_path / ".bank.key.part").write_text("half")
    write_whole(tmp_path / "bank.key", b"whole", 0o600)
    assert [(path.name, path.read_bytes()) for path in tmp_path.iterdir()] == [("bank.key", b"whole")]
    assert (tmp_path / "bank.key").stat().st_mode & 0o777 == 0o600
