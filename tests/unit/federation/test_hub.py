"""The laws of the desk: one answer for a call, answers that are kept until they are fetched, rounds that are closed."""

from concurrent.futures import ThreadPoolExecutor
from time import monotonic, sleep

import pytest
import torch

from lightning_vfl.errors import MalformedFrame
from lightning_vfl.federation.agreed import Agreed, Limits
from lightning_vfl.federation.frames import pack, unpack
from lightning_vfl.federation.hub import At, Hub, Interrupted, Key, Request

ROUND = At(3, 2, 0)
GO = {"outcome": "go"}


def asked(call, at=ROUND, turn=0, say="tell", tensors=()):
    return pack({"call": call, "at": list(at), "turn": turn, "say": say}, tensors)


def closed(request):
    return pack({"outcome": "closed", "say": request.say})


@pytest.fixture
def hub():
    return Hub(2)


@pytest.fixture
def calls():
    with ThreadPoolExecutor(4) as pool:
        yield pool


def test_an_answer_waits_for_its_request(hub):
    hub.post(0, Key(ROUND, 0), GO, [torch.arange(3)])
    answer = unpack(hub.call(0, asked(0)))
    assert answer.header == GO
    assert answer.tensors[0].tolist() == [0, 1, 2]


def test_a_request_waits_for_its_answer(hub, calls):
    answer = calls.submit(hub.call, 0, asked(0, tensors=[torch.ones(2)]))
    request = hub.wait(lambda: hub.request(0, Key(ROUND, 0)), lambda: monotonic() + 30)
    assert (request.party, request.say, request.frame.tensors[0].tolist()) == (0, "tell", [1.0, 1.0])
    assert hub.waiting(0) is request
    assert hub.waiting(1) is None
    hub.post(1, Key(ROUND, 0), {"outcome": "another party's"})
    hub.post(0, Key(ROUND, 1), {"outcome": "another turn's"})
    assert not answer.done()
    hub.post(0, Key(ROUND, 0), GO)
    assert unpack(answer.result(30)).header == GO
    assert hub.waiting(0) is None


def test_an_answer_wakes_only_the_party_that_it_is_for(hub, calls):
    woken = []
    answer = calls.submit(hub.call, 1, asked(0), lambda: woken.append(monotonic()) or True)
    hub.wait(lambda: hub.request(1, Key(ROUND, 0)), lambda: monotonic() + 30)
    for call in range(20):
        hub.post(0, Key(ROUND, 0), GO)
        hub.call(0, asked(call))
    sleep(0.05)  # for a thread that was woken
    assert not woken
    hub.post(1, Key(ROUND, 0), GO)
    assert unpack(answer.result(30)).header == GO


def test_closing_a_round_wakes_only_the_requests_of_earlier_rounds(hub, calls):
    woken = []
    answer = calls.submit(hub.call, 1, asked(0), lambda: woken.append(monotonic()) or True)
    hub.wait(lambda: hub.request(1, Key(ROUND, 0)), lambda: monotonic() + 30)
    hub.close(ROUND, lambda request: pack({"outcome": "closed"}))
    sleep(0.05)  # for a thread that was woken
    assert not woken
    hub.close(ROUND._replace(round=ROUND.round + 1), lambda request: pack({"outcome": "closed"}))
    assert unpack(answer.result(30)).header == {"outcome": "closed"}


def test_a_repeated_call_gets_the_same_answer_and_has_one_effect(hub):
    hub.post(0, Key(ROUND, 0), GO)
    first = hub.call(0, asked(0))
    hub.post(0, Key(ROUND, 0), {"outcome": "of a second request"})
    assert hub.call(0, asked(0)) == first
    assert unpack(hub.call(0, asked(1))).header == {"outcome": "of a second request"}


def test_a_call_that_is_repeated_before_the_answer_gets_it_too(hub, calls):
    both = [calls.submit(hub.call, 0, asked(0)) for _ in range(2)]
    hub.wait(lambda: hub.request(0, Key(ROUND, 0)), lambda: monotonic() + 30)
    sleep(0.05)  # both wait
    hub.post(0, Key(ROUND, 0), GO)
    assert [unpack(one.result(30)).header for one in both] == [GO, GO]


def test_an_older_call_is_refused(hub):
    hub.post(0, Key(ROUND, 0), GO)
    hub.call(0, asked(5))
    with pytest.raises(ValueError, match="party 0 has sent call 4 after call 5"):
        hub.call(0, asked(4))


def test_a_new_call_ends_the_one_that_waits(hub, calls):
    first = calls.submit(hub.call, 0, asked(0))
    hub.wait(lambda: hub.request(0, Key(ROUND, 0)), lambda: monotonic() + 30)
    second = calls.submit(hub.call, 0, asked(1, turn=1))
    hub.wait(lambda: hub.request(0, Key(ROUND, 1)), lambda: monotonic() + 30)
    with pytest.raises(ValueError, match="party 0 has made another call"):
        first.result(10)
    hub.post(0, Key(ROUND, 1), GO)
    assert unpack(second.result(30)).header == GO


def test_requests_of_closed_rounds_are_answered_at_once(hub, calls):
    waiting = calls.submit(hub.call, 0, asked(0))
    hub.wait(lambda: hub.request(0, Key(ROUND, 0)), lambda: monotonic() + 30)
    hub.close(At(4, 2, 0), closed)
    assert unpack(waiting.result(30)).header == {"outcome": "closed", "say": "tell"}
    assert unpack(hub.call(1, asked(0, say="ready"))).header == {"outcome": "closed", "say": "ready"}


