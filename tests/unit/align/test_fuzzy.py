"""Keyed Bloom filters and pairs: against sets and loops by hand, exact keys, and attackers with and without the key."""

import hmac
from collections import Counter

import numpy as np
import pytest

from lightning_vfl.align import fuzzy
from lightning_vfl.align.fuzzy import BITS, HASHES, filters_of, linked, order_of, pairs_of_letters, refuse_unusable
from lightning_vfl.align.ids import USUAL, normalised
from lightning_vfl.align.session import PROTOCOL, Session
from lightning_vfl.errors import ConfigurationError
from tests.further import further
from tests.unit.align.people import people, scores

KEY = b"k" * 32
SESSION = Session("test", ("bank", "shop"), (4,), USUAL)


def bits_by_hand(texts, session=SESSION, key=KEY):
    """The places of the ones of a record's filter."""
    places = set()
    for column, text in enumerate(texts):
        text = normalised(text or "", USUAL)
        for pair in {f" {text} "[i : i + 2] for i in range(len(text) + 1)} if text else ():
            said = f"{PROTOCOL}-fuzzy\n{session.digest}\n{column}\n{pair}".encode()
            digest = hmac.new(key, said, "sha256").digest()
            places |= {int.from_bytes(digest[2 * i : 2 * i + 2], "little") % BITS for i in range(HASHES)}
    return places


def ones(filters):
    return [set(np.flatnonzero(row)) for row in np.unpackbits(filters, axis=1)]


