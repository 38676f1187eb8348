"""The variants of cascade training: which labels are used, when periods begin, and whether messages are sent."""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import TYPE_CHECKING, ClassVar, Literal

import numpy as np

from lightning_vfl.errors import ConfigurationError
from lightning_vfl.rebuildable import Rebuildable

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Shares = dict[int, NDArray[np.int64]]

VariantName = Literal["async", "sync", "single", "centralized"]


class Variant(Rebuildable, ABC):
    """One of the systems that the paper compares (CVFL, section 5).

    Class data:
        name: the name in recipes and checkpoints.
        together: whether all active parties begin their periods together, after the slowest has ended.
        distributed: whether the active parties are separate, so that messages are sent.
    """

    name: ClassVar[VariantName]
    together: ClassVar[bool] = False
    distributed: ClassVar[bool] = True

    @abstractmethod
    def choose(self, shares: "Shares") -> "Shares":
        """The labels used for training, from the labels that parties hold: party -> positions of records.

        Raises:
            ConfigurationError: if a named party holds no label.
        """


class Asynchronous(Variant):
    """CVFL: every active party works in periods of its own length."""

    name = "async"

    def choose(self, shares: "Shares") -> "Shares":
        return shares


class Synchronous(Variant):
    """All periods begin together, with replicas that are refreshed together."""

    name = "sync"
    together = True

    def choose(self, shares: "Shares") -> "Shares":
        return shares


class Single(Variant):
    """One party trains with its own labels; the labels of other parties are not used.

    Args:
        alone: the party.
    """

    name = "single"

    def __init__(self, alone: int) -> None:
        self.alone = alone

    def choose(self, shares: "Shares") -> "Shares":
        if self.alone not in shares:
            raise ConfigurationError(
                f"alone names party {self.alone}, but labels are held by parties {sorted(shares)}; name one of these"
            )
        return {self.alone: shares[self.alone]}


class Centralized(Variant):
    """All features and labels are in one place; the same networks are trained by plain mini-batches."""

    name = "centralized"
    distributed = False

    def choose(self, shares: "Shares") -> "Shares":
        return {0: np.sort(np.concatenate(list(shares.values())))}


def variant_of(name: VariantName, alone: int) -> Variant:
    """The variant of this name.

    Raises:
        ConfigurationError: if there is no variant of this name.
    """
    known: Mapping[str, Variant] = {v.name: v for v in (Asynchronous(), Synchronous(), Single(alone), Centralized())}
    if name not in known:
        raise ConfigurationError(f"variant '{name}' is unknown; use {', '.join(known)}")
    return known[name]
