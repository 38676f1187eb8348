"""Who is in a round of real processes: the waiting rule of the recipe decides, also if a party stays silent."""

from concurrent.futures import ThreadPoolExecutor
from time import monotonic
from types import SimpleNamespace

import pytest
import torch

from lightning_vfl import SplitVFL
from lightning_vfl.aggregators import Mean
from lightning_vfl.federation.attendance import Form, Seen
from lightning_vfl.federation.frames import pack
from lightning_vfl.federation.hub import At, Hub, Key
from lightning_vfl.federation.letters import written
from lightning_vfl.missing import Exclude
from lightning_vfl.types import Roll
from lightning_vfl.waiting import Deadline, Fastest, WaitForAll
from lightning_vfl.wire import Message

KEY, ROWS, WIDTH = Key(At(0, 2, 0), 0), 5, 4


def upload(party, call=0):
    letter, tensors, _ = written(Message("embeddings", "server", (party,), (torch.ones(ROWS, WIDTH),)))
    header = {"call": call, "at": list(KEY.at), "turn": KEY.turn, "say": "tell", "part": "upload", "message": letter}
    return pack(header, tensors)


def called(parties):
    """The roll of a round in which all are called and nobody has come yet."""
    nobody = torch.zeros(parties, dtype=torch.bool)
    return Roll(~nobody, nobody, nobody, nobody)


@pytest.fixture
def threads():
    with ThreadPoolExecutor(4) as made:
        yield made


def met(waiting, threads, uploading, present=(0, 1, 2), restarted=()):
    """Who is in a round of three parties of which some upload, and the seconds of the wait."""
    module = SplitVFL(Mean(), width=WIDTH, waiting=waiting, party_shapes=[(3,)] * 3, num_classes=2)
    module.configure_model()
    hub, everybody = Hub(3), torch.ones(3, dtype=torch.bool)
    for party in present:
        hub.joined(party)
    hub.call_upon(range(3))
    for party in restarted:
        hub.left(party)
        hub.joined(party, b"another process")
    (leg,) = module.costs.legs(ROWS)
    module._trainer = SimpleNamespace(precision="32-true", accelerator=None)
    form = Form(module, hub.agreed, ROWS, clear=True)
    attendance, began = Seen(hub, KEY.at, form, called(3), 1, Exclude(), waiting), monotonic()
    arrived = threads.submit(attendance.await_leg, KEY.turn, leg, everybody)
    for party in uploading:
        threads.submit(hub.call, party, upload(party))
    try:
        return arrived.result(60).tolist(), monotonic() - began
    finally:
        for party in set(present) - set(restarted):
            hub.left(party)
        for party in restarted:
            hub.left(party, b"another process")
        hub.end({"outcome": "over"})


@pytest.mark.parametrize("waiting", [Deadline(0.15), WaitForAll(timeout=0.15), Fastest(3, timeout=0.15)])
def test_a_party_that_is_silent_delays_a_round_until_the_rule_closes_it(waiting, threads):
    arrived, seconds = met(waiting, threads, uploading=(0, 2))
    assert arrived == [True, False, True]
    assert 0.15 <= seconds < 20.0


def test_a_round_of_all_parties_ends_with_the_last_upload(threads):
    arrived, seconds = met(Deadline(60.0), threads, uploading=(0, 1, 2))
    assert arrived == [True, True, True]
    assert seconds < 20.0


def test_a_party_that_is_away_is_not_waited_for(threads):
    arrived, seconds = met(WaitForAll(), threads, uploading=(0, 2), present=(0, 2))
    assert arrived == [True, False, True]
    assert seconds < 20.0


def test_a_round_of_the_fastest_ends_with_their_uploads(threads):
    arrived, seconds = met(Fastest(2), threads, uploading=(0, 2))
    assert arrived == [True, False, True]
    assert seconds < 20.0


def test_a_party_that_was_started_again_in_the_round_is_not_waited_for(threads):
    arrived, seconds = met(WaitForAll(), threads, uploading=(0, 2), restarted=(1,))
    assert arrived == [True, False, True]
    assert seconds < 20.0
