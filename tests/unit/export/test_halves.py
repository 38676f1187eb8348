"""A party's half scales in the precision of its scaling."""

import sys

import pytest
import torch

from lightning_vfl.errors import ConfigurationError
from lightning_vfl.export import programs
from lightning_vfl.export.engines import OnnxRunner
from lightning_vfl.export.halves import PartyNetwork


def test_seconds_of_a_day_are_not_lost_in_times_since_1970():
    times = torch.tensor([[1.7e9], [1.7e9 + 1], [1.7e9 + 2]], dtype=torch.float64)  # float32 has steps of 128 there
    network = PartyNetwork(torch.nn.Identity(), (1,), times.mean(0), torch.ones(1, dtype=torch.float64))
    found = network(times)
    assert found.dtype == torch.float32
    assert found.flatten().tolist() == [-1.0, 0.0, 1.0]


def test_a_missing_package_is_told_with_what_to_install(monkeypatch, tmp_path):
    monkeypatch.setattr(programs, "NEEDED", ("torch", "onnx_of_nobody"))
    with pytest.raises(
        ConfigurationError, match=r"needs the package onnx_of_nobody; pip install .lightning-vfl\[export"
    ):
        programs.require_packages()
    monkeypatch.setitem(sys.modules, "onnxruntime", None)
    with pytest.raises(ConfigurationError, match=r"engine onnx needs the package onnxruntime; .* --engine torch"):
        OnnxRunner(tmp_path / "party.onnx")
