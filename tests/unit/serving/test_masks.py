"""Laws of masks in production: no keystream is used twice, and only whole sums of the same records can be read."""

import numpy as np
import pytest

from lightning_vfl.crypto import pair_masks
from lightning_vfl.errors import ConfigurationError
from lightning_vfl.federation.identity import load
from lightning_vfl.serving.masks import ConnectionKeys, SumCodec, unmasked
from tests.served import MASKED, PARTIES, Subject

IDS = np.arange(6)
KNOWN = np.ones(6, np.bool_)


@pytest.fixture
def subject(tmp_path):
    return Subject(tmp_path, MASKED)


def connected(subject, party, protection=MASKED):
    number = subject.charter.number(party)
    identity = load(subject.seat(party).key, subject.charter.parties[number].certificate)
    return ConnectionKeys(party, identity, subject.charter, "model", protection)


def agreed(subject):
    """The keys of three connections that know each other."""
    keys = {name: connected(subject, name) for name in PARTIES}
    publics = {name: (one.public, one.signature) for name, one in keys.items()}
    for one in keys.values():
        one.agree(publics)
    return keys


def values_of(party):
    return np.random.default_rng(PARTIES.index(party)).uniform(-3, 3, (len(IDS), 4)).astype(np.float32)


def words_of(party):
    return SumCodec(MASKED).to_words(values_of(party))


def test_the_sum_is_the_sum_of_the_rounded_numbers_in_exact_arithmetic(subject):
    masked = [one.mask(1, IDS, words_of(name), KNOWN) for name, one in agreed(subject).items()]
    step = 2 * MASKED.clip / MASKED.levels
    whole = [[[round(float(x) / step) for x in row] for row in values_of(name)] for name in PARTIES]
    expected = np.array([[sum(cells) * step for cells in zip(*rows, strict=True)] for rows in zip(*whole, strict=True)])
    np.testing.assert_allclose(unmasked(masked, MASKED), expected, atol=3 * step)


def test_a_number_outside_of_the_clip_counts_as_the_clip():
    codec = SumCodec(MASKED)
    words = codec.to_words(np.array([100.0, -100.0, 0.0], np.float32))
    assert words.tolist() == [MASKED.levels - 1, 0, MASKED.levels // 2]


def test_no_keystream_is_used_twice_over_requests_and_restarts(subject, monkeypatch):
    used = []
    made = pair_masks.PairKeystream.__init__

    def noted(self, key, *rest):
        used.append(key)
        made(self, key, *rest)

    monkeypatch.setattr(pair_masks.PairKeystream, "__init__", noted)
    keys = agreed(subject)
    for start in range(4):
        for number in (1, 2, 9):
            for name in PARTIES:
                keys[name].mask(number, IDS, words_of(name), KNOWN)
        restarted = PARTIES[start % 3]
        keys[restarted] = connected(subject, restarted)  # the same numbers come again, as from a new gateway
        others = {name: connected(subject, name) for name in PARTIES if name != restarted}
        keys |= others
        publics = {name: (one.public, one.signature) for name, one in keys.items()}
        for one in keys.values():
            one.agree(publics)
    pairs = 3 * 4 * 3
    assert len(used) == 2 * pairs
    assert len({*used}) == pairs  # each by the two parties of the pair, and by nobody else


def test_a_number_that_does_not_increase_is_refused(subject):
    keys = agreed(subject)["bank"]
    keys.mask(5, IDS, words_of("bank"), KNOWN)
    for number in (5, 4):
        with pytest.raises(ConfigurationError, match=r"after request 5, and masks are used once"):
            keys.mask(number, IDS, words_of("bank"), KNOWN)


@pytest.mark.parametrize("other", ["ids", "number"])
def test_sums_of_different_requests_are_unreadable(other, subject):
    keys = agreed(subject)
    masked = []
    for name in PARTIES:
        odd = name == "telco"
        ids = IDS[::-1] if odd and other == "ids" else IDS
        masked.append(keys[name].mask(2 if odd and other == "number" else 1, ids, words_of(name), KNOWN))
    total = sum(masked)
    assert (total >= 3 * MASKED.levels).sum() > total.size / 2  # a sum of three is smaller; most of 2^32 is above


def test_a_record_that_one_party_lacks_shows_nothing_of_the_others(subject):
    keys = agreed(subject)
    lacks = KNOWN.copy()
    lacks[2] = False
    masked = [keys[name].mask(1, IDS, words_of(name), lacks if name == "shop" else KNOWN) for name in PARTIES]
    again = agreed(subject)
    masked_again = [again[name].mask(1, IDS, words_of(name), lacks if name == "shop" else KNOWN) for name in PARTIES]
    first, second = sum(masked), sum(masked_again)
    assert (first[2] != second[2]).all()
    others = np.arange(6) != 2
    assert (first[others] == second[others]).all()


def test_a_key_that_its_party_has_not_signed_is_refused(subject):
    keys = {name: connected(subject, name) for name in PARTIES}
    publics = {name: (one.public, one.signature) for name, one in keys.items()}
    publics["shop"] = (connected(subject, "telco").public, publics["shop"][1])
    with pytest.raises(ConfigurationError, match="party shop has not signed the key"):
        keys["bank"].agree(publics)
    del publics["shop"]
    with pytest.raises(ConfigurationError, match="masks need a key of each of bank, shop, telco"):
        keys["bank"].agree(publics)
