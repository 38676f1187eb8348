"""Common to aggregators on Lagrange shares: how many blocks fit, how many parties have to answer, and masks."""

from abc import ABC
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from typing import Any, ClassVar, Literal, Self

import torch
from torch import Tensor

from lightning_vfl.aggregators.base import Aggregator
from lightning_vfl.aggregators.clear import gradients_leg
from lightning_vfl.aggregators.messages import GRADIENTS
from lightning_vfl.aggregators.parts import ServerSide, Traits, Wire
from lightning_vfl.aggregators.plain import Mean
from lightning_vfl.checks import one_of, positive, within
from lightning_vfl.crypto import Keystream, insecure_words
from lightning_vfl.errors import ConfigurationError
from lightning_vfl.field import FixedPoint, LagrangeCode, PrimeField
from lightning_vfl.types import Parties, Roll, Roster, RoundNames, Tensors, Widths
from lightning_vfl.wire import Aggregate, Leg, Message, ServerView


@dataclass(frozen=True)
class Coding:
    """A Lagrange code for any number of parties, and its masks.

    Args:
        field: the modulus.
        degree: of the polynomial that the parties compute on shares.
        blocks: K, or ``auto``: the largest that leaves ⌊M/4⌋ parties unneeded, fewer if K would be 0.
        privacy: T.
        wrong: A, wrong answers that are corrected.
        insecure_seeded_secrets: masks from a named stream instead of the operating system.

    Raises:
        ConfigurationError: for settings that no number of parties could meet.
    """

    field: PrimeField
    degree: int
    blocks: int | Literal["auto"]
    privacy: int
    wrong: int = 0
    insecure_seeded_secrets: bool = False

    def __post_init__(self) -> None:
        if not isinstance(self.field, PrimeField):
            raise ConfigurationError(f"field must be PrimeField(p); got {self.field!r}")
        within("privacy", self.privacy, 0, whole=True)
        within("wrong", self.wrong, 0, whole=True)
        if self.blocks != "auto":
            positive("blocks", self.blocks, whole=True, advice="or use auto")

    def needed(self, blocks: int) -> int:
        """R + 2A answers for K blocks."""
        return self.degree * (blocks + self.privacy - 1) + 1 + 2 * self.wrong

    def blocks_for(self, parties: int) -> int:
        """K for M parties.

        Raises:
            ConfigurationError: if more answers are needed than there are parties, naming blocks and privacy that fit.
        """
        least = 1 if self.blocks == "auto" else self.blocks
        if self.needed(least) > parties:
            raise ConfigurationError(
                f"blocks = {least} and privacy = {self.privacy} need {self.needed(least)} answers"
                + (f", {self.wrong} wrong ones corrected" if self.wrong else "")
                + f", more than the {parties} parties; {self._remedy(parties, least)}"
            )
        if self.blocks != "auto":
            return self.blocks
        answering = parties - parties // 4
        return max((answering - 2 * self.wrong - 1) // self.degree + 1 - self.privacy, 1)

    def _remedy(self, parties: int, least: int) -> str:
        """The settings that fit instead; never those that hide nothing."""
        together = (parties - 2 * self.wrong - 1) // self.degree + 1  # the largest K + T
        if together > self.privacy:
            return f"use blocks: {together - self.privacy} or less (with privacy: {self.privacy})"
        fewer = (parties - self.needed(least) + 2 * self.wrong) // 2  # the largest A
        if self.wrong and fewer >= 0:
            return f"use wrong: {fewer}"
        if together > 1:
            return f"use blocks: 1 and privacy: {together - 1}"
        enough = replace(self, blocks=1, wrong=0, privacy=min(self.privacy, 1)).needed(1)
        return f"it takes at least {enough} parties to hide anything in this way"

    def code(self, parties: int) -> LagrangeCode:
        """The code of M parties."""
        return _code_of(self, parties)

    def protection(self, equivalent: bool, of: str, server: str) -> str:
        """What is hidden, in words: ``of`` the others from T colluding parties, and what from the ``server``."""
        if equivalent:
            return "simulated: nothing was hidden (execution: equivalent)"
        if self.insecure_seeded_secrets:
            return "none: masks can be computed from the seed (insecure_seeded_secrets)"
        if not self.privacy:
            return f"none against parties, who can read {of} (privacy: 0); {server}"
        return f"T = {self.privacy} colluding parties learn nothing of {of}; {server}"

    def masks(
        self, names: RoundNames, purpose: str, parties: Sequence[int], rows: Sequence[int], copies: int, width: int
    ) -> Tensor:
        """(copies, Σ rows, width) uniform elements: for each of the hosted parties rows of its own, side by side."""
        if not self.insecure_seeded_secrets:  # no word of a keystream occurs twice: a draw for all is a draw for each
            return self.field.random((copies, sum(rows), width), Keystream().words)
        draws = [
            self.field.random((copies, n, width), insecure_words(names.seed, purpose, names.stage, names.round, party))
            for party, n in zip(parties, rows, strict=True)
        ]
        return torch.cat(draws, dim=1)


@lru_cache(maxsize=64)  # parties and server ask for the same one in every round
def _code_of(coding: Coding, parties: int) -> LagrangeCode:
    return LagrangeCode(coding.field, coding.blocks_for(parties), coding.privacy, parties)


_fixed_point = lru_cache(maxsize=64)(FixedPoint)


@dataclass(frozen=True)
class Scale:
    """In which units ``LagrangeCoded`` counts data and weights: their scale bits.

    Args:
        l_x: of the data.
        given: of the weights; ``auto``: settled before training.
        headroom: how many times larger than at the beginning the products |X||W| may become, for ``auto``.
    """

    l_x: int
    given: int | Literal["auto"]
    headroom: float

    def codec(self, field: PrimeField, agreed: Mapping[str, Any]) -> FixedPoint:
        """The codec of a round.

        Raises:
            ConfigurationError: if the scale bits of the weights are settled by set-up, and set-up has not run.
        """
        if self.given != "auto":
            return _fixed_point(field, self.l_x, self.given)
        if "l_w" not in agreed:
            raise ConfigurationError(
                "the parties have not agreed on the scale of the weights, because set-up has not run; give the "
                "trainer a datamodule, or use evaluate: plain"
            )
        return _fixed_point(field, self.l_x, agreed["l_w"])


class CodedMean(Aggregator, ABC):
    """An aggregator whose server decodes the mean of the embeddings of the included parties.

    Args:
        degree: of the polynomial that the parties compute on shares.
        blocks, privacy, wrong, insecure_seeded_secrets: as in ``Coding``.
        execution: ``coded``, or ``equivalent``: rounds compute the same integers without shares.
        field: the modulus; None: ``PrimeField()``.
    """

    def __init__(
        self,
        degree: int,
        blocks: int | Literal["auto"],
        privacy: int,
        wrong: int,
        execution: Literal["coded", "equivalent"],
        field: PrimeField | None,
        insecure_seeded_secrets: bool,
    ) -> None:
        self.blocks = blocks
        self.privacy = privacy
        self.execution = one_of("execution", execution, ("coded", "equivalent"))
        self.field = field or PrimeField()
        self.insecure_seeded_secrets = insecure_seeded_secrets
        self._coding = Coding(self.field, degree, blocks, privacy, wrong, insecure_seeded_secrets)
        self._equivalent = execution == "equivalent"

    def among(self, roster: Roster) -> Self:
        self._coding.code(roster.parties)
        return self

    def out_width(self, width: int, roster: Roster) -> int:
        return width

    def plain(self, h: Tensors, roll: Roll, present: Tensor | None = None) -> Tensor:
        return Mean().plain(h, roll, present)


@dataclass(frozen=True)
class CodedWire(Wire, ABC):
    """A wire of a ``CodedMean``.

    Args:
        coding: the code.
        equivalent: rounds compute the same integers without shares.
    """

    aggregator: ClassVar[str]  # its name, for errors

    coding: Coding
    equivalent: bool

    @cached_property
    def traits(self) -> Traits:
        return Traits(visible=False, loses_quietly=True, equivalent=self.equivalent, corrects=self.coding.wrong)

    def downlink(self, rows: int, widths: Widths, roster: Roster) -> Leg:
        return gradients_leg(rows, widths)

    def needed(self, parties: int) -> int:
        return self.coding.needed(self.coding.blocks_for(parties))

    def takes_part(self, called: Tensor, arrived: Tensor, roster: Roster) -> Tensor:
        return arrived

    def refuse_partly_held(self, present: Tensor | None, roster: Roster) -> None:
        if present is not None:
            raise ConfigurationError(
                f"{self.aggregator} needs every party to hold every record; use overlap: inner, or an aggregator that "
                "joins partly held records (Concat, Sum, Mean, Max)"
            )


class MeanServer(ServerSide, ABC):
    """A server that answers the gradient of a mean."""

    def answer(self, grad: Tensor, aggregate: Aggregate, view: ServerView) -> Message:
        """(1/|S|) dL/dz for the parties in S."""
        members = view.roll.included_parties
        share = grad / max(len(members), 1)
        return Message(GRADIENTS, "parties", (), (share,) * len(members), receivers=members, round=view.names)


def aggregate_of(mean: Tensor, corrected: Parties = ()) -> Aggregate:
    """The aggregate of a decoded mean (B, D)."""
    return Aggregate(mean.to(torch.get_default_dtype()), corrected=corrected)


def received_by(holders: Sequence[int], message: Message) -> Tensor:
    """The shares that these holders have received, all senders' rows side by side: (holders, Σ rows, width)."""
    whole = _side_by_side(message.pieces)
    receivers = message.receivers
    if receivers == tuple(holders):
        return whole
    wanted = list(holders) if receivers is None else [receivers.index(holder) for holder in holders]
    return whole.index_select(0, torch.tensor(wanted, device=whole.device))


def _side_by_side(pieces: Sequence[Tensor]) -> Tensor:
    """The pieces along dimension 1; without a copy if they are neighbouring views of one tensor."""
    first = pieces[0]
    step = first.stride(1)
    place = first.storage_offset()
    storage = first.untyped_storage().data_ptr()
    rows = 0
    for piece in pieces:
        if (
            piece.untyped_storage().data_ptr() != storage
            or piece.storage_offset() != place
            or piece.stride() != first.stride()
        ):
            return torch.cat(list(pieces), dim=1)
        place += piece.shape[1] * step
        rows += piece.shape[1]
    return first.as_strided((first.shape[0], rows, *first.shape[2:]), first.stride())
