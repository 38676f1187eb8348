"""Phishing Websites: one table of the UCI repository, from its ARFF file."""

from collections.abc import Mapping
from functools import cached_property
from io import StringIO
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import torch
from lightning.pytorch.utilities import rank_zero_info

from lightning_vfl.errors import ConfigurationError

from .base import SplitName, VerticalDataModule, absent, data_folder
from .cells import as_table, check_classes, refuse
from .divided import Divided
from .normalise import Normaliser, Unchanged
from .partition import ContiguousColumns, Layout, Partitioner
from .records import Split
from .split import check_shares, split_rows

if TYPE_CHECKING:
    import pandas as pd

_FILE = "Training Dataset.arff"
_SOURCE = "https://archive.ics.uci.edu/dataset/327/phishing+websites"
_COLUMNS = (  # UCI's names, with UCI's spelling
    *("having_IP_Address", "URL_Length", "Shortining_Service", "having_At_Symbol", "double_slash_redirecting"),
    *("Prefix_Suffix", "having_Sub_Domain", "SSLfinal_State", "Domain_registeration_length", "Favicon"),
    *("port", "HTTPS_token", "Request_URL", "URL_of_Anchor", "Links_in_tags"),
    *("SFH", "Submitting_to_email", "Abnormal_URL", "Redirect", "on_mouseover"),
    *("RightClick", "popUpWidnow", "Iframe", "age_of_domain", "DNSRecord"),
    *("web_traffic", "Page_Rank", "Google_Index", "Links_pointing_to_page", "Statistical_report"),
)
_LABEL = "Result"
_VALUES, _CLASSES = ("-1", "0", "1"), ("-1", "1")


class Phishing(VerticalDataModule):
    """Phishing Websites: 11,055 records of 30 columns, two classes, 56 % of them legitimate sites.

    The folder holds ``Training Dataset.arff``, columns in any order; here they are in UCI's. Every value is -1 (a sign
    of phishing), 0 (suspicious) or 1 (legitimate), and is taken as a number. Label 1 is a legitimate site (1 in the
    file), label 0 a phishing site (-1). A record's id is its position in the file.

    PBM-VFL gives 6 columns to each of 5 parties, or 3 to each of 10; its code takes them in the order of the file, as
    ``ContiguousColumns(5)`` and ``ContiguousColumns(10)`` do. Its 80 % for training leave none for validation, which is
    ``val_share=0``.

    Values stay as they are: they have one scale already, that of the format. So nothing is fitted to the records, which
    a privacy budget would have to pay for, and what one record in 23 has (a RightClick of -1) does not become -4.7, as
    it would with ``Standardise``.

    Args:
        partitioner: who gets which columns; None: five parties with six columns each.
        normaliser: how each party scales its features; None: not at all.
        batch_size: rows of a batch in each process.
        seed: names the split and the order of the training records.
        drop_last: leave out the last, smaller batch of every training epoch.
        num_workers: worker processes; 0 is fastest for data in memory.
        pin_memory: for a faster way to a GPU.
        data_dir: folder of the file; None: ``$LIGHTNING_VFL_DATA/phishing``, else ``data/phishing``.
        val_share: share of the records for validation; 0: none.
        test_share: share of the records for testing (and prediction); 0: none.
        expected_records: records that the file must hold, so that one cut short is noticed; None: any number.

    Guarantee: the splits are stratified by class.
    Not guaranteed: that the file is the published one; only its form and the number of its records are checked. That
        test records are new to the model: the 11,055 records have 5,785 different rows of features, and two thirds of
        the test records share theirs with a training record.

    Raises:
        ConfigurationError: if there is no file, or one that cannot be read or does not hold these data.

    Examples:
        >>> Phishing().party_shapes, Phishing().layout.columns[6:8]
        (((6,), (6,), (6,), (6,), (6,)), ('having_Sub_Domain', 'SSLfinal_State'))

    References:
        Mohammad and McCluskey, "Phishing Websites", UCI Machine Learning Repository, 2012,
        https://doi.org/10.24432/C51W2X. Parties and shares: Tran, Castiglia, Patterson and Milanova, "PBM-VFL: Vertical
        Federated Learning with Feature and Sample Privacy", appendix B.
    """

    known_bounds = (-1.0, 1.0)
    data_settings = ("val_share", "test_share")

    def __init__(
        self,
        partitioner: Partitioner | None = None,
        normaliser: Normaliser | None = None,
        batch_size: int = 64,
        seed: int = 0,
        drop_last: bool = False,
        num_workers: int = 0,
        pin_memory: bool = False,
        data_dir: str | Path | None = None,
        val_share: float = 0.1,
        test_share: float = 0.2,
        expected_records: int | None = 11_055,
    ) -> None:
        super().__init__(partitioner, normaliser, batch_size, seed, drop_last, num_workers, pin_memory)
        check_shares(val_share, test_share)
        self.data_dir = data_folder(data_dir, "phishing")
        self.val_share = val_share
        self.test_share = test_share
        self.expected_records = expected_records

    @property
    def layout(self) -> Layout:
        return Layout((len(_COLUMNS),), _COLUMNS)

    @property
    def num_classes(self) -> int:
        return 2

    @property
    def pos_weight(self) -> float:
        """Phishing sites in training for each legitimate one, to even out the classes.

        Such as ``Binary(torch.nn.BCEWithLogitsLoss(pos_weight=torch.tensor(data.pos_weight)))``.

        Raises:
            ConfigurationError: if no training record is a legitimate site.
        """
        return self._table.pos_weight(type(self).__name__, "is a legitimate site")

    def default_partitioner(self) -> Partitioner:
        return ContiguousColumns(5)

    def default_normaliser(self) -> Normaliser:
        return Unchanged()

    def load(self, names: tuple[SplitName, ...]) -> Mapping[SplitName, Split]:
        return self._table.splits(names)

    # ---- inside

    @cached_property
    def _table(self) -> Divided:
        path = self.data_dir / _FILE
        if not path.is_file():
            raise absent(self.data_dir, f"data of {type(self).__name__}", f"'{_FILE}' from {_SOURCE}")
        cells = _cells(path, self.expected_records)
        for name in _COLUMNS:
            values = cells[name]
            refuse(path, name, values[~values.isin(_VALUES)], "are not -1, 0 or 1", "correct or remove the records")
        classes = cells[_LABEL]
        refuse(path, _LABEL, classes[~classes.isin(_CLASSES)], "are neither -1 nor 1", "write 1 for a legitimate site")
        check_classes(path, classes, _SOURCE)
        labels = np.asarray(classes == "1", dtype=np.int64)
        rows = split_rows(np.arange(len(labels)), self.seed, self.val_share, self.test_share, labels)
        rank_zero_info(
            f"{type(self).__name__}: {len(labels)} records of {path.name}, {labels.sum()} of them "
            f"({labels.mean():.1%}) legitimate"
        )
        features = cells[list(_COLUMNS)].to_numpy().astype(np.float32)
        return Divided(np.arange(len(labels)), torch.from_numpy(features), torch.from_numpy(labels), rows)


