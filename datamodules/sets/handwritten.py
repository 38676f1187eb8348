"""Multiple Features: handwritten numerals in six views, from a MATLAB file or the six text files of UCI."""

from pathlib import Path

import numpy as np

from lightning_vfl.errors import ConfigurationError

from ..partitioners.partition import Partitioner
from ..records.normalise import Normaliser
from ..records.view_files import ViewData, read_known_mat, read_text
from .multi_view import ViewFiles

_NUMERALS = {"fac": 216, "fou": 76, "kar": 64, "mor": 6, "pix": 240, "zer": 47}


class Handwritten(ViewFiles):
    """Multiple Features: 2,000 handwritten numerals in six views of 649 columns in all, ten classes, a view a party.

    The folder holds ``Handwritten.mat``, a cell array of the views with labels from 1 (or 0), or the six text files
    of UCI, ``mfeat-fac`` to ``mfeat-zer``, whose records are 200 of each numeral in order; the MATLAB file goes
    first. Views are told by their widths: fac 216 (profile correlations), fou 76 (Fourier coefficients), kar 64
    (Karhunen-Loève coefficients), mor 6 (morphological features), pix 240 (pixel averages), zer 47 (Zernike
    moments). Party m has view m of the MATLAB file; of text files, view m in the order above. A label is the
    numeral, a record's id its position in the files, and column i of a view is called ``view.i``.

    Args:
        partitioner: who gets which columns; None: one view a party.
        normaliser: how each party scales its features; None: every column to mean 0 and deviation 1.
        batch_size: rows of a batch in each process.
        seed: names the split and the order of the training records.
        drop_last: leave out the last, smaller batch of every training epoch.
        num_workers: worker processes; 0 is fastest for data in memory.
        pin_memory: for a faster way to a GPU.
        data_dir: folder of the files; None: ``$LIGHTNING_VFL_DATA/handwritten``, else ``data/handwritten``.
        val_share: share of all records for validation, taken from those for training; 0: none.
        test_share: share of the records for testing (and prediction); 0: none.

    Guarantee: the splits are stratified by class.
    Not guaranteed: that the files are the published ones; only their form is checked.

    Raises:
        ConfigurationError: if the files are not there, cannot be read, or do not hold these views.

    References:
        Duin, "Multiple Features", UCI Machine Learning Repository, 1998, https://doi.org/10.24432/C5HC70. 60 % for
        training and 40 % for testing: Li, Yao and Liu, "FedVS", ICML 2023, appendix C.
    """

    folder = "handwritten"

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
        test_share: float = 0.4,
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
        return 10

    def read(self) -> ViewData:
        mat = self.data_dir / "Handwritten.mat"
        texts = {name: self.data_dir / f"mfeat-{name}" for name in _NUMERALS}
        if mat.is_file():
            return read_known_mat(mat, _NUMERALS, self.num_classes, "the handwritten numerals")
        if absent := [path.name for path in texts.values() if not path.is_file()]:
            raise ConfigurationError(
                f"{self.data_dir.absolute()} holds neither Handwritten.mat nor {', '.join(absent)}; put the six text "
                f"files {', '.join(path.name for path in texts.values())} from "
                "https://archive.ics.uci.edu/dataset/72/multiple+features there, or name another folder with data_dir "
                "or LIGHTNING_VFL_DATA"
            )
        views = tuple((name, read_text(texts[name], 2000, width)) for name, width in _NUMERALS.items())
        return ViewData(views, np.repeat(np.arange(self.num_classes), 200))
