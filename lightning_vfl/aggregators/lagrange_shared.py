"""Any bottom network under Lagrange coding: embeddings are shared among the parties, and only their sum is answered."""

from dataclasses import dataclass, replace
from typing import ClassVar, Literal

import torch
from torch import Tensor

from lightning_vfl.aggregators.coded.coding import CodedMean, CodedWire, Coding, MeanServer, aggregate_of, received_by
from lightning_vfl.aggregators.coded.messages import EMBEDDINGS, SUMS, check_embedding_shares, check_results
from lightning_vfl.aggregators.messages import blamed, gradients_in, only, refuse_outside
from lightning_vfl.aggregators.parts import PartySide, Uploads
from lightning_vfl.errors import ConfigurationError
from lightning_vfl.field import FixedPoint, PrimeField
from lightning_vfl.types import Roll, Roster, Tensors, Widths
from lightning_vfl.wire import Aggregate, Contribution, Leg, Message, PartyView, ServerView

DEGREE = 1  # of the polynomial that the parties compute on shares: a sum


class LagrangeShared(CodedMean):
    r"""The mean of embeddings of any networks, by Lagrange-coded shares of the embeddings themselves.

    In a round, party m rounds its embedding to multiples of 2^-l, cuts its rows into K blocks, adds T uniform masks and
    gives party j the value at :math:`\alpha_j` of the polynomial through them. Everybody adds up what has arrived and
    sends the sum to the server: a value of a polynomial of degree K + T - 1, which any K + T of them determine.

    How this differs from FedVS (``LagrangeCoded``): nothing is shared before training and bottoms may be any networks,
    but a party has to compute its own embedding in every round, so one that is late in the FIRST leg is left out of the
    mean, where FedVS has its embedding all the same. In exchange K + T answers suffice, not 2(K + T - 1) + 1, nobody
    computes on others' data, and the server's view carries no cross terms that would have to be hidden.

    Shapes: h_m (B, D); coded rows |B| = ⌈B / K⌉, the last padded with zeros; share (M, |B|, D); sum (|B|, D).
    Units: embeddings in 2^-l; everything sent in field elements of ⌈log2 p⌉ bits, gradients in float32.
    Guarantee: any T colluding parties learn nothing of others' embeddings; the server nothing but the sums, of those
        parties whose shares arrived in time. Exact in the field, so the mean is off by at most 2^-(l+1). Nothing wraps
        around: every party checks its own part and raises before anything is sent.
    Not guaranteed: privacy against T + 1 colluding parties, a server that colludes with any, or parties that deviate;
        a wrong sum is not noticed. Protection of the information in the mean and in the gradient.

    Args:
        blocks: K, or ``auto``: the largest that leaves ⌊M/4⌋ parties unneeded in the second leg, fewer if K would be 0.
        privacy: T ≥ 0 colluding parties tolerated.
        bits: l, scale bits of the embeddings.
        execution: ``coded`` does all of this; ``equivalent`` computes the same integers without shares, to the same
            bits, with the same bytes and virtual seconds in the books.
        field: the modulus; None: ``PrimeField()``, 2^31 - 1.
        insecure_seeded_secrets: masks from a named stream instead of the operating system; for tests only.

    Raises:
        ConfigurationError: before training, if K + T > M; in a round, if a sum could wrap around.

    Examples:
        >>> LagrangeShared(blocks=2, privacy=1).wire.needed(8)
        3

    References:
        Yu, Li, Raviv, Kalan, Soltanolkotabi, Avestimehr, "Lagrange Coded Computing", AISTATS 2019, section 4 (for the
        sum, a polynomial of degree one).
    """

    incidental: ClassVar[tuple[str, ...]] = ("execution", "insecure_seeded_secrets")

    def __init__(
        self,
        blocks: int | Literal["auto"] = "auto",
        privacy: int = 1,
        bits: int = 16,
        execution: Literal["coded", "equivalent"] = "coded",
        field: PrimeField | None = None,
        insecure_seeded_secrets: bool = False,
    ) -> None:
        super().__init__(DEGREE, blocks, privacy, 0, execution, field, insecure_seeded_secrets)
        self.bits = bits
        self._codec = FixedPoint(self.field, bits, 0)

    @property
    def wire(self) -> "SharedWire":
        return SharedWire(self._coding, self._equivalent, self._codec)


