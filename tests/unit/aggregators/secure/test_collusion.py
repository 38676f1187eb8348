"""The table of coalitions against real rounds: what colluders and the server subtract, to 1e-6, or cannot."""

import itertools
from pathlib import Path

import numpy as np
import pytest
import torch

from lightning_vfl.aggregators import MaskedSum
from lightning_vfl.aggregators.secure.layer import SecureLayer
from lightning_vfl.aggregators.secure.period_keys import Keys
from lightning_vfl.aggregators.secure.recovery import Recovery
from lightning_vfl.rounds.exchange import Exchange, open_round
from lightning_vfl.types import Roll, Roster, RoundNames, Rows, Stage
from lightning_vfl.wire import Embeddings, PartyView, ServerView
from tests import coalitions
from tests.attacks.keys import LEVELS, Parties, share_read, two_stories
from tests.collusion import fallen, tolerated
from tests.further import further

B, D = 24, 2
ROSTERS = {
    "two": Roster.singles(2, active=0),
    "three": Roster.singles(3, active=1),
    "four": Roster.singles(4, active=0),
    "nobody active": Roster.singles(4),
    "groups": Roster(((0,), (1, 2), (3, 4)), active=0),
    "groups, nobody active": Roster(((0, 1), (2,), (3, 4))),
}


def held_by(roster):
    """(B, M): every record with one party of each group."""
    generator = torch.Generator().manual_seed(3)
    present = torch.zeros(B, roster.parties, dtype=torch.bool)
    for group in roster.groups:
        chosen = torch.randint(len(group), (B,), generator=generator)
        present[torch.arange(B), torch.tensor(group)[chosen]] = True
    return present


