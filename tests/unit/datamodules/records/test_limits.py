"""Files that grow: the head is read first, nothing beyond it is inflated, and a large one is refused by name.

Peaks are of tracemalloc, which sees Python's and numpy's memory; Pillow's is measured in tests/attacks/formats.py.
"""

import bz2
import gzip
import lzma
import pickle
import shutil

import numpy as np
import pandas as pd
import pytest
from PIL import ImageFile

from lightning_vfl.datamodules import CIFAR10, EMNIST, MNIST, CSVTables, ImageFolderVFL, ModelNet10Views
from lightning_vfl.datamodules.records.view_files import read_mat, read_views
from lightning_vfl.datamodules.sets.cifar10 import _pickled
from lightning_vfl.errors import ConfigurationError
from lightning_vfl.limits import BYTES, PIXELS, Limited, allowed_bytes, refuse_large_table
from lightning_vfl.simulation.trace import _read as read_trace

from ..bombs import IMAGES, idx_bomb, mat_bomb, npz_bomb, peak, png_bomb, tar_bomb, zip_of
from ..miniature import write_pictures, write_views

MANY = 2**22  # bytes of a bomb
SLACK = 2**21  # of reading in pieces


@pytest.fixture(autouse=True)
def small(monkeypatch):
    monkeypatch.setenv(BYTES, str(2**20))
    monkeypatch.setenv(PIXELS, "10000")


def message(path, declared) -> str:
    return rf"{path.name} has [\d,]+ bytes and declares {declared:,} bytes.*environment variable {BYTES} to {declared}"


def test_what_a_file_may_take(monkeypatch):
    assert allowed_bytes(10) == 2**20
    assert allowed_bytes(2**20) == 100 * 2**20
    monkeypatch.delenv(BYTES)
    assert allowed_bytes(597_000) == 2**28
    monkeypatch.setenv(BYTES, "much")
    with pytest.raises(ConfigurationError, match=f"{BYTES} must be a whole number; got 'much'"):
        allowed_bytes(1)


def test_no_more_is_unzipped_than_an_idx_file_declares(tmp_path):
    idx_bomb(tmp_path, declared=10, held=MANY)

    def work():
        return MNIST(data_dir=tmp_path, val_records=0).setup("fit")

    with pytest.raises(ConfigurationError, match="holds at least 7841 bytes after its head instead of 7840"):
        work()
    peak(work)  # imports are no part of what reading takes
    assert peak(work) < 4 * 7840 + SLACK // 8


def test_an_idx_file_that_declares_too_much_is_refused_by_its_head(tmp_path, monkeypatch):
    images = MANY // 784
    path = idx_bomb(tmp_path, declared=images, held=MANY)
    data = MNIST(data_dir=tmp_path, val_records=0)
    with pytest.raises(ConfigurationError, match=message(path, images * 784)):
        data.setup("fit")
    assert peak(lambda: data.setup("fit")) < SLACK // 8
    monkeypatch.setenv(BYTES, str(images * 784))
    assert peak(lambda: data._array(IMAGES, 3)) < 4 * images * 784


def test_what_is_cut_short_takes_what_it_holds(tmp_path):
    path = idx_bomb(tmp_path, declared=1000, held=2**18)
    data = MNIST(data_dir=tmp_path, val_records=0)
    with pytest.raises(ConfigurationError, match=f"{path.name} holds {2**18} bytes after its head instead of 784000"):
        data.setup("fit")


def test_archives_are_unzipped_in_pieces(tmp_path):
    name = "emnist-balanced-train-images-idx3-ubyte.gz"
    content = idx_bomb(tmp_path, declared=10, held=MANY).rename(tmp_path / name)
    zip_of(tmp_path / "gzip.zip", content)
    content.unlink()

    def work():
        EMNIST(data_dir=tmp_path, val_records=0)._array(name, 3)

    with pytest.raises(ConfigurationError, match="holds at least 7841 bytes"):
        work()
    assert peak(work) < SLACK // 4


@pytest.mark.parametrize("kind", ["f8", "u1"])
def test_arrays_are_counted_as_the_numbers_that_they_become(tmp_path, monkeypatch, kind):
    numbers = MANY // 8
    path = npz_bomb(tmp_path / "x.npz", numbers, kind)
    with pytest.raises(ConfigurationError, match=message(path, 16 * numbers)):
        read_views(path, None, None)
    peak(lambda: read_views(path, None, None))
    assert peak(lambda: read_views(path, None, None)) < SLACK
    monkeypatch.setenv(BYTES, str(16 * numbers))
    assert peak(lambda: read_views(path, None, None)) < 4 * 16 * numbers
    assert len(read_views(path, None, None).labels) == numbers