def _cells(path: Path, expected: int | None) -> "pd.DataFrame":
    """The values of the file as text, under the names of its head; the index is the line, counted from 0."""
    try:
        lines = [line.strip() for line in path.read_text(encoding="utf-8-sig").splitlines()]
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigurationError(f"{path} cannot be read ({error}); fetch it again from {_SOURCE}") from error
    begin = next((i for i, line in enumerate(lines, 1) if line.lower() == "@data"), None)
    if begin is None:
        raise ConfigurationError(
            f"{path} is no ARFF file: it has no line '@data'; put the file with this name from {_SOURCE} there"
        )
    names = _names(path, lines[:begin])
    # scipy takes the head only: of a record too long it drops the end, and it does not say where a value is wrong
    body = [(number, line) for number, line in enumerate(lines[begin:], begin + 1) if line and line[0] != "%"]
    records = [(number, [field.strip() for field in line.split(",")]) for number, line in body]
    return as_table(path, records, names, expected, _SOURCE)


def _names(path: Path, head: list[str]) -> list[str]:
    """The columns that the head of the file declares, in its order."""
    from scipy.io import arff  # 0.1 s, where it is used

    try:
        data, _ = arff.loadarff(StringIO("\n".join(head) + "\n"))
    except Exception as error:  # what scipy raises of a damaged head has no class in common
        raise ConfigurationError(
            f"the head of {path} cannot be read ({type(error).__name__}: {str(error).strip()}); fetch it again from "
            f"{_SOURCE}"
        ) from error
    names = list(data.dtype.names or ())
    wanted = (*_COLUMNS, _LABEL)
    faults = {
        "missing": [name for name in wanted if name not in names],
        "unknown": [name for name in names if name not in wanted],
    }
    if told := [f"{what}: {', '.join(which)}" for what, which in faults.items() if which]:
        raise ConfigurationError(
            f"{path} has {len(names)} columns that are not the {len(_COLUMNS)} features and the label "
            f"({'; '.join(told)}); correct its columns or fetch it again from {_SOURCE}"
        )
    return names