def real_round(layout, roster, recovery=None):
    """The server's value of a masked round, what parties have sent, and who holds what."""
    aggregator = MaskedSum(layout, levels=LEVELS, allow_single=True, recovery=recovery).among(roster)
    present, generator = held_by(roster), torch.Generator().manual_seed(0)
    widths = aggregator.widths(D, roster)
    h = []
    for m in range(roster.parties):
        whole = torch.randint(-LEVELS // 2, LEVELS // 2, (B, widths[m]), generator=generator)
        h.append((whole.double() * 8 / LEVELS).float() * present[:, m, None])
    everybody = tuple(range(roster.parties))
    view = PartyView(
        RoundNames(0, Stage.FIT, 0),
        roster,
        everybody,
        torch.ones(roster.parties).bool(),
        Rows(torch.arange(B), 0, B),
        Keys(),
    )
    open_round(aggregator.opening, view.memory, view)
    server = ServerView(view.names, roster, view.rows, Roll.everyone(roster.parties), widths)
    value = Exchange(aggregator, Embeddings(tuple(h)), view, server).send().value
    return aggregator._layer, value, h, present


@pytest.mark.parametrize("layout", ["sum", "segments"])
@pytest.mark.parametrize("name", ROSTERS)
def test_what_falls_is_what_colluders_can_subtract_down_to(layout, name):
    """All coalitions: an embedding falls if and only if, in some record of its party, only its part is left."""
    roster = ROSTERS[name]
    layer, value, h, present = real_round(layout, roster)
    sums = layer.segments(roster)
    for count in range(roster.parties):
        for who in itertools.combinations(range(roster.parties), count):
            found = set()
            for segment, members in enumerate(sums.members):
                rest = value[:, segment * D : (segment + 1) * D].double()
                for m in set(members) & set(who):
                    rest = rest - sums.part(h[m], m, segment)
                for m in set(members) - set(who):
                    errors = (rest - sums.part(h[m], m, segment)).abs().amax(1)[present[:, m]]
                    if errors.min() <= 1e-6:
                        found.add((m, segment))
            assert fallen(layer, roster, who) == found, (who, found)


@pytest.mark.parametrize("n", [*range(2, 6), pytest.param(6, marks=pytest.mark.slow)])
def test_with_recovery_the_numbers_are_those_of_the_threshold(n):
    for t in range(n // 2 + 1, n + 1):
        layer, roster = SecureLayer(recovery=Recovery(t)), Roster.singles(n)
        for lies in (False, True):
            assert tolerated(layer, roster, lies) == Recovery(t).tolerated(n, lies)


def test_t_colluders_read_everybody_with_a_server_that_tells_the_truth():
    """Real shares: the colluders' t give both secrets of party 0, which is there."""
    for n, t in ((4, 3), (5, 3), (6, 4)):
        layer, roster = SecureLayer(recovery=Recovery(t)), Roster.singles(n)
        own = range(n - t, n)
        assert fallen(layer, roster, own) == {(m, 0) for m in range(n - t)}
        run = Parties(n, recovery={"threshold": t})
        uploads = [run.upload(m, range(n)) for m in range(n)]
        run.hand_over(own)
        assert share_read(run.read_both(0, uploads[0]), run.h[0]) == 1.0
        run.shares = {}
        run.hand_over(range(n - t + 1, n))
        with pytest.raises(RuntimeError, match=f"{t - 1} shares"):
            run.read_both(0, uploads[0])


def test_a_lying_server_without_recovery_needs_one_colluder():
    """It calls party 0 and the colluder, and nobody else."""
    layer, roster = SecureLayer(), Roster.singles(4)
    assert fallen(layer, roster, (), lies=True) == set()
    assert fallen(layer, roster, (3,), lies=True) == {(m, 0) for m in range(3)}
    run = Parties(4)
    left = run.upload(0, {0, 3})[0] + run.upload(3, {0, 3})[0]
    read = (left.astype("int64") - 2 * (LEVELS // 2)) * 8 / LEVELS - run.h[3].double().numpy()
    assert share_read(torch.from_numpy(read), run.h[0]) == 1.0


def test_a_lying_server_with_recovery_needs_as_many_as_the_table_says():
    for n in (4, 5):
        layer, roster = SecureLayer(recovery=Recovery()), Roster.singles(n)
        most = tolerated(layer, roster, lies=True)
        if most + 1 <= n - 2:
            assert two_stories(True, most + 1, "auto", n) == 1.0
        with pytest.raises(RuntimeError, match="reveals nothing"):
            two_stories(True, most, "auto", n)


def test_groups_shrink_what_a_sum_hides():
    """Of two groups, one colluder in each other group is enough; in its own group it reads nothing of the others."""
    layer, roster = SecureLayer(), Roster(((0, 1), (2, 3)))
    assert fallen(layer, roster, (0,)) == {(2, 0), (3, 0)}
    assert fallen(layer, roster, (0, 2)) == {(1, 0), (3, 0)}
    assert tolerated(layer, roster) == 0


def test_without_an_active_party_segments_hide_nothing_from_the_server_alone():
    layer, roster = SecureLayer("segments", allow_single=True), Roster.singles(3)
    assert fallen(layer, roster, ()) == {(0, 0), (1, 1), (2, 2)}
    assert tolerated(layer, roster) == -1


def test_the_page_has_the_table():
    text = Path(coalitions.PAGE).read_text(encoding="utf-8")
    made = f"{coalitions.BEGIN}\n\n{coalitions.table()}\n\n{coalitions.END}"
    assert made in text, "run python -m tests.coalitions"


# ---- several rounds of embeddings that do not change


def sets_of(layer, n):
    """The sets that parties accept, from the rules of the page: t parties or two."""
    least = 2 if layer.recovery is None else layer.recovery.needed(n)
    return [set(who) for count in range(least, n + 1) for who in itertools.combinations(range(n), count)]


def readable(sums, colluders, n):
    """Parties whose embedding is fixed by what is known, by the null space of the known sums."""
    known = [[float(m in who) for m in range(n)] for who in [*sums, *({m} for m in colluders)]]
    _, values, vectors = np.linalg.svd(np.array(known), full_matrices=True)
    free = vectors[int((values > 1e-9).sum()) :]  # what can change without changing a sum
    return {m for m in range(n) if m not in colluders and not (abs(free[:, m]) > 1e-9).any()}


@pytest.mark.parametrize("recovery", [None, Recovery(), Recovery(3)])
@pytest.mark.parametrize("n", [3, 4, further(5)])
def test_sums_over_all_sets_give_what_their_null_space_says(n, recovery):
    layer, roster = SecureLayer(recovery=recovery), Roster.singles(n)
    for count in range(n - 1):
        for who in itertools.combinations(range(n), count):
            if recovery is not None and count >= 2 * recovery.needed(n) - n:
                continue  # these put both secrets of a party together
            expected = {(m, 0) for m in readable(sets_of(layer, n), who, n)}
            assert fallen(layer, roster, who, lies=True, unchanged=True) == expected, (who, expected)
    alone = tolerated(layer, roster, lies=True, unchanged=True)
    assert (alone == -1) == (len(sets_of(layer, n)) > 1)


@pytest.mark.parametrize("recovery", [None, Recovery()])
@pytest.mark.parametrize("n", [3, 4])
def test_with_a_limit_of_no_record_several_rounds_give_what_one_gives(n, recovery):
    """Of two different sets, no honest party is in both: enumerated over all such families, and all coalitions."""
    layer, roster = SecureLayer(recovery=recovery), Roster.singles(n)
    for count in range(n - 1):
        for who in itertools.combinations(range(n), count):
            if recovery is not None and count >= 2 * recovery.needed(n) - n:
                continue
            families, read = [[]], set()
            for one in sets_of(layer, n):
                families += [[*f, one] for f in families if all(one & other <= set(who) for other in f)]
            for family in families[1:]:
                read |= readable(family, who, n)
            assert {m for m, _ in fallen(layer, roster, who, lies=True)} == read


def test_segments_are_sums_of_one_set_whoever_is_absent():
    layer, roster = SecureLayer("segments"), Roster.singles(4, active=0)
    for count in range(4):
        for who in itertools.combinations(range(4), count):
            assert fallen(layer, roster, who, True, True) == fallen(layer, roster, who)
