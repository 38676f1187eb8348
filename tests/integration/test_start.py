"""What a fit imports: packages of seconds are imported by what uses them, and not by every command."""

import json
import os
import subprocess
import sys

import pytest

HEAVY = {  # numba and galois take 1 s each, wandb 0.7 s; the others are optional, or used by one command or setting
    *("alembic", "comet_ml", "dask", "distributed", "dp_accounting", "galois", "grpc", "llvmlite", "mlflow", "numba"),
    *("onnx", "onnxruntime", "onnxscript", "optuna", "phe", "pooch", "ray", "sqlalchemy", "tenseal", "tensorboard"),
    *("wandb",),
}


@pytest.mark.slow
@pytest.mark.processes
def test_a_fit_of_digits_imports_no_heavy_package(tmp_path):
    words = ["fit", "--config", "data/digits", "--config", "protocol/mean", "--config", "trainer/cpu"]
    words += ["--trainer.max_steps=1", "--trainer.enable_progress_bar=false"]
    code = "import sys, json; from lightning_vfl.cli import main; main(json.loads(sys.argv[1]))\n"
    code += "print('\\nimported:', *{name.split('.')[0] for name in sys.modules})"
    home = {"HOME": "/dev/null/home"}  # which nobody can write
    unset = ("MPLCONFIGDIR", "XDG_CONFIG_HOME", "XDG_CACHE_HOME")
    env = {name: value for name, value in os.environ.items() if name not in unset} | home
    arguments = [sys.executable, "-c", code, json.dumps(words)]
    done = subprocess.run(arguments, cwd=tmp_path, env=env, capture_output=True, text=True, check=True)
    assert "atplotlib" not in done.stderr
    imported = set(done.stdout.splitlines()[-1].split()[1:])
    assert {"torch", "lightning", "sklearn"} <= imported
    assert not imported & HEAVY
