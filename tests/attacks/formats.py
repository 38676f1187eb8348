"""Attacks through files and messages: a checkpoint that names code, files that grow, messages that are spoilt."""

import contextlib
import gzip
import io
import os
import resource
import sys
import tempfile
import warnings
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from importlib import import_module
from inspect import unwrap
from multiprocessing import get_context
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
from lightning.pytorch import LightningModule
from PIL import Image

from lightning_vfl import SplitVFL
from lightning_vfl.datamodules import MNIST, ImageFolderVFL
from lightning_vfl.datamodules.records.view_files import read_views
from lightning_vfl.limits import BYTES
from tests.attacks.row import Row
from tests.unit.aggregators.mutations import SUBJECTS, UNNOTICEABLE, fuzzed
from tests.unit.datamodules.bombs import idx_bomb, npz_bomb, png_bomb
from tests.unit.datamodules.miniature import write_pictures
from tests.unit.protocols.test_trusted_classes import FORGERIES, forged, write_checkpoint, write_evil

CHECKS = (
    "check_message",
    "check_opening",
    "check_uploads",
    "check_data_shares",
    "check_model_shares",
    "check_embedding_shares",
    "check_results",
    "refuse_outside",
    "refuse_infinite",
    "refuse_lacking",
)
ROOMS = (
    "clear",
    "coded.data_shares",
    "coded.products",
    "lagrange_shared",
    "secure.layer",
    "secure.masked_wire",
    "secure.opening",
    "secure.recovery",
)


# ---- a checkpoint that names code


def checkpoint(guarded: bool, ways: Sequence[str] = tuple(FORGERIES)) -> tuple[int, int]:
    """In how many of the ways to name a class of the attacker's its code runs while the checkpoint is loaded."""
    ran = 0
    with tempfile.TemporaryDirectory() as place, _quiet():
        folder = Path(place)
        saved, mark = write_checkpoint(folder), write_evil(folder)
        sys.path.insert(0, place)
        try:
            for way in ways:
                path = forged(saved, folder, FORGERIES[way])
                sys.modules.pop("evil_parts", None)
                mark.unlink(missing_ok=True)
                load: Any = SplitVFL.load_from_checkpoint if guarded else _lightnings_own
                with contextlib.suppress(Exception):
                    load(path)
                ran += mark.exists()
        finally:
            sys.path.remove(place)
            sys.modules.pop("evil_parts", None)
    return ran, len(ways)


def _lightnings_own(path: Path) -> Any:
    return unwrap(LightningModule.load_from_checkpoint)(SplitVFL, path)


# ---- files that grow


def memory(work: Callable[[], object]) -> float:
    """How many MB this adds to the memory of a process of its own at most; errors of reading are passed over."""
    context = get_context("fork")  # with all imports
    here, there = context.Pipe(duplex=False)
    child = context.Process(target=_measured, args=(work, there))
    with warnings.catch_warnings():  # of threads that the child will not have: it only reads a file
        warnings.simplefilter("ignore", DeprecationWarning)
        child.start()
    added: float = here.recv()
    child.join()
    return added


