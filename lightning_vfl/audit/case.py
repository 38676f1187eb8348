"""A training that is attacked: its records, and what the attacker has of it."""

from collections.abc import Callable, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass, field
from functools import cache
from math import exp
from typing import Any

import torch
from torch import Tensor
from torch.nn.utils import parameters_to_vector, vector_to_parameters

from lightning_vfl.aggregators import LagrangeCoded
from lightning_vfl.audit.attack import Seen, standardised
from lightning_vfl.audit.attacks.drift.served import rule_of
from lightning_vfl.audit.attacks.labels import TOP_GRADIENTS
from lightning_vfl.audit.attacks.model_completion import embeddings_of
from lightning_vfl.audit.transcript import AGGREGATES, Transcript
from lightning_vfl.downlinks.random_classes import RandomClasses
from lightning_vfl.errors import ConfigurationError
from lightning_vfl.field import FixedPoint
from lightning_vfl.networks.depth import depth_of
from lightning_vfl.objectives import mean_loss
from lightning_vfl.privacy.digits import rounded_up
from lightning_vfl.protocols import VFLModule
from lightning_vfl.types import RoundNames, Shape, Stage, VerticalBatch
from lightning_vfl.wire import Message, Tap

AT_ONCE = 8192  # records


class Truth:
    """Features and labels of the training records.

    Features of a party with one axis are standardised by their own mean and deviation, so that every column counts
    alike; those of images keep their scale.

    Args:
        data: the data, set up for a fit.

    Attributes:
        records: N.
        parties: M.
        names: of the parties, in the order of their numbers.
        classes: C; 1 for targets that are numbers.
    """

    def __init__(self, data: Any) -> None:
        self.data = data
        self._records = data.records("train")
        self.records: int = len(self._records)
        self.parties: int = len(data.party_shapes)
        self.names: tuple[str, ...] = tuple(data.party_names)
        self.classes: int = data.num_classes or 1
        self.features = cache(self._features)

    def shape(self, party: int) -> Shape:
        """The shape of a record at a party."""
        return tuple(self.data.party_shapes[party])

    def _features(self, party: int) -> Tensor:
        """(N, W) float64."""
        raw = self.raw(party).flatten(1).double()
        if len(self.shape(party)) > 1:
            return raw
        return standardised(raw)

    def raw(self, party: int) -> Tensor:
        """(N, *S), as the party's bottom is given them."""
        ids = torch.arange(self.records)
        return torch.cat([self._records.features_of(party, some) for some in torch.split(ids, AT_ONCE)])

    def everything(self, but: Sequence[int] = ()) -> Tensor:
        """(N, Σ W) float64, all columns of all parties ``but`` these, as their bottoms are given them."""
        parties = [party for party in range(self.parties) if party not in but]
        return torch.cat([self.raw(party).flatten(1).double() for party in parties], 1)

    def group_features(self, party: int) -> Tensor:
        """(N, W) float64, of each record at the party of the group that holds it."""
        present = self._records.present
        if present is None:
            return self.raw(party).flatten(1).double()
        group = next((group for group in self.data.party_groups or () if party in group), (party,))
        held = [torch.where(present[:, m, None].cpu(), self.raw(m).flatten(1).double(), 0.0) for m in group]
        return torch.stack(held).sum(0)

    def labels(self) -> Tensor:
        """(N,) int64."""
        labels: Tensor | None = self._records.labels
        if self.classes < 2:
            raise ConfigurationError("the labels are numbers and not classes; attack features instead")
        if labels is None or labels.dim() > 1:
            raise ConfigurationError("an attack on labels needs one class for each training record")
        return labels.cpu().long()

    def batch(self, ids: Tensor) -> VerticalBatch:
        """Labels and sample weights of these records, without features."""
        records = self._records
        labels, weights = (None if of_all is None else of_all[ids] for of_all in (records.labels, records.weights))
        return VerticalBatch((), labels, ids, weights=weights)

    def counts(self, transcript: Transcript, rounds: Tensor) -> Tensor:
        """(rounds, C) float64, the records of each class in the batches of these rounds."""
        ids = {entry.round: entry.ids for entry in reversed(transcript.entries) if len(entry.ids)}
        counts = torch.zeros(len(rounds), self.classes, dtype=torch.float64)
        for row, number in zip(counts, rounds.tolist(), strict=True):
            row += torch.bincount(self.labels()[ids[number]], minlength=self.classes)
        return counts

    def shared_numbers(self, module: VFLModule, party: int, ids: Tensor) -> Tensor:
        """(n, W) float64, the integers that a party shares under ``LagrangeCoded``."""
        aggregator = module.aggregator
        network: Any = module.bottoms.parties[party]
        if not isinstance(aggregator, LagrangeCoded):
            raise TypeError("only LagrangeCoded shares records")
        with torch.no_grad():
            basis = network.expand(self.raw(party)[ids].to(network.weight.dtype))
        return FixedPoint(aggregator.field, aggregator.l_x, 0).quantise_data(basis).double()

    def embeddings(self, module: VFLModule, party: int) -> Tensor:
        """(N, D) float64, a party's embeddings by its trained bottom."""
        return embeddings_of(module.bottoms.parties[party], self.raw(party))


