"""FedVS in a round: weights are shared, every party multiplies on shares, and the server decodes the mean."""

from collections.abc import Generator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from math import log
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from lightning_vfl.aggregators.coded.coding import CodedWire, Coding, MeanServer, aggregate_of, received_by
from lightning_vfl.aggregators.coded.data_shares import arrangement
from lightning_vfl.aggregators.coded.messages import MODELS, PRODUCTS, ZEROS, check_model_shares, check_results
from lightning_vfl.aggregators.coded.scale import Scale
from lightning_vfl.aggregators.coded.shares import Shares
from lightning_vfl.aggregators.messages import blamed, gradients_by_party, only, refuse_outside
from lightning_vfl.aggregators.parts import Heard, PartySide
from lightning_vfl.errors import ConfigurationError
from lightning_vfl.field import FixedPoint
from lightning_vfl.types import Roll, Roster, RoundNames
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

    def legs(self, rows: int, widths: tuple[int, ...], basis: tuple[int, ...], roster: Roster) -> tuple[Leg, ...]:
        m, d, w = roster.parties, widths[0], torch.tensor(basis)
        code, bits = self.coding.code(m), self.coding.field.wire_bits
        results = torch.full((m,), rows * d)
        weights = 2.0 * m * (1 + self.coding.privacy) * (w * d).double()
        zeros = 2.0 * m * (code.threshold(DEGREE) - code.blocks) * results.double()
        products = 2.0 * rows * int(w.sum()) * d * torch.ones(m).double()
        # section 6.2: sharing the weights is (ln² M) / |B| of the work of a round's upload, and is slowed down like it
        share = log(m) ** 2 / rows if rows else 1.0
        models = Leg(MODELS, "peers", (m - 1) * w * d, bits, weights, gate=Gate.ALL, delay_share=share)
        hiding = (Leg(ZEROS, "peers", (m - 1) * results, bits, zeros, gate=Gate.PREVIOUS),)
        uploads = Leg(PRODUCTS, "server", results, bits, products, gate=Gate.RULE)
        return (models, *(hiding if self.rerandomise else ()), uploads)

    def downlink(self, rows: int, widths: tuple[int, ...], roster: Roster) -> Leg:
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
        field, codec = self.coding.field, self.scale.codec(self.coding.field, view.agreed)
        called = [i for i, party in enumerate(view.parties) if view.called[party]]  # late ones check for overflow too
        whole = self.party_side().integers(contribution, called, view)
        mine = [i for i in called if roll.included[view.parties[i]]]
        forms = linear_forms(contribution)
        if len(mine) < len(called):
            parts = dict(zip(called, torch.split(whole, [len(contribution.leaves[i]) for i in called]), strict=True))
            whole = torch.cat([parts[i] for i in mine])
        every = len(mine) == len(forms.basis)
        x = codec.quantise_data(forms.side_by_side if every else torch.cat([forms.basis[i] for i in mine], dim=1))
        if field.half < 2**53:  # no partial sum passes half the modulus: float64 is exact
            total = (x.double() @ whole.double()).to(torch.int64)
        else:
            total = field.lift(field.matmul(field.embed(x), field.embed(whole)))
        return aggregate_of(total.double().mul_(2.0 ** -(codec.l_x + codec.l_w)) / len(mine))


