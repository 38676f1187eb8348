"""Networks that also draw in an evaluation: each batch and owner has draws of its own, the same after a load."""

from typing import ClassVar

import pytest
import torch
from torch import nn

from lightning_vfl import AsyncVFL, LaserVFL, SplitVFL
from lightning_vfl.aggregators import Mean
from tests.subjects import Blobs, trainer


class Noisy(nn.Module):
    """Adds noise in training and in evaluation; the class keeps the noise of evaluation."""

    seen: ClassVar[list[float]] = []

    def __init__(self, shape, outputs):
        super().__init__()
        self.layer = nn.Linear(shape[0] if isinstance(shape, tuple) else shape, outputs)

    def forward(self, x):
        noise = torch.randn(len(x), self.layer.out_features)
        if not self.training:
            self.seen.append(float(noise[0, 0]))
        return self.layer(x) + noise


class Top(Noisy):
    def __init__(self, width):
        super().__init__(width, 3)


def evaluation(folder, module, **more):
    Noisy.seen.clear()
    torch.manual_seed(int(torch.randint(99, ())))  # what was drawn before has no effect
    (scores,) = trainer(folder).test(module, datamodule=Blobs(batch_size=6), verbose=False, **more)
    assert len(set(Noisy.seen)) == len(Noisy.seen)
    return scores["test/loss"], list(Noisy.seen)


@pytest.mark.parametrize("protocol", [SplitVFL, AsyncVFL, LaserVFL])
def test_a_test_draws_the_same_after_the_fit_and_after_a_load(tmp_path, protocol):
    settings = {} if protocol is LaserVFL else {"top": Top}
    arguments = () if protocol is LaserVFL else (Mean(),)
    module = protocol(*arguments, bottom=Noisy, width=5, seed=0, **settings)
    t = trainer(tmp_path, max_epochs=1)
    t.fit(module, datamodule=Blobs(batch_size=9))
    path = tmp_path / "fitted.ckpt"
    t.save_checkpoint(path)
    expected = evaluation(tmp_path, module)
    assert len(expected[1]) >= 3 * 3  # three batches of three parties
    loaded = protocol.load_from_checkpoint(path, trusted=[__name__])
    assert evaluation(tmp_path, loaded) == expected
    assert evaluation(tmp_path, loaded)[1] != expected[1]  # the next rounds of a test
