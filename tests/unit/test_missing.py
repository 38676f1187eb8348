"""What stands in for the missing, on every plain aggregator, against plain Python."""

from statistics import fmean

import pytest
import torch

import lightning_vfl.missing as room
from lightning_vfl.aggregators import Concat, Max, Mean, Sum
from lightning_vfl.missing import Exclude, LastMessage, MissingPolicy, Skip, Stale, Zeros
from lightning_vfl.rounds.exchange import Exchange
from lightning_vfl.types import Roll, Roster, RoundNames, Rows, Stage
from lightning_vfl.wire import Embeddings, PartyView, ServerView

M, B, D, N = 4, 3, 2, 8
JOIN = {Sum: sum, Mean: fmean, Max: max}
every_aggregator = pytest.mark.parametrize("aggregator", [Concat(), Sum(), Mean(), Max()], ids=repr)


def exchange(aggregator, policy, included, h, ids):
    included = torch.tensor(included, dtype=torch.bool)
    everybody, nobody = torch.ones(M, dtype=torch.bool), torch.zeros(M, dtype=torch.bool)
    filled = policy.plan(everybody, included)
    roll = Roll(everybody, included, included, nobody if filled is None else filled)
    names, roster, rows = RoundNames(0, Stage.FIT, 0), Roster.singles(M), Rows(ids, 0, len(ids))
    parties = PartyView(names, roster, tuple(range(M)), roll.called, rows, {})
    return Exchange(aggregator, Embeddings(h), parties, ServerView(names, roster, rows, roll, (D,) * M), policy)


def prepare(policy):
    if policy.memory is not None:
        policy.memory.prepare(N, (D,) * M, torch.device("cpu"))


def embeddings(seed):
    generator = torch.Generator().manual_seed(seed)
    return tuple((torch.randn(B, D, generator=generator)).requires_grad_() for _ in range(M))


def joined(aggregator, counted):
    """The aggregate of {party: (B, D) lists}, number by number."""
    if isinstance(aggregator, Concat):
        zeros = [[0.0] * D] * B
        return [[x for m in range(M) for x in counted.get(m, zeros)[b]] for b in range(B)]
    join = JOIN[type(aggregator)]
    return [[join([h[b][d] for h in counted.values()]) for d in range(D)] for b in range(B)]


@every_aggregator
@pytest.mark.parametrize("policy", [Exclude(), Zeros(), Stale(), LastMessage(), Skip()], ids=repr)
def test_three_rounds_with_others_missing(aggregator, policy):
    """Stale remembers by record, LastMessage by row; the second and third batch overlap the first in part."""
    prepare(policy)
    latest, last = {}, {}
    rounds = [([1, 1, 0, 1], [0, 1, 2]), ([0, 1, 1, 0], [2, 3, 0]), ([1, 0, 0, 1], [5, 0, 3])]
    for number, (included, ids) in enumerate(rounds):
        h = embeddings(number)
        value = exchange(aggregator, policy, included, h, torch.tensor(ids)).run()
        counted = {m: h[m].tolist() for m in range(M) if included[m]}
        last.update(counted)
        latest.update({(m, i): row for m, rows in counted.items() for i, row in zip(ids, rows, strict=True)})
        for m in [m for m in range(M) if not included[m]]:
            if isinstance(policy, Zeros):
                counted[m] = [[0.0] * D] * B
            if isinstance(policy, Stale):
                counted[m] = [latest.get((m, i), [0.0] * D) for i in ids]
            if isinstance(policy, LastMessage):
                counted[m] = last.get(m, [[0.0] * D] * B)
        counted = dict(sorted(counted.items()))
        for row, expected in zip(value.tolist(), joined(aggregator, counted), strict=True):
            assert row == pytest.approx(expected, rel=1e-5, abs=1e-6)
        grads = torch.autograd.grad(value.sum(), h, allow_unused=True)
        assert all(
            (g is not None and bool(g.any())) or isinstance(aggregator, Max) for m, g in enumerate(grads) if included[m]
        )
        assert all(g is None or not g.any() for m, g in enumerate(grads) if not included[m])


