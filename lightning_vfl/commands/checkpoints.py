"""The checkpoint that ``--ckpt_path`` names: a file, the folder of a run, or the best or last one of the newest run."""

from collections.abc import Iterable, Sequence
from enum import StrEnum
from itertools import takewhile
from pathlib import Path
from pickle import UnpicklingError
from typing import Any

import torch

from lightning_vfl.errors import ConfigurationError, nearest

COMMAND = "lightning_vfl_command"  # key in a checkpoint: the command that has saved it; absent in those of Python
FIT = "fit"
CHECKPOINTS = "checkpoints"  # a run's folder for them
_DEPTH = 3  # folders between a root and its checkpoints: NAME/VERSION/checkpoints
_NAMES = "*.ckpt", "*/*.ckpt", "*/*/*.ckpt"  # a file name with {val/accuracy} makes a folder below that of the run


class Pick(StrEnum):
    """Which checkpoint of a run is meant."""

    BEST = "best"
    LAST = "last"


def find_checkpoint(given: str, roots: Iterable[Path], of_folder: Pick = Pick.BEST, command: str = FIT) -> str:
    """The path of the checkpoint that is meant.

    Args:
        given: a file; the folder of a run; ``best`` or ``last``: of that run of ``command`` below ``roots`` that was
            saved last.
        roots: folders of runs.
        of_folder: which checkpoint of a run is meant if its folder is given.
        command: whose runs ``best`` and ``last`` mean; checkpoints that were saved in Python count too.

    Raises:
        ConfigurationError: if there is no such checkpoint, or the file is none.
    """
    if given in tuple(Pick):
        return str(_pick(Pick(given), _newest_run(given, roots, command), given))
    path = Path(given)
    if path.is_dir():
        return str(_pick(of_folder, _saved_in(path) or _saved_in(path / CHECKPOINTS), given))
    if not path.is_file():
        runs = [str(found) for root in roots for found in sorted(root.glob("*/*")) if found.name == given]
        if runs:
            fix = f"did you mean {runs[0]}?"
        else:
            fix = nearest(given, Pick, "give best, last, the folder of a run, or the .ckpt that fit has written")
        raise ConfigurationError(f"--ckpt_path {given}: no such file; {fix}")
    _read(path)
    return given


def folder_of_run(given: str, roots: Iterable[Path]) -> Path:
    """The folder of the run that is meant; ``given`` as for ``find_checkpoint``, which need not exist in a folder.

    Raises:
        ConfigurationError: if there is no such checkpoint.
    """
    if Path(given).is_dir() and Path(given).name != CHECKPOINTS:
        return Path(given)
    above = Path(find_checkpoint(given, roots)).parents
    return next((folder.parent for folder in above if folder.name == CHECKPOINTS), above[0])


def _saved_in(folder: Path) -> list[Path]:
    """The checkpoints in a folder, the oldest first."""
    found = [path for names in _NAMES for path in folder.glob(names)]
    own = [path for path in found if CHECKPOINTS not in path.relative_to(folder).parts]  # and not those of runs below
    return sorted(own, key=lambda path: (path.stat().st_mtime_ns, path.name))


def _newest_run(given: str, roots: Iterable[Path], command: str) -> list[Path]:
    roots = list(dict.fromkeys(roots))
    patterns = [f"{'*/' * depth}*.ckpt" for depth in range(_DEPTH + 1)]
    patterns += [f"{'*/' * depth}{CHECKPOINTS}/{names}" for depth in range(_DEPTH) for names in _NAMES]
    files = {path for root in roots for pattern in patterns for path in root.glob(pattern)}
    for path in sorted(files, key=lambda path: path.stat().st_mtime_ns, reverse=True):
        content = _read(path)
        if content.get(COMMAND, command) == command:
            return _saved_in(_folder_of(path, content))
    where = " or ".join(map(str, roots))
    of = f" of {command}" if files else ""
    raise ConfigurationError(
        f"--ckpt_path {given}: there is no checkpoint{of} below {where}; give a .ckpt file, the folder of a run, or "
        "the --trainer.default_root_dir of the fit"
    )


def folders_of(path: Path) -> list[Path]:
    """The folders that may have the recipe of a checkpoint, the nearest first: up to the folder of its run."""
    above = list(path.absolute().parents)
    return above[: above.index(_folder_of(path.absolute(), _read(path))) + 2]


def _folder_of(path: Path, content: dict[str, Any]) -> Path:
    """The folder of checkpoints that a checkpoint is in; not the nearest one if its file name has a slash."""
    states = content.get("callbacks", {}).values()
    names = {Path(state["dirpath"]).name for state in states if state.get("dirpath")} or {CHECKPOINTS}
    return next((folder for folder in path.parents if folder.name in names), path.parent)


def _pick(pick: Pick, saved: list[Path], given: str) -> Path:
    if not saved:
        raise ConfigurationError(f"--ckpt_path {given}: the folder has no checkpoint; give the folder of a run of fit")
    last = next((path for path in saved if path.name == "last.ckpt"), saved[-1])
    states = _read(last).get("callbacks", {}).values()
    if pick is Pick.LAST:
        return last
    named = {Path(state["best_model_path"]).parts for state in states if state.get("best_model_path")}
    alike = {path: max((_common_end(path.parts, parts) for parts in named), default=0) for path in saved}
    most = max(alike.values())
    best = [path for path in saved if alike[path] == most]
    if len(best) != 1:
        found = ", ".join(str(path) for path in best)
        raise ConfigurationError(f"--ckpt_path {given}: which checkpoint is the best is not known; give one of {found}")
    return best[0]


def _common_end(one: Sequence[str], other: Sequence[str]) -> int:
    """How many last parts of two paths are the same; a run may have been moved."""
    return sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(reversed(one), reversed(other), strict=False)))


def _read(path: Path) -> dict[str, Any]:
    try:
        checkpoint: dict[str, Any] = torch.load(path, weights_only=True, map_location="cpu", mmap=True)
        known = "pytorch-lightning_version" in checkpoint
    except (OSError, RuntimeError, LookupError, TypeError, ValueError, UnpicklingError):
        known = False
    if not known:
        raise ConfigurationError(f"--ckpt_path {path} is not a checkpoint; give the .ckpt that fit has written")
    return checkpoint
