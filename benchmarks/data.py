"""What data cost without a model: an epoch of batches, and a data set from its files to ready tensors.

FashionMNIST (60,000 training images, nothing held out), B = 256, one thread; where its files are not in the data
folder, random images in files of the same form and size, which is said. An epoch goes through the loader, with a new
order each time. Beside it, in turn: the gather alone of the same rows, which is the floor; as many bytes copied in
order, which tells how fast memory is just then; and torch's own loader, which asks for one record after the other and
collates them. Then ``setup`` of all splits from the ``.gz`` files. What goals are held against is the fastest of the
turns, because a shared machine only ever adds to it; medians stand beside.

    python -m benchmarks.data [--json FILE] [--turns T]
"""

import gzip
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from itertools import islice
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from benchmarks.harness import Goal, Pairs, arguments, report
from benchmarks.steps import in_turn
from lightning_vfl.commands.allocator import keep_freed_memory
from lightning_vfl.datamodules import FashionMNIST, RowStrips, VerticalRecords
from lightning_vfl.datamodules.loader import ScheduledLoader
from lightning_vfl.datamodules.records.folders import data_folder

ROWS, PARTIES, RIVAL_BATCHES = 256, (28, 4), 8
IMAGES = {"train": 60_000, "t10k": 10_000}
EVERYTHING = "train, val and test"  # as a stage: no stage of the trainer, so all splits are set up at once


@contextmanager
def files() -> Iterator[tuple[Path, str]]:
    """The folder of FashionMNIST's files, and what is in it."""
    folder = data_folder(None, FashionMNIST.folder)
    if all((folder / file).exists() for file in FashionMNIST.sha256):
        yield folder, "FashionMNIST"
        return
    with tempfile.TemporaryDirectory() as made:
        write_random(Path(made))
        yield Path(made), "random images"


def write_random(folder: Path) -> None:
    """Files in the form and of the size of FashionMNIST's: half of an image's pixels are black, as there."""
    draw = np.random.Generator(np.random.PCG64(0))
    for part, records in IMAGES.items():
        images = np.zeros((records, 28, 28), np.uint8)
        images[:, :, 7:21] = draw.integers(0, 256, (records, 28, 14), dtype=np.uint8)
        labels = draw.integers(0, 10, records, dtype=np.uint8)
        for kind, array in (("images-idx3", images), ("labels-idx1", labels)):
            head = bytes([0, 0, 8, array.ndim]) + b"".join(size.to_bytes(4, "big") for size in array.shape)
            (folder / f"{part}-{kind}-ubyte.gz").write_bytes(gzip.compress(head + array.tobytes(), 1))


def module(folder: Path, parties: int) -> FashionMNIST:
    """FashionMNIST with nothing held out."""
    return FashionMNIST(RowStrips(parties), batch_size=ROWS, data_dir=folder, val_records=0)


def seconds(what: Callable[[], object]) -> float:
    """How long it takes."""
    began = time.perf_counter()
    what()
    return time.perf_counter() - began


def through(loader: ScheduledLoader) -> float:
    """An epoch of batches, forgotten one after the other."""
    began = time.perf_counter()
    for _ in loader:
        pass
    return time.perf_counter() - began


def gather(features: Tensor, orders: Iterator[Tensor]) -> float:
    """The same rows as an epoch's, and nothing but them."""
    batches = torch.split(next(orders), ROWS)
    began = time.perf_counter()
    for ids in batches:
        features.index_select(0, ids)
    return time.perf_counter() - began


def copy(features: Tensor) -> float:
    """As many bytes, in the order in which they lie."""
    blocks, own = torch.split(features, ROWS), torch.empty(ROWS, features.shape[1])
    began = time.perf_counter()
    for block in blocks:
        own[: len(block)].copy_(block)
    return time.perf_counter() - began


class OneByOne(Dataset[tuple[Tensor, ...]]):
    """Records as torch's loader is usually given them: one at a time, the parties' features and the label."""

    def __init__(self, records: VerticalRecords) -> None:
        if records.labels is None:
            raise ValueError("the benchmark's records have labels")
        self.features = records.rows(torch.arange(len(records)))
        self.labels = records.labels

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, index: int) -> tuple[Tensor, ...]:
        return (*(own[index] for own in self.features), self.labels[index])


def rival(records: VerticalRecords) -> float:
    """An epoch of torch's loader, by the time of its batches after the first."""
    batches = iter(DataLoader(OneByOne(records), batch_size=ROWS, shuffle=True))
    next(batches)
    taken = seconds(lambda: list(islice(batches, RIVAL_BATCHES)))
    return taken * len(records) / (RIVAL_BATCHES * ROWS)


def orders(records: int) -> Iterator[Tensor]:
    """Random orders without end."""
    while True:
        yield torch.randperm(records)


def batches_alone(folder: Path, turns: int) -> tuple[list[dict[str, Any]], list[Goal]]:
    """Epochs of batches, with as many parties as in ``PARTIES``."""
    rows, goals = [], []
    for parties in PARTIES:
        data = module(folder, parties)
        data.setup("fit")
        records = data.records("train")
        if not isinstance(records, VerticalRecords):
            raise TypeError("images are held in memory")
        kinds: dict[str, Callable[[], float]] = {
            "epoch of batches": partial(through, data.train_dataloader()),
            "floor: the gather alone": partial(gather, records.features, orders(len(records))),
            "as many bytes, in order": partial(copy, records.features),
        }
        taken = {name: own[1:] for name, own in in_turn(kinds, turns + 1).items()}  # the first finds everything cold
        taken["torch's loader, record by record"] = [rival(records) for _ in range(3)]
        for name, own in taken.items():
            row = {"parties": parties, "what": name, "fastest s": min(own), "median s": median(own)}
            row |= {"records/s, fastest": len(records) / min(own), "median": len(records) / median(own)}
            if len(own) == turns:
                pairs = Pairs(own, taken["floor: the gather alone"])
                row |= {"/ floor": pairs.ratio, "spread": pairs.spread}
            rows.append(row)
        fastest = len(records) / min(taken["epoch of batches"])
        goals.append(Goal(f"records/s of an epoch, {parties} parties, fastest", fastest, 1.5e6, "higher"))
    return rows, goals[:1]  # nothing was asked of 4 parties


def opening(folder: Path, turns: int) -> tuple[list[dict[str, Any]], list[Goal]]:
    """All splits from the files."""
    parties, what = PARTIES[0], "from .gz to ready tensors"
    taken = [seconds(partial(module(folder, parties).setup, EVERYTHING)) for _ in range(turns)]
    row = {"parties": parties, "what": what, "fastest s": min(taken), "median s": median(taken)}
    return [row], [Goal(f"seconds {what}, fastest", min(taken), 1.0)]


def main() -> None:
    parser = arguments(__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--turns", type=int, default=30, help="epochs of each kind")
    chosen = parser.parse_args()
    keep_freed_memory()
    torch.set_num_threads(1)
    with files() as (folder, images):
        print(f"{images} in {folder}")
        rows, goals = batches_alone(folder, chosen.turns)
        opened, more = opening(folder, max(5, chosen.turns // 4))
    report([{"images": images} | row for row in (*rows, *opened)], [*goals, *more], chosen.json)


if __name__ == "__main__":
    main()
