"""Files of the user's own with records in several views."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from lightning_vfl.errors import ConfigurationError

from ..partitioners.partition import Partitioner
from ..records.folders import missing_files
from ..records.labelled import Labelled
from ..records.view_files import read_views
from .view_form import ViewFiles

_ENDINGS = (".mat", ".npz")


class MultiView(ViewFiles):
    """Records of your own in several views: a MATLAB or NumPy file of matrices and labels.

    The folder (``multi_view``) holds one ``.mat`` file (up to version 7) or one ``.npz`` file; if it holds several,
    ``file`` names the one to read. A view is an array (N, ...) with one row for each record; of more than
    two dimensions, a row is flattened, last dimension first. What is not taken is named. The labels are one
    number for each record: classes numbered from 0 or from 1, without a gap.

    Args:
        partitioner: who gets which columns; None: one view for each party, in the order of ``views``.
        file: the name of the file; None: the only ``.mat`` or ``.npz`` file there.
        views: names of the variables that are views, in the order of the parties; a MATLAB cell array stands for all
            its matrices. None: the cell array ``X`` if there is one, else every matrix of the file with one row for
            each label, in the order of the file.
        labels: name of the variable with the labels; None: ``Y``, ``y``, ``gt``, ``label`` or ``labels``.
        settings: further settings of ``ViewFiles`` and ``VerticalDataModule``.

    Guarantee: the splits are stratified by class. Nothing of the file is executed: pickled objects are refused. A view
        has the name of its variable, one of a cell array ``X0``, ``X1`` and so on; column i of a view is ``view.i``. A
        record's id is its position in the file.

    Raises:
        ConfigurationError: if there is no such file, or one that cannot be read or has no such views and labels.

    Examples:
        >>> MultiView(file="mine.npz", views=["voice", "face"], labels="person").default_partitioner()
        Views()
    """

    data_settings = ("views", "labels", "val_share", "test_share")
    folder = "multi_view"

    def __init__(
        self,
        partitioner: Partitioner | None = None,
        *,
        file: str | None = None,
        views: Sequence[str] | None = None,
        labels: str | None = None,
        **settings: Any,
    ) -> None:
        super().__init__(partitioner, **settings)
        if isinstance(views, str):
            raise ConfigurationError(f"views must be a list of names; got '{views}', write [{views}]")
        if views is not None and (not views or len({*views, labels}) <= len(views)):
            raise ConfigurationError(
                f"views {', '.join(views) or '[]'} and labels {labels} must name each variable once; name at least one "
                "view, every view once, and the labels separately"
            )
        self.file = file
        self.views = None if views is None else tuple(views)
        self.labels = labels

    @property
    def num_classes(self) -> int:
        return int(self._data.labels.max()) + 1

    def read(self) -> Labelled:
        return read_views(self._path(), self.views, self.labels)

    def _path(self) -> Path:
        if self.file is not None:
            found = [self.data_dir / self.file] if (self.data_dir / self.file).is_file() else []
            if found and found[0].suffix not in _ENDINGS:
                raise ConfigurationError(f"{found[0]} is neither a .mat nor a .npz file; save it as one of them")
        else:
            found = sorted(p for p in self.data_dir.glob("[!.]*") if p.suffix in _ENDINGS and p.is_file())
        if not found:
            raise missing_files(self.data_dir, self.file or ".mat or .npz file", "your file")
        if len(found) > 1:
            raise ConfigurationError(
                f"{self.data_dir.absolute()} holds {', '.join(path.name for path in found)}; name one of them with file"
            )
        return found[0]
