"""What an attack is: a function from what its attacker has seen and knows to guesses. It never has the truth."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from lightning_vfl.aggregators.base import Aggregator
from lightning_vfl.audit.attacker import Attacker
from lightning_vfl.audit.attacks.drift.served import StepRule
from lightning_vfl.audit.transcript import Transcript
from lightning_vfl.networks.depth import Depth
from lightning_vfl.types import Roster, Widths, places


class Target(StrEnum):
    """What an attack guesses; it decides what the harness tells the attack, and how it scores the guesses."""

    RANKS = "labels, two classes"  # values (n,): larger for positive records; scored by AUC
    CLASSES = "labels"  # values (n, C): a score for each class; scored by accuracy, AUC for two classes
    COUNTS = "labels of batches"  # values (rounds, C): records of each class; scored by R²
    FEATURES = "features"  # values (n, W): a party's features, standardised; scored by R²
    RECORDS = "whole records"  # values (n, W): a party's features; scored by the share within 5 %
    SHARES = "shared records"  # values (n, W): a party's shared integers; scored by the share that is exact
    EMBEDDINGS = "embeddings"  # values (n, D): a party's uploads before they are hidden; scored by R²
    JOINED = "joined embeddings"  # values (rounds, R, D): what a top was given, in any order; share that is exact
    COINS = "one of two values"  # values (n,): larger for the second value; scored by a lower bound on ε
    CANARIES = "values of canaries"  # values (n,), as COINS, for records in a training
    NEIGHBOURS = "records that are alike"  # values (n, d): columns up to rotation; by the share of right neighbours
    COLUMNS = "columns with few values"  # values (n, c): numbers of levels; scored by the share of exact columns
    MEMBERS = "membership"  # values (n,): larger for training records; scored by AUC


@dataclass(frozen=True)
class Needs:
    """The side knowledge that an attack asks for.

    Args:
        labels_per_class: k, records of each class whose label the attacker knows.
        positives: records of class 1 alone whose label it knows; for two classes.
        records: records whose features at the attacked party the attacker knows.
        prior: whether it knows the share of each class among all records.
    """

    labels_per_class: int = 0
    positives: int = 0
    records: int = 0
    prior: bool = False


@dataclass(frozen=True, eq=False)
class Seen:
    """What the attacker has received, holds and can compute; never another's data.

    Args:
        attacker: who it is.
        transcript: the messages that its members receive, send and compute.
        records: N, the number of training records.
        classes: C, the number of classes; 1: numbers are predicted.
        features: for each of its parties (N, *S), the features as its bottom is given them.
        bottoms: the trained bottoms of its parties, by party.
        top: the server's trained top; None: the server is not in it.
        roster: the parties.
        aggregator: how embeddings are joined; its settings are public, its secrets are not here.
        agreed: public settings that the parties' set-up has fixed.
        seed: the run's seed, which is in the recipe.
        recipe: the optimiser of all parties and its first rate; None: it is no SGD or Adam.
        widths: (M,) the widths of the embeddings.
        depths: for each party the columns and the hidden layer of its bottom; None: it has other layers.
        inputs: what parties and server publish for predictions, by name; see the attacks that use it.
        answer: for a collaborator of a cascade that lies: from a round and the (P,) parameters of a top, the gradient
            (P',) of its learning parameters that an active party would have sent; None: it sends no top.
    """

    attacker: Attacker
    transcript: Transcript
    records: int
    classes: int
    features: Mapping[int, Tensor]
    bottoms: Mapping[int, nn.Module]
    top: nn.Module | None
    roster: Roster
    aggregator: Aggregator
    agreed: Mapping[str, Any] = field(default_factory=dict)
    seed: int = 0
    recipe: tuple[StepRule, float] | None = None
    widths: Widths = ()
    depths: Mapping[int, Depth | None] = field(default_factory=dict)
    inputs: Mapping[str, Tensor] = field(default_factory=dict)
    answer: Callable[[int, Tensor], Tensor] | None = None


@dataclass(frozen=True, eq=False)
class Known:
    """Side knowledge, as much as the attack has asked for.

    Args:
        ids: (k,) int64, the records that it is about.
        labels: (k,) their labels; None: not known.
        features: (k, W) float64, their features at the attacked party; None: not known.
        prior: (C,) the share of each class; None: not known.
    """

    ids: Tensor
    labels: Tensor | None = None
    features: Tensor | None = None
    prior: Tensor | None = None


@dataclass(frozen=True, eq=False)
class Guesses:
    """An attack's result: ``values`` for the records (or rounds, or trials) ``ids``; see ``Target`` for the shapes.

    The harness refuses other shapes, ids that do not exist, and ids that are there twice. An attack may leave records
    out; these are not scored. Of ``JOINED``, rows of NaN stand for embeddings that it has not found.

    Args:
        ids: (n,) int64, on the CPU.
        values: float64, on the CPU.
        saw: what was used, in a few words for the report.
        plain: guesses of the same records from the uploads as they are, to be scored beside; None: there are none.
    """

    ids: Tensor
    values: Tensor
    saw: str
    plain: Tensor | None = None


class NothingSeen(Exception):
    """The attacker receives nothing that the attack could use; the text says what is missing."""


class NotAttacked(Exception):
    """The attacker receives something that this attack cannot use; the text says why. This is no safety result."""


class Attack(ABC):
    """An attack on a training or on its messages.

    An attack is a final class, best a dataclass. Its attributes are its settings.

    Class data:
        target: what it guesses.
        listens: the kinds and directions of messages that ``run`` may use; None: all.

    Guarantee: the harness gives ``run`` nothing but ``Seen`` and ``Known``, chooses no best epoch and no best sign, and
        leaves the known records out when it scores.
    """

    target: ClassVar[Target]
    listens: ClassVar[Collection[tuple[str, str]] | None] = None
    party: int = 0
    """The attacked party, for attacks on features and embeddings."""

    @property
    def needs(self) -> Needs:
        """The side knowledge that the attack asks for; default: none."""
        return Needs()

    @abstractmethod
    def run(self, seen: Seen, known: Known) -> Guesses:
        """The guesses.

        Raises:
            NothingSeen: if the attacker receives nothing that could be used.
        """

    def reads(self, kind: str, way: str, sender: int | None, epoch: int) -> bool:
        """Whether ``run`` may use an entry of the transcript with these properties; default: as ``listens`` says.

        What none of the chosen attacks reads is counted and not kept.
        """
        return self.listens is None or (kind, way) in self.listens

    def choices(self, epochs: int) -> Sequence[Mapping[str, Any]]:
        """Settings between which a shadow training may choose, for a fit of so many epochs; default: none.

        Each choice has the same names, and the class is a dataclass with fields of these names.
        """
        return ()

    def check(self, seen: Seen) -> None:
        """Refuse a training that the attack cannot be tried on; default: none is refused.

        Raises:
            ConfigurationError: in one line.
        """
        return


@dataclass
class FromKnownRecords(Attack, ABC):
    """An attack on a party that begins with ``known`` records of which the attacker has the party's features."""

    party: int = 2
    known: int = 1000

    @property
    def needs(self) -> Needs:
        return Needs(records=self.known)


def asked_for(knowledge: Tensor | None) -> Tensor:
    """Side knowledge that ``Attack.needs`` has asked for.

    Raises:
        TypeError: if it has not.
    """
    if knowledge is None:
        raise TypeError("the attack uses side knowledge that its needs do not ask for")
    return knowledge


def known_places(seen: Seen, known: Known, ids: Tensor) -> tuple[Tensor, Tensor]:
    """The places (k',) among ``ids`` of the known records that are there, and (k,) bool, which of them are."""
    place = places(ids, seen.records)[known.ids]
    there = place >= 0
    return place[there], there


def standardised(rows: Tensor) -> Tensor:
    """Rows (n, d) with columns of mean 0 and deviation 1; a column that does not vary is about 0."""
    return (rows - rows.mean(0)) / rows.std(0).clamp(min=1e-9)


def cosines(rows: Tensor, directions: Tensor) -> Tensor:
    """(n, k) cosines between rows (n, W) and directions (k, W); 0 for rows of zeros."""
    unit = torch.nn.functional.normalize
    return unit(rows, dim=1) @ unit(directions, dim=1).T
