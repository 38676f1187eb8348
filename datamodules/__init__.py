"""Data sets of tables, images and views, and partitioners that divide their columns between parties."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .public import *

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
    "RecordSplit",
    "Records",
    "RowStrips",
    "Split",
    "Standardise",
    "StandardiseNumbers",
    "StandardiseParty",
    "StreamedRecords",
    "TimeSplit",
    "TrainingRecords",
    "Unchanged",
    "VerticalDataModule",
    "VerticalRecords",
    "Views",
]  # as in public.py


def __getattr__(name: str) -> Any:
    """Import the classes when one is used: reading an exported model's tables must not import Lightning (2.5 s)."""
    if name in __all__:
        return getattr(import_module(".public", __name__), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