@dataclass(frozen=True)
class ProductParty(PartySide):
    """Parties that share their weights and multiply shares of data and weights."""

    coding: Coding
    scale: Scale
    rerandomise: bool

    def upload(self, contribution: Contribution, view: PartyView) -> Generator[Message, Heard, None]:
        heard = yield self._share(contribution, view)
        if heard.received is not None:
            yield self._multiply(heard.received, heard.included, replace(view, parties=heard.parties))

    def carry(self, answer: Message, contribution: Contribution, view: PartyView) -> tuple[Tensor, ...]:
        """X̃ᵀ times the party's piece, X̃ its rounded data: one product for all hosted parties with equal pieces."""
        forms, weights = linear_forms(contribution), contribution.leaves
        x_of = forms.basis
        places = {party: i for i, party in enumerate(view.parties)}
        shapes = {party: (len(x_of[i]), weights[i].shape[1]) for party, i in places.items()}
        pieces = gradients_by_party(answer, shapes, view)
        members = [party for party in view.parties if party in pieces]
        one = all(pieces[party] is pieces[members[0]] for party in members)  # as a server in this process sends them
        found: dict[int, Tensor] = {}
        for some in ([members] if one else [[party] for party in members]) if members else []:
            everybody = some == list(view.parties)
            basis = forms.side_by_side if everybody else torch.cat([x_of[places[party]] for party in some], dim=1)
            rounded = self._codec(view).round_data(basis)
            whole = (rounded.T @ pieces[some[0]].to(rounded.dtype)).to(basis.dtype)
            parts = torch.split(whole, [x_of[places[party]].shape[1] for party in some])
            found |= dict(zip(some, parts, strict=True))
        hosted = zip(view.parties, weights, strict=True)
        return tuple(found[party] if party in found else torch.zeros_like(w) for party, w in hosted)

    def integers(self, contribution: Contribution, mine: Sequence[int], view: PartyView) -> Tensor:
        """The rounded weights of these hosted parties under each other, (Σ W_m, D) int64.

        Raises:
            ConfigurationError: if a sum could wrap around; every party checks its own part.
        """
        codec, forms = self._codec(view), linear_forms(contribution)
        weights = [contribution.leaves[i] for i in mine]
        parties = [view.parties[i] for i in mine]
        whole = codec.quantise_weights(torch.cat(weights), lambda n: _draws(view.names, parties, weights))
        every = len(mine) == len(forms.basis)
        basis = forms.side_by_side if every else torch.cat([forms.basis[i] for i in mine], dim=1)
        _refuse_overflow(codec, basis, whole, [len(w) for w in weights], parties, int(view.called.sum()))
        return whole

    def _share(self, contribution: Contribution, view: PartyView) -> Message:
        memory, code = _memory(view), self.coding.code(view.roster.parties)
        mine = [i for i, party in enumerate(view.parties) if view.called[party]]
        senders = tuple(view.parties[i] for i in mine)
        integers = self.integers(contribution, mine, view)
        elements = self.coding.field.embed(integers)
        width = elements.shape[1]
        sizes = [len(contribution.leaves[i]) for i in mine]
        masks = self.coding.masks(view.names, "weights", senders, sizes, self.coding.privacy, width)
        shares = code.share_copies(elements, masks.to(elements.device), view.receivers)
        pieces = torch.split(shares, sizes, dim=1)
        message = Message(MODELS, "peers", senders, pieces, receivers=view.receivers, round=view.names)
        if self.rerandomise:
            rows = len(memory.blocks.coded_rows(view.rows.ids)[0])
            copies = code.threshold(DEGREE) - code.blocks
            free = self.coding.masks(view.names, "zeros", senders, [rows] * len(senders), copies, width)
            zeros = code.share_zeros(free.to(elements.device), DEGREE, view.receivers)
            pieces = torch.split(zeros, [rows] * len(senders), dim=1)
            hiding = Message(ZEROS, "peers", senders, pieces, receivers=view.receivers, round=view.names)
            message = replace(message, alongside=hiding)
        return message

    def _multiply(self, received: Message, included: Tensor, view: PartyView) -> Message:
        memory, holders, field = _memory(view), list(view.parties), self.coding.field
        rows, _ = memory.blocks.coded_rows(view.rows.ids)
        rows = rows.cpu()  # the tables are there
        check_model_shares(received, memory, len(rows), self.rerandomise, included, view)
        weights = received_by(holders, received)
        tables = torch.tensor([memory.holders.index(party) for party in holders])
        table = memory.table
        if len(received.senders) < view.roster.parties:
            columns = [table[:, :, memory.offsets[s] : memory.offsets[s + 1]] for s in received.senders]
            table = torch.cat([part[:, rows] for part in columns], dim=2)
            rows = torch.arange(len(rows))
        work = partial(field.rows_times, table, tables, rows, weights)
        products = added = blamed(received, field.modulus, work)
        if (hiding := received.alongside) is not None:
            zeros = received_by(holders, hiding).view(len(holders), len(hiding.senders), *products.shape[1:])
            added = field.add(products, blamed(hiding, field.modulus, lambda: field.totals(zeros)))
        return Message(PRODUCTS, "server", view.parties, added.unbind(0), round=view.names)

    def _codec(self, view: PartyView) -> FixedPoint:
        return self.scale.codec(self.coding.field, view.agreed)


