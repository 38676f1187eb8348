"""FedVS in a round: weights are shared, every party multiplies on shares, and the server decodes the mean."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import log
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from lightning_vfl.aggregators.coded.blocks import Shares
from lightning_vfl.aggregators.coded.coding import CodedWire, Coding, MeanServer, Scale, aggregate_of, received_by
from lightning_vfl.aggregators.coded.data_shares import arrangement
from lightning_vfl.aggregators.coded.messages import MODELS, PRODUCTS, ZEROS, check_model_shares, check_results
from lightning_vfl.aggregators.messages import blamed, gradients_by_party, only, refuse_outside
from lightning_vfl.aggregators.parts import PartySide, Uploads
from lightning_vfl.errors import ConfigurationError
from lightning_vfl.field import FixedPoint
from lightning_vfl.types import Parties, Roll, Roster, RoundNames, Widths
from lightning_vfl.wire import Aggregate, Contribution, Gate, Leg, LinearForms, Message, PartyView, ServerView

if TYPE_CHECKING:
    from numpy.typing import NDArray

DEGREE = 2  # of the polynomial that the parties compute on shares: data times weights


@dataclass(frozen=True)
class ProductWire(CodedWire):
    """The wire of ``LagrangeCoded``.

    Args:
        scale: units of data and weights.
        rerandomise: the cross terms of the uploads' polynomial are hidden.
    """

    aggregator = "LagrangeCoded"

    scale: Scale
    rerandomise: bool

    def legs(self, rows: int, widths: Widths, basis: Widths, roster: Roster) -> tuple[Leg, ...]:
        m = roster.parties
        bits = self.coding.field.wire_bits
        weights = widths[0] * torch.tensor(basis)  # numbers of each party's weights
        results = torch.full((m,), rows * widths[0])
        # section 6.2: sharing the weights is (ln² M) / |B| of the work of a round's upload, and is slowed down like it
        delay_share = log(m) ** 2 / rows if rows else 1.0
        sharing = 2.0 * m * (1 + self.coding.privacy) * weights.double()
        legs = [Leg(MODELS, "peers", (m - 1) * weights, bits, sharing, gate=Gate.ALL, delay_share=delay_share)]
        if self.rerandomise:
            code = self.coding.code(m)
            hiding = 2.0 * m * (code.threshold(DEGREE) - code.blocks) * results.double()
            legs.append(Leg(ZEROS, "peers", (m - 1) * results, bits, hiding, gate=Gate.PREVIOUS))
        products = torch.full((m,), 2.0 * rows * int(weights.sum()), dtype=torch.float64)
        return (*legs, Leg(PRODUCTS, "server", results, bits, products, gate=Gate.RULE))

    def downlink(self, rows: int, widths: Widths, roster: Roster) -> Leg:
        """The gradients, and the server's interpolation, in equal parts."""
        m = roster.parties
        decoding = 2.0 * self.needed(m) * rows * widths[0] / m
        return replace(super().downlink(rows, widths, roster), flops=torch.full((m,), decoding, dtype=torch.float64))

    def protection(self, uploads: int) -> str:
        server = (
            "single uploads are hidden: the server learns the means"
            if self.rerandomise
            else "uploads not re-randomised"
        )
        return self.coding.protection(self.equivalent, "others' data", server)

    def party_side(self) -> "ProductParty":
        return ProductParty(self.coding, self.scale, self.rerandomise)

    def server_side(self) -> "ProductServer":
        return ProductServer(self.coding, self.scale)

    def clear(self, contribution: Contribution, view: PartyView, roll: Roll) -> Aggregate:
        field = self.coding.field
        codec = self.scale.codec(field, view.agreed)
        called = view.called_places  # late ones check for overflow too
        weights = self.party_side().integers(contribution, called, view)
        included = [i for i in called if roll.included[view.parties[i]]]
        if len(included) < len(called):
            parts = dict(zip(called, torch.split(weights, _heights(contribution, called)), strict=True))
            weights = torch.cat([parts[i] for i in included])
        x = codec.quantise_data(_bases(contribution, included))
        if field.half < 2**53:  # no partial sum passes half the modulus: float64 is exact
            total = (x.double() @ weights.double()).to(torch.int64)
        else:
            total = field.lift(field.matmul(field.embed(x), field.embed(weights)))
        return aggregate_of(total.double().mul_(2.0 ** -(codec.l_x + codec.l_w)) / len(included))


