"""EMNIST: handwritten letters and digits in the format of MNIST, stored column by column."""

import zlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import IO, Any, Literal
from zipfile import BadZipFile, ZipFile

from lightning_vfl.errors import ConfigurationError

from ..partitioners.partition import Partitioner, RowStrips
from .idx_images import IDXImages

_CLASSES = {"balanced": 47, "byclass": 62, "bymerge": 47, "letters": 26, "digits": 10, "mnist": 10}
_SOURCE, _ARCHIVE = "https://biometrics.nist.gov/cs_links/EMNIST/gzip.zip", "gzip.zip"


class EMNIST(IDXImages):
    """EMNIST: handwritten characters; the balanced split has 112,800 training and 18,800 test images of 47 classes.

    The folder holds the four files of the split (``emnist-balanced-train-images-idx3-ubyte.gz``,
    ``...-train-labels-idx1-...`` and the same of ``test``), or NIST's archive ``gzip.zip`` with the files of all
    splits, which is read without unpacking it to the disk. The archive has 540 MB and is not downloaded. The files hold
    every image column by column; here it is upright.

    Labels are 0 to 9 for digits, then the capitals, then those small letters that differ from their capitals (all in
    ``byclass``, eleven in ``balanced`` and ``bymerge``); in ``letters``, 0 to 25 for A to Z, whose files count from 1.

    FedVS has 28 parties with one row of pixels each, as ``RowStrips(28)``, the default; vFedSec has 4 with seven
    rows, as ``RowStrips(4)``.

    Args:
        partitioner: who gets which pixels; None: the default.
        split: one of NIST's six splits.
        settings: further settings of ``IDXImages`` and ``VerticalDataModule``.

    Units: memory, 3,136 bytes an image, and a quarter more while a stage is set up: 0.35 and 0.45 GB for the balanced
        split, six times that for ``byclass`` and ``bymerge``.
    Not guaranteed: that files found in the folder are the published ones; only their form is checked. NIST has
        published ``letters`` in two sizes.

    Examples:
        >>> EMNIST(RowStrips(4)).party_shapes, EMNIST(split="letters").num_classes
        (((1, 7, 28), (1, 7, 28), (1, 7, 28), (1, 7, 28)), 26)

    References:
        Cohen, Afshar, Tapson and van Schaik, "EMNIST: an extension of MNIST to handwritten letters", IJCNN 2017,
        https://arxiv.org/abs/1702.05373. Parties: FedVS, appendix C; vFedSec, appendix B.
    """

    data_settings = ("val_records", "split")
    folder = "emnist"
    usual_partitioner = RowStrips(28)
    remedy = f"replace it with the published one, from {_SOURCE}"
    transposed = True

    def __init__(
        self,
        partitioner: Partitioner | None = None,
        *,
        split: Literal["balanced", "byclass", "bymerge", "letters", "digits", "mnist"] = "balanced",
        **settings: Any,
    ) -> None:
        super().__init__(partitioner, **settings)
        if split not in _CLASSES:
            raise ConfigurationError(f"split must be one of {', '.join(_CLASSES)}; got '{split}'")
        self.split = split

    @property
    def files(self) -> Sequence[str]:
        kinds = ("images-idx3", "labels-idx1")
        return tuple(f"emnist-{self.split}-{part}-{kind}-ubyte.gz" for part in ("train", "test") for kind in kinds)

    @property
    def first_label(self) -> int:
        return 1 if self.split == "letters" else 0

    @property
    def num_classes(self) -> int:
        return _CLASSES[self.split]

    def _packed(self, file: str) -> bool:
        """Whether the file is taken from the archive."""
        return not (self.data_dir / file).exists() and (self.data_dir / _ARCHIVE).exists()

    @contextmanager
    def _opened(self, file: str) -> Iterator[IO[bytes]]:
        if not self._packed(file):
            with super()._opened(file) as content:
                yield content
            return
        try:
            with ZipFile(self.data_dir / _ARCHIVE) as members, members.open(f"gzip/{file}") as content:
                yield content
        except (BadZipFile, KeyError, OSError, EOFError, zlib.error) as error:
            raise self._damaged(_ARCHIVE, f"does not give gzip/{file} ({error})") from error

    def _size(self, file: str) -> int:
        return super()._size(_ARCHIVE if self._packed(file) else file)

    def _absent(self, file: str, what: str) -> ConfigurationError:
        return ConfigurationError(
            f"{file} of {type(self).__name__} {what}; put {', '.join(self.files)}, or the archive {_SOURCE} (540 MB) "
            f"with all of them, into {self.data_dir.absolute()}, or name another folder with data_dir or "
            "LIGHTNING_VFL_DATA"
        )
