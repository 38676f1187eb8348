"""The laws of aggregators about messages."""

from dataclasses import replace

import torch

from lightning_vfl.aggregators.clear import wire_of
from lightning_vfl.testing.law import require, require_close, require_same_bits
from lightning_vfl.testing.rounds import BASIS, RECORDS, ROWS, Subject, Upload
from lightning_vfl.types import Parties, Stage
from lightning_vfl.wire import Leg, LinearForms, Message


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
        relayed = [leg for leg in legs if leg.to == "parties"]
        size = wire.needed(m) * signed.pieces[0].nbytes
        announced = [leg.bytes.tolist() for leg in relayed]
        require(
            announced == [[size] * m], f"the relayed message has {size} bytes a party, its legs announce {announced}"
        )
        legs = tuple(leg for leg in legs if leg is not relayed[0])
    sent = [part for message in messages for part in (message, message.alongside) if part is not None]
    require(len(sent) == len(legs), f"{len(sent)} messages are sent where {len(legs)} legs are announced")
    for message, leg in zip(sent, legs, strict=True):
        _require_fit(message, leg, tuple(range(m)))
    answer = wire.server_side().answer(torch.ones_like(decoded.value), decoded, server)
    _require_fit(answer, wire.downlink(len(ROWS), server.widths, server.roster), ())
    receivers, members = answer.receivers, server.roll.included_parties
    what = f"the answer has pieces for the parties {receivers}; the included parties are {members}"
    require(receivers == members, what)


def _require_fit(message: Message, leg: Leg, senders: Parties) -> None:
    """The message has the kind, the destination, the senders and the size that the leg announces."""
    kind = message.kind
    parties = len(leg.elements)
    what, announced = (kind, message.to), (leg.kind, leg.to)
    require(what == announced, f"a message '{kind}' to {message.to} is sent where {announced} is announced")
    require(message.senders == senders, f"'{kind}' has the senders {message.senders} instead of {senders}")
    numbers = [piece.numel() for piece in message.pieces]
    if message.to == "peers":
        numbers = [number * (parties - 1) // parties for number in numbers]
    elements = leg.elements.tolist()
    require(numbers == elements, f"'{kind}' has {numbers} numbers, its leg announces {elements}")
    for piece in message.pieces:
        if piece.is_floating_point():
            bits = 8 * piece.element_size()
            require(bits == leg.bits, f"the numbers of '{kind}' have {bits} bits, its leg announces {leg.bits}")
        else:
            lowest, highest = int(piece.to(torch.int64).min()), int(piece.to(torch.int64).max())
            fits = lowest >= 0 and highest.bit_length() <= leg.bits
            require(fits, f"the numbers of '{kind}' go from {lowest} to {highest}, its leg announces {leg.bits} bits")


def hosting_together_is_hosting_alone(subject: Subject) -> None:
    """The uploads of several hosted parties are those of each party alone, bit for bit; not for random secrets."""
    if subject.random:
        return
    played = subject.play()
    together = Upload(played.aggregator, played.contribution, played.parties)
    everyone = torch.ones(subject.parties, dtype=torch.bool)
    answers = together.then(everyone, together.first) if together.first.to == "peers" else None
    for party in range(subject.parties):
        hosted = subject.play(hosted=(party,))
        alone = Upload(hosted.aggregator, hosted.contribution, hosted.parties)
        require(alone.first.senders == (party,), f"party {party} alone sends for the parties {alone.first.senders}")
        pairs = [(alone.first, together.first), (alone.first.alongside, together.first.alongside)]
        if answers is not None:
            pairs.append((alone.then(everyone, together.first), answers))
        for one, among in pairs:
            if one is not None and among is not None:
                what = f"'{one.kind}' of party {party} alone against that among {subject.parties} hosted parties"
                require_same_bits(one.pieces[0], among.pieces[party], what)


def carrying_together_is_carrying_alone(subject: Subject) -> None:
    """A party's gradients depend on its own piece of the answer alone; without a piece they are zero."""
    played = subject.play()
    exchange = played.exchange()
    exchange.aggregate = exchange.send()
    grad = torch.randn(exchange.aggregate.value.shape, generator=torch.Generator().manual_seed(1))
    answer = exchange.sides.server.answer(grad, exchange.aggregate, played.server)
    # every party gets other numbers: a mean gives all parties the same
    different = [p * (1 + i) if p.is_floating_point() else p for i, p in enumerate(answer.pieces)]
    answer = replace(answer, pieces=tuple(different))
    together = exchange.sides.party.carry(answer, played.contribution, played.parties)
    members = answer.receivers or tuple(range(subject.parties))
    clones = tuple(piece.clone() for piece in answer.pieces)  # no two are one tensor
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
        piece = replace(answer, receivers=(party,), pieces=(answer.pieces[members.index(party)],))
        (of_piece,) = side.carry(piece, hosted.contribution, hosted.parties)
        require_same_bits(of_piece, alone, f"the gradient of party {party} from its own piece alone")
        nothing = replace(answer, receivers=(), pieces=())
        (of_nothing,) = side.carry(nothing, hosted.contribution, hosted.parties)
        require(not of_nothing.any(), f"party {party} has a gradient without a piece of the answer")
