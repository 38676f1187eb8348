"""FedVS before training: every party shares its records with all others as values of a polynomial."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from lightning_vfl.aggregators.coded.blocks import PADDING, Blocks, Shares
from lightning_vfl.aggregators.coded.coding import Coding, Scale, received_by
from lightning_vfl.aggregators.coded.messages import DATA, check_data_shares
from lightning_vfl.aggregators.parts import Setup
from lightning_vfl.errors import ConfigurationError
from lightning_vfl.field import FixedPoint, auto_weight_bits
from lightning_vfl.types import PartyRecords, Roster, Stage, Widths
from lightning_vfl.wire import Gate, Leg, Message, PartyView

SHARED_AT_ONCE = 2**21  # share elements of one message of set-up: 16 MiB
QUANTISED_AT_ONCE = 8192  # records


@dataclass(frozen=True)
class DataShares(Setup):
    """The set-up of ``LagrangeCoded``: the scale of the weights is settled, then data shares go from party to party.

    Args:
        coding: the code.
        scale: units of data and weights.
        equivalent: nothing is shared, because rounds compute without shares; traffic is counted all the same.
    """

    coding: Coding
    scale: Scale
    equivalent: bool

    def arrangement(self, records: int, parties: int, seed: int, stage: Stage) -> Blocks:
        return arrangement(self.coding.code(parties).blocks, records, seed, stage)

    def legs(self, records: int, basis: Widths, roster: Roster) -> tuple[Leg, ...]:
        parties = roster.parties
        blocks = self.coding.blocks_for(parties)
        coded_rows = -(-records // blocks)
        elements = coded_rows * torch.tensor(basis)  # of one share
        # an element of a share is the sum of K + T products, for each of M holders
        flops = 2.0 * parties * (blocks + self.coding.privacy) * elements.double()
        to_peers = (parties - 1) * elements
        return (Leg(DATA, "peers", to_peers, self.coding.field.wire_bits, flops, gate=Gate.ALL),)

    def propose(self, records: PartyRecords, party: int, weight: Tensor, roster: Roster) -> Mapping[str, int]:
        """The most scale bits at which the party's own part of a sum cannot wrap around."""
        field = self.coding.field
        l_x = self.scale.l_x
        codec = FixedPoint(field, l_x, 0)
        headroom = self.scale.headroom if self.scale.given == "auto" else 1.0
        least = len(weight) ** -0.5 / 4  # weights that begin as zeros do not stay zeros
        expected = weight.abs().clamp(min=least)
        bits = []
        for ids in torch.split(torch.arange(len(records)), QUANTISED_AT_ONCE):
            data = codec.quantise_data(records.basis(party, ids))
            bits.append(auto_weight_bits(field, l_x, data, expected, roster.parties, headroom))
        return {"l_w": min(bits)}

    def settle(self, proposals: Sequence[Mapping[str, int]]) -> Mapping[str, int]:
        """The smallest of the proposed scale bits, or the given ones if they are not more."""
        least = min(proposal["l_w"] for proposal in proposals)
        chosen = least if self.scale.given == "auto" else self.scale.given
        if chosen > least:
            raise ConfigurationError(
                f"scale: {chosen} overflows with the weights that training begins with, for l_x = {self.scale.l_x}, p "
                f"= {self.coding.field.modulus} and {len(proposals)} parties; use scale: auto, {least} or less, or a "
                "larger field"
            )
        return {"l_w": chosen}

    def empty_memory(self, records: int, basis: Widths, view: PartyView) -> Shares | None:
        if self.equivalent:
            return None
        parties = view.roster.parties
        blocks = self.arrangement(records, parties, view.names.seed, view.names.stage)
        word = torch.int32 if self.coding.field.modulus <= 2**31 else torch.int64
        table = torch.empty((len(view.parties), blocks.rows, sum(basis)), dtype=word)
        nothing = dict.fromkeys(range(parties), 0)
        return Shares(view.parties, blocks, basis, table, nothing)

    def offer(self, records: PartyRecords, memory: Shares | None, view: PartyView) -> Iterator[Message]:
        if memory is None:
            return
        parties = view.roster.parties
        blocks = memory.blocks
        code = self.coding.code(parties)
        for party in view.parties:
            at_once = max(1, SHARED_AT_ONCE // (parties * memory.widths[party]))  # coded rows
            for start in range(0, blocks.rows, at_once):
                ids = blocks.at(start, min(start + at_once, blocks.rows))  # (rows, K)
                secrets = self._elements(records, party, ids)
                _, rows, width = secrets.shape
                masks = self.coding.masks(view.names, f"data {start}", [party], [rows], self.coding.privacy, width)
                # equation (2): F(β_k) = block k, F(β_(K+t)) = mask t, and holder j gets F(α_j)
                shares = code.share(secrets, masks.to(secrets.device))
                yield Message(DATA, "peers", (party,), (shares,), round=view.names)

    def _elements(self, records: PartyRecords, party: int, ids: Tensor) -> Tensor:
        """(K, rows, W), a party's records of coded rows with these ids (rows, K); zeros for ``PADDING``."""
        field = self.coding.field
        padded = ids == PADDING
        some = ids.masked_fill(padded, 0)  # any record stands for padding, until its numbers are set to zero
        basis = records.basis(party, some.flatten())
        data = FixedPoint(field, self.scale.l_x, 0).quantise_data(basis).view(*ids.shape, basis.shape[1])
        if padded.any():
            data[padded.to(data.device)] = 0
        return field.embed(data).transpose(0, 1)

    def accept(self, memory: Shares, message: Message, view: PartyView) -> Shares:
        check_data_shares(message, memory, SHARED_AT_ONCE, self.coding.field, view)
        (sender,) = message.senders
        shares = received_by(view.parties, message)
        start = memory.filled[sender]
        end = start + shares.shape[1]
        memory.table[:, start:end, memory.columns(sender)] = shares
        memory.filled[sender] = end
        return memory


def arrangement(blocks: int, records: int, seed: int, stage: Stage) -> Blocks:
    """How N records are stacked in coded rows of K ``blocks``: shuffled for training.

    Evaluation goes through its records in order, so that K records in succession make a coded row.
    """
    return Blocks.shuffled(records, blocks, seed, stage) if stage == Stage.FIT else Blocks(records, blocks)
