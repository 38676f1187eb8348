"""Mistakes of a first use in Python, each told in one line before training; codes stay codes."""

import warnings

import numpy as np
import pytest
import torch
from torch import nn
from torchmetrics.classification import BinaryF1Score

from lightning_vfl.aggregators import Mean
from lightning_vfl.datamodules import ParquetTables, Unchanged
from lightning_vfl.errors import ConfigurationError
from lightning_vfl.export.engines import open_program
from lightning_vfl.export.manifest import Engine, Manifest
from lightning_vfl.export.write import export_model
from tests.exported import one_registry
from tests.subjects import Blobs, split, trainer


def test_an_array_in_the_place_of_a_file():
    with pytest.raises(
        ConfigurationError, match=r"tables must give party 'bank' a file or a frame of .*; got a ndarray; make a frame"
    ):
        ParquetTables({"bank": np.ones(3)}, "bank", "y")


def test_one_metric_without_a_name():
    with pytest.raises(
        ConfigurationError, match=r"metrics=\{'binaryf1score': BinaryF1Score\(\)\}; got BinaryF1Score\(\)"
    ):
        split(metrics=BinaryF1Score())


def test_a_layer_of_torch_as_bottom(tmp_path):
    with pytest.raises(
        ConfigurationError, match=r"the bottom of party 0 cannot be built.*; a layer of torch takes a number and"
    ):
        trainer(tmp_path).fit(split(bottom=nn.Linear), datamodule=Blobs())


@pytest.mark.parametrize("part", ["bottom", "top"])
def test_a_function_that_forgets_to_return_its_network(part, tmp_path):
    with pytest.raises(ConfigurationError, match=rf"the factory of .*{part}.* returns must be a Module, .*; got None"):
        trainer(tmp_path).fit(split(**{part: lambda *shape: None}), datamodule=Blobs())


class Codes(Blobs):
    """Columns of codes from 0 to 999."""

    def load(self, names):
        splits = super().load(names)
        for own in splits.values():
            own.features.copy_((own.features.abs() * 1000).round() % 1000)
        return splits


@pytest.mark.parametrize(("precision", "told"), [("bf16-true", True), ("bf16-mixed", True), ("32-true", False)])
def test_codes_that_a_precision_rounds_are_told(precision, told, tmp_path):
    with warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("always")
        data = Codes(normaliser=Unchanged(), batch_size=9)
        trainer(tmp_path, precision=precision, max_epochs=1).fit(split(Mean()), datamodule=data)
    messages = [str(one.message) for one in found if "rounds columns of whole numbers" in str(one.message)]
    assert len(messages) == told
    assert all("of party '0'" in one and "use precision 32-true" in one for one in messages)


class Embedded(nn.Module):
    """The mean of the embeddings of a record's codes, of which there are five."""

    def __init__(self, shape, width):
        super().__init__()
        self.codes = nn.Embedding(5, width)

    def forward(self, features):
        return self.codes(features.long()).mean(1)


class FiveCodes(Codes):
    def load(self, names):
        splits = super().load(names)
        for own in splits.values():
            own.features.remainder_(5)
        return splits


@pytest.mark.slow  # test_arrays.py exports one too
def test_a_bottom_with_an_embedding_is_exported(tmp_path):
    """The oracle is the bottom itself, on records of all codes."""
    module, data = split(Mean(), bottom=Embedded, evaluate="plain"), FiveCodes(normaliser=Unchanged(), batch_size=9)
    data.setup("fit")
    module.build_for(data)
    module.fitted = data.fitted
    with one_registry():
        folder = export_model(module.eval(), tmp_path / "out")[0]
    manifest, (features, *_) = Manifest.read(folder), data.records("train").rows(torch.arange(30))
    for engine in Engine:
        found = open_program(folder, manifest, engine).run([features.numpy()])
        torch.testing.assert_close(torch.from_numpy(found), module.bottoms.parties[0](features).detach())
