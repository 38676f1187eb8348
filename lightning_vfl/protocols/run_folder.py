"""The folder of a run."""

import os
from typing import Any


def run_folder(trainer: Any) -> str:
    """The folder that contains the folder of checkpoints: that of the first logger, else ``default_root_dir``.

    Lightning's ``trainer.log_dir`` is another folder for loggers other than those of CSV files and TensorBoard.
    """
    if not trainer.loggers:
        return str(trainer.default_root_dir)
    logger = trainer.loggers[0]
    version = logger.version if isinstance(logger.version, str) else f"version_{logger.version}"
    return os.path.join(logger.save_dir or trainer.default_root_dir, str(logger.name), version)
