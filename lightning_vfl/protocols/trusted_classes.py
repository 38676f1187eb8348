"""The classes that a checkpoint may name: names are checked before anything is imported or built."""

import inspect
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import IO, Any

import torch
import yaml
from lightning.fabric.utilities.cloud_io import get_filesystem
from lightning.pytorch.core.saving import (
    CHECKPOINT_PAST_HPARAMS_KEYS,
    load_hparams_from_tags_csv,
    load_hparams_from_yaml,
)
from torch import nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler

from lightning_vfl.errors import ConfigurationError

BOOKS = "lightning_vfl"  # the key of a protocol's own entries in a checkpoint
OWN = "lightning_vfl"
LIBRARIES = ("torch", "torchmetrics")
KINDS = (nn.Module, Optimizer, LRScheduler)  # the classes accepted from the libraries; a metric is an nn.Module
_PROGRAMS = tuple(f"{OWN}.{name}" for name in ("__main__", "cli", "commands", "study"))  # these modules run programs
_INSTANTIATORS = ("lightning.pytorch.cli.instantiate_module", "pytorch_lightning.cli.instantiate_module")
_PATH_KEYS = ("class_path", "_class_path")


def refuse_strangers(
    checkpoint: Any, loaded: type, given: Sequence[str], trusted: Sequence[str], hparams_file: str | Path | None = None
) -> None:
    """Refuse a checkpoint whose hyperparameters name classes that are not trusted.

    ``load_from_checkpoint`` passes these hyperparameters to jsonargparse, which imports and builds every class that
    they name. A name is accepted if it leads to a class that is DEFINED in ``lightning_vfl`` (except in its
    command-line modules), in ``torch`` or ``torchmetrics`` (only networks, metrics, optimisers and schedulers), or in
    a package that the caller trusts. Texts that jsonargparse would read as a structure or as a file are refused.

    Guarantee: no module is imported for the check, except those below ``lightning_vfl`` and ``trusted``.
    Not guaranteed: that accepted classes are harmless with the settings in the checkpoint.

    Args:
        checkpoint: the content of the file.
        loaded: the class whose ``load_from_checkpoint`` was called; this class is trusted.
        given: names of hyperparameters that the caller gives; they replace the checkpoint's.
        trusted: packages, modules or classes that the caller trusts, as dotted names.
        hparams_file: a file whose hyperparameters replace the checkpoint's.

    Raises:
        ConfigurationError: for the first name that is not accepted.
    """
    if not isinstance(checkpoint, Mapping):
        return
    key = getattr(loaded, "CHECKPOINT_HYPER_PARAMS_KEY", "hyper_parameters")
    held = [checkpoint.get(name) for name in (*CHECKPOINT_PAST_HPARAMS_KEYS, key)]
    if hparams_file is not None:
        table = Path(hparams_file).suffix.lower() == ".csv"
        read = load_hparams_from_tags_csv if table else load_hparams_from_yaml
        held.append(read(hparams_file))
    for hparams in held:
        if isinstance(hparams, Mapping):
            own = {name: value for name, value in hparams.items() if name not in given}
            _Check(loaded, (trusted,) if isinstance(trusted, str) else tuple(trusted)).settings(own)


def hparams_in(checkpoint: Any, loaded: type) -> Mapping[str, Any]:
    """The hyperparameters in the content of a checkpoint, with what the data have told; see ``take_untaken``."""
    if not isinstance(checkpoint, Mapping):
        return {}
    key = getattr(loaded, "CHECKPOINT_HYPER_PARAMS_KEY", "hyper_parameters")
    return {**checkpoint.get(key, {}), **checkpoint.get(BOOKS, {}).get("told", {})}


def refuse_lost(checkpoint: Any, loaded: type, given: Sequence[str]) -> None:
    """Refuse a checkpoint that does not keep an argument of the module, unless the caller gives this argument.

    Raises:
        ConfigurationError: naming the first such argument.
    """
    if not isinstance(checkpoint, Mapping) or BOOKS not in checkpoint or not issubclass(loaded, nn.Module):
        return
    lost = {name: f"was made with {what}" for name, what in checkpoint[BOOKS].get("lost", {}).items()}
    kept = hparams_in(checkpoint, loaded)
    for name, parameter in inspect.signature(loaded).parameters.items():
        needed = parameter.default is parameter.empty and parameter.kind is parameter.POSITIONAL_OR_KEYWORD
        if needed and name not in kept:
            lost.setdefault(name, "was not kept by the version that wrote it")
    for name, why in lost.items():
        if name not in given:
            raise ConfigurationError(
                f"the checkpoint does not have the model's {name}, which {why}; give it: load_from_checkpoint(path, "
                f"{name}=...)"
            )


@contextmanager
def checked(
    path: str | Path | IO[bytes],
    loaded: type,
    given: Sequence[str],
    trusted: Sequence[str],
    hparams_file: str | Path | None,
    weights_only: bool | None,
) -> Iterator[tuple[IO[bytes], Mapping[str, Any]]]:
    """Open the file of a checkpoint for reading, after ``refuse_strangers``; a file given open stays open.

    The file that is checked is the file that is loaded, even if another file takes its name in between. The file is
    read as plain values and tensors unless ``weights_only`` is False.

    Returns:
        The file, and the hyperparameters in it.
    """
    place: IO[bytes] = get_filesystem(path).open(str(path), "rb") if isinstance(path, str | Path) else path
    try:
        start = place.tell()
        content = torch.load(place, map_location="meta", weights_only=weights_only is not False)
        refuse_strangers(content, loaded, given, trusted, hparams_file)
        if hparams_file is None:
            refuse_lost(content, loaded, given)
        place.seek(start)
        yield place, hparams_in(content, loaded)
    finally:
        if place is not path:
            place.close()