class JoinedTruth(Tap):
    """The joined embeddings of a training when they were joined, whoever did: no attacker has them from here.

    Bottoms change in a training, so that the embeddings of a round cannot be computed after it.

    Args:
        wanted: whether those of the current epoch are kept.

    Attributes:
        rounds: (B, D) the joined embeddings, by round.
    """

    def __init__(self, wanted: Callable[[], bool]) -> None:
        self.wanted = wanted
        self.rounds: dict[int, Tensor] = {}

    def sent(self, message: Message, ids: Tensor, at: int | None = None) -> None:
        """Messages are not the truth."""

    def joined(
        self, value: Tensor, names: RoundNames, ids: Tensor, at: int | None = None, kind: str = AGGREGATES
    ) -> None:
        if names.stage == Stage.FIT and kind == AGGREGATES and self.wanted():
            self.rounds[names.round] = value.detach().to("cpu", copy=True)


@dataclass(frozen=True, eq=False)
class Case:
    """A training that is attacked.

    Args:
        module: the trained protocol.
        truth: its records.
        transcript: what the attacker has received.
        inputs: as in ``Seen``.
        members: (n,) bool, which of the records of ``inputs`` have been trained on; None: unknown.
        coins: (N,) bool, the coins of the canaries in the training, by record; None: there are none.
        joined: (B, D) what the top was given in a round, by round; see ``JoinedTruth``.
    """

    module: VFLModule
    truth: Truth
    transcript: Transcript
    inputs: dict[str, Tensor] = field(default_factory=dict)
    members: Tensor | None = None
    coins: Tensor | None = None
    joined: Mapping[int, Tensor] = field(default_factory=dict)

    def claimed_epsilon(self, delta: float) -> float | None:
        """The accountant's ε of a party's record in this training at this δ; None: the aggregator claims none."""
        accountant = self.module.privacy.accountant
        return None if accountant is None else rounded_up(accountant.epsilon(delta, "party-record"))

    def allowed_area(self) -> float | None:
        """The largest AUC with which labels may be told apart by the ε that a downlink claims; None: it claims none."""
        account = self.module.label_privacy
        downlink = getattr(self.module, "downlink", None)
        if account.accountant is not None:
            return largest_area(account.epsilon(), account.delta)
        return largest_area(downlink.epsilon, 0.0) if isinstance(downlink, RandomClasses) else None

    def seen(self) -> Seen:
        """What the attacker has."""
        module = self.module
        attacker = self.transcript.attacker
        optimizers = [] if module._trainer is None else module.trainer.optimizers
        return Seen(
            attacker,
            self.transcript,
            self.truth.records,
            self.truth.classes,
            {party: self.truth.raw(party) for party in attacker.parties},
            {party: module.bottoms.parties[party] for party in attacker.parties},
            module.top if attacker.server else None,
            module.roster,
            module.aggregator,
            module.preparation.agreed,
            module.seed,
            rule_of(optimizers[0], getattr(module, "decay", 0.0)) if optimizers else None,
            module.embedding_widths,
            {party: depth_of(bottom) for party, bottom in enumerate(module.bottoms.parties)},
            self.inputs,
            self.answer if attacker.server and self.joined else None,
        )

    def answer(self, round: int, parameters: Tensor) -> Tensor:
        """The gradient (P',) that an active party of ``CascadeVFL`` would have sent in a round for another top (P,).

        Embeddings and batch are those of the round.
        """
        module = self.module
        top = deepcopy(module.top)
        vector_to_parameters(parameters, top.parameters())
        ids = next(entry.ids for entry in self.transcript.find(TOP_GRADIENTS, "up") if entry.round == round)
        given = self.joined[round].to(parameters.dtype)
        loss = mean_loss(module.objective, top(module.join(given)), self.truth.batch(ids))
        learning = [parameter for parameter in top.parameters() if parameter.requires_grad]
        return parameters_to_vector(torch.autograd.grad(loss, learning, materialize_grads=True)).detach()


def largest_area(epsilon: float, delta: float) -> float:
    """The largest area below the ROC curve of a test between two values that are (ε, δ)-private.

    Such a curve lies below e^ε x + δ and 1 - e^-ε (1 - δ - x); what is above both is left out of the unit square.

    Examples:
        >>> round(largest_area(1.0, 0.0), 4), largest_area(0.0, 0.0)
        (0.7311, 0.5)

    References:
        Kairouz, Oh, Viswanath, "The Composition Theorem for Differential Privacy", ICML 2015, section 2 (the region).
    """
    return 1 - (1 - delta) ** 2 / (1 + exp(min(epsilon, 700.0)))
