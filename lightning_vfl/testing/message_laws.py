"""The laws of aggregators about messages."""

from dataclasses import replace

import torch
from torch import Tensor

from lightning_vfl.aggregators.clear import wire_of
from lightning_vfl.testing.law import require, require_close, require_same_bits
from lightning_vfl.testing.rounds import BASIS, RECORDS, ROWS, Subject, Upload
from lightning_vfl.types import Stage
from lightning_vfl.wire import LinearForms, Message


def messages_fit_their_legs(subject: Subject) -> None:
    """Every message has the kind, the destination, the senders and the number of bits that its leg has announced."""
    played = subject.play()
    aggregator, _, view, server = played
    wire = wire_of(aggregator)
    setup = aggregator.setup
    m = subject.parties
    basis = (BASIS,) * m if aggregator.form is LinearForms else ()
    coded = len(ROWS)
    if setup is not None:
        coded = len(setup.arrangement(RECORDS, m, 0, Stage.FIT).coded_rows(view.rows.ids)[0])
    messages, decoded = played.messages()
    legs = wire.legs(coded, server.widths, basis, server.roster)
    signed = next((message for message in messages if message.relayed), None)
    if signed is not None:  # the server hands the message on to every party: a leg of its own
        handed_on = [leg for leg in legs if leg.to == "parties"]
        size = wire.needed(m) * signed.pieces[0].nbytes
        told = [leg.bytes.tolist() for leg in handed_on]
        require(told == [[size] * m], f"the relayed message has {size} bytes a party, its legs announce {told}")
        legs = tuple(leg for leg in legs if leg is not handed_on[0])
    sent = [part for message in messages for part in (message, message.alongside) if part is not None]
    require(len(sent) == len(legs), f"{len(sent)} messages are sent where {len(legs)} legs are announced")
    for message, leg in zip(sent, legs, strict=True):
        _fits(message, (leg.kind, leg.to), tuple(range(m)))
        to_others = [p.numel() * (m - 1) // m if message.to == "peers" else p.numel() for p in message.pieces]
        _sized(message, to_others, leg.elements, leg.bits)
    downlink = wire.downlink(len(ROWS), server.widths, server.roster)
    answer = wire.server_side().answer(torch.ones_like(decoded.value), decoded, server)
    _fits(answer, (downlink.kind, downlink.to), ())
    receivers = answer.receivers
    members = server.roll.included_parties
    require(
        receivers == members, f"the answer has pieces for the parties {receivers}; the included parties are {members}"
    )
    _sized(answer, [piece.numel() for piece in answer.pieces], downlink.elements, downlink.bits)


def _fits(message: Message, announced: tuple[str, str], senders: tuple[int, ...]) -> None:
    what = (message.kind, message.to)
    require(what == announced, f"a message '{what[0]}' to {what[1]} is sent where {announced} is announced")
    require(message.senders == senders, f"'{message.kind}' has the senders {message.senders} instead of {senders}")


def _sized(message: Message, numbers: list[int], elements: Tensor, bits: int) -> None:
    told = elements.tolist()
    kind = message.kind
    if message.pieces[0].is_floating_point():
        size = 8 * message.pieces[0].element_size()
        require(size == bits, f"the numbers of '{kind}' have {size} bits, its leg announces {bits}")
        require(numbers == told, f"'{kind}' has {numbers} numbers, its leg announces {told}")
        return
    require(numbers == told, f"'{kind}' has {numbers} numbers, its leg announces {told}")
    for piece in message.pieces:
        lowest, highest = int(piece.to(torch.int64).min()), int(piece.to(torch.int64).max())
        fits = lowest >= 0 and highest.bit_length() <= bits
        require(fits, f"the numbers of '{kind}' go from {lowest} to {highest}, its leg announces {bits} bits")


def hosting_together_is_hosting_alone(subject: Subject) -> None:
    """The uploads of several hosted parties are those of each party alone, bit for bit; not for random secrets."""
    if subject.random:
        return
    played = subject.play()
    together = Upload(played.aggregator, played.contribution, played.parties)
    everyone = torch.ones(subject.parties, dtype=torch.bool)
    answers = together.then(everyone, together.first) if together.first.to == "peers" else None
    for party in range(subject.parties):
        own = subject.play(hosted=(party,))
        alone = Upload(own.aggregator, own.contribution, own.parties)
        require(alone.first.senders == (party,), f"party {party} alone sends for the parties {alone.first.senders}")
        pairs = [(alone.first, together.first)]
        if together.first.alongside is not None and alone.first.alongside is not None:
            pairs.append((alone.first.alongside, together.first.alongside))
        if answers is not None:
            pairs.append((alone.then(everyone, together.first), answers))
        for a, b in pairs:
            what = f"'{a.kind}' of party {party} alone against that among {subject.parties} hosted parties"
            require_same_bits(a.pieces[0], b.pieces[party], what)


def carrying_together_is_carrying_alone(subject: Subject) -> None:
    """A party's gradients depend on its own piece of the answer alone; without a piece they are zero."""
    played = subject.play()
    exchange = played.exchange()
    exchange.aggregate = exchange.send()
    grad = torch.randn(exchange.aggregate.value.shape, generator=torch.Generator().manual_seed(1))
    answer = exchange.sides.server.answer(grad, exchange.aggregate, played.server)
    different = [p * (1 + i) if p.is_floating_point() else p for i, p in enumerate(answer.pieces)]
    answer = replace(answer, pieces=tuple(different))  # a mean gives all parties the same
    together = exchange.sides.party.carry(answer, played.contribution, played.parties)
    apart = replace(answer, pieces=tuple(piece.clone() for piece in answer.pieces))  # no two are one tensor
    members = answer.receivers or tuple(range(subject.parties))
    for others in (apart, replace(answer, receivers=members[::-1], pieces=apart.pieces[::-1])):
        carried = exchange.sides.party.carry(others, played.contribution, played.parties)
        for party, (a, b) in enumerate(zip(carried, together, strict=True)):
            require_close(a, b, 1.3e-6, 1e-5, f"the gradient of party {party} from pieces in another order")
    for party in range(0 if subject.random else subject.parties):
        own = subject.play(hosted=(party,))
        side = wire_of(own.aggregator).party_side()
        (alone,) = side.carry(answer, own.contribution, own.parties)
        require_close(alone, together[party], 1.3e-6, 1e-5, f"the gradient of party {party} alone")
        piece = replace(answer, receivers=(party,), pieces=(answer.pieces[members.index(party)],))
        (of_piece,) = side.carry(piece, own.contribution, own.parties)
        require_same_bits(of_piece, alone, f"the gradient of party {party} from its own piece alone")
        (of_nothing,) = side.carry(replace(answer, receivers=(), pieces=()), own.contribution, own.parties)
        require(not of_nothing.any(), f"party {party} has a gradient without a piece of the answer")
