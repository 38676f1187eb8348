"""Small files that grow to so many bytes when they are read, and how much memory reading takes."""

import gzip
import struct
import tarfile
import tracemalloc
import zlib
from collections.abc import Callable
from io import BytesIO
from pathlib import Path
from zipfile import ZIP_DEFLATED, ZipFile

import numpy as np
from scipy.io import savemat

from lightning_vfl.datamodules import MNIST

IMAGES, LABELS = tuple(MNIST.sha256)[:2]


def peak(work: Callable[[], object]) -> int:
    """The most bytes that Python and numpy hold at once while this runs; errors of reading are passed over."""
    tracemalloc.start()
    try:
        work()
    except (ValueError, OSError):
        pass
    finally:
        most = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
    return most


def idx_bomb(folder: Path, declared: int, held: int) -> Path:
    """A file of MNIST's whose head declares so many images, and which holds so many bytes of zeros."""
    path = folder / IMAGES
    with gzip.open(path, "wb", 9) as file:
        file.write(b"\x00\x00\x08\x03" + struct.pack(">III", declared, 28, 28))
        for start in range(0, held, 2**20):
            file.write(bytes(min(2**20, held - start)))
    (folder / LABELS).write_bytes(
        gzip.compress(b"\x00\x00\x08\x01" + struct.pack(">I", declared) + bytes(declared % 2**20))
    )
    return path


def npz_bomb(path: Path, numbers: int, kind: str = "f8") -> Path:
    """A matrix (numbers, 1) of zeros, and labels for all of them."""
    np.savez_compressed(path, view=np.zeros((numbers, 1), kind), Y=np.arange(numbers, dtype=np.uint8) % 2)
    return path


def mat_bomb(path: Path, numbers: int, cells: bool = False) -> Path:
    """The same as a MATLAB file; ``cells``: in a cell array."""
    view: np.ndarray = np.zeros((numbers, 1))
    if cells:
        array = np.empty((1, 1), object)
        array[0, 0] = view
        view = array
    savemat(path, {"X": view, "Y": np.arange(numbers, dtype=np.float64) % 2}, do_compression=True)
    return path


def png_bomb(path: Path, side: int) -> Path:
    """A grey picture of side x side pixels, all black."""

    def chunk(name: bytes, content: bytes) -> bytes:
        return struct.pack(">I", len(content)) + name + content + struct.pack(">I", zlib.crc32(name + content))

    deflate = zlib.compressobj(9)
    rows = b"".join(deflate.compress(bytes(1 + side)) for _ in range(side)) + deflate.flush()
    head = struct.pack(">IIBBBBB", side, side, 8, 0, 0, 0, 0)
    path.write_bytes(b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", head) + chunk(b"IDAT", rows) + chunk(b"IEND", b""))
    return path


def zip_of(path: Path, content: Path) -> Path:
    """EMNIST's archive with this file."""
    with ZipFile(path, "w", ZIP_DEFLATED) as members:
        members.write(content, f"gzip/{content.name}")
    return path


def tar_bomb(path: Path, name: str, held: int) -> Path:
    """A gzipped archive with one member of so many bytes of zeros."""
    with tarfile.open(path, "w:gz") as tar:
        member = tarfile.TarInfo(name)
        member.size = held
        tar.addfile(member, BytesIO(bytes(held)))
    return path
