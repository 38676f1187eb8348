"""MNIST and FashionMNIST: downloaded if their files are not in the folder."""

from abc import ABC
from collections.abc import Mapping, Sequence
from typing import ClassVar

from ..records.folders import fetch
from .idx_images import IDXImages


class FetchedImages(IDXImages, ABC):
    """``IDXImages`` whose files are downloaded if they are not in the folder. A subclass gives their address.

    Guarantee: downloaded files have the published content (sha256).

    Raises:
        ConfigurationError: also if a file can neither be found nor downloaded.
    """

    remedy = "delete the file to have it downloaded again, or replace it"
    source: ClassVar[str]
    """The address before the files' names."""
    sha256: ClassVar[Mapping[str, str]]
    """File -> hash, of the four files."""

    @property
    def files(self) -> Sequence[str]:
        return tuple(self.sha256)

    def prepare_data(self) -> None:
        """Download the files that are not in the folder."""
        for file, digest in self.sha256.items():
            if (self.data_dir / file).exists():
                continue
            try:
                fetch(self.source, file, self.data_dir, f"sha256:{digest}")
            except (OSError, ValueError) as error:
                what = f"could not be downloaded from {self.source} ({type(error).__name__})"
                raise self._absent(file, what) from error


class MNIST(FetchedImages):
    """Handwritten digits: 60,000 training and 10,000 test images, ten classes. Arguments are those of ``IDXImages``."""

    folder = "mnist"
    num_classes = 10
    source = "https://ossci-datasets.s3.amazonaws.com/mnist/"
    sha256 = {  # noqa: RUF012  # read only
        "train-images-idx3-ubyte.gz": "440fcabf73cc546fa21475e81ea370265605f56be210a4024d2ca8f203523609",
        "train-labels-idx1-ubyte.gz": "3552534a0a558bbed6aed32b30c495cca23d567ec52cac8be1a0730e8010255c",
        "t10k-images-idx3-ubyte.gz": "8d422c7b0a1c1c79245a5bcf07fe86e33eeafee792b84584aec276f5a2dbc4e6",
        "t10k-labels-idx1-ubyte.gz": "f7ae60f92e00ec6debd23a6088c31dbd2371eca3ffa0defaefb259924204aec6",
    }


class FashionMNIST(FetchedImages):
    """Clothes: 60,000 training and 10,000 test images, ten classes. Arguments are those of ``IDXImages``."""

    folder = "fashion_mnist"
    num_classes = 10
    source = "http://fashion-mnist.s3-website.eu-central-1.amazonaws.com/"
    sha256 = {  # noqa: RUF012  # read only
        "train-images-idx3-ubyte.gz": "3aede38d61863908ad78613f6a32ed271626dd12800ba2636569512369268a84",
        "train-labels-idx1-ubyte.gz": "a04f17134ac03560a47e3764e11b92fc97de4d1bfaf8ba1a3aa29af54cc90845",
        "t10k-images-idx3-ubyte.gz": "346e55b948d973a97e58d2351dde16a484bd415d4595297633bb08f03db6a073",
        "t10k-labels-idx1-ubyte.gz": "67da17c76eaffca5446c3361aaab5c3cd6d1c2608764d35dfb1850b086bf8dd5",
    }
