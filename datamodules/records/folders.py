"""Where the files of a data set are, and the error for missing files."""

import os
from pathlib import Path

from lightning_vfl.errors import ConfigurationError


def data_folder(data_dir: str | Path | None, name: str) -> Path:
    """The folder of a data set's files: ``data_dir``, else ``$LIGHTNING_VFL_DATA/name``, else ``data/name``."""
    if data_dir is not None:
        return Path(data_dir)
    return Path(os.environ.get("LIGHTNING_VFL_DATA", "data")) / name


def missing_files(folder: Path, what: str, put: str) -> ConfigurationError:
    """The error for missing files of a data set.

    Args:
        folder: the folder in which the files were looked for.
        what: the missing files and the name of the data set.
        put: the files to put there, and their source.
    """
    return ConfigurationError(
        f"{folder.absolute()} holds no {what}; put {put} there, or name another folder with data_dir or "
        "LIGHTNING_VFL_DATA"
    )


def fetch(source: str, file: str, folder: Path, known_hash: str) -> None:
    """Download ``source + file`` into the folder and check its hash (``sha256:...`` or ``md5:...``).

    Raises:
        OSError: without a network, for an unknown address, for a full disk.
        ValueError: for another hash.
    """
    import pooch  # 0.2 s, where it is used

    pooch.retrieve(source + file, known_hash, file, folder, progressbar=True)
