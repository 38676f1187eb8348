"""Law: no answer is wrong and none is lost while one party is killed and started again, and another one is frozen."""

import pytest

from benchmarks.serving import prepare, under_kills
from lightning_vfl.aggregators import Sum


@pytest.mark.slow
@pytest.mark.processes
def test_no_answer_is_wrong_or_lost_while_parties_are_killed_and_frozen(tmp_path):
    prepare(tmp_path, Sum())
    row = under_kills(tmp_path, 24, pause=6)
    assert (row["wrong"], row["lost"]) == (0, 0)
    assert row["kills"] >= 1
    assert row["without a party"] > 20
    assert row["requests"] - row["without a party"] > 20
