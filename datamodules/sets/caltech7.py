"""Caltech101-7: pictures of seven kinds of objects in six views, from a MATLAB file."""

from pathlib import Path

from ..base import absent
from ..partitioners.partition import Partitioner
from ..records.normalise import Normaliser
from ..records.view_files import ViewData, read_known_mat
from .multi_view import ViewFiles

_FILE = "Caltech101-7.mat"
_SOURCE = "https://github.com/yeqinglee/mvdata"
_FEATURES = {"gabor": 48, "moments": 40, "centrist": 254, "hog": 1984, "gist": 512, "lbp": 928}


class Caltech7(ViewFiles):
    """Caltech101-7: 1,474 pictures of objects in six views of 3,766 columns in all, seven classes, a view a party.

    The folder holds ``Caltech101-7.mat``, a cell array of the views with labels from 1 (or 0). Views are told by their
    widths: gabor 48 (Gabor filters), moments 40 (wavelet moments), centrist 254 (CENTRIST), hog 1984 (histograms of
    oriented gradients), gist 512 (GIST), lbp 928 (local binary patterns). Party m has view m of the file. A label is
    the class of the file, from 0; a record's id its position there; column i of a view is called ``view.i``.

    Classes are far from equal: 798 pictures are of motorbikes and 34 of Garfield. FedVS keeps no records for
    validation, which is ``val_share=0``.

    Args:
        partitioner: who gets which columns; None: one view a party.
        normaliser: how each party scales its features; None: every column to mean 0 and deviation 1.
        batch_size: rows of a batch in each process.
        seed: names the split and the order of the training records.
        drop_last: leave out the last, smaller batch of every training epoch.
        num_workers: worker processes; 0 is fastest for data in memory.
        pin_memory: for a faster way to a GPU.
        data_dir: folder of the file; None: ``$LIGHTNING_VFL_DATA/caltech7``, else ``data/caltech7``.
        val_share: share of all records for validation, taken from those for training; 0: none.
        test_share: share of the records for testing (and prediction); 0: none.

    Guarantee: the splits are stratified by class.
    Not guaranteed: that the file is the published one; only its form is checked.

    Raises:
        ConfigurationError: if the file is not there, cannot be read, or does not hold these views.

    References:
        Li, Andreeto, Ranzato and Perona, "Caltech 101", CaltechDATA, 2022, https://doi.org/10.22002/D1.20086. The
        views: Li, Nie, Huang and Huang, "Large-scale multi-view spectral clustering via bipartite graph", AAAI 2015.
        80 % for training and 20 % for testing: Li, Yao and Liu, "FedVS", ICML 2023, appendix C.
    """

    folder = "caltech7"

    def __init__(
        self,
        partitioner: Partitioner | None = None,
        normaliser: Normaliser | None = None,
        batch_size: int = 64,
        seed: int = 0,
        drop_last: bool = False,
        num_workers: int = 0,
        pin_memory: bool = False,
        data_dir: str | Path | None = None,
        val_share: float = 0.1,
        test_share: float = 0.2,
    ) -> None:
        super().__init__(
            partitioner,
            normaliser,
            batch_size,
            seed,
            drop_last,
            num_workers,
            pin_memory,
            data_dir,
            val_share,
            test_share,
        )

    @property
    def num_classes(self) -> int:
        return 7

    def read(self) -> ViewData:
        path = self.data_dir / _FILE
        if not path.is_file():
            raise absent(self.data_dir, f"data of {type(self).__name__}", f"'{_FILE}', which {_SOURCE} links to,")
        return read_known_mat(path, _FEATURES, self.num_classes, "Caltech101-7")
