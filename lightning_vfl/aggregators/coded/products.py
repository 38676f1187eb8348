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
from lightning_vfl.types import Parties, Roll, Roster, RoundNames, Tensors, Widths
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
        parties = roster.parties
        bits = self.coding.field.wire_bits
        weights = widths[0] * torch.tensor(basis)  # numbers of each party's weights
        results = torch.full((parties,), rows * widths[0])  # numbers of each party's upload
        # section 6.2: sharing the weights is (ln² M) / |B| of the work of a round's upload, and is slowed down like it
        delay_share = log(parties) ** 2 / rows if rows else 1.0
        # a share of a number is the sum of 1 + T products, for each of M holders
        sharing = 2.0 * parties * (1 + self.coding.privacy) * weights.double()
        to_peers = (parties - 1) * weights
        legs = [Leg(MODELS, "peers", to_peers, bits, sharing, gate=Gate.ALL, delay_share=delay_share)]
        if self.rerandomise:
            code = self.coding.code(parties)
            free = code.threshold(DEGREE) - code.blocks
            hiding = 2.0 * parties * free * results.double()
            legs.append(Leg(ZEROS, "peers", (parties - 1) * results, bits, hiding, gate=Gate.PREVIOUS))
        # a row of the shares of all data times the shares of all weights
        products = torch.full((parties,), 2.0 * rows * int(weights.sum()), dtype=torch.float64)
        return (*legs, Leg(PRODUCTS, "server", results, bits, products, gate=Gate.RULE))

    def downlink(self, rows: int, widths: Widths, roster: Roster) -> Leg:
        """The gradients, and the server's interpolation, in equal parts."""
        parties = roster.parties
        interpolation = 2.0 * self.needed(parties) * rows * widths[0]
        flops = torch.full((parties,), interpolation / parties, dtype=torch.float64)
        return replace(super().downlink(rows, widths, roster), flops=flops)

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
        included = [place for place in called if roll.included[view.parties[place]]]
        if len(included) < len(called):
            heights = _heights(contribution, called)
            of_party = dict(zip(called, torch.split(weights, heights), strict=True))
            weights = torch.cat([of_party[place] for place in included])
        data = codec.quantise_data(_bases(contribution, included))
        if field.half < 2**53:  # no partial sum passes half the modulus: float64 is exact
            total = (data.double() @ weights.double()).to(torch.int64)
        else:
            total = field.lift(field.matmul(field.embed(data), field.embed(weights)))
        unit = 2.0 ** -(codec.l_x + codec.l_w)
        return aggregate_of(total.double().mul_(unit) / len(included))


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

    def carry(self, answer: Message, contribution: Contribution, view: PartyView) -> Tensors:
        """X̃ᵀ times the party's piece, X̃ its rounded data: one product for all hosted parties with equal pieces."""
        weights = contribution.leaves
        rows = len(view.rows.ids)
        shapes = {party: (rows, weight.shape[1]) for party, weight in zip(view.parties, weights, strict=True)}
        pieces = gradients_by_party(answer, shapes, view)
        members = [place for place, party in enumerate(view.parties) if party in pieces]
        groups = [[place] for place in members]
        if len({id(piece) for piece in pieces.values()}) == 1:  # as a server in this process sends them
            groups = [members]
        codec = self.scale.codec(self.coding.field, view.agreed)
        gradients = [torch.zeros_like(weight) for weight in weights]
        for group in groups:
            basis = _bases(contribution, group)
            rounded = codec.round_data(basis)
            piece = pieces[view.parties[group[0]]]
            joint = (rounded.T @ piece.to(rounded.dtype)).to(basis.dtype)
            parts = torch.split(joint, _heights(contribution, group))
            for place, gradient in zip(group, parts, strict=True):
                gradients[place] = gradient
        return tuple(gradients)

    def integers(self, contribution: Contribution, mine: Sequence[int], view: PartyView) -> Tensor:
        """The rounded weights of these hosted parties under each other, (Σ W_m, D) int64.

        Raises:
            ConfigurationError: if a sum could wrap around; every party checks its own part.
        """
        codec = self.scale.codec(self.coding.field, view.agreed)
        weights = [contribution.leaves[place] for place in mine]
        parties = [view.parties[place] for place in mine]
        integers = codec.quantise_weights(torch.cat(weights), lambda n: _draws(view.names, parties, weights))
        heights = _heights(contribution, mine)
        summands = int(view.called.sum())
        _refuse_overflow(codec, _bases(contribution, mine), integers, heights, parties, summands)
        return integers

    def _share(self, contribution: Contribution, view: PartyView) -> Message:
        memory = _memory(view)
        code = self.coding.code(view.roster.parties)
        mine = view.called_places
        senders = tuple([view.parties[place] for place in mine])
        elements = self.coding.field.embed(self.integers(contribution, mine, view))
        width = elements.shape[1]

        def message(kind: str, shares: Tensor, heights: list[int], alongside: Message | None = None) -> Message:
            """Shares (holders, Σ heights, width), cut by sender."""
            pieces = torch.split(shares, heights, dim=1)
            return Message(kind, "peers", senders, pieces, alongside, receivers=view.receivers, round=view.names)

        heights = _heights(contribution, mine)
        masks = self.coding.masks(view.names, "weights", senders, heights, self.coding.privacy, width)
        # equation (4): G_m(β_k) = W_m for every k, so that each of the K blocks meets the same weights
        shares = code.share_copies(elements, masks.to(elements.device), view.receivers)
        if not self.rerandomise:
            return message(MODELS, shares, heights)
        # a random polynomial of the products' degree that is zero at β_1..β_K: it changes no sum, and hides all else
        rows = [len(memory.blocks.coded_rows(view.rows.ids)[0])] * len(senders)
        free_values = code.threshold(DEGREE) - code.blocks
        free = self.coding.masks(view.names, "zeros", senders, rows, free_values, width)
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
        if len(received.senders) < view.roster.parties:  # the columns of the others are left out
            columns = [table[:, rows, memory.columns(sender)] for sender in received.senders]
            table = torch.cat(columns, dim=2)
            rows = torch.arange(len(rows))
        # Σ_m F_m(α_j)[B] · G_m(α_j): the sum over the parties is one over the columns that stand side by side
        products = blamed(received, field.modulus, field.rows_times, table, tables, rows, weights)
        hiding = received.alongside
        if hiding is not None:
            zeros = received_by(holders, hiding).view(len(holders), len(hiding.senders), *products.shape[1:])
            total = blamed(hiding, field.modulus, field.totals, zeros)
            products = field.add(products, total)
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
            results = torch.stack(message.pieces).remainder_(field.modulus)
            decoded = code.correct(results, senders, DEGREE)
            sums = decoded.values
            corrected = tuple(senders[place] for place in decoded.wrong)
        else:
            needed = code.threshold(DEGREE)
            refuse_outside(message.pieces[needed:], senders[needed:], PRODUCTS, field.modulus)
            results = torch.stack(message.pieces[:needed])
            sums = blamed(message, field.modulus, code.decode, results, senders[:needed], DEGREE)
        _, block = blocks.place(view.rows.ids)
        wanted = sums[block, within]  # (B, D), out of (K, coded rows, D)
        codec = self.scale.codec(field, view.agreed)
        mean = codec.dequantise(wanted) / len(view.roll.included_parties)
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

    ends = np.cumsum([weight.numel() for weight in weights])
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
    too_large = bounds > codec.field.half // summands
    worst_first = bounds.argsort(descending=True)  # the message names a setting that fits the worst of them
    for place in worst_first[too_large[worst_first]].tolist():
        first = sum(sizes[:place])
        own_rows = slice(first, first + sizes[place])
        try:
            data = codec.quantise_data(basis[:, own_rows])
            codec.check_overflow(data, integers[own_rows], summands)
        except ConfigurationError as error:
            raise ConfigurationError(f"party {parties[place]}: {error}; a resumed run takes a new scale") from None


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
