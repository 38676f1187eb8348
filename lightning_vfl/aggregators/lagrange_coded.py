"""FedVS: the server learns the sum of all embeddings from the uploads of any R parties, who compute on shares."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from math import log
from typing import Any, ClassVar, Literal

import numpy as np
import torch
from torch import Tensor

from lightning_vfl.aggregators.base import FLOAT_BITS, Aggregator
from lightning_vfl.aggregators.coded.blocks import PADDING, Blocks
from lightning_vfl.aggregators.coded.coding import Coding, known_execution, received_by
from lightning_vfl.aggregators.coded.messages import (
    DATA,
    MODELS,
    PRODUCTS,
    ZEROS,
    check_data_shares,
    check_model_shares,
    check_results,
)
from lightning_vfl.aggregators.messages import blamed, only, refuse_outside
from lightning_vfl.aggregators.plain import Mean
from lightning_vfl.errors import ConfigurationError
from lightning_vfl.field import FixedPoint, Modular, PrimeField, auto_weight_bits
from lightning_vfl.streams import stream
from lightning_vfl.types import PartyRecords, Roll, Roster, Stage
from lightning_vfl.wire import Aggregate, Contribution, Gate, Leg, LinearForms, Message, PartyView, ServerView

DEGREE = 2  # of what the parties compute on shares: data times weights
SHARED_AT_ONCE = 2**21  # share elements of one message of set-up: 16 MiB


@dataclass(eq=False)
class Shares:
    """What P hosted parties hold after set-up: a share of everybody's data, columns of all parties side by side.

    Args:
        holders: the P parties.
        blocks: which record is where.
        offsets: (M + 1,) where each party's columns begin.
        table: (P, coded rows, Σ W), int32 if the modulus fits.
        filled: coded rows that have arrived, by sender.
    """

    holders: tuple[int, ...]
    blocks: Blocks
    offsets: tuple[int, ...]
    table: Tensor
    filled: dict[int, int]

    @property
    def nbytes(self) -> int:
        """Size of the table."""
        return self.table.nbytes


class LagrangeCoded(Aggregator):
    r"""The mean of the embeddings of polynomial bottoms, computed on Lagrange-coded shares of data and weights.

    Before training, party m cuts its N expanded, rounded training rows into K blocks, adds T uniform masks and gives
    party j the value at :math:`\alpha_j` of the polynomial through them. In a round it shares its rounded weights in
    the same way, :math:`G_m(\beta_k) = W_m` for every k. Party j uploads

    .. math:: \sum_{m \in S} F_m(\alpha_j)[B] \cdot G_m(\alpha_j) \bmod p,

    a value of a polynomial of degree 2(K + T - 1). Any R = 2(K + T - 1) + 1 uploads give it, and its values at
    :math:`\beta_1..\beta_K` are the summed embeddings of K|B| records; divided by |S|, the mean. Any record can be
    asked for: the coded rows that hold the wanted records are computed, and these picked out afterwards; K records of
    one coded row together are the cheap batch, and the schedule offers those.

    S are the parties whose data and weights have reached the others (footnote 2 of the paper). Gradients are taken in
    the clear by each party, on its own rounded data (section 5.2), straight through the rounding of the weights.

    Shapes: basis_m (N, W_m), weight_m (W_m, D); coded rows |B| = ⌈B / K⌉; upload (|B|, D); value (B, D).
    Units: data in 2^-l_x, weights in 2^-l_w; everything sent in field elements of ⌈log2 p⌉ bits, gradients in float32.
    Guarantee: any T colluding parties learn nothing of others' data and weights (theorem 5.2) but the gradient that all
        are sent. The server learns nothing from one upload (theorem 5.3); with ``rerandomise``, nothing from all
        uploads together but the sums of the embeddings of the records in the coded rows that were computed, also if it
        holds the shares of up to T parties. The decoded sum is that of the rounded integers exactly, whoever answers.
        Against ``plain``, an embedding is off by at most |x̃ - x||w| + |x̃||w̃ - w| summed over its terms, where |x̃ - x|
        ≤ 2^-(l_x+1) and |w̃ - w| < 2^-l_w, the second 0 on average. No sum wraps around: every party checks its own
        part in every round and raises before anything is sent. With ``wrong`` = A, any A wrong uploads are corrected
        and their parties named.
    Not guaranteed: privacy against T + 1 colluding parties, or against parties that deviate. What the sums themselves
        tell, and the gradient. ``scale: auto`` makes one number public that depends on the data, the scale bits; that a
        round was broken off for overflow is another. Without ``rerandomise``: the server sees R uploads, and their
        polynomial carries cross terms of data, weights and masks (the tests enumerate cases with K = 2, and with K = 1
        where a sum is zero). More than A wrong uploads, if coordinated, may be corrected to a wrong result; wrong
        shares of data or weights are not noticed at all. With ``privacy`` = 0 nothing is hidden from any party.

    Args:
        blocks: K, or ``auto``: the largest that leaves ``stragglers`` parties unneeded. Larger K: cheaper rows, more
            answers needed.
        privacy: T ≥ 0 colluding parties tolerated.
        stragglers: for ``auto``, the parties that need not answer; None: ⌊M/4⌋, fewer if K would be 0.
        wrong: A, wrong uploads that are corrected; the server then waits for R + 2A.
        rerandomise: hide the cross terms of the uploads' polynomial, at |B| D elements to every peer a round.
        execution: ``coded`` does all of this; ``equivalent`` computes the same integers without shares, to the same
            bits, with the same bytes and virtual seconds in the books: for large sweeps.
        l_x: scale bits of the data.
        scale: l_w, scale bits of the weights, or ``auto``: agreed on before training so that weights may grow by
            ``headroom``.
        headroom: how many times larger than at the beginning the products |X||W| may become, for ``scale: auto``.
        field: the modulus; None: ``PrimeField()``, 2^31 - 1.
        insecure_seeded_secrets: masks from a named stream instead of the operating system; for tests only.

    Raises:
        ConfigurationError: before training, if R + 2A > M or the data do not fit the field; in a round, if a sum could
            wrap around.

    Examples:
        >>> LagrangeCoded(blocks=2, privacy=1).min_responses(8)
        5
        >>> LagrangeCoded().min_responses(28)  # blocks: auto leaves a quarter of the parties unneeded
        21

    References:
        Li, Yao, Liu, "FedVS: Straggler-Resilient and Privacy-Preserving Vertical Federated Learning for Split Models",
        ICML 2023, algorithm 1, sections 4 and 5.
    """

    form: ClassVar[type[Contribution]] = LinearForms
    visible: ClassVar[bool] = False
    partly_held: ClassVar[bool] = False
    incidental: ClassVar[tuple[str, ...]] = ("execution", "insecure_seeded_secrets", "scale", "headroom")

    def __init__(
        self,
        blocks: int | Literal["auto"] = "auto",
        privacy: int = 1,
        stragglers: int | None = None,
        wrong: int = 0,
        rerandomise: bool = True,
        execution: Literal["coded", "equivalent"] = "coded",
        l_x: int = 8,
        scale: int | Literal["auto"] = "auto",
        headroom: float = 16.0,
        field: Modular | None = None,
        insecure_seeded_secrets: bool = False,
    ) -> None:
        known_execution(execution)
        if scale != "auto" and (isinstance(scale, bool) or not isinstance(scale, int)):
            raise ConfigurationError(f"scale {scale!r} is no number of bits; use a whole number, or auto")
        if not headroom >= 1:
            raise ConfigurationError(f"headroom {headroom} leaves no room; use at least 1")
        self.blocks = blocks
        self.privacy = privacy
        self.stragglers = stragglers
        self.wrong = wrong
        self.rerandomise = rerandomise
        self.execution = execution
        self.l_x = l_x
        self.scale = scale
        self.headroom = headroom
        self.field = field or PrimeField()
        self.insecure_seeded_secrets = insecure_seeded_secrets
        self._coding = Coding(self.field, DEGREE, blocks, privacy, stragglers, wrong, insecure_seeded_secrets)
        FixedPoint(self.field, l_x, 0 if scale == "auto" else scale)  # refuses scale bits

    # ---- shapes, before anything is computed

    @property
    def equivalent(self) -> bool:
        return self.execution == "equivalent"

    def check(self, parties: int) -> None:
        self._coding.code(parties)

    def min_responses(self, parties: int) -> int:
        return self._coding.needed(self._coding.blocks_for(parties))

    @property
    def corrects(self) -> int:
        return self.wrong

    def protection(self, uploads: int) -> str:
        server = "the server learns the means only" if self.rerandomise else "uploads not re-randomised"
        return self._coding.protection(self.equivalent, "others' data", server)

    def out_width(self, width: int, roster: Roster) -> int:
        return width

    def arrangement(self, records: int, parties: int, seed: int, stage: Stage) -> Blocks:
        k = self._coding.blocks_for(parties)
        # evaluation goes through its records in order: K in succession make a coded row
        return Blocks.shuffled(records, k, seed, stage) if stage == Stage.FIT else Blocks(records, k)

    def legs(self, rows: int, widths: tuple[int, ...], basis: tuple[int, ...], roster: Roster) -> tuple[Leg, ...]:
        m, d, w = roster.parties, widths[0], torch.tensor(basis)
        code = self._coding.code(m)
        bits, results = self.field.wire_bits, torch.full((m,), rows * d)
        weights = 2.0 * m * (1 + self.privacy) * (w * d).double()
        zeros = 2.0 * m * (code.threshold(DEGREE) - code.blocks) * results.double()
        products = 2.0 * rows * int(w.sum()) * d * torch.ones(m).double()
        # section 6.2: sharing the weights is (ln² M) / |B| of the work of a round's upload, and is slowed down like it
        share = log(m) ** 2 / rows if rows else 1.0
        models = Leg("model shares", "peers", (m - 1) * w * d, bits, weights, gate=Gate.ALL, delay_share=share)
        hiding = (Leg("zero shares", "peers", (m - 1) * results, bits, zeros, gate=Gate.PREVIOUS),)
        uploads = Leg("products", "server", results, bits, products, gate=Gate.RULE)
        return (models, *(hiding if self.rerandomise else ()), uploads)

    def downlink(self, rows: int, widths: tuple[int, ...], roster: Roster) -> Leg:
        m = roster.parties
        decoding = 2.0 * self.min_responses(m) * rows * widths[0] / m  # the server's interpolation, in equal parts
        flops = torch.full((m,), decoding, dtype=torch.float64)
        return Leg("gradients", "parties", rows * torch.tensor(widths), FLOAT_BITS, flops)

    # ---- set-up

    def agree(self, records: PartyRecords, weights: Sequence[Tensor], roster: Roster) -> Mapping[str, Any]:
        codec, m = FixedPoint(self.field, self.l_x, 0), roster.parties
        headroom = self.headroom if self.scale == "auto" else 1.0
        bits = []
        for party, weight in enumerate(weights):
            expected = weight.abs().clamp(min=len(weight) ** -0.5 / 4)  # who begins with zeros does not stay there
            for ids in torch.split(torch.arange(len(records)), 8192):
                x = codec.quantise_data(records.basis(party, ids))
                bits.append(auto_weight_bits(self.field, self.l_x, x, expected, m, headroom))
        if self.scale == "auto":
            return {"l_w": min(bits)}
        if self.scale > min(bits):
            raise ConfigurationError(
                f"scale: {self.scale} overflows with the weights that training begins with, for l_x = {self.l_x}, p = "
                f"{self.field.modulus} and {m} parties; use scale: auto, {min(bits)} or less, or a larger field"
            )
        return {"l_w": self.scale}

    def setup_legs(self, records: int, basis: tuple[int, ...], roster: Roster) -> tuple[Leg, ...]:
        m = roster.parties
        k = self._coding.blocks_for(m)
        elements = -(-records // k) * torch.tensor(basis)
        flops = 2.0 * m * (k + self.privacy) * elements.double()
        return (Leg("data shares", "peers", (m - 1) * elements, self.field.wire_bits, flops, gate=Gate.ALL),)

    def empty_memory(self, records: int, basis: tuple[int, ...], view: PartyView) -> Shares | None:
        if self.equivalent:
            return None
        m, (seed, stage, _) = view.roster.parties, view.names
        blocks = self.arrangement(records, m, seed, stage)
        word = torch.int32 if self.field.modulus <= 2**31 else torch.int64
        table = torch.empty((len(view.parties), blocks.rows, sum(basis)), dtype=word)
        offsets = tuple(np.cumsum((0, *basis)).tolist())
        return Shares(view.parties, blocks, offsets, table, dict.fromkeys(range(m), 0))

    def offer(self, records: PartyRecords, memory: Shares | None, view: PartyView) -> Iterator[Message]:
        if memory is None:
            return
        m = view.roster.parties
        code, codec = self._coding.code(m), FixedPoint(self.field, self.l_x, 0)
        for party in view.parties:
            width = memory.offsets[party + 1] - memory.offsets[party]
            step = max(1, SHARED_AT_ONCE // (m * width))
            for start in range(0, memory.blocks.rows, step):
                ids = memory.blocks.at(start, min(start + step, memory.blocks.rows))  # (rows, K)
                padded = ids == PADDING
                basis = records.basis(party, ids.masked_fill(padded, 0).flatten())
                x = codec.quantise_data(basis).view(*ids.shape, width)
                if padded.any():
                    x[padded.to(x.device)] = 0
                x = self.field.embed(x).transpose(0, 1)
                masks = self._coding.masks(view.names, f"data {start}", [party], [len(ids)], self.privacy, width)
                shares = code.share(x, masks.to(x.device))
                yield Message(DATA, "peers", (party,), (shares,), round=view.names)

    def accept(self, memory: Shares, message: Message, view: PartyView) -> Shares:
        check_data_shares(message, memory, SHARED_AT_ONCE, self.field, view)
        (sender,), (shares,) = message.senders, message.pieces
        start, columns = memory.filled[sender], slice(memory.offsets[sender], memory.offsets[sender + 1])
        own = shares if len(view.parties) == view.roster.parties else shares[list(view.parties)]
        memory.table[:, start : start + own.shape[1], columns] = own
        memory.filled[sender] = start + own.shape[1]
        return memory

    # ---- one round: the parties' half

    def encode(self, contribution: Contribution, view: PartyView) -> tuple[Message, None]:
        memory, code = self._memory(view), self._coding.code(view.roster.parties)
        mine = [i for i, party in enumerate(view.parties) if view.called[party]]
        senders = tuple(view.parties[i] for i in mine)
        integers = self._integers(contribution, mine, view)
        elements = self.field.embed(torch.cat(integers))
        width = elements.shape[1]
        sizes = [len(w) for w in integers]
        masks = self._coding.masks(view.names, "weights", senders, sizes, self.privacy, width)
        shares = code.share_copies(elements, masks.to(elements.device), view.receivers)
        pieces = torch.split(shares, sizes, dim=1)
        message = Message(MODELS, "peers", senders, pieces, receivers=view.receivers, round=view.names)
        if self.rerandomise:
            rows = len(memory.blocks.coded_rows(view.rows.ids)[0])
            copies = code.threshold(DEGREE) - code.blocks
            free = self._coding.masks(view.names, "zeros", senders, [rows] * len(senders), copies, width)
            zeros = code.share_zeros(free.to(elements.device), DEGREE, view.receivers)
            pieces = torch.split(zeros, [rows] * len(senders), dim=1)
            hiding = Message(ZEROS, "peers", senders, pieces, receivers=view.receivers, round=view.names)
            message = replace(message, alongside=hiding)
        return message, None

    def respond(self, kept: None, received: Message, included: Tensor, view: PartyView) -> Message:
        memory, holders = self._memory(view), list(view.parties)
        rows, _ = memory.blocks.coded_rows(view.rows.ids)
        check_model_shares(received, memory, len(rows), self.rerandomise, included, view)
        device = received.pieces[0].device
        hosted, length, width = memory.table.shape
        tables = torch.tensor([memory.holders.index(party) for party in holders])
        flat = (tables[:, None] * length + rows.cpu()).flatten()
        data = memory.table.view(hosted * length, width).index_select(0, flat)
        if len(received.senders) < view.roster.parties:
            data = torch.cat([data[:, memory.offsets[s] : memory.offsets[s + 1]] for s in received.senders], dim=1)
        weights = received_by(holders, received)
        data = data.view(len(holders), len(rows), weights.shape[1]).to(device).to(torch.int64)
        products = added = blamed(received, self.field.modulus, lambda: self.field.matmul(data, weights))
        if (hiding := received.alongside) is not None:
            zeros = received_by(holders, hiding).view(len(holders), len(hiding.senders), *products.shape[1:])
            added = self.field.add(products, blamed(hiding, self.field.modulus, lambda: self.field.totals(zeros)))
        return Message(PRODUCTS, "server", view.parties, added.unbind(0), round=view.names)

    # ---- one round: the server's half

    def decode(self, messages: tuple[Message, ...], view: ServerView) -> Aggregate:
        message = only(messages)
        m, ids = view.roster.parties, view.rows.ids
        blocks = self.arrangement(view.records, m, view.names.seed, view.names.stage)
        code = self._coding.code(m)
        needed = code.threshold(DEGREE)
        corrected: tuple[int, ...] = ()
        computed, within = blocks.coded_rows(ids)
        check_results(message, PRODUCTS, len(computed), self.min_responses(m), view)
        if self.wrong:  # numbers outside the field are wrong answers like any other
            decoded = code.correct(torch.stack(message.pieces).remainder_(self.field.modulus), message.senders, DEGREE)
            sums, corrected = decoded.values, tuple(message.senders[i] for i in decoded.wrong)
        else:
            refuse_outside(message.pieces, message.senders, PRODUCTS, self.field.modulus)
            sums = code.decode(torch.stack(message.pieces[:needed]), message.senders[:needed], DEGREE)
        wanted = sums[blocks.place(ids)[1], within]  # (B, D)
        mean = self._codec(view.agreed).dequantise(wanted) / len(view.roll.included_parties)
        return self._aggregate(mean, corrected)

    def clear(self, contribution: Contribution, view: PartyView, roll: Roll) -> Aggregate:
        called = [i for i, party in enumerate(view.parties) if view.called[party]]  # as in encode, all of them look
        integers = dict(zip(called, self._integers(contribution, called, view), strict=True))
        mine = [i for i in called if roll.included[view.parties[i]]]
        whole = torch.cat([integers[i] for i in mine])
        codec = self._codec(view.agreed)
        x_of = linear_forms(contribution).basis
        basis = torch.cat([x_of[i] for i in mine], dim=1)
        x = codec.quantise_data(basis)
        if self.field.half < 2**53:  # no partial sum passes half the modulus: float64 is exact
            total = (x.double() @ whole.double()).to(torch.int64)
        else:
            total = self.field.lift(self.field.matmul(self.field.embed(x), self.field.embed(whole)))
        return self._aggregate(total.double().mul_(2.0 ** -(codec.l_x + codec.l_w)) / len(mine))

    def plain(self, h: tuple[Tensor, ...], roll: Roll, present: Tensor | None = None) -> Tensor:
        return Mean().plain(h, roll, present)

    def pullback(
        self, grad: Tensor, aggregate: Aggregate, contribution: Contribution, view: ServerView
    ) -> tuple[Tensor, ...]:
        """(1/|S|) X̃ᵀ dL/dz for the parties in S, X̃ their rounded data."""
        members = view.roll.included_parties
        x_of = linear_forms(contribution).basis
        basis = torch.cat([x_of[m] for m in members], dim=1)
        rounded = self._codec(view.agreed).round_data(basis)
        whole = (rounded.T @ (grad.to(rounded.dtype) / len(members))).to(basis.dtype)
        parts = torch.split(whole, [x_of[m].shape[1] for m in members])
        grads = dict(zip(members, parts, strict=True))
        return tuple(grads[m] if m in grads else torch.zeros_like(w) for m, w in enumerate(contribution.leaves))

    # ---- inside

    def _codec(self, agreed: Mapping[str, Any]) -> FixedPoint:
        if self.scale != "auto":
            return FixedPoint(self.field, self.l_x, self.scale)
        if "l_w" not in agreed:
            raise ConfigurationError(
                "nobody has agreed on the scale of the weights, which set-up does; let the trainer run it with a "
                "datamodule, or use evaluate: plain"
            )
        return FixedPoint(self.field, self.l_x, agreed["l_w"])

    def _memory(self, view: PartyView) -> Shares:
        if not isinstance(view.memory, Shares):
            raise ConfigurationError(
                "nobody has shared the records of this stage, so nothing can be computed on shares; let the trainer "
                "run it with a datamodule, or use evaluate: plain"
            )
        return view.memory

    def _integers(self, contribution: Contribution, mine: Sequence[int], view: PartyView) -> list[Tensor]:
        """The rounded weights of these hosted parties, (W_m, D) int64 each, after every party's look for overflow."""
        codec = self._codec(view.agreed)
        weights = [contribution.leaves[i] for i in mine]
        seed, stage, number = view.names
        drawn = [
            stream(seed, "weights", stage, number, view.parties[i]).random_raw(w.numel())
            for i, w in zip(mine, weights, strict=True)
        ]
        whole: Tensor = codec.quantise_weights(torch.cat(weights), lambda n: np.concatenate(drawn))
        integers = list(torch.split(whole, [len(w) for w in weights]))
        basis = [linear_forms(contribution).basis[i] for i in mine]
        self._look_for_overflow(codec, basis, integers, [view.parties[i] for i in mine], int(view.called.sum()))
        return integers

    def _look_for_overflow(
        self,
        codec: FixedPoint,
        basis: Sequence[Tensor],
        integers: Sequence[Tensor],
        parties: Sequence[int],
        summands: int,
    ) -> None:
        """Every party's own check: with a bound that costs one pass over the data, and exactly where it fails."""
        if not len(basis[0]):
            return
        largest = torch.cat(list(basis), dim=1).abs().amax(0).double().mul_(2.0**self.l_x).add_(1.0)
        reach = largest[:, None] * torch.cat(list(integers)).double().abs_()  # |x̄| <= 2^l_x |x| + 1/2
        owners = torch.repeat_interleave(torch.tensor([x.shape[1] for x in basis])).to(reach.device)
        bounds = reach.new_zeros(len(basis), reach.shape[1]).index_add_(0, owners, reach).amax(1) * (1 + 2.0**-40)
        order = bounds.argsort(descending=True)  # the message names a setting that fits the worst of them
        for i in order[(bounds > self.field.half // summands)[order]].tolist():
            try:
                codec.check_overflow(codec.quantise_data(basis[i]), integers[i], summands)
            except ConfigurationError as error:
                raise ConfigurationError(f"party {parties[i]}: {error}; a resumed run takes a new scale") from None

    def _aggregate(self, mean: Tensor, corrected: tuple[int, ...] = ()) -> Aggregate:
        columns = torch.ones(mean.shape[1], dtype=torch.bool)
        return Aggregate(mean.to(torch.get_default_dtype()), columns, corrected=corrected)


def linear_forms(contribution: Contribution) -> LinearForms:
    """What ``form`` has asked for."""
    if not isinstance(contribution, LinearForms):
        raise TypeError(f"LagrangeCoded computes on linear forms, not on {type(contribution).__name__}")
    return contribution
