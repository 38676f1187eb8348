"""Ends of a round that are played apart, over messages that travel, give what one process gives."""

from dataclasses import replace

import pytest
import torch

from lightning_vfl.aggregators.clear import wire_of
from lightning_vfl.aggregators.parts import Heard
from lightning_vfl.federation.letters import for_receiver, merged
from lightning_vfl.missing import Exclude
from lightning_vfl.rounds.exchange import decoded, passed_on
from tests.unit.aggregators.test_contract import FACTORIES, M, subject
from tests.unit.federation.test_letters import travelled


def played_apart(sub, roll, grad):
    """A round in which every party is a process of its own: the aggregate, and the gradients of all leaves."""
    alone = [sub.play(roll, hosted=(party,)) for party in range(M)]
    wire, view = wire_of(alone[0].aggregator), alone[0].server
    answering = tuple(party for party in range(M) if roll.responders[party])[: wire.needed(M)]
    sides = [wire_of(one.aggregator).party_side() for one in alone]
    ends = [side.upload(one.contribution, one.parties) for side, one in zip(sides, alone, strict=True)]
    server_side = wire.server_side()
    messages = []
    sent = [travelled(message) for party, end in enumerate(ends) if roll.included[party] and (message := next(end))]
    while sent:
        messages.append(merged(sent))
        relayed = passed_on(messages[-1])
        following = []
        for party in answering:
            received = None
            if relayed is not None:
                peers = relayed.to == "peers"
                received = merged([for_receiver(one, party, M) for one in sent]) if peers else relayed
            try:
                following.append(travelled(ends[party].send(Heard(view.roll.included, (party,), received))))
            except StopIteration:
                continue
        sent = following
    aggregate = decoded(server_side, Exclude(), messages, view)
    answer = server_side.answer(grad, aggregate, view)
    grads = {}
    for party, piece in zip(answer.receivers, answer.pieces, strict=True):
        own = travelled(replace(answer, receivers=(party,), pieces=(piece,)))
        grads[party] = sides[party].carry(own, alone[party].contribution, alone[party].parties)
    return aggregate, grads


@pytest.mark.parametrize("name", FACTORIES)
def test_ends_in_processes_of_their_own_give_the_bits_of_one_process(name):
    sub = subject(name)
    rolls = [roll for roll in sub.rolls.values() if bool(roll.included.any())]
    for roll in rolls:
        whole = sub.play(roll).exchange()
        whole.aggregate = whole.send()
        grad = torch.randn(whole.aggregate.value.shape, generator=torch.Generator().manual_seed(1))
        expected = whole.send_back(grad)
        aggregate, grads = played_apart(sub, roll, grad)
        assert torch.equal(aggregate.value, whole.aggregate.value)
        assert tuple(grads) == roll.included_parties
        for party, found in grads.items():
            assert torch.equal(found[0], expected[party])
    assert len(rolls) >= (1 if name.startswith("Lagrange") else 2)
