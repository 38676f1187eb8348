"""Vertical partitions of tabular, image and multi-view data."""

from .adult import Adult
from .bank_marketing import BankMarketing
from .base import VerticalDataModule
from .caltech7 import Caltech7
from .cifar10 import CIFAR10
from .correlation import ColumnsByCorrelation
from .credit_default import CreditDefault
from .csv_tables import CSVTables
from .emnist import EMNIST
from .groups import Groups
from .handwritten import Handwritten
from .human_activity import HumanActivity
from .idx_images import MNIST, FashionMNIST
from .image_folder import ImageFolderVFL
from .importance import ColumnsByImportance
from .informed import InformedPartitioner, TrainingRecords
from .label_partition import LabelPartition
from .missing_party import MissingAtTest
from .model_net_views import ModelNet10Views
from .multi_view import MultiView
from .normalise import Given, Normaliser, Standardise, StandardiseNumbers, StandardiseParty, Unchanged
from .overlap import LimitedOverlap
from .parkinson import Parkinson
from .partition import ContiguousColumns, Grid, Layout, NamedColumns, Part, Partitioner, RandomColumns, RowStrips, Views
from .phishing import Phishing
from .records import Records, Split, VerticalRecords
from .scikit import BreastCancer, Digits
from .shared_columns import OverlappingColumns
from .streamed_records import StreamedRecords
from .uneven import DirichletColumns

__all__ = [
    "CIFAR10",
    "EMNIST",
    "MNIST",
    "Adult",
    "BankMarketing",
    "BreastCancer",
    "CSVTables",
    "Caltech7",
    "ColumnsByCorrelation",
    "ColumnsByImportance",
    "ContiguousColumns",
    "CreditDefault",
    "Digits",
    "DirichletColumns",
    "FashionMNIST",
    "Given",
    "Grid",
    "Groups",
    "Handwritten",
    "HumanActivity",
    "ImageFolderVFL",
    "InformedPartitioner",
    "LabelPartition",
    "Layout",
    "LimitedOverlap",
    "MissingAtTest",
    "ModelNet10Views",
    "MultiView",
    "NamedColumns",
    "Normaliser",
    "OverlappingColumns",
    "Parkinson",
    "Part",
    "Partitioner",
    "Phishing",
    "RandomColumns",
    "Records",
    "RowStrips",
    "Split",
    "Standardise",
    "StandardiseNumbers",
    "StandardiseParty",
    "StreamedRecords",
    "TrainingRecords",
    "Unchanged",
    "VerticalDataModule",
    "VerticalRecords",
    "Views",
]
