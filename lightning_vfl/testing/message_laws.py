"""The laws of aggregators about messages."""

from dataclasses import replace

import torch

from lightning_vfl.aggregators.clear import wire_of
from lightning_vfl.testing.law import require, require_close, require_same_bits
from lightning_vfl.testing.rounds import BASIS, RECORDS, ROWS, Subject, Upload, parts_of
from lightning_vfl.types import Parties, Stage
from lightning_vfl.wire import Leg, LinearForms, Message


def messages_fit_their_legs(subject: Subject) -> None:
    """Every message has the kind, the destination, the senders and the number of bits that its leg has announced."""
    played = subject.play()
    aggregator = played.aggregator
    server = played.server
    wire = wire_of(aggregator)
    m = subject.parties
    basis = (BASIS,) * m if aggregator.form is LinearForms else ()
    rows = len(ROWS)
    if aggregator.setup is not None:
        arrangement = aggregator.setup.arrangement(RECORDS, m, 0, Stage.FIT)
        rows = len(arrangement.coded_rows(server.rows.ids)[0])
    legs = wire.legs(rows, server.widths, basis, server.roster)
    messages, decoded = played.messages()
    if signed := [message for message in messages if message.relayed]:
        # the server hands the message on to every party: a leg of its own
        size = wire.needed(m) * signed[0].pieces[0].nbytes
        relayed = [leg.bytes.tolist() for leg in legs if leg.to == "parties"]
        require(relayed == [[size] * m], f"the relayed message has {size} bytes a party, its legs announce {relayed}")
        legs = tuple(leg for leg in legs if leg.to != "parties")
    sent = list(parts_of(messages))
    require(len(sent) == len(legs), f"{len(sent)} messages are sent where {len(legs)} legs are announced")
    for message, leg in zip(sent, legs, strict=True):
        _require_fit(message, leg, tuple(range(m)))
    answer = wire.server_side().answer(torch.ones_like(decoded.value), decoded, server)
    _require_fit(answer, wire.downlink(len(ROWS), server.widths, server.roster), ())
    members = server.roll.included_parties
    what = f"the answer has pieces for the parties {answer.receivers}; the included parties are {members}"
    require(answer.receivers == members, what)


def _require_fit(message: Message, leg: Leg, senders: Parties) -> None:
    """The message has the kind, the destination, the senders and the size that the leg announces."""
    kind = message.kind
    announced = (leg.kind, leg.to)
    require((kind, message.to) == announced, f"'{kind}' to {message.to} is sent where {announced} is announced")
    require(message.senders == senders, f"'{kind}' has the senders {message.senders} instead of {senders}")
    numbers = [piece.numel() for piece in message.pieces]
    if message.to == "peers":  # no party sends itself anything
        parties = len(leg.elements)
        numbers = [number * (parties - 1) // parties for number in numbers]
    elements = leg.elements.tolist()
    require(numbers == elements, f"'{kind}' has {numbers} numbers, its leg announces {elements}")
    for piece in message.pieces:
        if piece.is_floating_point():
            bits = 8 * piece.element_size()
            require(bits == leg.bits, f"the numbers of '{kind}' have {bits} bits, its leg announces {leg.bits}")
        else:
            integers = piece.to(torch.int64)
            lowest = int(integers.min())
            highest = int(integers.max())
            fits = lowest >= 0 and highest.bit_length() <= leg.bits
            require(fits, f"the numbers of '{kind}' go from {lowest} to {highest}, its leg announces {leg.bits} bits")


def hosting_together_is_hosting_alone(subject: Subject) -> None:
    """The uploads of several hosted parties are those of each party alone, bit for bit; not for random secrets."""
    if subject.random:
        return
    played = subject.play()
    together = Upload(played.aggregator, played.contribution, played.parties)
    messages = _of_two_legs(together, together.first)
    for party in range(subject.parties):
        hosted = subject.play(hosted=(party,))
        alone = Upload(hosted.aggregator, hosted.contribution, hosted.parties)
        require(alone.first.senders == (party,), f"party {party} alone sends for the parties {alone.first.senders}")
        for one, among in zip(_of_two_legs(alone, together.first), messages, strict=True):
            what = f"'{one.kind}' of party {party} alone against that among {subject.parties} hosted parties"
            require_same_bits(one.pieces[0], among.pieces[party], what)


def _of_two_legs(upload: Upload, shares: Message) -> list[Message]:
    """The messages of the first leg; if it goes to the peers, also those of the next, for all parties' ``shares``."""
    messages = [upload.first]
    if shares.to == "peers":
        messages.append(upload.then(upload.view.called, shares))
    return list(parts_of(messages))


def carrying_together_is_carrying_alone(subject: Subject) -> None:
    """A party's gradients depend on its own piece of the answer alone; without a piece they are zero."""
    played = subject.play()
    exchange = played.exchange()
    exchange.aggregate = exchange.send()
    grad = torch.randn(exchange.aggregate.value.shape, generator=torch.Generator().manual_seed(1))
    answer = exchange.sides.server.answer(grad, exchange.aggregate, played.server)
    # every party gets other numbers: a mean gives all parties the same
    pieces = tuple(p * (1 + i) if p.is_floating_point() else p for i, p in enumerate(answer.pieces))
    answer = replace(answer, pieces=pieces)
    together = exchange.sides.party.carry(answer, played.contribution, played.parties)
    members = answer.receivers or tuple(range(subject.parties))
    clones = tuple(piece.clone() for piece in pieces)  # no two are one tensor
    for order in (slice(None), slice(None, None, -1)):
        other = replace(answer, receivers=members[order], pieces=clones[order])
        carried = exchange.sides.party.carry(other, played.contribution, played.parties)
        for party, (a, b) in enumerate(zip(carried, together, strict=True)):
            require_close(a, b, 1.3e-6, 1e-5, f"the gradient of party {party} from pieces in another order")
    for party in range(0 if subject.random else subject.parties):
        hosted = subject.play(hosted=(party,))
        side = wire_of(hosted.aggregator).party_side()
        (alone,) = side.carry(answer, hosted.contribution, hosted.parties)
        require_close(alone, together[party], 1.3e-6, 1e-5, f"the gradient of party {party} alone")
        piece = replace(answer, receivers=(party,), pieces=(pieces[members.index(party)],))
        (of_piece,) = side.carry(piece, hosted.contribution, hosted.parties)
        require_same_bits(of_piece, alone, f"the gradient of party {party} from its own piece alone")
        nothing = replace(answer, receivers=(), pieces=())
        (of_nothing,) = side.carry(nothing, hosted.contribution, hosted.parties)
        require(not of_nothing.any(), f"party {party} has a gradient without a piece of the answer")
