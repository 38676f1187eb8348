"""Masks between neighbours alone: the same sums, fewer keys, and a ring that nobody has chosen."""

import itertools
from dataclasses import replace
from hashlib import sha256

import pytest
import torch

from lightning_vfl.aggregators import MaskedSum, PoissonBinomial
from lightning_vfl.aggregators.secure import layer as layer_module
from lightning_vfl.aggregators.secure.layer import SecureLayer
from lightning_vfl.aggregators.secure.neighbours import Neighbours
from lightning_vfl.aggregators.secure.period_keys import COMMITMENTS, KEYS, Keys
from lightning_vfl.aggregators.secure.recovery import Recovery
from lightning_vfl.crypto import KeyPair, PairKeystream, ring
from lightning_vfl.errors import ConfigurationError
from lightning_vfl.rounds.exchange import Exchange, open_round
from lightning_vfl.types import Roll, Roster, RoundNames, Rows, Stage
from lightning_vfl.wire import Embeddings, PartyView, ServerView
from tests.attacks.keys import LEVELS, Parties
from tests.attacks.keys import STEP as GRID

B, D = 3, 2
FEW = {"colluders": 0.25, "smallest": 4}  # of 6 parties two may collude, so each has 4 neighbours


def embeddings_of(parties):
    generator = torch.Generator().manual_seed(5)
    return tuple(torch.rand(parties, B, D, generator=generator).mul(6).sub(3).unbind())


def value_of(parties, absent=(), memory=None, round=0, **settings):
    """The aggregate of one round, all parties in one process."""
    roster = Roster.singles(parties)
    aggregator = MaskedSum(**settings).among(roster)
    called = torch.tensor([m not in absent for m in range(parties)])
    rows = Rows(torch.arange(B), 0, B)
    view = PartyView(RoundNames(0, Stage.FIT, round), roster, tuple(range(parties)), called, rows, memory or Keys())
    view = replace(view, memory=open_round(aggregator.opening, view.memory, view))
    roll = Roll(called, called, called, torch.zeros_like(called))
    server = ServerView(view.names, roster, rows, roll, (D,) * parties)
    return Exchange(aggregator, Embeddings(embeddings_of(parties)), view, server).send().value


@pytest.mark.parametrize("absent", [(), (0, 9, 33), tuple(range(4, 36))])
def test_sums_are_those_of_all_pairs_to_the_bit(absent):
    """36 parties; without 32 of them the others share masks two by two again."""
    value = value_of(36, absent)
    assert torch.equal(value, value_of(36, absent, neighbours="all"))
    assert torch.equal(value, value_of(36, absent, execution="equivalent"))


def test_parties_with_memories_of_their_own_agree_on_the_ring():
    run = Parties(6, neighbours=FEW)
    for called in (range(6), range(1, 6), (0, 2, 3, 5)):
        run = Parties(6, neighbours=FEW)
        total = sum(run.upload(m, called).astype("int64") for m in called) % 2**32
        whole = sum((run.h[m].double() / GRID).round().long() for m in called)
        assert (torch.from_numpy(total) - len(called) * (LEVELS // 2)).equal(whole.reshape(total.shape))


def test_each_party_makes_one_keystream_a_neighbour(monkeypatch):
    made = []
    first = PairKeystream.__init__
    monkeypatch.setattr(PairKeystream, "__init__", lambda self, *args: (made.append(self), first(self, *args))[1])
    for parties, neighbours in ((31, 30), (32, 12), (40, 16)):
        made.clear()
        value_of(parties)
        assert len(made) == parties * neighbours
        legs = MaskedSum().among(Roster.singles(parties)).wire.legs(B, (D,) * parties, (), Roster.singles(parties))
        assert legs[0].flops.tolist() == [B * D * neighbours] * parties


@pytest.mark.parametrize(
    ("settings", "parties", "k"),
    [
        ({}, 31, None),
        ({}, 32, 12),
        ({"colluders": 0.5}, 64, 30),
        ({"failure": 0.0}, 64, 24),
        ({"colluders": 0.99}, 64, None),
        ({"smallest": 4, "colluders": 0.25}, 6, 4),
        ({"smallest": 4, "colluders": 0.0}, 6, 2),
    ],
)
def test_how_many_neighbours(settings, parties, k):
    assert Neighbours(**settings).of(parties) == k


@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        ({"colluders": 1.0}, "colluders of neighbours must be"),
        ({"colluders": -0.1}, "colluders of neighbours must be"),
        ({"failure": 1.0}, "failure of neighbours must be"),
        ({"smallest": 0}, "smallest of neighbours must be"),
        ({"dropouts": 1.0}, "dropouts of neighbours must be"),
        ({"degree": 3}, "neighbours must be auto, all or"),
        (7, "neighbours must be auto, all or"),
    ],
)
def test_other_settings_are_refused_in_one_line(wrong, says):
    with pytest.raises(ConfigurationError, match=says) as refused:
        MaskedSum(neighbours=wrong)
    assert "\n" not in str(refused.value)


