"""The public classes of the package, which ``__init__`` imports when one of them is first used."""

from .base import VerticalDataModule
from .partitioners.correlation import ColumnsByCorrelation
from .partitioners.groups import Groups
from .partitioners.importance import ColumnsByImportance
from .partitioners.informed import InformedPartitioner, TrainingRecords
from .partitioners.label_partition import LabelPartition
from .partitioners.missing_at_random import MissingAtRandom
from .partitioners.missing_party import MissingAtTest
from .partitioners.only_parties import OnlyParties
from .partitioners.overlap import LimitedOverlap
from .partitioners.partition import ContiguousColumns, Grid, NamedColumns, Partitioner, RandomColumns, RowStrips, Views
from .partitioners.shared_columns import OverlappingColumns
from .partitioners.uneven import DirichletColumns
from .record_splits import Folds, GivenSplit, GroupedSplit, RecordSplit, StratifiedLabels, TimeSplit
from .records.layout import Layout, Part
from .records.normalise import (
    Given,
    Normaliser,
    Standardise,
    StandardiseNumbers,
    StandardiseParty,
    StandardiseViews,
    Unchanged,
)
from .records.records import Records, Split, VerticalRecords
from .records.streamed_records import StreamedRecords
from .sets.adult import Adult
from .sets.arrays import Arrays
from .sets.bank_marketing import BankMarketing
from .sets.caltech7 import Caltech7
from .sets.cifar10 import CIFAR10
from .sets.credit_default import CreditDefault
from .sets.csv_tables import CSVTables
from .sets.emnist import EMNIST
from .sets.handwritten import Handwritten
from .sets.human_activity import HumanActivity
from .sets.image_folder import ImageFolderVFL
from .sets.mnist import MNIST, FashionMNIST
from .sets.model_net_views import ModelNet10Views
from .sets.multi_view import MultiView
from .sets.parkinson import Parkinson
from .sets.parquet_tables import ParquetTables
from .sets.phishing import Phishing
from .sets.scikit import BreastCancer, Digits

__all__ = [
    "CIFAR10",
    "EMNIST",
    "MNIST",
    "Adult",
    "Arrays",
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
    "Folds",
    "Given",
    "GivenSplit",
    "Grid",
    "GroupedSplit",
    "Groups",
    "Handwritten",
    "HumanActivity",
    "ImageFolderVFL",
    "InformedPartitioner",
    "LabelPartition",
    "Layout",
    "LimitedOverlap",
    "MissingAtRandom",
    "MissingAtTest",
    "ModelNet10Views",
    "MultiView",
    "NamedColumns",
    "Normaliser",
    "OnlyParties",
    "OverlappingColumns",
    "Parkinson",
    "ParquetTables",
    "Part",
    "Partitioner",
    "Phishing",
    "RandomColumns",
    "RecordSplit",
    "Records",
    "RowStrips",
    "Split",
    "Standardise",
    "StandardiseNumbers",
    "StandardiseParty",
    "StandardiseViews",
    "StratifiedLabels",
    "StreamedRecords",
    "TimeSplit",
    "TrainingRecords",
    "Unchanged",
    "VerticalDataModule",
    "VerticalRecords",
    "Views",
]
