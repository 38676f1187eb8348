"""Caltech101-7: pictures of seven kinds of objects in six views, from a MATLAB file."""

from ..records.folders import missing_files
from ..records.labelled import Labelled
from ..records.view_files import read_known_mat
from .view_form import ViewFiles

_FILE = "Caltech101-7.mat"
_SOURCE = "https://github.com/yeqinglee/mvdata"
_WIDTHS = {"gabor": 48, "moments": 40, "centrist": 254, "hog": 1984, "gist": 512, "lbp": 928}


class Caltech7(ViewFiles):
    """Caltech101-7: 1,474 pictures of objects in six views with 3,766 columns, seven classes, one view for each party.

    The folder (``caltech7``) holds ``Caltech101-7.mat``, a cell array of the views with labels from 1 (or 0). Views are
    recognised by their widths: gabor 48 (Gabor filters), moments 40 (wavelet moments), centrist 254 (CENTRIST), hog
    1984 (histograms of oriented gradients), gist 512 (GIST), lbp 928 (local binary patterns). Party m has view m of the
    file. A label is the class of the file, from 0; a record's id is its position there; column i of a view is called
    ``view.i``. Arguments are those of ``ViewFiles`` and ``VerticalDataModule``.

    The classes are far from equal: 798 pictures are of motorbikes and 34 of Garfield. FedVS keeps no records for
    validation: ``val_share=0``.

    Guarantee: the splits are stratified by class.
    Not guaranteed: that the file is the published one; only its form is checked.

    References:
        Li, Andreeto, Ranzato and Perona, "Caltech 101", CaltechDATA, 2022, https://doi.org/10.22002/D1.20086. The
        views: Li, Nie, Huang and Huang, "Large-scale multi-view spectral clustering via bipartite graph", AAAI 2015.
        80 % for training and 20 % for testing: Li, Yao and Liu, "FedVS", ICML 2023, appendix C.
    """

    folder = "caltech7"
    num_classes = 7

    def read(self) -> Labelled:
        path = self.data_dir / _FILE
        if not path.is_file():
            raise missing_files(
                self.data_dir, f"data of {type(self).__name__}", f"'{_FILE}', which {_SOURCE} links to,"
            )
        return read_known_mat(path, _WIDTHS, self.num_classes, "Caltech101-7")
