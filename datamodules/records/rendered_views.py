"""Rendered views of objects: a folder of pictures, several of every object."""

import re
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from lightning_vfl.errors import ConfigurationError
from lightning_vfl.limits import refuse_pixels

if TYPE_CHECKING:
    from numpy.typing import NDArray

_ENDINGS = (".png", ".jpg", ".jpeg")
_NAME = re.compile(r"(?P<object>.+)_(?P<view>\d+)")


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
            mode, before = image.mode, image.size
            refuse_pixels(*before)
            small = image.convert("L" if channels == 1 else "RGB").resize((size, size), Image.Resampling.BILINEAR)
    except Exception as error:  # Pillow's errors for damaged pictures have no common class
        raise ConfigurationError(f"{path} cannot be read as a picture ({error}); render it again") from error
    if mode not in ("L", "RGB"):
        raise ConfigurationError(f"{path} is neither grey nor RGB but has mode {mode}; save it as grey or RGB")
    return np.asarray(small).reshape(size, size, channels).transpose(2, 0, 1), before
