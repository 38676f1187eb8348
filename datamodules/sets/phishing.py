"""Phishing Websites: one table of the UCI repository, an ARFF file."""

from io import StringIO
from pathlib import Path
from typing import Any

import numpy as np

from lightning_vfl.errors import ConfigurationError

from ..partitioners.partition import ContiguousColumns, Partitioner
from ..records.cells import Row, as_table, check_columns, refuse
from ..records.labelled import Labelled
from ..records.layout import Layout
from ..records.normalise import Unchanged
from .two_classes import TwoClassTable

_COLUMNS = (  # UCI's names, with UCI's spelling
    *("having_IP_Address", "URL_Length", "Shortining_Service", "having_At_Symbol", "double_slash_redirecting"),
    *("Prefix_Suffix", "having_Sub_Domain", "SSLfinal_State", "Domain_registeration_length", "Favicon"),
    *("port", "HTTPS_token", "Request_URL", "URL_of_Anchor", "Links_in_tags"),
    *("SFH", "Submitting_to_email", "Abnormal_URL", "Redirect", "on_mouseover"),
    *("RightClick", "popUpWidnow", "Iframe", "age_of_domain", "DNSRecord"),
    *("web_traffic", "Page_Rank", "Google_Index", "Links_pointing_to_page", "Statistical_report"),
)


class Phishing(TwoClassTable):
    """Phishing Websites: 11,055 records of 30 columns, two classes, 56 % of them legitimate sites.

    The folder holds ``Training Dataset.arff`` with columns in any order; here they are in UCI's. Every value is -1 (a
    sign of phishing), 0 (suspicious) or 1 (legitimate), and is read as a number. Label 1 is a legitimate site (1 in the
    file), label 0 a phishing site (-1). A record's id is its position in the file.

    PBM-VFL gives 6 columns to each of 5 parties (the default), or 3 to each of 10; its code takes them in the order
    of the file, as ``ContiguousColumns(5)`` and ``ContiguousColumns(10)`` do. It trains on 80 % of the records and
    keeps none for validation: ``val_share=0``.

    Values are not scaled: they have a common scale already. So nothing is fitted to the records, which would cost
    privacy budget, and a RightClick of -1, which one record in 23 has, does not become -4.7 as with ``Standardise``.

    Args:
        partitioner: who gets which columns; None: the default.
        expected_records: the number of records that the file must hold; None: any number.
        settings: further settings of ``TwoClassTable`` and ``VerticalDataModule``.

    Guarantee: the splits are stratified by class.
    Not guaranteed: that the file is the published one; only its form and the number of its records are checked. That
        test records are new to the model: the 11,055 records have 5,785 different rows of features, and two thirds of
        the test records have the features of some training record.

    Examples:
        >>> Phishing().party_shapes, Phishing().layout.columns[6:8]
        (((6,), (6,), (6,), (6,), (6,)), ('having_Sub_Domain', 'SSLfinal_State'))

    References:
        Mohammad and McCluskey, "Phishing Websites", UCI Machine Learning Repository, 2012,
        https://doi.org/10.24432/C51W2X. Parties and shares: Tran, Castiglia, Patterson and Milanova, "PBM-VFL: Vertical
        Federated Learning with Feature and Sample Privacy", appendix B.
    """

    known_bounds = (-1.0, 1.0)
    folder = "phishing"
    usual_partitioner = ContiguousColumns(5)
    usual_normaliser = Unchanged()
    layout = Layout((len(_COLUMNS),), _COLUMNS)  # known before the file is read
    files = ("Training Dataset.arff",)
    source = "https://archive.ics.uci.edu/dataset/327/phishing+websites"
    label = "Result"
    classes = (-1, 1)
    positive = "of a legitimate site"

    def __init__(
        self, partitioner: Partitioner | None = None, *, expected_records: int | None = 11_055, **settings: Any
    ) -> None:
        super().__init__(partitioner, expected_records=expected_records, **settings)

    def read(self) -> Labelled:
        path = self.path()
        names, rows = read_arff(path, self.source)
        check_columns(path, names, (*_COLUMNS, self.label), self.source)
        cells = as_table(path, rows, names, self.expected_records, self.source)
        for name in _COLUMNS:
            wrong = cells[name][~cells[name].isin(("-1", "0", "1"))]
            refuse(path, name, wrong, "are not -1, 0 or 1", "correct or remove the records")
        features = cells[[*_COLUMNS]].to_numpy().astype(np.float32)
        return Labelled(features, self.read_labels(path, cells), np.arange(len(features)), _COLUMNS)


def read_arff(path: Path, source: str) -> tuple[list[str], list[Row]]:
    """The names of the columns, and the rows of the body without blank lines and comments.

    scipy reads the head only: it would drop the surplus of a record that is too long, and its errors about values name
    no line.

    Raises:
        ConfigurationError: if the file cannot be read; ``source`` says where to get it.
    """
    try:
        lines = [line.strip() for line in path.read_text(encoding="utf-8-sig").splitlines()]
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigurationError(f"{path} cannot be read ({error}); fetch it again from {source}") from error
    begin = next((i for i, line in enumerate(lines, 1) if line.lower() == "@data"), None)
    if begin is None:
        raise ConfigurationError(f"{path} is not an ARFF file: it has no line '@data'; fetch it again from {source}")
    body = [(number, line) for number, line in enumerate(lines[begin:], begin + 1) if line and line[0] != "%"]
    rows = [(number, [field.strip() for field in line.split(",")]) for number, line in body]
    return _names(path, lines[:begin], source), rows


def _names(path: Path, head: list[str], source: str) -> list[str]:
    """The columns that the head declares, in its order."""
    from scipy.io import arff  # 0.1 s, where it is used

    try:
        data, _ = arff.loadarff(StringIO("\n".join(head) + "\n"))
    except Exception as error:  # scipy's errors for damaged heads have no common class
        raise ConfigurationError(
            f"the head of {path} cannot be read ({type(error).__name__}: {str(error).strip()}); fetch the file again "
            f"from {source}"
        ) from error
    return list(data.dtype.names or ())
