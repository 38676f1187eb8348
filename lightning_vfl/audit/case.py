"""A training that is attacked: its records, and what the attacker has of it."""

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from torch import Tensor

from lightning_vfl.audit.attack import Seen
from lightning_vfl.audit.attacks.drift.recipe import rule_of
from lightning_vfl.audit.truth import Truth
from lightning_vfl.networks.depth import hidden_layer, linear_columns
from lightning_vfl.privacy.digits import rounded_up

if TYPE_CHECKING:
    from lightning_vfl.audit.transcript import Transcript
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
    """

    module: "VFLModule"
    truth: Truth
    transcript: "Transcript"
    inputs: dict[str, Tensor] = field(default_factory=dict)
    members: Tensor | None = None
    coins: Tensor | None = None

    def claimed_epsilon(self, delta: float) -> float | None:
        """The accountant's ε of a party's record in this training at this δ; None: the aggregator claims none."""
        accountant = self.module.privacy.accountant
        return None if accountant is None else rounded_up(accountant.epsilon(delta, "party-record"))

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
            {party: linear_columns(bottom) for party, bottom in enumerate(module.bottoms.parties)},
            {party: hidden_layer(bottom) for party, bottom in enumerate(module.bottoms.parties)},
            self.inputs,
        )