@dataclass(frozen=True)
class ProductParty(PartySide):
    """Parties that share their weights and multiply shares of data and weights."""

    coding: Coding
    scale: Scale
    rerandomise: bool

    def upload(self, contribution: Contribution, view: PartyView) -> Uploads:
        heard = yield self._share(contribution, view)
        if heard.received is not None:
            yield self._multiply(heard.received, heard.included, replace(view, parties=heard.parties))

    def carry(self, answer: Message, contribution: Contribution, view: PartyView) -> tuple[Tensor, ...]:
        """X̃ᵀ times the party's piece, X̃ its rounded data: one product for all hosted parties with equal pieces."""
        weights = contribution.leaves
        shapes = {party: (len(view.rows.ids), w.shape[1]) for party, w in zip(view.parties, weights, strict=True)}
        pieces = gradients_by_party(answer, shapes, view)
        members = [i for i, party in enumerate(view.parties) if party in pieces]
        batches = [[i] for i in members]
        if len({id(piece) for piece in pieces.values()}) == 1:  # as a server in this process sends them
            batches = [members]
        codec = self.scale.codec(self.coding.field, view.agreed)
        gradients = [torch.zeros_like(w) for w in weights]
        for batch in batches:
            basis = _bases(contribution, batch)
            rounded = codec.round_data(basis)
            joint = (rounded.T @ pieces[view.parties[batch[0]]].to(rounded.dtype)).to(basis.dtype)
            for i, gradient in zip(batch, torch.split(joint, _heights(contribution, batch)), strict=True):
                gradients[i] = gradient
        return tuple(gradients)

    def integers(self, contribution: Contribution, mine: Sequence[int], view: PartyView) -> Tensor:
        """The rounded weights of these hosted parties under each other, (Σ W_m, D) int64.

        Raises:
            ConfigurationError: if a sum could wrap around; every party checks its own part.
        """
        codec = self.scale.codec(self.coding.field, view.agreed)
        weights = [contribution.leaves[i] for i in mine]
        parties = [view.parties[i] for i in mine]
        integers = codec.quantise_weights(torch.cat(weights), lambda n: _draws(view.names, parties, weights))
        heights = _heights(contribution, mine)
        _refuse_overflow(codec, _bases(contribution, mine), integers, heights, parties, int(view.called.sum()))
        return integers

    def _share(self, contribution: Contribution, view: PartyView) -> Message:
        memory = _memory(view)
        code = self.coding.code(view.roster.parties)
        mine = view.called_places
        senders = tuple([view.parties[i] for i in mine])
        elements = self.coding.field.embed(self.integers(contribution, mine, view))
        width = elements.shape[1]

        def message(kind: str, shares: Tensor, rows: list[int], alongside: Message | None = None) -> Message:
            pieces = torch.split(shares, rows, dim=1)
            return Message(kind, "peers", senders, pieces, alongside, receivers=view.receivers, round=view.names)

        heights = _heights(contribution, mine)
        masks = self.coding.masks(view.names, "weights", senders, heights, self.coding.privacy, width)
        shares = code.share_copies(elements, masks.to(elements.device), view.receivers)
        if not self.rerandomise:
            return message(MODELS, shares, heights)
        rows = [len(memory.blocks.coded_rows(view.rows.ids)[0])] * len(senders)
        free = self.coding.masks(view.names, "zeros", senders, rows, code.threshold(DEGREE) - code.blocks, width)
        zeros = code.share_zeros(free.to(elements.device), DEGREE, view.receivers)
        return message(MODELS, shares, heights, alongside=message(ZEROS, zeros, rows))

    def _multiply(self, received: Message, included: Tensor, view: PartyView) -> Message:
        memory = _memory(view)
        field = self.coding.field
        holders = view.parties
        rows = memory.blocks.coded_rows(view.rows.ids)[0].cpu()  # the tables are there
        check_model_shares(received, memory, len(rows), self.rerandomise, included, view)
        weights = received_by(holders, received)
        tables = torch.tensor([memory.holders.index(party) for party in holders])
        table = memory.table
        if len(received.senders) < view.roster.parties:
            table = torch.cat([table[:, rows, memory.columns(sender)] for sender in received.senders], dim=2)
            rows = torch.arange(len(rows))
        products = blamed(received, field.modulus, lambda: field.rows_times(table, tables, rows, weights))
        if (hiding := received.alongside) is not None:
            zeros = received_by(holders, hiding).view(len(holders), len(hiding.senders), *products.shape[1:])
            products = field.add(products, blamed(hiding, field.modulus, lambda: field.totals(zeros)))
        return Message(PRODUCTS, "server", holders, products.unbind(0), round=view.names)


