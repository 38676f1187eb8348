"""Hide warnings of libraries that a user can do nothing about, and print those of the toolkit as one line."""

import logging
import sys
import warnings
from pathlib import Path

_USELESS = (
    r".*does not have many workers",  # the data are in memory: workers would be slower
    r".*isinstance\(treespec, LeafSpec\)",  # lightning calls what torch deprecates
    r"The number of training batches .* is smaller than the logging interval",  # train/loss_epoch is logged anyway
    r"The dirpath has changed from .*",  # every run has a folder of its own
    r"Be aware that when using `ckpt_path`",  # testing needs no checkpoint callback
    r"Total length of `list` across ranks is zero",  # val_share: 0 is a choice
)
_TOOLKIT = ("lightning_vfl", "lightning_vfl.datamodules", "lightning_vfl.callbacks")  # folders of their own
_usual_form = warnings.formatwarning  # Lightning's, which vfl_cli has imported


def hide_useless_warnings() -> None:
    """Filter these warnings, Lightning's tips and what it says of signals, for the rest of the process."""
    for message in _USELESS:
        warnings.filterwarnings("ignore", message=message)
    for name in ("utilities.rank_zero", "trainer.connectors.signal_connector"):
        logging.getLogger(f"lightning.pytorch.{name}").addFilter(_is_of_use)


def one_line_each() -> None:
    """Print a warning of the toolkit without the place in its code, which is of no use to its reader."""
    warnings.formatwarning = _in_one_line


def _in_one_line(
    message: Warning | str, category: type[Warning], filename: str, lineno: int, line: str | None = None
) -> str:
    folders = [Path(str(sys.modules[name].__file__)).parent for name in _TOOLKIT if name in sys.modules]
    if any(Path(filename).is_relative_to(folder) for folder in folders):
        return f"warning: {message}\n"
    return _usual_form(message, category, filename, lineno, line)


def _is_of_use(record: logging.LogRecord) -> bool:
    said = record.getMessage()
    return not any(part in said for part in ("Tip: ", "Detected KeyboardInterrupt", "Received SIGTERM"))