def test_the_ring_is_new_in_every_period_and_depends_on_every_key(monkeypatch):
    sessions = []
    monkeypatch.setattr(layer_module, "ring", lambda *args: sessions.append(args[-1]) or ring(*args))
    memory = Keys()
    for number in range(3):
        value_of(32, memory=memory, round=number, rekey_every=2)
    assert sessions[0] == sessions[1] != sessions[2]
    assert sessions[2] == sha256(b"".join(memory.publics[m] for m in range(32))).digest()


def test_a_party_commits_to_its_key_before_it_sees_another():
    kinds = []

    def carry(kind, sender, receiver, sent):
        kinds.append(kind)
        return sent

    Parties(6, carry, neighbours=FEW)
    order = [kind for kind, _ in itertools.groupby(kinds)]
    assert order[:2] == [COMMITMENTS, KEYS]
    late = KeyPair().public  # chosen for the others' keys
    with pytest.raises(ValueError, match="key of party 2 is refused: it is not the one"):
        Parties(6, lambda kind, m, _, sent: late if (kind, m) == (KEYS, 2) else sent, neighbours=FEW)


def test_small_sums_send_no_commitments_and_large_ones_count_them():
    for parties, sent in ((31, False), (32, True)):
        roster = Roster.singles(parties)
        legs = MaskedSum().among(roster).opening.legs(B, roster, torch.ones(parties).bool(), 0, -1)
        assert [leg.kind for leg in legs] == ([COMMITMENTS] if sent else []) + [KEYS]
        assert all(leg.bytes.tolist() == [32 * (parties - 1)] * parties for leg in legs)


@pytest.mark.parametrize(("threshold", "k"), [("auto", 32), (43, None)])
def test_an_explicit_threshold_counts_all_parties_and_every_pair_shares_a_mask(threshold, k):
    layer = SecureLayer(recovery=Recovery(threshold), neighbours=Neighbours())
    assert layer.masked_with(64) == k
    assert layer.shared_with(64) == 22  # masks of updates, which nobody recovers


def test_the_summary_says_how_many_may_collude_and_with_which_probability():
    few = MaskedSum().among(Roster.singles(31)).wire.protection(1)
    many = MaskedSum().among(Roster.singles(64)).wire.protection(1)
    assert "neighbours" not in few
    assert "with up to 22 of 64 members of a sum that collude with it, the sum of the others" in many
    assert "with probability 9e-13 for each set of members in a period of keys" in many
    assert "22 neighbours" in many


@pytest.mark.parametrize(("parties", "most"), [(31, 29), (64, 22)])
def test_privacy_figures_are_told_against_no_more_colluders_than_the_ring_allows(parties, most):
    roster = Roster.singles(parties)
    assert PoissonBinomial().among(roster).accounting.colluders(roster) == most


def test_a_large_group_shares_masks_of_its_updates_with_neighbours(monkeypatch):
    graphs = []
    mask = layer_module.add_together
    monkeypatch.setattr(layer_module, "add_together", lambda *args: graphs.append(args[-1]) or mask(*args))
    groups = ((0,), tuple(range(1, 41)))
    roster = Roster(groups, active=0)
    aggregator = MaskedSum().among(roster)
    rows = Rows(torch.arange(B), 0, B)
    view = PartyView(RoundNames(0, Stage.FIT, 0), roster, tuple(range(41)), torch.ones(41).bool(), rows, Keys())
    open_round(aggregator.opening, view.memory, view)
    updates = {m: torch.full((4,), m / 64) for m in groups[1]}
    told = aggregator.shared_bottoms.tell(updates, view)
    server = ServerView(view.names, roster, rows, Roll.everyone(41), (D,) * 41)
    assert aggregator.shared_bottoms.join(told, server).tolist() == pytest.approx([sum(groups[1]) / 64] * 4, abs=1e-4)
    assert {len(others) for others in graphs[0].values()} == {16}
