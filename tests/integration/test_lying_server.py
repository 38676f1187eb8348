"""A server that lies, over real processes: parties end before their embeddings can be computed from sums."""

import pytest
import torch
import yaml

from lightning_vfl.privacy import PrivacyLedger
from tests.integration.test_federated import MASKED, VARYING

pytestmark = [pytest.mark.slow, pytest.mark.processes]

PATIENT = ("--model.waiting", "WaitForAll", "--model.waiting.timeout", "30")
LIMIT = 100  # subtractable records of every seat


def sends_zeros():
    """In the server's process: the gradients that parties get are zero."""
    from lightning_vfl.federation import answers

    arrived = answers._Arrived.backward

    def zeros(ctx, *grads):
        return arrived(ctx, *map(torch.zeros_like, grads))

    answers._Arrived.backward = staticmethod(zeros)


def leaves_one_out():
    """In the server's process: of the parties whose uploads have come, another one is left out in every epoch."""
    from lightning_vfl.federation.attendance import Seen

    include = Seen.include

    def chosen(self, arrived):
        lacking = self.form.module.current_epoch % (len(arrived) + 1) - 1  # nobody in the first epoch
        kept = arrived.clone()
        if lacking >= 0 and bool(arrived.all()):
            kept[lacking] = False
        return include(self, kept)

    Seen.include = chosen


def test_every_party_refuses_a_server_that_sends_zero_gradients_for_an_epoch(federation):
    one = federation(("--config", "protocol/mean", *MASKED), epochs=5, join=60, reconnect=3)
    one.before["scorer"] = sends_zeros
    one.everybody()
    one.wait(90)
    batches = -(-1257 // 32)
    for number, name in enumerate(one.names):
        assert f"the server has sent party {number} only zero gradients for {batches} rounds" in one.log(name)
    assert max(int(row["round"]) for row in one.rounds()) == batches - 1


def test_the_others_refuse_a_server_that_chooses_who_is_absent_before_the_limit_is_passed(federation):
    """Four parties of which three suffice: without a limit, every embedding is the difference of two sums."""
    recipe = ("--config", "protocol/mean", *MASKED, "--model.aggregator.recovery", "auto", *PATIENT, *VARYING)
    one = federation(recipe, epochs=6, join=60, reconnect=3)
    for name in one.names:
        seat = one.folder / f"{name}.yaml"
        seat.write_text(yaml.safe_dump({**yaml.safe_load(seat.read_text()), "subtractable_records": LIMIT}))
    one.before["scorer"] = leaves_one_out
    one.everybody()
    one.wait(90, one.names[1:])
    for number, name in enumerate(one.names[1:], 1):
        line = f"party {number} takes part in no more sums, because party 0's embeddings of 128 records can be computed"
        assert line in one.log(name)
    assert "a party was left out of sums of records that it was in before: party 0's" in one.log("party0")
    ledgers = [PrivacyLedger.read(one.folder / f"{name}.privacy.jsonl")[0] for name in one.names]
    assert [sum(ledger.left_out.values()) for ledger in ledgers] == [3, 0, 0, 0]  # the fourth round was not to be
    for ledger in ledgers:
        (sums,) = ledger.sums.values()
        assert {one.parties for one in sums} == {(0, 1, 2, 3), (1, 2, 3)}
    (sums,) = ledgers[0].sums.values()
    assert sum(len(one.records) for one in sums if one.parties == (1, 2, 3)) == 96
