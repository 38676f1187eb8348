"""Vertical partitions of tabular, image and multi-view data."""

from .adult import Adult
from .bank_marketing import BankMarketing
from .base import VerticalDataModule
from .caltech7 import Caltech7
from .cifar10 import CIFAR10
from .credit_default import CreditDefault
from .csv_tables import CSVTables
from .groups import Groups
from .handwritten import Handwritten
from .human_activity import HumanActivity
from .idx_images import MNIST, FashionMNIST
from .label_partition import LabelPartition
from .model_net_views import ModelNet10Views
from .multi_view import MultiView
from .normalise import Normaliser, Standardise, StandardiseNumbers, StandardiseParty, Unchanged
from .overlap import LimitedOverlap
from .parkinson import Parkinson
from .partition import ContiguousColumns, Grid, Layout, NamedColumns, Part, Partitioner, RandomColumns, RowStrips, Views
from .phishing import Phishing
from .records import Split, VerticalRecords
from .scikit import BreastCancer, Digits

__all__ = [
    "CIFAR10",
    "MNIST",
    "Adult",
    "BankMarketing",
    "BreastCancer",
    "CSVTables",
    "Caltech7",
    "ContiguousColumns",
    "CreditDefault",
    "Digits",
    "FashionMNIST",
    "Grid",
    "Groups",
    "Handwritten",
    "HumanActivity",
    "LabelPartition",
    "Layout",
    "LimitedOverlap",
    "ModelNet10Views",
    "MultiView",
    "NamedColumns",
    "Normaliser",
    "Parkinson",
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
