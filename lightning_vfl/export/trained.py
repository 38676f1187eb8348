"""A trained model and what a checkpoint says about it, without the recipe and the data of its training."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

import torch

import lightning_vfl.protocols as protocols
from lightning_vfl.errors import ConfigurationError
from lightning_vfl.export.manifest import hash_of
from lightning_vfl.protocols import VFLModule
from lightning_vfl.protocols.loading import BOOKS
from lightning_vfl.protocols.trusted_classes import refuse_strangers


@dataclass(frozen=True)
class Trained:
    """A trained model.

    Args:
        module: the module, with its networks and weights.
        hash: the sha256 of its checkpoint.
        overlap: ``keep`` if the parties of its training data may lack records.
    """

    module: VFLModule
    hash: str
    overlap: str = "inner"


def load_trained(path: Path, trusted: Sequence[str] = ()) -> Trained:
    """Rebuild a model from its checkpoint alone.

    Args:
        path: a checkpoint that fit has written.
        trusted: packages whose classes the checkpoint may name, see ``VFLModule.load_from_checkpoint``.

    Raises:
        ConfigurationError: for a checkpoint that does not keep its arguments.
    """
    content = torch.load(path, map_location="cpu", weights_only=True, mmap=True)
    if BOOKS not in content:
        raise ConfigurationError(f"{path} is not a checkpoint of a vertical model; give a .ckpt that fit has written")
    kind = _protocol(path, content, trusted)
    module = kind.load_from_checkpoint(path, map_location="cpu", trusted=trusted)
    settings = {} if module.fitted is None else content.get(module.fitted.data, {})
    return Trained(module, hash_of(path), str(settings.get("overlap", "inner")))


def _protocol(path: Path, content: Mapping[str, Any], trusted: Sequence[str]) -> type[VFLModule]:
    """The class of the checkpoint's module: the class that it names, or the protocol of this name."""
    named = content["hyper_parameters"].get("_class_path")
    short = content[BOOKS]["parts"]["protocol"]
    if named is None and short in protocols.__all__:
        found = getattr(protocols, short)
    elif named is not None:
        refuse_strangers(content, VFLModule, (), trusted)  # before anything is imported
        module, _, name = named.rpartition(".")
        found = getattr(import_module(module), name)
    else:
        found = None
    if not isinstance(found, type) or not issubclass(found, VFLModule):
        raise ConfigurationError(
            f"{path} was trained with the protocol {named or short}, which is not a protocol of this toolkit; "
            "export the module in Python (lightning_vfl.export.write.export_model)"
        )
    return found
