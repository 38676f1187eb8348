"""Phishing Websites: one table of the UCI repository, an ARFF file."""

from typing import Any

import numpy as np

from ..partitioners.partition import ContiguousColumns, Partitioner
from ..records.arff import read_arff
from ..records.cells import as_table, check_columns, refuse
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
