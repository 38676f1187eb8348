"""Files that appear complete or not at all, whenever the process is killed."""

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from tempfile import TemporaryFile
from typing import BinaryIO

from lightning_vfl.errors import ConfigurationError, reason


@contextmanager
def whole_file(path: Path, mode: int = 0o666) -> Iterator[BinaryIO]:
    """A file to write; it replaces ``path`` when the block ends without an error.

    Guarantee: at every moment ``path`` is the complete old file, or none, or the complete new one; when the block has
        ended, the new one is on the disk. It is written beside ``path``, as ``.NAME.part``: a file of another file
        system, such as that of temporary files, could not be renamed but only copied.
    Not guaranteed: two processes that write one path.

    Args:
        path: of the file; its folder is made.
        mode: who may read and write it, less the bits that the process never grants.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_name(f".{path.name}.part")
    part.unlink(missing_ok=True)  # of a process that was killed
    descriptor = os.open(part, os.O_WRONLY | os.O_CREAT | os.O_EXCL | getattr(os, "O_BINARY", 0), mode)
    try:
        with os.fdopen(descriptor, "wb") as file:
            yield file
            file.flush()
            os.fsync(descriptor)
        part.replace(path)
    finally:
        part.unlink(missing_ok=True)
    flush_folder(path.parent)


@contextmanager
def whole_path(path: Path) -> Iterator[Path]:
    """The path of a hidden file to write beside ``path``, which it replaces when the block ends without an error.

    Guarantee: as of ``whole_file``, but the file is not flushed to the disk. After an error no hidden file is left.

    Args:
        path: of the file; its folder is made.

    Raises:
        ConfigurationError: naming the path, if it cannot be written, for example on a full disk.
    """
    part = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        with named(path):
            path.parent.mkdir(parents=True, exist_ok=True)
            yield part
            part.replace(path)
    finally:
        with suppress(OSError):
            part.unlink(missing_ok=True)


def refuse_unwritable(path: Path) -> None:
    """Accept a path at which a file can be written; nothing is left there, and no folder is made.

    Raises:
        ConfigurationError: for a folder, and for a path in a folder without permission to write.
    """
    if path.is_dir():
        raise ConfigurationError(f"{path} is a folder; give the path of a file")
    folder = next(folder for folder in path.absolute().parents if folder.exists())
    with named(path), TemporaryFile(dir=folder):
        pass


@contextmanager
def named(path: Path) -> Iterator[None]:
    """Name the path if the system does not let this process write it.

    Raises:
        ConfigurationError: naming the path.
        FileExistsError: if it was to be made, and is there already.
    """
    try:
        yield
    except OSError as error:
        if isinstance(error, FileExistsError) and path.parent.is_dir():
            raise
        raise cannot_be_written(path, error) from error


def cannot_be_written(path: Path, error: OSError) -> ConfigurationError:
    """The error for a file that the system does not let this process write."""
    return ConfigurationError(
        f"{path} cannot be written ({error.strerror or reason(error)}); make room or get permission there, or give "
        "another path"
    )


def flush_folder(folder: Path) -> None:
    """Flush a folder, if the system can: otherwise its entry of a new file could be lost."""
    if os.name == "posix":
        entry = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(entry)
        finally:
            os.close(entry)
