"""EMNIST: handwritten letters and digits in the format of MNIST, but turned on their side."""

import zlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Literal
from zipfile import BadZipFile, ZipFile

from lightning_vfl.errors import ConfigurationError

from .idx_images import IDXImages
from .normalise import Normaliser
from .partition import Partitioner, RowStrips

_CLASSES = {"balanced": 47, "byclass": 62, "bymerge": 47, "letters": 26, "digits": 10, "mnist": 10}
_SOURCE, _ARCHIVE = "https://biometrics.nist.gov/cs_links/EMNIST/gzip.zip", "gzip.zip"


class EMNIST(IDXImages):
    """EMNIST: handwritten characters; of the balanced split, 112,800 to train with and 18,800 to test, 47 classes.

    The folder holds the four files of the split (``emnist-balanced-train-images-idx3-ubyte.gz``,
    ``...-train-labels-idx1-...`` and the same of ``test``), or NIST's archive ``gzip.zip`` with those of all splits,
    which is read as it is. The archive has 540 MB and is not fetched. The files hold every image column by column; here
    it stands upright.

    Labels are 0 to 9 for digits, then the capitals, then the small letters that are told from their capitals (all in
    ``byclass``, eleven in ``balanced`` and ``bymerge``); in ``letters``, 0 to 25 for A to Z, whose files count from 1.

    FedVS has 28 parties with a row of pixels each, as ``RowStrips(28)``; vFedSec has 4 with seven, as ``RowStrips(4)``.

    Args:
        partitioner: who gets which pixels; None: 28 strips of one row.
        normaliser: how each party scales its pixels; None: mean 0, deviation 1 over all of a party's training pixels.
        batch_size: rows of a batch in each process.
        seed: names the validation records and the order of the training records.
        drop_last: leave out the last, smaller batch of every training epoch.
        num_workers: worker processes; 0 is fastest for data in memory.
        pin_memory: for a faster way to a GPU.
        data_dir: folder of the files; None: ``$LIGHTNING_VFL_DATA/emnist``, else ``data/emnist``.
        val_records: records drawn from the training file for validation; 0: no validation.
        split: which of NIST's six splits: balanced, byclass, bymerge, letters, digits or mnist.
        cache_dir: folder in which the prepared records are kept and looked for, as in ``IDXImages``; None: nothing is
            kept.

    Units: memory, 3,136 bytes an image, which are kept, and a quarter more while a stage is set up: 0.35 and 0.45 GB
        for the balanced split, six times that for ``byclass`` and ``bymerge``. Disk, with ``cache_dir``, as much as is
        kept in memory, for every combination of settings anew.
    Guarantee: test and predict records are those of the test files, in their order; a record's id is its position in
        its file.
    Not guaranteed: that files found in the folder are the published ones; only their form is checked. NIST has
        published ``letters`` in two sizes.

    Raises:
        ConfigurationError: for another split, and if a file cannot be found, or is damaged.

    Examples:
        >>> EMNIST(RowStrips(4)).party_shapes, EMNIST(split="letters").num_classes
        (((1, 7, 28), (1, 7, 28), (1, 7, 28), (1, 7, 28)), 26)

    References:
        Cohen, Afshar, Tapson and van Schaik, "EMNIST: an extension of MNIST to handwritten letters", IJCNN 2017,
        https://arxiv.org/abs/1702.05373. Parties: FedVS, appendix C; vFedSec, appendix B.
    """

    data_settings = ("val_records", "split")
    folder = "emnist"
    remedy = f"replace it with the published one, from {_SOURCE}"
    transposed = True

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
        val_records: int = 5000,
        split: Literal["balanced", "byclass", "bymerge", "letters", "digits", "mnist"] = "balanced",
        cache_dir: str | Path | None = None,
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
            val_records,
            cache_dir,
        )
        if split not in _CLASSES:
            raise ConfigurationError(f"split '{split}' is none of EMNIST's; use {', '.join(_CLASSES)}")
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

    def default_partitioner(self) -> Partitioner:
        return RowStrips(28)

    # ---- inside

    @property
    def _sources(self) -> Sequence[Path]:
        return [*super()._sources, self.data_dir / _ARCHIVE]

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
