"""What the engine of ONNX programs does besides running them."""

import subprocess
import sys

import pytest

RUN = """
import sys
from pathlib import Path
import numpy as np
from onnx import TensorProto, helper, save
from lightning_vfl.export.engines import OnnxRunner

value = lambda name: helper.make_tensor_value_info(name, TensorProto.FLOAT, [2])
graph = helper.make_graph([helper.make_node("Identity", ["x"], ["y"])], "g", [value("x")], [value("y")])
save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=8), sys.argv[1])
print(OnnxRunner(Path(sys.argv[1])).run([np.array([1, 2], np.float32)]))
"""


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere the package does not write into the home folder")
def test_the_engine_keeps_and_sends_no_data_about_its_use(tmp_path):
    """ONNX Runtime 1.32 otherwise writes a number of the machine and events for Microsoft into ~/.cache."""
    home = tmp_path / "home"
    home.mkdir()
    command = [sys.executable, "-c", RUN, str(tmp_path / "a.onnx")]
    done = subprocess.run(command, capture_output=True, text=True, check=True, env={"HOME": str(home)}, timeout=100)
    assert done.stdout == "[1. 2.]\n"
    assert not list(home.iterdir())
