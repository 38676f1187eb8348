"""The attacks on groups succeed where the training is refused, and fail where it is accepted."""

import pytest

from lightning_vfl.protocols import UpdateNoise
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


def test_sums_that_are_accepted_and_noise_leave_no_record():
    seen, truth = listen("linear", 128, 8, sum_updates_over=16, allow_invertible_updates=False)
    assert len(seen) == 2
    assert together("linear", seen, truth) == 0
    noise = UpdateNoise(clip=0.5, sigma=0.01, draws="seeded")
    seen, truth = listen("linear", 32, 1, update_noise=noise, allow_invertible_updates=False)
    assert together("linear", seen, truth) == 0


@pytest.mark.slow
def test_one_update_of_twice_the_width_gives_records_of_an_mlp():
    seen, truth = listen("MLP(64)", 128)
    assert alone(seen[0], truth) > 0
    assert refusal("MLP(64)", 128) == "refused: allow_invertible_updates"