def test_an_answer_that_was_posted_before_the_end_of_its_round_is_kept(hub):
    hub.post(0, Key(ROUND, 0), GO)
    hub.close(At(9, 2, 0), closed)
    assert unpack(hub.call(0, asked(0))).header == GO


def test_the_end_answers_what_has_no_answer(hub, calls):
    waiting = calls.submit(hub.call, 0, asked(0))
    hub.wait(lambda: hub.request(0, Key(ROUND, 0)), lambda: monotonic() + 30)
    hub.post(1, Key(ROUND, 0), GO)
    hub.end({"outcome": "over"})
    assert unpack(waiting.result(30)).header == {"outcome": "over"}
    assert unpack(hub.call(1, asked(0))).header == GO
    assert unpack(hub.call(1, asked(1))).header == {"outcome": "over"}


def test_a_party_is_there_while_a_connection_is_open(hub, calls):
    assert not hub.present(0)
    hub.joined(0)
    hub.joined(0)  # it has connected again before the end of the first connection was noticed
    hub.left(0)
    assert hub.present(0)
    assert not hub.present(1)
    waiting = calls.submit(hub.call, 0, asked(0))
    hub.wait(lambda: hub.request(0, Key(ROUND, 0)), lambda: monotonic() + 30)
    hub.left(0)
    assert not hub.present(0)
    assert hub.waiting(0) is None  # nobody answers the dead
    with pytest.raises(Interrupted, match="party 0 has lost its connection; it may ask again"):
        waiting.result(10)
    hub.post(0, Key(ROUND, 0), GO)  # it was an earlier connection, and the party asks again
    assert unpack(hub.call(0, asked(0))).header == GO


def test_a_second_process_of_a_party_is_noticed(hub):
    hub.joined(0, b"one")
    assert not hub.runs_twice(0, b"one")
    assert hub.runs_twice(0, b"two")
    hub.joined(0, b"two")
    assert hub.runs_twice(0, b"two")
    hub.left(0, b"one")
    assert not hub.runs_twice(0, b"two")
    assert hub.present(0)


@pytest.mark.parametrize(
    ("listed", "tensors"), [("12", 2), ([1, 1], 2), ([1, 2, 3], 2), ([True], 1), ([1.0], 1), ({"1": 0}, 1), ([2], 0)]
)
def test_a_list_of_sealed_pieces_that_is_none_is_told_apart(listed, tensors):
    def request(header, pieces):
        content = pack({"call": 0, "at": [0, 0, 0], "turn": 0, "say": "tell", **header}, pieces)
        return Request(0, 0, Key(ROUND, 0), "tell", unpack(content), 0.0)

    piece = torch.arange(5, dtype=torch.uint8)
    assert request({"sealed": listed}, [piece] * tensors).sealed is None
    assert request({"sealed": [1]}, [piece.float()]).sealed is None
    assert request({}, [piece]).sealed == {}
    found = request({"sealed": [2, 1]}, [piece.float(), piece, piece + 1]).sealed
    assert {receiver: own.tolist() for receiver, own in found.items()} == {2: [0, 1, 2, 3, 4], 1: [1, 2, 3, 4, 5]}


def test_who_says_hello_begins_to_count_again(hub):
    hub.post(0, Key(ROUND, 0), GO)
    hub.call(0, asked(7))
    hub.post(0, Key(ROUND, 1), {"outcome": "of the process that is gone"})
    hub.greet = lambda request: pack({"outcome": "welcome"}) if request.say == "hello" else None
    hello = {"call": 0, "at": list(ROUND), "turn": 0, "say": "hello", "public": ["0" * 64, ""], "rounds": 0}
    assert unpack(hub.call(0, pack(hello))).header == {"outcome": "welcome"}
    hub.close(At(9, 2, 0), closed)
    assert unpack(hub.call(0, asked(1, turn=1))).header["outcome"] == "closed"


def test_waiting_ends_in_time(hub):
    began = monotonic()
    assert hub.wait(lambda: None, lambda: began + 0.05) is None
    assert 0.05 <= monotonic() - began < 20.0


@pytest.mark.parametrize(
    "content", [b"", b"LVFL", b"\0" * 100, pack({"at": [0, 0, 0]})[:-1], b"LVFL\2\0" + pack({})[6:]]
)
def test_what_is_no_frame_is_refused(hub, content):
    with pytest.raises(ValueError, match="frame"):
        hub.call(0, content)
    assert hub.waiting(0) is None


def test_a_frame_above_the_limit_is_refused():
    hub = Hub(1, Agreed.of(1, Limits(frame=1)))
    with pytest.raises(MalformedFrame, match="at most 1048576 are allowed here"):
        hub.call(0, asked(0, tensors=[torch.zeros(2**18)]))


@pytest.mark.parametrize(
    "header",
    [
        {},
        {"call": 0},
        {"call": "x", "at": [0, 0, 0], "turn": 0, "say": "tell"},
        {"call": 0, "at": [0, 0], "turn": 0, "say": "tell"},
        {"call": 0, "at": None, "turn": 0, "say": "tell"},
        {"call": 0, "at": [0, 0, 0], "turn": [], "say": "tell"},
    ],
)
def test_a_header_without_its_keys_is_refused(hub, header):
    with pytest.raises(ValueError, match="party 0"):
        hub.call(0, pack(header))
    assert hub.waiting(0) is None


def test_a_party_has_come_when_it_has_had_a_connection(hub):
    hub.joined(1)
    hub.left(1)
    assert not hub.all_have_come()
    hub.joined(0)
    assert hub.all_have_come()
