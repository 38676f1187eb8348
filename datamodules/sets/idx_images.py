"""Form of data sets of 28 x 28 images in the IDX format of MNIST."""

import gzip
import zlib
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from math import prod
from typing import IO, TYPE_CHECKING, ClassVar

import numpy as np

from lightning_vfl.errors import ConfigurationError
from lightning_vfl.limits import refuse_growth

from ..partitioners.partition import Partitioner, RowStrips
from ..records.labelled import Labelled
from ..records.layout import Layout
from .published import PublishedImages, PublishedPart

if TYPE_CHECKING:
    from numpy.typing import NDArray


class IDXImages(PublishedImages, ABC):
    """28 x 28 grey images with pixels in [0, 1], from four ``.gz`` files. A subclass names the files.

    Pixels are scaled to mean 0 and deviation 1 over all training pixels of a party by default.

    Args:
        partitioner: who gets which pixels; None: four strips of seven rows.
        settings: ``val_records`` and further settings of ``PublishedImages`` and ``VerticalDataModule``.

    Guarantee: test and predict records are those of the test files, in their order; a record's id is its position in
        its file.
    Not guaranteed: that files found in the folder are the published ones; only their form is checked.

    Raises:
        ConfigurationError: if a file cannot be found, is damaged, or declares more data than ``lightning_vfl.limits``
            allows for its size; no more is unzipped than it declares.
    """

    usual_partitioner: ClassVar[Partitioner] = RowStrips(4)
    layout = Layout((1, 28, 28))
    remedy: ClassVar[str]
    """What to do about a damaged file."""
    transposed: ClassVar[bool] = False
    """Whether the files hold images column by column instead of row by row."""

    @property
    @abstractmethod
    def files(self) -> Sequence[str]:
        """Names of the four files: training images and labels, then test images and labels."""

    @property
    def first_label(self) -> int:
        """The number of the first class in the files."""
        return 0

    def read(self, part: PublishedPart) -> Labelled:
        images, labels = self.files[:2] if part == "train" else self.files[2:]
        x, y = self._array(images, 3), self._array(labels, 1)
        if len(x) != len(y):
            raise self._damaged(labels, f"holds {len(y)} labels for the {len(x)} images of {images}")
        if len(y) and y.min() < self.first_label:
            raise self._damaged(labels, f"holds label {y.min()}, but its labels run from {self.first_label}")
        upright = x.transpose(0, 2, 1) if self.transposed else x
        return Labelled(upright[:, None], y.astype(np.int64) - self.first_label, np.arange(len(y)))

    def _array(self, file: str, dimensions: int) -> "NDArray[np.uint8]":
        try:
            with self._opened(file) as packed:
                return read_idx(packed, dimensions, lambda sizes: self._check_sizes(file, sizes))
        except FileNotFoundError:
            raise self._absent(file, "is not there") from None
        except (gzip.BadGzipFile, EOFError, zlib.error) as error:
            raise self._damaged(file, f"cannot be unzipped ({error})") from error
        except ConfigurationError:
            raise
        except ValueError as error:
            raise self._damaged(file, str(error)) from error

    def _check_sizes(self, file: str, sizes: Sequence[int]) -> None:
        """Check the sizes in the head of a file, before anything else is unzipped."""
        if len(sizes) == 3 and sizes[1:] != [28, 28]:
            raise self._damaged(file, f"holds images of {sizes[1]} x {sizes[2]} pixels instead of 28 x 28")
        refuse_growth(self.data_dir / file, prod(sizes), self._size(file))

    def _opened(self, file: str) -> AbstractContextManager[IO[bytes]]:
        """The gzipped file, opened for reading."""
        return (self.data_dir / file).open("rb")

    def _size(self, file: str) -> int:
        """Bytes of the gzipped file."""
        return (self.data_dir / file).stat().st_size

    def _damaged(self, file: str, what: str) -> ConfigurationError:
        return ConfigurationError(f"{self.data_dir / file} {what}; {self.remedy}")

    def _absent(self, file: str, what: str) -> ConfigurationError:
        return ConfigurationError(
            f"{file} of {type(self).__name__} {what}; put {', '.join(self.files)} into {self.data_dir.absolute()}, "
            "or name another folder with data_dir or LIGHTNING_VFL_DATA"
        )


def read_idx(packed: IO[bytes], dimensions: int, check_sizes: Callable[[list[int]], None]) -> "NDArray[np.uint8]":
    """The array of bytes in a gzipped IDX file.

    An IDX file has the bytes 0, 0, 8 (for unsigned bytes) and the number of dimensions, then each size as a big-endian
    int32, then the numbers.

    Args:
        packed: the gzipped file.
        dimensions: of the array.
        check_sizes: called with the sizes in the head before the numbers are unzipped; it refuses wrong sizes with an
            error.

    Guarantee: no more bytes are unzipped than the head declares, and one.

    Raises:
        ValueError: with what is wrong with the content.
        gzip.BadGzipFile, EOFError, zlib.error: if the file cannot be unzipped.
    """
    start = 4 + 4 * dimensions
    with gzip.GzipFile(fileobj=packed) as content:
        head = content.read(start)
        if head[:4] != bytes((0, 0, 8, dimensions)) or len(head) < start:
            raise ValueError(f"does not begin like an IDX file of bytes in {dimensions} dimension(s)")
        sizes = np.frombuffer(head[4:], dtype=">u4").tolist()
        check_sizes(sizes)
        numbers = np.empty(prod(sizes), np.uint8)
        held = _fill(numbers, content)
        more = content.read(1)  # also compares the check sum at the end
    if more or held < len(numbers):
        many = f"at least {held + 1}" if more else held
        raise ValueError(f"holds {many} bytes after its head instead of {len(numbers)}")
    return numbers.reshape(sizes)


def _fill(numbers: "NDArray[np.uint8]", content: gzip.GzipFile) -> int:
    """Read bytes into the array, as many as there are; returns their number."""
    view = numbers.data
    held = 0
    while held < len(view) and (piece := content.read(min(len(view) - held, 2**20))):
        view[held : held + len(piece)] = piece
        held += len(piece)
    return held
