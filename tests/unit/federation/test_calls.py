"""Who is called: a party that comes back is called in the next round, however slow its link is."""

from concurrent.futures import ThreadPoolExecutor
from time import monotonic, sleep

import pytest

from lightning_vfl import SplitVFL
from lightning_vfl.aggregators import Mean
from lightning_vfl.federation.calls import Calls
from lightning_vfl.federation.frames import pack, unpack
from lightning_vfl.federation.hub import At, Hub
from lightning_vfl.missing import Exclude

FIRST, BOTH = (0,), (0, 1)  # who has learnt: party 0 alone, or both


def training(round):
    return At(round, 2, 0)


def ready(call, round):
    return pack({"call": call, "at": list(training(round)), "turn": -1, "say": "ready"})


class Server:
    """Rounds of two parties, in which party 0 learns alone."""

    def __init__(self):
        self.module = SplitVFL(Mean(), party_shapes=[(3,), (2,)], num_classes=2)
        self.module.configure_model()
        self.hub = Hub(2)
        self.calls = Calls(self.hub, injected=False, reconnect=5.0)
        for party in range(2):
            self.hub.joined(party, b"a process")

    def begin(self, round):
        self.calls.begin(self.module, training(round), Exclude())

    def end(self, round, learnt=FIRST):
        self.calls.call_next(training(round), learnt)
        self.calls.end(training(round), {0}, {})


@pytest.fixture
def server():
    one = Server()
    one.begin(4)
    one.end(4)  # party 1 was not there
    one.begin(5)
    return one


@pytest.fixture
def pool():
    with ThreadPoolExecutor(2) as made:
        yield made


def asked_late(server, pool):
    """Party 1 has come from round 2 to round 5, as it was told; the others are in round 6 when it asks again."""
    told = unpack(server.hub.call(1, ready(0, 2))).header
    assert (told["outcome"], told["standing"]["at"], told["standing"]["called"]) == ("closed", [5, 2, 0], [0])
    server.end(5)
    server.begin(6)
    answer, end = pool.submit(server.hub.call, 1, ready(1, 5)), monotonic() + 30
    server.hub.wait(lambda: server.hub.waiting(1), lambda: end)
    return answer


def test_a_party_that_asks_late_is_called_in_the_next_round(server, pool):
    answer = asked_late(server, pool)
    server.end(6)
    assert server.calls.called == {0, 1}
    sleep(0.05)  # the end of the round has woken it
    assert not answer.done()
    server.begin(7)
    told = unpack(answer.result(30)).header
    assert (told["outcome"], told["standing"]["at"], told["standing"]["called"]) == ("closed", [7, 2, 0], [0, 1])


def test_a_party_that_is_called_without_knowing_is_told_at_once(server, pool):
    server.end(5, BOTH)
    server.begin(6)  # in which party 1 is waited for
    for call in range(2):
        told = unpack(pool.submit(server.hub.call, 1, ready(call, 5)).result(30)).header
        assert (told["standing"]["at"], told["standing"]["called"]) == ([6, 2, 0], [0, 1])


def test_a_new_process_of_a_party_is_told_how_far_the_others_are(server, pool):
    asked_late(server, pool)
    server.hub.left(1, b"a process")
    server.hub.joined(1, b"another process")
    server.end(6)
    server.begin(7)
    told = unpack(pool.submit(server.hub.call, 1, ready(2, 6)).result(30)).header  # from a checkpoint of round 6
    assert (told["standing"]["at"], told["standing"]["called"]) == ([7, 2, 0], [0])


@pytest.fixture
def restarted(server):
    """In round 6, both are called; party 1 has uploaded, was killed, and is started again."""
    server.end(5, BOTH)
    server.begin(6)
    server.calls.keyed["train"] = (0, 1)
    server.hub.left(1, b"a process")
    server.hub.joined(1, b"another process")
    server.hub.greet = lambda request: pack({"outcome": "go"}) if request.say == "hello" else None
    server.hub.call(
        1, pack({"call": 0, "at": [-1, 0, 0], "turn": 0, "say": "hello", "public": ["0" * 64, ""], "rounds": 0})
    )
    return server


def test_a_new_process_is_not_called_in_the_place_of_the_old_one(restarted, pool):
    told = unpack(pool.submit(restarted.hub.call, 1, ready(1, 2)).result(30)).header
    assert (told["standing"]["at"], told["standing"]["called"]) == ([6, 2, 0], [0])
    assert not restarted.hub.stays(1)
    restarted.end(6, BOTH)  # the upload of the old process was in the round
    assert restarted.calls.called == {0}
    assert restarted.hub.present(1)


def test_a_new_process_that_waits_is_called_with_new_keys(restarted, pool):
    pool.submit(restarted.hub.call, 1, ready(1, 2)).result(30)
    answer, end = pool.submit(restarted.hub.call, 1, ready(2, 6)), monotonic() + 30
    restarted.hub.wait(lambda: restarted.hub.waiting(1), lambda: end)
    restarted.end(6, BOTH)
    assert restarted.calls.called == {0, 1}
    assert restarted.calls.keyed == {"train": (0,)}
    assert restarted.hub.stays(1)
    restarted.begin(7)
    assert unpack(answer.result(30)).header["standing"]["called"] == [0, 1]


def test_a_party_that_asks_late_in_the_last_round_comes_to_its_end(server, pool):
    answer = asked_late(server, pool)
    server.end(6)
    server.hub.end({"outcome": "over"})
    assert unpack(answer.result(30)).header["outcome"] == "closed"
    assert unpack(server.hub.call(1, ready(2, 6))).header["outcome"] == "closed"


def test_every_party_is_told_the_metrics_of_an_evaluation(server):
    evaluated, metrics = At(6, 1, 0), {"val/loss": 0.5}
    server.calls.tell_metrics(evaluated, metrics)
    asked = pack({"call": 0, "at": list(evaluated), "turn": 0, "say": "metrics"})
    assert [unpack(server.hub.call(party, asked)).header["metrics"] for party in range(2)] == [metrics] * 2