@dataclass(frozen=True)
class ProductServer(MeanServer):
    """A server that decodes the mean of the embeddings from products on shares."""

    coding: Coding
    scale: Scale

    def decode(self, messages: tuple[Message, ...], view: ServerView) -> Aggregate:
        message = only(messages)
        senders = message.senders
        field = self.coding.field
        code = self.coding.code(view.roster.parties)
        blocks = arrangement(code.blocks, view.records, view.names.seed, view.names.stage)
        computed, within = blocks.coded_rows(view.rows.ids)
        check_results(message, PRODUCTS, len(computed), self.coding.needed(code.blocks), view)
        corrected: Parties = ()
        if self.coding.wrong:  # numbers outside the field are wrong answers like any other
            decoded = code.correct(torch.stack(message.pieces).remainder_(field.modulus), senders, DEGREE)
            sums = decoded.values
            corrected = tuple(senders[i] for i in decoded.wrong)
        else:
            needed = code.threshold(DEGREE)
            refuse_outside(message.pieces[needed:], senders[needed:], PRODUCTS, field.modulus)
            results = torch.stack(message.pieces[:needed])
            sums = blamed(message, field.modulus, lambda: code.decode(results, senders[:needed], DEGREE))
        wanted = sums[blocks.place(view.rows.ids)[1], within]  # (B, D)
        mean = self.scale.codec(field, view.agreed).dequantise(wanted) / len(view.roll.included_parties)
        return aggregate_of(mean, corrected)


def _bases(contribution: Contribution, places: Sequence[int]) -> Tensor:
    """(B, Σ W), the expanded features of these hosted parties side by side."""
    if not isinstance(contribution, LinearForms):
        raise TypeError(f"LagrangeCoded computes on linear forms, not on {type(contribution).__name__}")
    if len(places) == len(contribution.basis):
        return contribution.side_by_side
    return torch.cat([contribution.basis[i] for i in places], dim=1)


def _heights(contribution: Contribution, places: Sequence[int]) -> list[int]:
    """W of each of these hosted parties: the rows of its weights."""
    return [len(contribution.leaves[i]) for i in places]


def _memory(view: PartyView) -> Shares:
    if not isinstance(view.memory, Shares):
        raise ConfigurationError(
            "the parties have not shared the records of this stage, because set-up has not run; give the trainer "
            "a datamodule, or use evaluate: plain"
        )
    return view.memory


def _draws(names: RoundNames, parties: Sequence[int], weights: Sequence[Tensor]) -> "NDArray[np.uint64]":
    """The words that round these parties' weights, each party's from a stream of its own."""
    from lightning_vfl.fast_streams import FastStream

    ends = np.cumsum([w.numel() for w in weights])
    words = np.empty(ends[-1], np.uint64)
    for party, part in zip(parties, np.split(words, ends[:-1]), strict=True):
        FastStream(names.seed, "weights", names.stage, names.round, party).fill(part)
    return words


def _refuse_overflow(
    codec: FixedPoint, basis: Tensor, integers: Tensor, sizes: Sequence[int], parties: Sequence[int], summands: int
) -> None:
    """Every party's own check: with a bound that costs one pass over the data, and exactly where the bound fails.

    Shapes: basis (B, Σ W_m) and integers (Σ W_m, D), of parties with ``sizes`` W_m.
    """
    if not len(basis):
        return
    bounds = _reaches(codec, basis, integers, sizes) * (1 + 2.0**-40)
    order = bounds.argsort(descending=True)  # the message names a setting that fits the worst of them
    for i in order[(bounds > codec.field.half // summands)[order]].tolist():
        own_rows = slice(sum(sizes[:i]), sum(sizes[: i + 1]))
        try:
            codec.check_overflow(codec.quantise_data(basis[:, own_rows]), integers[own_rows], summands)
        except ConfigurationError as error:
            raise ConfigurationError(f"party {parties[i]}: {error}; a resumed run takes a new scale") from None


def _reaches(codec: FixedPoint, basis: Tensor, integers: Tensor, sizes: Sequence[int]) -> Tensor:
    """For each party an upper bound of |x̄| |w̄|, with |x̄| <= 2^l_x |x| + 1/2 of the largest x of each column."""
    from lightning_vfl.field.kernels import largest_in_columns, reaches

    if basis.device.type == "cpu" and basis.dtype in (torch.float32, torch.float64):
        largest = np.empty(basis.shape[1])
        largest_in_columns(basis.detach().numpy(), largest)
    else:
        largest = basis.detach().abs().amax(0).double().cpu().numpy()
    bounds = np.empty(len(sizes))
    reaches(largest * 2.0**codec.l_x + 1.0, integers.cpu().numpy(), np.cumsum(sizes), bounds)
    return torch.from_numpy(bounds)
