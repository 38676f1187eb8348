"""ModelNet10 in rendered views: a folder of pictures, twelve of every object."""

import re
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from lightning_vfl.errors import ConfigurationError
from lightning_vfl.limits import refuse_pixels

from ..partitioners.partition import Partitioner, Views
from ..records.folders import missing_files
from ..records.labelled import Labelled
from ..records.layout import Layout
from ..records.normalise import StandardiseParty
from .published import PublishedPart, PublishedShare

if TYPE_CHECKING:
    from numpy.typing import NDArray

_CLASSES = ("bathtub", "bed", "chair", "desk", "dresser", "monitor", "night_stand", "sofa", "table", "toilet")
_VIEWS = 12
_ENDINGS = (".png", ".jpg", ".jpeg")
_NAME = re.compile(r"(?P<object>.+)_(?P<view>\d+)")


class ModelNet10Views(PublishedShare):
    """ModelNet10: furniture in 12 rendered views, 3,991 objects for training and 908 for testing, ten classes.

    The folder holds ``CLASS/train`` and ``CLASS/test`` for each of the ten classes, and in them the views 1 to 12 of
    every object, called ``OBJECT_VIEW.png`` (or ``.jpg``, ``.jpeg``): ``bathtub/train/bathtub_0001_001.png``. The
    renderings of ModelNet40 published with MVCNN have this form; its other thirty classes are not read. Pictures are
    grey or RGB, all of one size, and are resized to ``size`` x ``size`` (bilinear) with pixels in [0, 1], scaled to
    mean 0 and deviation 1 over all training pixels of a party by default. Labels 0 to 9 are the classes in the order of
    their names; a record's id is the object's name.

    Views go to the parties in order; the views of one party follow each other as channels. PBM-VFL has 12 parties with
    one view each, as ``Views()``, the default, or 6 with two, as ``Views(6)``. It keeps no objects for validation:
    ``val_share=0``; it trains on 1,008 of them, and crops and mirrors pictures at random, which is not done here.

    Args:
        partitioner: who gets which views; None: the default.
        size: S, side of the pictures in pixels; PBM-VFL does not state its own, its code has 224.
        channels: 1: grey, 3: red, green, blue; pictures are converted.
        settings: further settings of ``PublishedShare`` and ``VerticalDataModule``.

    Shapes: a party of k views (k · channels, size, size).
    Units: memory, 12 · channels · size² bytes an object, and eight times as much while a stage is set up: 60 MB and
        0.5 GB for all of ModelNet10 with the default settings, 49 times that at size 224.
    Guarantee: the validation objects are stratified by class. One picture is decoded at a time, each once.
    Not guaranteed: that the objects are those of ModelNet10; releases differ in the number of objects.

    Raises:
        ConfigurationError: if a folder or a view is missing, or a picture cannot be read or has another size.

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
    folder = "model_net"
    usual_partitioner = Views()
    usual_normaliser = StandardiseParty()
    num_classes = len(_CLASSES)

    def __init__(
        self,
        partitioner: Partitioner | None = None,
        *,
        size: int = 32,
        channels: Literal[1, 3] = 1,
        **settings: Any,
    ) -> None:
        super().__init__(partitioner, **settings)
        if size < 1:
            raise ConfigurationError(f"size must be at least 1 pixel; got {size}")
        if channels not in (1, 3):
            raise ConfigurationError(f"channels must be 1 (grey) or 3 (RGB); got {channels}")
        self.size = size
        self.channels = channels

    @property
    def layout(self) -> Layout:
        views = (self.channels * self.size**2,) * _VIEWS
        names = tuple(str(view) for view in range(1, _VIEWS + 1))
        return Layout((_VIEWS * self.channels, self.size, self.size), views=views, view_names=names)

    def read(self, part: PublishedPart) -> Labelled:
        return self._train if part == "train" else self._test

    @cached_property
    def _train(self) -> Labelled:
        return self._objects("train")

    @cached_property
    def _test(self) -> Labelled:
        return self._objects("test")

    def _objects(self, part: str) -> Labelled:
        folders = {name: self.data_dir / name / part for name in _CLASSES}
        if missing := [f"{name}/{part}" for name, folder in folders.items() if not folder.is_dir()]:
            what = f"{' and no '.join(missing)} of {type(self).__name__}"
            raise missing_files(self.data_dir, what, "the rendered views, such as bathtub/train/bathtub_0001_001.png,")
        found = [
            (label, name, views)
            for label, folder in enumerate(folders.values())
            for name, views in find_objects(folder, _VIEWS).items()
        ]
        pixels = np.empty((len(found), _VIEWS, self.channels, self.size, self.size), np.uint8)
        sizes: dict[tuple[int, int], Path] = {}
        for row, (_, _, views) in enumerate(found):
            for view, path in enumerate(views):
                pixels[row, view], size = read_picture(path, self.size, self.channels)
                sizes.setdefault(size, path)
                if len(sizes) > 1:
                    told = " but ".join(f"{file} has {wide} x {high} pixels" for (wide, high), file in sizes.items())
                    raise ConfigurationError(f"{told}; render all views in one size")
        labels = np.array([label for label, _, _ in found], dtype=np.int64)
        names = np.array([name for _, name, _ in found])
        return Labelled(pixels.reshape(-1, *self.layout.shape), labels, names)


def find_objects(folder: Path, views: int) -> dict[str, list[Path]]:
    """Object -> the pictures of its views 1 to ``views``, called ``OBJECT_VIEW.png``; objects in the order of names.

    Raises:
        ConfigurationError: for pictures with other names, missing views and no pictures.
    """
    objects: dict[str, dict[int, Path]] = {}
    for path in sorted(folder.iterdir()):
        if path.suffix.lower() not in _ENDINGS:
            continue
        if (called := _NAME.fullmatch(path.stem)) is None:
            raise ConfigurationError(f"{path} is not called OBJECT_VIEW{path.suffix}; rename it, or remove it")
        found = objects.setdefault(called["object"], {})
        if (view := int(called["view"])) in found or not 1 <= view <= views:
            raise ConfigurationError(
                f"{path} is {'another' if view in found else 'a'} view {view} of object '{called['object']}'; keep one "
                f"picture for each of the views 1 to {views}"
            )
        found[view] = path
    if not objects:
        raise ConfigurationError(f"{folder} holds no pictures ({', '.join(_ENDINGS)}); put the rendered views there")
    for name, found in objects.items():
        if missing := [str(view) for view in range(1, views + 1) if view not in found]:
            raise ConfigurationError(
                f"object '{name}' in {folder} has no view {', '.join(missing)} of 1 to {views}; render the missing "
                "views, or remove the object"
            )
    return {name: [found[view] for view in sorted(found)] for name, found in objects.items()}


def read_picture(path: Path, size: int, channels: int) -> "tuple[NDArray[np.uint8], tuple[int, int]]":
    """The pixels (channels, size, size) of a picture, and its width and height before it was resized.

    Raises:
        ConfigurationError: if it cannot be read, is neither grey nor RGB, or declares more pixels than
            ``lightning_vfl.limits`` allows.
    """
    try:
        from PIL import Image
    except ImportError as error:
        raise ConfigurationError("pictures are read with Pillow, which is not installed; pip install pillow") from error
    try:
        with Image.open(path) as image:
            mode = image.mode
            before = image.size
            refuse_pixels(*before)
            small = image.convert("L" if channels == 1 else "RGB").resize((size, size), Image.Resampling.BILINEAR)
    except Exception as error:  # Pillow's errors for damaged pictures have no common class
        raise ConfigurationError(f"{path} cannot be read as a picture ({error}); render it again") from error
    if mode not in ("L", "RGB"):
        raise ConfigurationError(f"{path} is neither grey nor RGB but has mode {mode}; save it as grey or RGB")
    return np.asarray(small).reshape(size, size, channels).transpose(2, 0, 1), before