class _Check:
    """A walk through hyperparameters.

    Args:
        loaded: a class that is trusted.
        trusted: dotted names that are trusted.
    """

    def __init__(self, loaded: type, trusted: tuple[str, ...]) -> None:
        self.loaded = loaded
        self.trusted = trusted

    def settings(self, hparams: Mapping[Any, Any]) -> None:
        """Check all hyperparameters."""
        for name, value in hparams.items():
            if name == "_instantiator":
                if value not in _INSTANTIATORS:
                    raise self._refused(repr(value), str(name))
            else:
                self._value(value, name, str(name))

    def _value(self, value: Any, key: Any, where: str) -> None:
        if isinstance(key, str) and key.rpartition(".")[2] in _PATH_KEYS:
            self._class_path(value, where)
        elif isinstance(value, Mapping):
            for name, inner in value.items():
                self._value(inner, name, where if name in ("init_args", "dict_kwargs") else f"{where}.{name}")
        elif isinstance(value, list | tuple | set):
            for inner in value:
                self._value(inner, None, where)
        elif isinstance(value, str):
            self._text(value, where)

    def _class_path(self, path: Any, where: str) -> None:
        if not isinstance(path, str) or "." not in path or not self._accepted(path):
            raise self._refused(str(path), where.removesuffix(".class_path"))

    def _text(self, text: str, where: str) -> None:
        """Check a text that is not under a class_path key: jsonargparse may still read it as a class or settings."""
        parts = text.split(".")
        if all(part.isidentifier() for part in parts):
            if len(parts) > 1 and self._importable(parts[0]) and not self._accepted(text):
                raise self._refused(text, where)
            if len(parts) == 1 and any(not self._accepted(path) for path in _called(text)):
                raise self._refused(text, where)
            return
        try:
            structure = isinstance(yaml.safe_load(text), dict | list)
        except (yaml.YAMLError, ValueError, RecursionError):
            structure = "{" in text or "[" in text
        if structure or _is_file(text):
            raise ConfigurationError(
                f"the checkpoint's {where} is a text that would be read as "
                f"{'a structure' if structure else 'the name of a file'} of further settings, but no run saves such a "
                f"text; give your own {where.partition('.')[0]} to load_from_checkpoint"
            )

    def _importable(self, root: str) -> bool:
        """Whether there is a module or package of this name; it is not imported."""
        try:
            return root in sys.modules or find_spec(root) is not None
        except (ImportError, ValueError):
            return True

    def _accepted(self, path: str) -> bool:
        """Whether this dotted name leads to an object that may be built."""
        found = self._found(path)
        home = getattr(found, "__module__", None)
        if found is None or not isinstance(home, str):
            return False
        if found is self.loaded or _below(f"{home}.{getattr(found, '__qualname__', '')}", self.trusted):
            return callable(found)
        if not isinstance(found, type) or _below(home, _PROGRAMS):
            return False
        return _below(home, (OWN,)) or (_below(home, LIBRARIES) and issubclass(found, KINDS))

    def _found(self, path: str) -> Any:
        """The object of this name; None if there is none, or if an untrusted module would have to be imported."""
        parts = path.split(".")
        own = _below(path, (OWN, *self.trusted)) and "__main__" not in parts[1:]
        for end in range(len(parts) - 1, 0, -1):
            name = ".".join(parts[:end])
            if name not in sys.modules and own:
                try:
                    import_module(name)
                except ImportError:
                    continue
            if name in sys.modules:
                found: Any = sys.modules[name]
                for part in parts[end:]:
                    found = vars(found).get(part) if isinstance(found, type) else getattr(found, part, None)
                return found
        return None

    def _refused(self, path: str, where: str) -> ConfigurationError:
        first = where.partition(".")[0]
        root = path.strip("'").partition(".")[0]
        own = "" if first.startswith("_") else f", or give your own {first}"
        if _below(path.strip("'"), self.trusted) or (root == "__main__" and self._found(path.strip("'")) is None):
            return ConfigurationError(
                f"the checkpoint names {path} as {where}, and there is no such class here"
                f"{': another program has defined it' if root == '__main__' else ''}; make the class available under "
                f"this name{own}"
            )
        if _below(path, (OWN,)) and self._found(path) is None:
            return ConfigurationError(
                f"the checkpoint names {path} as {where}, which this version of {OWN} does not have; train anew{own}"
            )
        return ConfigurationError(
            f"the checkpoint names {path} as {where}, but it may name only classes of {OWN} and networks, metrics, "
            f"optimisers and schedulers of {' or '.join(LIBRARIES)}; if you trust the code of that name, use "
            f"load_from_checkpoint(..., trusted=['{root}']){own}"
        )


def _below(name: str, roots: Sequence[str]) -> bool:
    return any(name == root or name.startswith(f"{root}.") for root in roots)


def _called(name: str) -> Iterator[str]:
    """The paths of all imported classes with this short name."""
    waiting: list[type] = list(KINDS)
    seen: set[type] = set()
    while waiting:
        kind = waiting.pop()
        if kind not in seen:
            seen.add(kind)
            waiting += type.__subclasses__(kind)
            if kind.__name__ == name:
                yield f"{kind.__module__}.{kind.__qualname__}"


def _is_file(text: str) -> bool:
    try:
        return Path(text).is_file()
    except (OSError, ValueError):
        return False