def test_filters_are_those_of_hmac_and_sets():
    rows = [("Anna ", "Lee", None), ("ANNA", "Leé", ""), ("bo", None, "x")]
    filters = filters_of(list(zip(*rows, strict=True)), SESSION, KEY)
    assert filters.shape == (3, BITS // 8)
    assert ones(filters) == [bits_by_hand(row) for row in rows]
    other = filters_of(list(zip(*rows, strict=True)), Session("other", ("bank", "shop"), (4,), USUAL), KEY)
    assert not np.array_equal(filters, other)


def test_pairs_are_those_of_a_loop_over_all_records():
    drawn = people(60, 30, errors=0.6)
    first, second = filters_of(drawn.first, SESSION, KEY), filters_of(drawn.second, SESSION, KEY)
    for threshold in (0.35, 0.6, 0.8):
        candidates = []
        for i, one in enumerate(ones(first)):
            for j, other in enumerate(ones(second)):
                dice = 2 * len(one & other) / (len(one) + len(other))
                if dice >= threshold:
                    candidates.append((-dice, i, j))
        taken, used = {}, set()
        for minus, i, j in sorted(candidates):
            if i not in taken and j not in used:
                taken[i] = (j, -minus)
                used.add(j)
        links = linked(first, second, threshold)
        pairs = zip(links.second.tolist(), links.similarity.tolist(), strict=True)
        assert dict(zip(links.first.tolist(), pairs, strict=True)) == taken
        assert links.first.tolist() != sorted(links.first.tolist())


def test_small_tiles_and_no_pair_at_all(monkeypatch):
    drawn = people(90, 40)
    first, second = filters_of(drawn.first, SESSION, KEY), filters_of(drawn.second, SESSION, KEY)
    whole = linked(first, second, 0.7)
    monkeypatch.setattr(fuzzy, "_TILE", 7)
    tiled = linked(first, second, 0.7)
    assert np.array_equal(whole.first, tiled.first)
    assert np.array_equal(whole.similarity, tiled.similarity)
    other = filters_of(drawn.second, SESSION, b"another secret")
    assert len(linked(first, other, 0.8).first) == 0
    monkeypatch.setattr(fuzzy, "MOST_PAIRS", 100)
    with pytest.raises(ConfigurationError, match=r"more than 100 pairs are as similar as --threshold 0\.1; raise it"):
        linked(first, second, 0.1)


@pytest.mark.parametrize("seed", [0, further(1), further(2)])
def test_pairs_that_exact_keys_miss_are_found(seed):
    """The figures of the page: 1,000 records each, 500 people in both, errors in 40 % of the second table's records."""
    drawn = people(seed=seed)
    place = {texts: number for number, texts in enumerate(zip(*drawn.first, strict=True))}
    rows = list(zip(*drawn.second, strict=True))
    exact = [(place[texts], number) for number, texts in enumerate(rows) if texts in place]
    recall, precision = scores(tuple(zip(*exact, strict=True)), drawn.first_person, drawn.second_person)
    assert (0.60 < recall < 0.66, precision) == (True, 1.0)
    filters = [filters_of(columns, SESSION, KEY) for columns in (drawn.first, drawn.second)]
    links = linked(*filters, 0.85)
    recall, precision = scores((links.first, links.second), drawn.first_person, drawn.second_person)
    assert recall > 0.99
    assert precision > 0.99


def test_the_order_of_filters_is_that_of_their_bytes():
    filters = filters_of(people(50, 0).first, SESSION, KEY)
    assert [bytes(filters[place]) for place in order_of(filters)] == sorted(map(bytes, filters))


def test_records_that_cannot_be_told_apart_are_refused():
    columns = [["a", "a", None, "b"], ["x", "x", "", "y"]]
    with pytest.raises(ConfigurationError, match="records of bank without any key: 1;"):
        refuse_unusable(filters_of(columns, SESSION, KEY), "bank")
    with pytest.raises(ConfigurationError, match="records of bank with the keys of another one: 1;"):
        refuse_unusable(filters_of([column[:2] for column in columns], SESSION, KEY), "bank")


# ---- what filters tell


def by_frequency(filters, public):
    """The surname that a comparer guesses for each filter: the k-th most frequent filter is the k-th name."""
    counted = Counter(map(bytes, filters)).most_common()
    name_of = {content: name for (content, _), name in zip(counted, public, strict=False)}
    return [name_of.get(bytes(row)) for row in filters]


def by_known_records(filters, known, texts, public):
    """The surname that a comparer guesses, who knows the texts of some records and no secret.

    Bits of a pair of letters: those in which all known records with the pair agree. Each record is given the name
    whose pairs have the largest share of their bits in its filter.
    """
    bits = np.unpackbits(filters, axis=1).astype(bool)
    learnt = {}
    for pair in {pair for record in known for pair in pairs_of_letters(texts[1][record])}:
        with_it = [record for record in known if pair in pairs_of_letters(texts[1][record])]
        if len(with_it) >= 3:  # of fewer, other texts agree too
            learnt[pair] = bits[with_it].all(0)
    guesses = []
    for row in bits:
        shares = []
        for name in public:
            found = [learnt[pair] for pair in pairs_of_letters(name) if pair in learnt]
            needed = np.any(found, axis=0) if found else np.zeros(BITS, bool)
            complete = len(found) / len(pairs_of_letters(name))
            shares.append(complete * (row & needed).sum() / max(1, needed.sum()))
        guesses.append(public[int(np.argmax(shares))])
    return guesses


def right(guesses, names, among):
    return float(np.mean([guesses[record] == names[record] for record in among]))


@pytest.mark.slow
def test_what_a_comparer_reads_without_the_secret():
    """The figures of the page: surnames of 400, of which the attacker has a list in the order of frequency."""
    drawn = people(2000, 0)
    surnames, everybody = drawn.first[1], range(2000)
    alone = filters_of([surnames], SESSION, KEY)
    whole = filters_of(drawn.first, SESSION, KEY)
    known = range(200)
    shares = {
        "most frequent name": right([drawn.surnames[0]] * 2000, surnames, everybody),
        "frequency, surnames alone": right(by_frequency(alone, drawn.surnames), surnames, everybody),
        "frequency, whole records": right(by_frequency(whole, drawn.surnames), surnames, everybody),
        "200 known records": right(
            by_known_records(whole, known, drawn.first, drawn.surnames), surnames, range(200, 2000)
        ),
    }
    expected = {
        "most frequent name": 0.14,
        "frequency, surnames alone": 0.37,
        "frequency, whole records": 0.0,
        "200 known records": 0.90,
    }
    assert shares == pytest.approx(expected, abs=0.01)


def test_whoever_has_the_secret_reads_every_record_of_a_list():
    drawn = people(300, 0)
    everybody = list(zip(*drawn.first, strict=True)) + list(zip(*drawn.second, strict=True))
    filters = filters_of(drawn.first, SESSION, KEY)
    tried = filters_of(list(zip(*everybody, strict=True)), SESSION, KEY)
    text_of = {bytes(row): texts for row, texts in zip(tried, everybody, strict=True)}
    assert [text_of[bytes(row)] for row in filters] == everybody[:300]
