"""Loading a module from a checkpoint without running code that the checkpoint names."""

from collections.abc import Sequence
from pathlib import Path
from typing import IO, Any, Self

from lightning.pytorch import LightningModule
from lightning.pytorch.utilities.model_helpers import _restricted_classmethod

from lightning_vfl.protocols.trusted_classes import checked


class SafelyLoaded(LightningModule):
    """A module whose ``load_from_checkpoint`` builds only trusted classes."""

    @_restricted_classmethod
    def load_from_checkpoint(
        cls,
        checkpoint_path: str | Path | IO[bytes],
        map_location: Any = None,
        hparams_file: str | Path | None = None,
        strict: bool | None = None,
        weights_only: bool | None = None,
        trusted: Sequence[str] = (),
        **kwargs: Any,
    ) -> Self:
        """Load a module as Lightning does, but build only trusted classes.

        Guarantee: a class that the checkpoint names is built only if it is defined in ``lightning_vfl``, is a network,
            metric, optimiser or scheduler of torch or torchmetrics, or is ``trusted``; everything is checked before the
            first import.
        Not guaranteed: anything with ``weights_only=False``, because the file can then run any code.

        Args:
            checkpoint_path: a path, an address or an open file.
            map_location: where tensors go, as in ``torch.load``.
            hparams_file: a YAML file whose hyperparameters are used instead of the checkpoint's.
            strict: whether the names of the weights must equal the module's.
            weights_only: read plain values and tensors only; None: True, for addresses too.
            trusted: further packages, modules or classes that the checkpoint may name: ``["my_project"]``.
            kwargs: parts and settings that replace the checkpoint's.

        Raises:
            ConfigurationError: if the checkpoint names other classes, or was trained with other parts.
        """
        safe = {} if weights_only is None else {"weights_only": weights_only}
        with checked(checkpoint_path, cls, tuple(kwargs), trusted, hparams_file, weights_only) as file:
            return super().load_from_checkpoint(file, map_location, hparams_file, strict, **safe, **kwargs)
