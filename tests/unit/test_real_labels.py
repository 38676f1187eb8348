"""R² against scikit-learn, far from 0 too."""

import pytest
import torch
from sklearn.metrics import r2_score

from lightning_vfl.real_labels import RSquared


@pytest.mark.parametrize("shift", [0.0, 100.0, 10_000.0])
@pytest.mark.parametrize("shape", [(500,), (500, 3)])
def test_r_squared_is_that_of_scikit_learn(shift, shape):
    generator = torch.Generator().manual_seed(0)
    labels = torch.randn(shape, generator=generator) + shift
    predicted = labels + torch.randn(shape, generator=generator) / 2
    metric = RSquared()
    for _ in range(2):
        for part in range(0, 500, 90):
            metric.update(predicted[part : part + 90], labels[part : part + 90])
        assert float(metric.compute()) == pytest.approx(
            r2_score(labels.double().numpy(), predicted.double().numpy()), abs=1e-9
        )
        metric.reset()
