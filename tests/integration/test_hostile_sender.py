"""One hostile sender, as a process of its own: memory of the process that reads, and the answers to another party."""

import pytest

from benchmarks.hostile import ANSWERS, SENDERS, measure, measure_party

pytestmark = [pytest.mark.slow, pytest.mark.processes]

LIMITS = {  # in frames of the charter
    "packed frame that grows 64 times": 4.0,
    "frame of the largest size": 4.0,
    "frames that stop half-way": 4.0,
    "frame of twice the size": 4.0,
    "frame as one message": 1.0,
    "declared shape of 1e8": 0.25,
    "60 open calls": 0.25,
    "1,200 idle connections": 2.0,
}
OF_A_SERVER = {  # in largest answers, a frame of every party; the server is asked eight times, and gRPC frees late
    "answer of the largest size": 4.0,
    "packed answer of the largest size": 5.0,
    "packed answer that grows 64 times": 0.25,
    "answer of twice the size": 0.25,
    "answer that stops half-way": 2.0,
    "answer as one message": 1.0,
}


@pytest.mark.parametrize("sender", LIMITS)
def test_one_sender_takes_a_bounded_part_of_the_servers_memory_and_no_answer_of_another_party(sender):
    assert {*LIMITS} == {*SENDERS} - {"nothing"}
    row = measure(sender)
    assert row["of a frame"] < LIMITS[sender], row
    assert row["another's answer, s"] < 4.0, row


@pytest.mark.parametrize("answer", OF_A_SERVER)
def test_a_hostile_server_takes_a_bounded_part_of_a_partys_memory(answer):
    assert {*OF_A_SERVER} == {*ANSWERS}
    row = measure_party(answer)
    assert row["of the largest answer"] < OF_A_SERVER[answer], row
