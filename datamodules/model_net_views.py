"""ModelNet10 in rendered views: a folder of pictures, twelve of every object."""

import re
from collections.abc import Mapping
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Literal, NamedTuple

import numpy as np

from lightning_vfl.errors import ConfigurationError
from lightning_vfl.limits import refuse_pixels

from .base import SplitName, VerticalDataModule, absent, data_folder
from .idx_images import image_split
from .normalise import Normaliser, StandardiseParty
from .partition import Layout, Partitioner, Views
from .records import Split
from .split import check_shares, split_rows

if TYPE_CHECKING:
    from numpy.typing import NDArray

_CLASSES = ("bathtub", "bed", "chair", "desk", "dresser", "monitor", "night_stand", "sofa", "table", "toilet")
_VIEWS = 12
_PICTURES = (".png", ".jpg", ".jpeg")
_EXAMPLE = "bathtub/train/bathtub_0001_001.png"
_NAME = re.compile(r"(?P<object>.+)_(?P<view>\d+)")


class _Objects(NamedTuple):
    """N objects of one part: (N, 12 · C, S, S) pixels, (N,) labels and names."""

    pixels: "NDArray[np.uint8]"
    labels: "NDArray[np.int64]"
    names: "NDArray[np.str_]"


class ModelNet10Views(VerticalDataModule):
    """ModelNet10: furniture in 12 rendered views, 3,991 objects for training and 908 for testing, ten classes.

    The folder holds ``CLASS/train`` and ``CLASS/test`` for each of the ten classes, and in them the views 1 to 12 of
    every object, called ``OBJECT_VIEW.png`` (or ``.jpg``, ``.jpeg``): ``bathtub/train/bathtub_0001_001.png``. So are
    the renderings of ModelNet40 that come with MVCNN; its other thirty classes are not read. Pictures are grey or RGB,
    all of one size, and are made ``size`` x ``size`` (bilinear, every pixel counts) with pixels in [0, 1]. Labels 0 to
    9 are the classes in the order of their names; a record's id is the object's name.

    Views go to the parties in order, those of one party one after the other as channels. PBM-VFL has 12 parties with a
    view each, as ``Views()``, or 6 with two, as ``Views(6)``. It keeps no objects for validation, which is
    ``val_share=0``; it trains on 1,008 of them, and crops and mirrors pictures at random, which is not done here.

    Args:
        partitioner: who gets which views; None: one view a party.
        normaliser: how each party scales its pixels; None: mean 0, deviation 1 over all of a party's training pixels.
        batch_size: rows of a batch in each process.
        seed: names the validation records and the order of the training records.
        drop_last: leave out the last, smaller batch of every training epoch.
        num_workers: worker processes; 0 is fastest for data in memory.
        pin_memory: for a faster way to a GPU.
        data_dir: folder of the classes; None: ``$LIGHTNING_VFL_DATA/model_net``, else ``data/model_net``.
        val_share: share of the training objects for validation; 0: none.
        size: S, side of the pictures in pixels; PBM-VFL does not state its own, its code has 224.
        channels: 1: grey, 3: red, green, blue; either is made of the other.

    Shapes: a party of k views (k · channels, size, size).
    Units: memory, 12 · channels · size² bytes an object, which are kept, and eight times as much while a stage is set
        up: 60 MB and 0.5 GB for all of ModelNet10 as it is here, 49 times that at size 224.
    Guarantee: the validation objects are stratified by class. One picture is decoded at a time, each once.
    Not guaranteed: that the objects are those of ModelNet10, all of them; releases differ in how many they have.

    Raises:
        ConfigurationError: if a folder or a view is not there, or a picture cannot be read or has another size.

    Examples:
        >>> ModelNet10Views(Views(6)).party_shapes[0]
        (2, 32, 32)

    References:
        Wu et al., "3D ShapeNets", CVPR 2015, https://modelnet.cs.princeton.edu. Views: Su, Maji, Kalogerakis and
        Learned-Miller, "Multi-view Convolutional Neural Networks for 3D Shape Recognition", ICCV 2015. Parties: Tran,
        Castiglia, Patterson and Milanova, "PBM-VFL: Vertical Federated Learning with Feature and Sample Privacy",
        appendix B.
    """

    known_bounds = (0.0, 1.0)
    data_settings = ("val_share", "size", "channels")

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
        val_share: float = 0.1,
        size: int = 32,
        channels: Literal[1, 3] = 1,
    ) -> None:
        super().__init__(partitioner, normaliser, batch_size, seed, drop_last, num_workers, pin_memory)
        check_shares(val_share)
        if size < 1:
            raise ConfigurationError(f"size {size} makes no picture; use 1 or more pixels")
        if channels not in (1, 3):
            raise ConfigurationError(f"channels {channels} is neither grey nor RGB; use 1 or 3")
        self.data_dir = data_folder(data_dir, "model_net")
        self.val_share = val_share
        self.size = size
        self.channels = channels

    @property
    def layout(self) -> Layout:
        views = (self.channels * self.size**2,) * _VIEWS
        names = tuple(str(view) for view in range(1, _VIEWS + 1))
        return Layout((_VIEWS * self.channels, self.size, self.size), views=views, view_names=names)

    @property
    def num_classes(self) -> int:
        return len(_CLASSES)

    def default_partitioner(self) -> Partitioner:
        return Views()

    def default_normaliser(self) -> Normaliser:
        return StandardiseParty()

    def load(self, names: tuple[SplitName, ...]) -> Mapping[SplitName, Split]:
        splits: dict[SplitName, Split] = {}
        if "train" in names or "val" in names:
            drawn = self._train
            rows = split_rows(np.arange(len(drawn.labels)), self.seed, self.val_share, 0.0, drawn.labels)
            kept = {name: rows[name] for name in names if name in ("train", "val") and len(rows[name])}
            splits = {n: image_split(drawn.pixels[r], drawn.labels[r], drawn.names[r]) for n, r in kept.items()}
        if "test" in names or "predict" in names:
            tests = image_split(*self._test)
            splits |= {name: tests for name in names if name in ("test", "predict")}
        return splits

    # ---- inside

    @cached_property
    def _train(self) -> _Objects:
        return self._read("train")

    @cached_property
    def _test(self) -> _Objects:
        return self._read("test")

    def _read(self, part: str) -> _Objects:
        folders = {name: self.data_dir / name / part for name in _CLASSES}
        if missing := [f"{name}/{part}" for name, folder in folders.items() if not folder.is_dir()]:
            what = f"{' and no '.join(missing)} of {type(self).__name__}"
            raise absent(self.data_dir, what, f"the rendered views, such as {_EXAMPLE},")
        found = [
            (label, name, views)
            for label, folder in enumerate(folders.values())
            for name, views in _objects(folder).items()
        ]
        pixels = np.empty((len(found), _VIEWS, self.channels, self.size, self.size), np.uint8)
        sizes: dict[tuple[int, int], Path] = {}
        for row, (_, _, views) in enumerate(found):
            for view, path in enumerate(views):
                pixels[row, view], size = _picture(path, self.size, self.channels)
                sizes.setdefault(size, path)
                if len(sizes) > 1:
                    told = " but ".join(f"{file} has {wide} x {high} pixels" for (wide, high), file in sizes.items())
                    raise ConfigurationError(f"{told}; render all views in one size")
        labels = np.array([label for label, _, _ in found], dtype=np.int64)
        return _Objects(pixels.reshape(-1, *self.layout.shape), labels, np.array([name for _, name, _ in found]))


