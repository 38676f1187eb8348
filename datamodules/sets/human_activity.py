"""Human Activity Recognition Using Smartphones: the text files of UCI, or the two CSV files of Kaggle."""

from collections.abc import Mapping
from dataclasses import replace
from functools import cached_property
from typing import Any

from lightning_vfl.errors import ConfigurationError

from ..partitioners.partition import ContiguousColumns, Partitioner
from ..records.activity_files import ACTIVITIES, COLUMNS, UCI, read_csv, read_texts
from ..records.folders import missing_files
from ..records.labelled import Labelled
from ..records.layout import Layout
from ..records.normalise import Unchanged
from .published import PublishedPart, PublishedShare


class HumanActivity(PublishedShare):
    """Human activity from smartphones: 10,299 records of 561 columns, six classes.

    The folder holds the files of UCI (``features.txt``, ``train/X_train.txt``, ``train/y_train.txt`` and those of
    ``test``), itself or in its folder ``UCI HAR Dataset``, or the two of Kaggle (``train.csv``, ``test.csv``); UCI's
    are preferred. Columns keep their order and UCI's names; a repeated name gets ``.1`` or ``.2`` appended. Labels 0 to
    5 are the activities in UCI's order: walking, walking upstairs, walking downstairs, sitting, standing, laying. The
    7,352 records published for training are those for training and validation, the 2,947 others those for testing and
    prediction; a record's id is its position in its file.

    PBM-VFL gives 112 columns to each of 5 parties (the default), or 56 to each of 10, and leaves out the last column,
    the angle between the Z axis and gravity; so do ``ContiguousColumns(5)`` and ``ContiguousColumns(10)`` here. It
    keeps no records for validation: ``val_share=0``. Values are not scaled: the authors have scaled every column to
    [-1, 1].

    Args:
        partitioner: who gets which columns; None: the default.
        drop_last_column: leave out the last of the 561 columns, as PBM-VFL does.
        expected_records: the numbers of records published for training and testing, so that a file cut short is
            noticed; None: any numbers.
        settings: further settings of ``PublishedShare`` and ``VerticalDataModule``.

    Guarantee: the validation records are stratified by class. No person is in both published parts: 21 people are
        recorded for training, 9 others for testing.
    Not guaranteed: that validation records are new to the model: recordings of one person are in both, and each shares
        half of its time with the next. That the files are the published ones; only their form and the numbers of their
        records are checked.

    Examples:
        >>> HumanActivity().default_partitioner()
        ContiguousColumns(parties=5)

    References:
        Anguita, Ghio, Oneto, Parra and Reyes-Ortiz, "A public domain dataset for human activity recognition using
        smartphones", ESANN 2013; UCI Machine Learning Repository, https://doi.org/10.24432/C54S4K. Parties: Tran,
        Castiglia, Patterson and Milanova, "PBM-VFL: Vertical Federated Learning with Feature and Sample Privacy",
        appendix B.
    """

    known_bounds = (-1.0, 1.0)  # of the published files, in which the authors have scaled every column
    data_settings = ("val_share", "drop_last_column")
    folder = "human_activity"
    usual_partitioner = ContiguousColumns(5)
    usual_normaliser = Unchanged()
    num_classes = len(ACTIVITIES)

    def __init__(
        self,
        partitioner: Partitioner | None = None,
        *,
        drop_last_column: bool = True,
        expected_records: tuple[int, int] | None = (7_352, 2_947),
        **settings: Any,
    ) -> None:
        super().__init__(partitioner, **settings)
        self.drop_last_column = drop_last_column
        self.expected_records = expected_records

    @property
    def layout(self) -> Layout:
        return self.read("train").layout

    def read(self, part: PublishedPart) -> Labelled:
        own, kept = self._data[part], COLUMNS - self.drop_last_column
        return replace(own, features=own.features[:, :kept], columns=own.columns[:kept])

    @cached_property
    def _data(self) -> Mapping[PublishedPart, Labelled]:
        """The records of both parts."""
        trains, tests = self.expected_records or (None, None)
        for folder in (self.data_dir / "UCI HAR Dataset", self.data_dir):
            if (folder / "features.txt").is_file():
                return {"train": read_texts(folder, "train", trains), "test": read_texts(folder, "test", tests)}
        files = [self.data_dir / "train.csv", self.data_dir / "test.csv"]
        if missing := [path.name for path in files if not path.is_file()]:
            what = f"features.txt of UCI's {type(self).__name__} and no {' and no '.join(missing)} of Kaggle's"
            raise missing_files(self.data_dir, what, f"the folder 'UCI HAR Dataset' from {UCI}")
        train, test = read_csv(files[0], trains), read_csv(files[1], tests)
        if train.columns != test.columns:
            first = next(a for a, b in zip(train.columns, test.columns, strict=True) if a != b)
            raise ConfigurationError(
                f"the columns of {files[1]} are not those of {files[0]}, first '{first}'; give both files the same "
                "columns in the same order"
            )
        return {"train": train, "test": test}