@pytest.mark.parametrize("cells", [pytest.param(False, marks=pytest.mark.slow), True])
def test_matlab_files_are_unpacked_in_pieces_first(tmp_path, monkeypatch, cells):
    path = mat_bomb(tmp_path / "x.mat", MANY // 8, cells)
    read = read_mat if cells else lambda path: read_views(path, None, "Y")
    with pytest.raises(ConfigurationError, match=r"x.mat has [\d,]+ bytes and declares [\d,]+ bytes"):
        read(path)
    peak(lambda: read(path))
    assert peak(lambda: read(path)) < SLACK
    monkeypatch.setenv(BYTES, str(4 * MANY))
    assert peak(lambda: read(path)) < 4 * 2 * MANY
    assert len(read(path).labels if not cells else read(path)[1]) == MANY // 8


def test_pictures_are_refused_by_their_head(tmp_path, monkeypatch):
    write_pictures(tmp_path / "own")
    bomb = png_bomb(tmp_path / "bomb.png", 200)
    shutil.copy(bomb, tmp_path / "own/train/bird/0.png")
    write_views(tmp_path / "views")
    shutil.copy(bomb, tmp_path / "views/bathtub/train/bathtub_0001_001.png")
    said = rf"the image declares 200 x 200 pixels, more than 10,000; .* set .* {PIXELS} to 40000 or more"
    own = ImageFolderVFL(data_dir=tmp_path / "own", size=8)
    views = ModelNet10Views(data_dir=tmp_path / "views", size=8)
    loaded = []
    load = ImageFile.ImageFile.load
    monkeypatch.setattr(ImageFile.ImageFile, "load", lambda image: loaded.append(image.size) or load(image))
    for data, name in ((own, "train/bird/0.png"), (views, "bathtub_0001_001.png")):
        with pytest.raises(ConfigurationError, match=rf"{name}.*{said}"):
            data.setup("fit")
    assert (200, 200) not in loaded
    monkeypatch.setenv(PIXELS, "40000")
    own.setup("fit")
    assert (200, 200) in loaded


def test_an_archive_of_cifar_is_read_as_far_as_its_size_allows(tmp_path):
    tar_bomb(tmp_path / "cifar-10-python.tar.gz", "cifar-10-batches-py/data_batch_1", MANY)

    def work():
        CIFAR10(data_dir=tmp_path).setup("fit")

    with pytest.raises(ConfigurationError, match=rf"cifar-10-python.tar.gz has more than [\d,]+ bytes.*{BYTES}"):
        work()
    assert peak(work) < 4 * allowed_bytes((tmp_path / "cifar-10-python.tar.gz").stat().st_size) + SLACK


def test_a_pickle_makes_no_more_bytes_than_it_has(tmp_path):
    """A text is written once and turned into bytes a hundred times."""
    text, times = "x" * 2**16, 100
    content = b"\x80\x02(c_codecs\nencode\nq\x000" + b"X" + len(text).to_bytes(4, "little") + text.encode() + b"q\x010"
    content += b"h\x00h\x01X\x06\x00\x00\x00latin1\x86R" * times + b"l."
    assert len(pickle.loads(content)) == times
    with pytest.raises(ConfigurationError, match="it makes more bytes than it has"):
        _pickled(tmp_path / "data_batch_1", content)


@pytest.mark.parametrize("ending", ["gz", "bz2", "xz", "zip"])
def test_packed_tables_are_read_as_far_as_their_size_allows(tmp_path, ending):
    small = pd.DataFrame({"id": range(20), "y": [0, 1] * 10, "age": range(20)})
    path = tmp_path / f"bank.csv.{ending}"

    def work():
        data = CSVTables({"bank": path}, label_party="bank", label_column="y", test_share=0.0)
        data.setup("fit")
        return data

    small.to_csv(path, index=False)
    if ending == "zip":
        with pytest.raises(
            ConfigurationError, match=r"bank.csv.zip is packed in an unsupported format; unpack the file"
        ):
            work()
        return
    assert len(work().records("train")) == 18
    large = b"id,y,age\n" + b"0,0,0\n" * 2**18
    path.write_bytes({"gz": gzip, "bz2": bz2, "xz": lzma}[ending].compress(large))
    with pytest.raises(ConfigurationError, match=rf"bank.csv.{ending} has more than [\d,]+ bytes.*{BYTES}"):
        work()


@pytest.mark.parametrize("column", [np.zeros(10**6), ["text" * 1000] * 1000])
def test_parquet_is_counted_cell_by_cell_and_text_by_text(tmp_path, column):
    path = tmp_path / "bank.parquet"
    pd.DataFrame({"x": column}).to_parquet(path)
    with pytest.raises(ConfigurationError, match=r"bank.parquet has [\d,]+ bytes and declares [\d,]+ bytes"):
        refuse_large_table(path)
    with pytest.raises(ConfigurationError, match=r"bank.parquet has [\d,]+ bytes and declares [\d,]+ bytes"):
        CSVTables({"bank": path}, label_party="bank", label_column="y").setup("fit")
    with pytest.raises(ConfigurationError, match="declares"):
        read_trace(path)


def test_a_limited_stream_gives_the_same_bytes(tmp_path):
    content = bytes(range(256)) * 100
    (tmp_path / "x.gz").write_bytes(gzip.compress(content))
    with gzip.open(tmp_path / "x.gz") as stream:
        assert Limited(stream, len(content), tmp_path / "x.gz").read() == content
    with gzip.open(tmp_path / "x.gz") as stream, pytest.raises(ConfigurationError, match="more than 25,599 bytes"):
        Limited(stream, len(content) - 1, tmp_path / "x.gz").read()