def _measured(work: Callable[[], object], there: Connection) -> None:
    warnings.simplefilter("ignore")
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with contextlib.suppress(ValueError, OSError):
        work()
    there.send((resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1e3)


def grown_idx(size: int) -> tuple[float, float, float]:
    """MB of the file, and that reading takes as before and now: MNIST's images with 10 declared and many behind."""
    with tempfile.TemporaryDirectory() as place:
        path = idx_bomb(Path(place), declared=10, held=size)
        now = memory(lambda: MNIST(data_dir=place, val_records=0).setup("fit"))
        return path.stat().st_size / 1e6, memory(lambda: gzip.decompress(path.read_bytes())), now


def grown_npz(size: int) -> tuple[float, float, float]:
    """The same of a NumPy file of zeros."""
    with tempfile.TemporaryDirectory() as place, _limit(size // 4):
        path = npz_bomb(Path(place) / "x.npz", size // 16)

        def as_before() -> object:
            with np.load(path, allow_pickle=False) as content:
                return {name: content[name].astype(np.float64) for name in content.files}

        return path.stat().st_size / 1e6, memory(as_before), memory(lambda: read_views(path, None, None))


def grown_png(side: int) -> tuple[float, float, float]:
    """The same of a black picture."""
    with tempfile.TemporaryDirectory() as place:
        write_pictures(Path(place))
        path = png_bomb(Path(place) / "train/bird/0.png", side)

        def as_before() -> object:
            with Image.open(path) as image:
                return image.convert("RGB").resize((8, 8), Image.Resampling.BILINEAR)

        now = memory(lambda: ImageFolderVFL(data_dir=place, size=8, threads=1).setup("fit"))
        return path.stat().st_size / 1e6, memory(as_before), now


@contextlib.contextmanager
def _limit(size: int) -> Iterator[None]:
    with mock.patch.dict(os.environ, {BYTES: str(size)}):
        yield


# ---- messages that are spoilt


def messages(checked: bool, names: Sequence[str] = tuple(SUBJECTS)) -> Counter[str]:
    """What becomes of spoilt messages of these aggregators; ``checked``: as they are, or without any check."""
    found: Counter[str] = Counter()
    with contextlib.ExitStack() as stack:
        if not checked:
            for room in ROOMS:
                module = import_module(f"lightning_vfl.aggregators.{room}")
                for name in CHECKS:
                    if hasattr(module, name):
                        stack.enter_context(mock.patch.object(module, name, return_value=None))
            opening = import_module("lightning_vfl.aggregators.secure.opening")
            stack.enter_context(
                mock.patch.object(opening, "file_once", lambda filed, who, what, _: filed.update({who: what}))
            )
            stack.enter_context(
                mock.patch.object(opening, "unsealed", lambda seal, sealed, number, *_: seal.open(sealed, number))
            )
        for name in names:
            found.update(
                became for _, what, became in fuzzed(name) if what.removeprefix("alongside: ") not in UNNOTICEABLE
            )
    return found


def _told(found: Counter[str]) -> str:
    every = found.total()
    return (
        f"{found['refused']} refused with a name, {found['harmless']} without effect, {found['not named']} end in some "
        f"error, {found['wrong']} give a wrong result silently, of {every}"
    )


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    with (
        warnings.catch_warnings(),
        contextlib.redirect_stdout(io.StringIO()),
        contextlib.redirect_stderr(io.StringIO()),
    ):
        warnings.simplefilter("ignore")
        yield


def rows(size: int = 2**28, side: int = 13_000) -> list[Row]:
    """The rows of this family; bombs of so many bytes, and a picture of side x side pixels."""
    before, now = checkpoint(False), checkpoint(True)
    table = [
        Row(
            "a checkpoint names a class of the attacker's",
            "nothing; the victim calls load_from_checkpoint",
            f"its code runs in {before[0]} of {before[1]} ways to name it",
            f"{now[0]} of {now[1]} (refused, unless trusted)",
            "0",
        )
    ]
    for what, (held, old, new) in (
        (f"an idx.gz declares 10 images and holds {size / 1e6:.0f} MB", grown_idx(size)),
        (f"an npz declares {size / 1e6:.0f} MB of zeros", grown_npz(size)),
        (f"a PNG declares {side} x {side} pixels", grown_png(side)),
    ):
        table.append(
            Row(
                f"{what} in {1e3 * held:.0f} kB",
                "nothing; the victim reads the file",
                f"{old:.0f} MB of memory",
                f"{new:.0f} MB (refused)",
                "0 MB",
            )
        )
    spoilt = "a message of a round; it may change kind, destination, senders, shapes, types, numbers and rounds"
    table.append(Row("spoilt messages", spoilt, _told(messages(False)), _told(messages(True)), "all refused"))
    return table