@dataclass(frozen=True)
class ProductServer(MeanServer):
    """A server that decodes the mean of the embeddings from products on shares."""

    coding: Coding
    scale: Scale

    def decode(self, messages: tuple[Message, ...], view: ServerView) -> Aggregate:
        message, field = only(messages), self.coding.field
        m, ids = view.roster.parties, view.rows.ids
        blocks = arrangement(self.coding, view.records, m, view.names.seed, view.names.stage)
        code = self.coding.code(m)
        needed = code.threshold(DEGREE)
        corrected: tuple[int, ...] = ()
        computed, within = blocks.coded_rows(ids)
        check_results(message, PRODUCTS, len(computed), self.coding.needed(code.blocks), view)
        if self.coding.wrong:  # numbers outside the field are wrong answers like any other
            decoded = code.correct(torch.stack(message.pieces).remainder_(field.modulus), message.senders, DEGREE)
            sums, corrected = decoded.values, tuple(message.senders[i] for i in decoded.wrong)
        else:
            refuse_outside(message.pieces[needed:], message.senders[needed:], PRODUCTS, field.modulus)
            results = torch.stack(message.pieces[:needed])
            sums = blamed(message, field.modulus, lambda: code.decode(results, message.senders[:needed], DEGREE))
        wanted = sums[blocks.place(ids)[1], within]  # (B, D)
        mean = self.scale.codec(field, view.agreed).dequantise(wanted) / len(view.roll.included_parties)
        return aggregate_of(mean, corrected)


def linear_forms(contribution: Contribution) -> LinearForms:
    """The contribution, whose form the aggregator has asked for."""
    if not isinstance(contribution, LinearForms):
        raise TypeError(f"LagrangeCoded computes on linear forms, not on {type(contribution).__name__}")
    return contribution


def _memory(view: PartyView) -> Shares:
    if not isinstance(view.memory, Shares):
        raise ConfigurationError(
            "nobody has shared the records of this stage, because set-up has not run; give the trainer a datamodule, "
            "or use evaluate: plain"
        )
    return view.memory


def _draws(names: RoundNames, parties: Sequence[int], weights: Sequence[Tensor]) -> "NDArray[np.uint64]":
    """The words that round these parties' weights, each party's from a stream of its own."""
    from lightning_vfl.fast_streams import first_words

    words, begin = np.empty(sum(w.numel() for w in weights), np.uint64), 0
    for party, w in zip(parties, weights, strict=True):
        first_words(words[begin : begin + w.numel()], names.seed, "weights", names.stage, names.round, party)
        begin += w.numel()
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
        begin = sum(sizes[:i])
        end = begin + sizes[i]
        try:
            codec.check_overflow(codec.quantise_data(basis[:, begin:end]), integers[begin:end], summands)
        except ConfigurationError as error:
            raise ConfigurationError(f"party {parties[i]}: {error}; a resumed run takes a new scale") from None


def _reaches(codec: FixedPoint, basis: Tensor, integers: Tensor, sizes: Sequence[int]) -> Tensor:
    """For each party an upper bound of |x̄| |w̄|, with |x̄| <= 2^l_x |x| + 1/2 of the largest x of each column."""
    if basis.device.type == "cpu" and basis.dtype in (torch.float32, torch.float64):
        from lightning_vfl.field.kernels import largest_in_columns, reaches

        largest, bounds = np.empty(basis.shape[1]), np.empty(len(sizes))
        largest_in_columns(basis.detach().numpy(), largest)
        reaches(largest * 2.0**codec.l_x + 1.0, integers.numpy(), np.cumsum(sizes), bounds)
        return torch.from_numpy(bounds)
    columns = basis.abs().amax(0).double().mul_(2.0**codec.l_x).add_(1.0)
    reach = columns[:, None] * integers.double().abs_()
    owners = torch.repeat_interleave(torch.tensor(sizes)).to(reach.device)
    return reach.new_zeros(len(sizes), reach.shape[1]).index_add_(0, owners, reach).amax(1)
