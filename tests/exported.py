"""What the tests of exported models share: models with random weights, and tables of predictions to compare."""

import logging
from contextlib import contextmanager
from functools import cache

import numpy as np
import pandas as pd
import pytest
from torch.onnx._internal.exporter._registration import ONNXRegistry

import lightning_vfl.datamodules as d
from lightning_vfl.callbacks import PredictionWriter
from lightning_vfl.export.manifest import Engine
from tests.subjects import Blobs, split, trainer

CLOSE = {Engine.TORCH: 1e-6, Engine.ONNX: 1e-5}


_operators = cache(ONNXRegistry.from_torchlib)


@contextmanager
def one_registry():
    """torch builds the table of its ONNX operators anew for every export, which takes half a second."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ONNXRegistry, "from_torchlib", staticmethod(_operators))
        patch.setattr(logging.getLogger("torch.__trace"), "propagate", False)  # pytest would format each record
        yield


def built(aggregator, partitioner=None, data=None, **settings):
    """A module with random weights, and the data whose scaling it has."""
    module = split(aggregator, evaluate="plain", **settings)
    data = data or Blobs(partitioner or d.ContiguousColumns(4), batch_size=10)
    data.setup("fit")
    module.build_for(data)
    module.fitted = data.fitted
    return module.eval(), data


def predictions(module, data, folder):
    """What ``predict`` writes."""
    writer = PredictionWriter(str(folder / "p.csv"))
    trainer(folder, callbacks=[writer]).predict(module, datamodule=data)
    return pd.read_csv(folder / "p.csv")


def assert_close(found, expected, atol):
    """The same table, and the same numbers to a tolerance."""
    numbers = [name for name in expected if expected[name].dtype.kind == "f"]
    assert found.columns.tolist() == expected.columns.tolist()
    assert found.drop(columns=numbers).astype(str).equals(expected.drop(columns=numbers).astype(str))
    np.testing.assert_allclose(found[numbers], expected[numbers], atol=atol, rtol=atol)
