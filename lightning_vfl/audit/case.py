"""A training that is attacked: its records, and what the attacker has of it."""

from collections.abc import Mapping
from copy import deepcopy
from dataclasses import dataclass, field
from math import exp

import torch
from torch import Tensor
from torch.nn.utils import parameters_to_vector, vector_to_parameters

from lightning_vfl.audit.attack import Seen
from lightning_vfl.audit.attacks.drift.served import rule_of
from lightning_vfl.audit.attacks.labels import TOP_GRADIENTS
from lightning_vfl.audit.transcript import Transcript
from lightning_vfl.audit.truth import Truth
from lightning_vfl.downlinks.random_classes import RandomClasses
from lightning_vfl.networks.depth import depth_of
from lightning_vfl.objectives import mean_loss
from lightning_vfl.privacy.digits import rounded_up
from lightning_vfl.protocols import VFLModule


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
