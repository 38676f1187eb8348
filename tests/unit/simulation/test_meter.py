import torch
from hypothesis import given
from hypothesis import strategies as st

from lightning_vfl.simulation.meter import CommunicationMeter
from lightning_vfl.wire import Leg

M = 3
legs = st.builds(
    lambda kind, to, elements, bits: Leg(kind, to, torch.tensor(elements), bits, torch.zeros(M)),
    st.sampled_from(["embeddings", "shares", "a/b"]),
    st.sampled_from(["server", "peers", "parties"]),
    st.lists(st.integers(0, 10**9), min_size=M, max_size=M),
    st.integers(1, 64),
)
DIRECTION = {"server": "up", "peers": "peer", "parties": "down"}


@given(st.lists(legs, max_size=6))
def test_bytes_are_the_sum_over_legs_of_whole_bytes(sent):
    meter = CommunicationMeter(M)
    expected = dict.fromkeys(DIRECTION.values(), 0)
    for leg in sent:
        meter.add(leg)
        expected[DIRECTION[leg.to]] += sum(-(-int(n) * leg.bits // 8) for n in leg.elements)
    assert {direction: int(meter.total(direction).sum()) for direction in expected} == expected


@given(st.lists(legs, max_size=4), st.lists(legs, max_size=4))
def test_a_restored_meter_counts_on(before, after):
    whole, first, second = CommunicationMeter(M), CommunicationMeter(M), CommunicationMeter(M)
    for leg in before:
        whole.add(leg)
        first.add(leg)
    second.load_state_dict(first.state_dict())
    for leg in after:
        whole.add(leg)
        second.add(leg)
    state = whole.state_dict()
    assert second.state_dict().keys() == state.keys()
    assert all(torch.equal(second.state_dict()[name], count) for name, count in state.items())


def test_only_senders_are_counted_and_states_are_copies():
    meter = CommunicationMeter(M)
    leg = Leg("x", "server", torch.tensor([1, 1, 1]), 8, torch.zeros(M))
    meter.add(leg, torch.tensor([True, False, True]))
    state = meter.state_dict()
    meter.add(leg)
    assert meter.total("up").tolist() == [2, 1, 2]
    assert state["up/x"].tolist() == [1, 0, 1]
