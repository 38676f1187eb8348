"""Decode pictures, PNG or JPEG, and find out from their head and end whether they can be decoded."""

import os
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO

import numpy as np
from PIL import Image, ImageOps, UnidentifiedImageError

from lightning_vfl.limits import refuse_pixels

if TYPE_CHECKING:
    from numpy.typing import NDArray

_FORMATS = ("JPEG", "PNG")
_ENDS = {"JPEG": b"\xff\xd9", "MPO": b"\xff\xd9", "PNG": b"IEND"}  # MPO: the JPEG files of some cameras
_TAIL = 32  # the last mark of a format is among so many bytes at the end of a file
_MODES = ("1", "L", "LA", "P", "RGB", "RGBA", "CMYK")  # modes of 8 bits; Pillow would cut off further bits silently


def decoded(file: Path | BinaryIO, size: int, channels: int) -> "NDArray[np.uint8]":
    """(channels, size, size): the middle of a picture, turned as its EXIF data say, its shorter side resized."""
    with Image.open(file, formats=_FORMATS) as opened:
        _refuse_unfit(opened)
        image = ImageOps.exif_transpose(opened)
        if image.mode == "P":  # Pillow would warn that its transparency is dropped
            picture = image.convert("RGBA").convert("L" if channels == 1 else "RGB")
        else:
            picture = image.convert("L" if channels == 1 else "RGB")
    side = min(picture.size)
    left, top = (picture.width - side) // 2, (picture.height - side) // 2
    middle = picture.resize((size, size), Image.Resampling.BILINEAR, (left, top, left + side, top + side))
    return np.asarray(middle).reshape(size, size, channels).transpose(2, 0, 1)


def _refuse_unfit(image: Image.Image) -> None:
    """Refuse a picture by its head, before it is decoded."""
    refuse_pixels(*image.size)
    if image.mode not in _MODES:
        raise ValueError(f"mode {image.mode} does not have 8 bits a channel")


def what_is_wrong(path: Path, size: int, channels: int) -> str:
    """Why a picture cannot be used, judged by its head and its end; "": no reason."""
    try:
        with path.open("rb") as file:
            with Image.open(file, formats=_FORMATS) as image:
                _refuse_unfit(image)
                mark = _ENDS[str(image.format)]
            file.seek(max(0, file.seek(0, os.SEEK_END) - _TAIL))
            if mark not in file.read():  # cut short, or other bytes follow the picture
                decoded(file, size, channels)
    except Exception as error:  # Pillow's errors for damaged pictures have no common class
        return reason_of(error)
    return ""


def reason_of(error: Exception) -> str:
    """Why a picture cannot be decoded."""
    return "neither PNG nor JPEG" if isinstance(error, UnidentifiedImageError) else str(error) or type(error).__name__
