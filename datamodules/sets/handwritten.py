"""Multiple Features: handwritten numerals in six views, from a MATLAB file or the six text files of UCI."""

from typing import Any

import numpy as np

from ..partitioners.partition import Partitioner
from ..records.folders import missing_files
from ..records.labelled import Labelled, of_views
from ..records.view_files import read_known_mat, read_text
from .view_form import ViewFiles

_SOURCE = "https://archive.ics.uci.edu/dataset/72/multiple+features"
_WIDTHS = {"fac": 216, "fou": 76, "kar": 64, "mor": 6, "pix": 240, "zer": 47}


class Handwritten(ViewFiles):
    """Multiple Features: 2,000 handwritten numerals in six views with 649 columns, ten classes, a view for each party.

    The folder (``handwritten``) holds ``Handwritten.mat``, a cell array of the views with labels from 1 (or 0), or the
    six text files of UCI, ``mfeat-fac`` to ``mfeat-zer``, whose records are 200 of each numeral in order; the MATLAB
    file is preferred. Views are recognised by their widths: fac 216 (profile correlations), fou 76 (Fourier
    coefficients), kar 64 (Karhunen-Loève coefficients), mor 6 (morphological features), pix 240 (pixel averages), zer
    47 (Zernike moments). Party m has view m of the MATLAB file; of text files, view m in the order above. A label is
    the numeral, a record's id is its position in the files, and column i of a view is called ``view.i``.

    Args:
        partitioner: who gets which columns; None: one view for each party.
        test_share: share of the records for testing (and prediction); 0: none.
        settings: further settings of ``ViewFiles`` and ``VerticalDataModule``.

    Guarantee: the splits are stratified by class.
    Not guaranteed: that the files are the published ones; only their form is checked.

    References:
        Duin, "Multiple Features", UCI Machine Learning Repository, 1998, https://doi.org/10.24432/C5HC70. 60 % for
        training and 40 % for testing: Li, Yao and Liu, "FedVS", ICML 2023, appendix C.
    """

    folder = "handwritten"
    num_classes = 10

    def __init__(self, partitioner: Partitioner | None = None, *, test_share: float = 0.4, **settings: Any) -> None:
        super().__init__(partitioner, test_share=test_share, **settings)

    def read(self) -> Labelled:
        mat = self.data_dir / "Handwritten.mat"
        texts = {name: self.data_dir / f"mfeat-{name}" for name in _WIDTHS}
        if mat.is_file():
            return read_known_mat(mat, _WIDTHS, self.num_classes, "the handwritten numerals")
        if missing := [path.name for path in texts.values() if not path.is_file()]:
            what = f"Handwritten.mat and no {', '.join(missing)}"
            put = f"the six text files {', '.join(path.name for path in texts.values())} from {_SOURCE}"
            raise missing_files(self.data_dir, what, put)
        views = {name: read_text(texts[name], 2000, width) for name, width in _WIDTHS.items()}
        return of_views(views, np.repeat(np.arange(self.num_classes), 200))
