"""Loggers that need an account or a server say in one line what to do."""

import pytest

from lightning_vfl.cli import run
from lightning_vfl.errors import ConfigurationError
from tests.integration.test_loggers import BASE, LOUD, QUIET

NEEDS = {
    "WandbLogger": ("wandb", "W&B has no API key; run wandb login, or add --trainer.logger.offline true"),
    "CometLogger": ("comet_ml", "Comet has no API key; set COMET_API_KEY, or COMET_START_ONLINE=0"),
    "MLFlowLogger": ("mlflow", "add --trainer.logger.tracking_uri sqlite:///runs.db"),
}


def louder(test):
    for mark in LOUD:
        test = mark(test)
    return test


@pytest.mark.slow
@pytest.mark.parametrize("logger", NEEDS)
@louder
def test_an_account_that_is_missing_is_one_line(logger, tmp_path, monkeypatch):
    package, line = NEEDS[logger]
    pytest.importorskip(package)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))
    for name in ("WANDB_API_KEY", "WANDB_MODE", "COMET_API_KEY", "COMET_START_ONLINE", "MLFLOW_ALLOW_FILE_STORE"):
        monkeypatch.delenv(name, raising=False)
    with pytest.raises(ConfigurationError) as told:
        run([*BASE, *QUIET, "--trainer.logger", logger])
    assert line in str(told.value)
    assert "\n" not in str(told.value)
