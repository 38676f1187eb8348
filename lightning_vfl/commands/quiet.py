"""Hide warnings of libraries that a user of this toolkit can do nothing about."""

import logging
import warnings

_USELESS = (
    r".*does not have many workers",  # the data are in memory: workers would be slower
    r".*isinstance\(treespec, LeafSpec\)",  # lightning calls what torch deprecates
    r"The number of training batches .* is smaller than the logging interval",  # train/loss_epoch is logged anyway
    r"The dirpath has changed from .*",  # every run has a folder of its own
    r"Be aware that when using `ckpt_path`",  # testing needs no checkpoint callback
)


def hide_useless_warnings() -> None:
    """Filter these warnings, and Lightning's tips, for the rest of the process."""
    for message in _USELESS:
        warnings.filterwarnings("ignore", message=message)
    logging.getLogger("lightning.pytorch.utilities.rank_zero").addFilter(_is_no_tip)


def _is_no_tip(record: logging.LogRecord) -> bool:
    return "Tip: " not in record.getMessage()
