"""Vertical partitions of tabular, image and multi-view data."""

from .base import VerticalDataModule
from .credit_default import CreditDefault
from .csv_tables import CSVTables
from .idx_images import MNIST, FashionMNIST
from .multi_view import Handwritten
from .normalise import Normaliser, Standardise, StandardiseParty, Unchanged
from .partition import ContiguousColumns, Grid, Layout, NamedColumns, Part, Partitioner, RandomColumns, RowStrips, Views
from .records import Split, VerticalRecords
from .scikit import BreastCancer, Digits

__all__ = [
    "MNIST",
    "BreastCancer",
    "CSVTables",
    "ContiguousColumns",
    "CreditDefault",
    "Digits",
    "FashionMNIST",
    "Grid",
    "Handwritten",
    "Layout",
    "NamedColumns",
    "Normaliser",
    "Part",
    "Partitioner",
    "RandomColumns",
    "RowStrips",
    "Split",
    "Standardise",
    "StandardiseParty",
    "Unchanged",
    "VerticalDataModule",
    "VerticalRecords",
    "Views",
]
