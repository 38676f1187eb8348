"""Folders in which tables are prepared, removed at the end; those of processes that were killed at the next start."""

import os
import platform
from collections.abc import Iterable
from pathlib import Path
from shutil import rmtree
from tempfile import gettempdir, mkdtemp
from weakref import finalize

from lightning_vfl.errors import ConfigurationError

try:
    import fcntl

    _LOCKS = True
except ImportError:  # Windows: folders of killed processes stay
    _LOCKS = False

_LARGE = 1 << 29  # bytes of files from which on tables stay on the disk; in memory they take about three times as much
_PREFIX = "lightning-vfl-"
_LOCK = "in-use.lock"


class WorkFolder:
    """A new folder with an unused name, removed when nothing refers to this object any more, or at the end.

    A process that is killed removes nothing. So a file in the folder is locked as long as the process, or one that it
    has forked, runs; and whoever makes a folder beside it removes the folders whose lock nobody holds.

    Args:
        inside: the folder in which it is made; None: that of the system for temporary files.

    Guarantee: no folder is removed that is in use, that another user or host has made, or that has no lock of ours.
    """

    def __init__(self, inside: str | Path | None) -> None:
        place = Path(inside or gettempdir()).absolute()
        place.mkdir(parents=True, exist_ok=True)
        _remove_abandoned(place)
        self.path = Path(mkdtemp(prefix=_PREFIX, dir=place))
        finalize(self, _remove, self.path, _locked(self.path), os.getpid())


def _locked(folder: Path) -> int | None:
    """The open file that is locked while the folder is in use."""
    if not _LOCKS:
        return None
    made = folder / f"{_LOCK}.new"
    file = os.open(made, os.O_CREAT | os.O_EXCL | os.O_RDWR, 0o600)
    os.write(file, platform.node().encode())
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:  # a file system without locks: without the file, nobody removes the folder
        return file
    made.rename(folder / _LOCK)  # it has its name once it is locked, so nobody finds it unlocked before
    return file


def _remove(path: Path, lock: int | None, owner: int) -> None:
    if os.getpid() == owner:  # not a worker process, which has been forked
        rmtree(path, ignore_errors=True)
        if lock is not None:
            os.close(lock)


def _remove_abandoned(place: Path) -> None:
    """Remove the folders of processes of this user and host that have ended without removing them."""
    for folder in place.glob(f"{_PREFIX}*") if _LOCKS else ():
        try:
            if folder.is_symlink() or folder.stat().st_uid != os.getuid():
                continue
            file = os.open(folder / _LOCK, os.O_RDWR | os.O_NOFOLLOW)
        except OSError:  # has no lock, or has just been removed
            continue
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            ours = os.read(file, 1000) == platform.node().encode()  # a lock may not be seen on other hosts
            if ours and os.fstat(file).st_nlink:  # else somebody else has removed it meanwhile
                rmtree(folder, ignore_errors=True)
        except OSError:  # somebody holds it
            pass
        finally:
            os.close(file)


def work_folder(files: Iterable[Path], work_dir: str | Path | None) -> WorkFolder | None:
    """A folder in which tables are prepared; None: they fit into memory.

    Args:
        files: the tables.
        work_dir: the folder in which to make it; None: that of the system for temporary files, if the files have more
            than 512 MB together.
    """
    small = sum(path.stat().st_size for path in files if path.is_file()) <= _LARGE
    return None if work_dir is None and small else WorkFolder(work_dir)


def refuse_stored(work: WorkFolder | None, partitioner: object) -> None:
    """Refuse to divide the joined columns of tables that are prepared in a folder.

    Raises:
        ConfigurationError: naming the partitioner.
    """
    if work is not None:
        raise ConfigurationError(
            f"{type(partitioner).__name__} divides the joined columns in memory, but these tables are prepared on the "
            "disk; leave the partitioner out, or use smaller files without work_dir"
        )
