"""Files that appear complete or not at all, whenever the process is killed."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO


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


def flush_folder(folder: Path) -> None:
    """Flush a folder, if the system can: otherwise its entry of a new file could be lost."""
    if os.name == "posix":
        entry = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(entry)
        finally:
            os.close(entry)
