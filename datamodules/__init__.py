"""Vertical partitions of tabular, image and multi-view data."""

from .adult import Adult
from .bank_marketing import BankMarketing
from .base import VerticalDataModule
from .credit_default import CreditDefault
from .csv_tables import CSVTables
from .groups import Groups
from .idx_images import MNIST, FashionMNIST
from .multi_view import Handwritten
from .normalise import Normaliser, Standardise, StandardiseNumbers, StandardiseParty, Unchanged
from .partition import ContiguousColumns, Grid, Layout, NamedColumns, Part, Partitioner, RandomColumns, RowStrips, Views
from .phishing import Phishing
from .records import Split, VerticalRecords
from .scikit import BreastCancer, Digits

__all__ = [
    "MNIST",
    "Adult",
    "BankMarketing",
    "BreastCancer",
    "CSVTables",
    "ContiguousColumns",
    "CreditDefault",
    "Digits",
    "FashionMNIST",
    "Grid",
    "Groups",
    "Handwritten",
    "Layout",
    "NamedColumns",
    "Normaliser",
    "Part",
    "Partitioner",
    "Phishing",
    "RandomColumns",
    "RowStrips",
    "Split",
    "Standardise",
    "StandardiseNumbers",
    "StandardiseParty",
    "Unchanged",
    "VerticalDataModule",
    "VerticalRecords",
    "Views",
]
