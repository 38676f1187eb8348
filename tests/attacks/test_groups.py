"""The attacks on groups succeed where the training is refused."""

import pytest

from tests.attacks.groups import BOTTOMS, alone, listen, one_by_one, refusal, together


@pytest.mark.parametrize("bottom", BOTTOMS)
def test_one_update_of_a_small_batch_gives_every_record_and_is_refused(bottom):
    seen, truth = listen(bottom, 32)
    assert one_by_one(seen, truth) == len(truth) == 398
    assert refusal(bottom, 32) == "refused: allow_invertible_updates"


def test_several_updates_give_every_record_of_a_linear_bottom_in_batches_above_twice_its_width():
    seen, truth = listen("linear", 192, 4)
    assert together("linear", seen, truth) == len(truth)
    assert refusal("linear", 192, epochs=4) == "refused: allow_invertible_updates"


@pytest.mark.slow
def test_one_update_of_twice_the_width_gives_records_of_an_mlp():
    seen, truth = listen("MLP(64)", 128)
    assert alone(seen[0], truth) > 0
    assert refusal("MLP(64)", 128) == "refused: allow_invertible_updates"