@dataclass(frozen=True)
class SharedWire(CodedWire):
    """The wire of ``LagrangeShared``.

    Args:
        codec: units of the embeddings.
    """

    aggregator = "LagrangeShared"

    codec: FixedPoint

    def legs(self, rows: int, widths: Widths, basis: Widths, roster: Roster) -> tuple[Leg, ...]:
        m = roster.parties
        code = self.coding.code(roster.parties)
        bits = self.coding.field.wire_bits
        results = torch.full((m,), -(-rows // code.blocks) * widths[0])
        sharing = 2.0 * m * (code.blocks + code.privacy) * results.double()
        shares = Leg(EMBEDDINGS, "peers", (m - 1) * results, bits, sharing)
        adding = m * results.double()
        sums = Leg(SUMS, "server", results, bits, adding, gate=code.threshold(DEGREE))
        return shares, sums

    def protection(self, uploads: int) -> str:
        return self.coding.protection(
            self.equivalent, "others' embeddings", "single uploads are hidden: the server learns the means"
        )

    def party_side(self) -> "SharingParty":
        return SharingParty(self.coding, self.codec)

    def server_side(self) -> "DecodingServer":
        return DecodingServer(self.coding, self.codec)

    def clear(self, contribution: Contribution, view: PartyView, roll: Roll) -> Aggregate:
        called = view.called_places  # late ones check for overflow too
        integers = zip(called, self.party_side().integers(contribution, called, view), strict=True)
        total = torch.stack([h for i, h in integers if roll.included[view.parties[i]]]).sum(0)
        return aggregate_of(total.double().mul_(2.0**-self.codec.l_x) / len(roll.included_parties))


@dataclass(frozen=True)
class SharingParty(PartySide):
    """Parties that share their embeddings and add the shares that they receive."""

    coding: Coding
    codec: FixedPoint

    def upload(self, contribution: Contribution, view: PartyView) -> Uploads:
        heard = yield self._share(contribution, view)
        if heard.received is not None:
            yield self._add(heard.received, heard.included, replace(view, parties=heard.parties))

    def carry(self, answer: Message, contribution: Contribution, view: PartyView) -> Tensors:
        """Rounding is passed straight through."""
        return gradients_in(answer, contribution.leaves, view)

    def integers(self, contribution: Contribution, mine: list[int], view: PartyView) -> list[Tensor]:
        """The rounded embeddings of these hosted parties.

        Raises:
            ConfigurationError: if a sum could wrap around; every party checks its own part.
        """
        integers = []
        summands = int(view.called.sum())
        for i in mine:
            try:
                integers.append(self.codec.quantise_data(contribution.leaves[i].detach(), "bits", summands))
            except ConfigurationError as error:
                raise ConfigurationError(
                    f"party {view.parties[i]}: {error}, or use a bounded bottom (output_activation: torch.nn.Tanh)"
                ) from None
        return integers

    def _share(self, contribution: Contribution, view: PartyView) -> Message:
        code = self.coding.code(view.roster.parties)
        mine = view.called_places
        senders = tuple(view.parties[i] for i in mine)
        h = self.codec.field.embed(torch.stack(self.integers(contribution, mine, view)))  # (S, B, D)
        rows = -(-h.shape[1] // code.blocks)
        padded = torch.nn.functional.pad(h, (0, 0, 0, rows * code.blocks - h.shape[1]))
        secrets = padded.view(len(mine), code.blocks, rows, h.shape[2]).transpose(0, 1)
        drawn = self.coding.masks(view.names, "embeddings", senders, [rows] * len(mine), code.privacy, h.shape[2])
        masks = drawn.view(code.privacy, *secrets.shape[1:]).to(h.device)
        shares = code.share(secrets, masks, view.receivers).flatten(1, 2)  # a sender's rows beside the next one's
        pieces = torch.split(shares, [rows] * len(senders), dim=1)
        return Message(EMBEDDINGS, "peers", senders, pieces, receivers=view.receivers, round=view.names)

    def _add(self, received: Message, included: Tensor, view: PartyView) -> Message:
        blocks = self.coding.blocks_for(view.roster.parties)
        check_embedding_shares(received, -(-len(view.rows.ids) // blocks), included, view)
        shares = received_by(view.parties, received)
        senders = len(received.senders)
        each = shares.view(len(shares), senders, shares.shape[1] // senders, shares.shape[2])
        sums = blamed(received, self.codec.field.modulus, self.codec.field.totals, each)
        return Message(SUMS, "server", view.parties, sums.unbind(0), round=view.names)


@dataclass(frozen=True)
class DecodingServer(MeanServer):
    """A server that decodes the mean of the embeddings from sums of shares."""

    coding: Coding
    codec: FixedPoint

    def decode(self, messages: tuple[Message, ...], view: ServerView) -> Aggregate:
        message = only(messages)
        code = self.coding.code(view.roster.parties)
        rows = -(-len(view.rows.ids) // code.blocks)
        check_results(message, SUMS, rows, self.coding.needed(code.blocks), view)
        refuse_outside(message.pieces, message.senders, SUMS, self.codec.field.modulus)
        blocks = code.decode(torch.stack(message.pieces), message.senders, DEGREE)
        total = blocks.flatten(0, 1)[: len(view.rows.ids)]
        return aggregate_of(self.codec.dequantise(total) / len(view.roll.included_parties))
