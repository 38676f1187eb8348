"""Files that a command has written, as it prints them: relative to the current folder where they are below it."""

from collections.abc import Iterable
from pathlib import Path


def short(path: Path) -> Path:
    """The path from the current folder, or the path itself if it is elsewhere."""
    return path.relative_to(Path.cwd()) if path.is_relative_to(Path.cwd()) else path


def print_files(paths: Iterable[Path]) -> None:
    """One line a file; an SVG figure with a PNG beside it is left out."""
    paths = list(paths)
    for path in paths:
        if path.suffix != ".svg" or path.with_suffix(".png") not in paths:
            print(short(path))