@every_aggregator
@pytest.mark.parametrize("make", [Exclude, Zeros, Stale, LastMessage])
def test_the_short_way_is_the_way_through_messages(aggregator, make):
    """Aggregators in the clear skip the messages of a round: the same bits, stand-ins included."""
    values = []
    for short in (True, False):
        policy = make()
        prepare(policy)
        for number, included in enumerate([[1, 1, 1, 1], [1, 0, 0, 1]]):
            one = exchange(aggregator, policy, included, embeddings(number), torch.tensor([1, 4, 2]))
            last = one.run() if short else one.send().value
        values.append(last.detach())
    assert torch.equal(*values)


def test_zeros_and_exclude_differ_on_a_sum_only_in_the_divisor():
    h, ids = embeddings(0), torch.tensor([0, 1, 2])
    by = {
        (type(a), type(p)): exchange(a, p, [1, 0, 1, 1], h, ids).run()
        for a in (Sum(), Mean())
        for p in (Zeros(), Exclude())
    }
    torch.testing.assert_close(by[Sum, Zeros], by[Sum, Exclude])
    torch.testing.assert_close(by[Mean, Zeros] * 4, by[Mean, Exclude] * 3)


def test_stale_goes_on_from_its_state():
    one, other = Stale(), Stale(table_dtype="float16")
    for policy in (one, other):
        prepare(policy)
    ids = torch.tensor([1, 4, 2])
    exchange(Mean(), one, [1, 1, 1, 1], embeddings(0), ids).run()
    other.memory.load(one.memory.state())
    assert one.memory.table.read(ids)[2].abs().sum() > 0
    torch.testing.assert_close(other.memory.table.read(ids)[2], one.memory.table.read(ids)[2], rtol=1e-3, atol=1e-3)
    with pytest.raises(RuntimeError, match="call prepare first"):
        _ = Stale().memory.table


def test_last_messages_of_other_lengths_and_after_a_checkpoint():
    one, other = LastMessage(), LastMessage()
    assert one.memory.state() == {}
    for policy in (one, other):
        prepare(policy)
    h = embeddings(0)
    exchange(Concat(), one, [1, 1, 1, 1], h, torch.tensor([1, 4, 2])).run()
    other.memory.load(one.memory.state())
    other.memory.move(torch.device("cpu"))
    for rows in (2, 3, 5):
        read = other.memory.recall([1], torch.arange(rows), torch.empty(rows, D))[0].tolist()
        assert read == (h[1].tolist() + [[0.0] * D] * 2)[:rows]
    nobody = exchange(Concat(), other, [0, 0, 0, 0], embeddings(1), torch.tensor([5, 6, 7])).run()
    assert torch.equal(nobody, torch.cat([x.detach() for x in h], 1))


@pytest.mark.parametrize(
    ("policy", "stands_in", "gives_up"),
    [
        (Exclude(), False, False),
        (Zeros(), True, False),
        (Stale(), True, False),
        (LastMessage(), True, False),
        (Skip(), False, True),
    ],
    ids=repr,
)
def test_the_plan_for_every_set_of_missing_parties(policy, stands_in, gives_up):
    held = torch.tensor([True, True, True, False])
    for included in torch.cartesian_prod(*[torch.tensor([False, True])] * 3):
        included = torch.cat([included, torch.tensor([False])])
        missing, planned = held & ~included, policy.plan(held, included)
        assert (planned is None) == (gives_up and bool(missing.any()))
        assert planned is None or torch.equal(planned, missing if stands_in else torch.zeros(4, dtype=torch.bool))
    assert (policy.stand_in is not None) == stands_in


def test_every_policy_is_here():
    assert set(room.__all__) == {"Exclude", "LastMessage", "MissingPolicy", "PadAfterNorm", "Skip", "Stale", "Zeros"}
    assert all(issubclass(getattr(room, name), MissingPolicy) for name in room.__all__)