def _objects(folder: Path) -> dict[str, list[Path]]:
    """Name -> pictures of the views 1 to 12 of every object in the folder, by name."""
    objects: dict[str, dict[int, Path]] = {}
    for path in sorted(folder.iterdir()):
        if path.suffix.lower() not in _PICTURES:
            continue
        if (called := _NAME.fullmatch(path.stem)) is None:
            raise ConfigurationError(f"{path} is not called OBJECT_VIEW{path.suffix}; rename it, or remove it")
        views = objects.setdefault(called["object"], {})
        if (view := int(called["view"])) in views or not 1 <= view <= _VIEWS:
            raise ConfigurationError(
                f"{path} is {'another' if view in views else 'a'} view {view} of object '{called['object']}'; keep one "
                f"picture for each of the views 1 to {_VIEWS}"
            )
        views[view] = path
    if not objects:
        raise ConfigurationError(f"{folder} holds no pictures ({', '.join(_PICTURES)}); put the rendered views there")
    for name, views in objects.items():
        if missing := [str(view) for view in range(1, _VIEWS + 1) if view not in views]:
            raise ConfigurationError(
                f"object '{name}' in {folder} lacks view {', '.join(missing)} of 1 to {_VIEWS}; render what is "
                "missing, or remove the object"
            )
    return {name: [views[view] for view in sorted(views)] for name, views in objects.items()}


def _picture(path: Path, size: int, channels: int) -> "tuple[NDArray[np.uint8], tuple[int, int]]":
    """Pixels (channels, size, size) of a picture, and the width and height that it had."""
    try:
        from PIL import Image
    except ImportError as error:
        raise ConfigurationError("pictures are read with Pillow, which is not installed; pip install pillow") from error
    try:
        with Image.open(path) as image:
            mode, before = image.mode, image.size
            refuse_pixels(*before)
            small = image.convert("L" if channels == 1 else "RGB").resize((size, size), Image.Resampling.BILINEAR)
    except Exception as error:  # a damaged picture trips up Pillow in any of a dozen ways
        raise ConfigurationError(f"{path} cannot be read as a picture ({error}); render it again") from error
    if mode not in ("L", "RGB"):
        raise ConfigurationError(f"{path} is neither grey nor RGB but of mode {mode}; save it as one of them")
    return np.asarray(small).reshape(size, size, channels).transpose(2, 0, 1), before
