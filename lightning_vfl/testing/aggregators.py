"""The laws of aggregators (``lightning_vfl.aggregators.base``), for an aggregator of your own."""

from collections.abc import Sequence
from copy import deepcopy
from dataclasses import is_dataclass, replace
from enum import Enum
from functools import partial
from types import FunctionType, MethodType
from typing import Any

import torch
from torch import Tensor

from lightning_vfl.aggregators.base import Aggregator
from lightning_vfl.aggregators.clear import InTheClear, wire_of
from lightning_vfl.errors import ConfigurationError
from lightning_vfl.field import PrimeField
from lightning_vfl.privacy.calibration import Noise
from lightning_vfl.rounds.exchange import Sides
from lightning_vfl.testing.law import Law, checked, laws_of, require, require_close, require_same_bits
from lightning_vfl.testing.rounds import BASIS, RECORDS, ROWS, Subject, Upload, embeddings, parts_of, with_leaves
from lightning_vfl.types import Parties, Stage, Tensors, numbers_in
from lightning_vfl.wire import Leg, LinearForms, Message

CLOSE = 0.8  # the correlation above which numbers tell an embedding; that of masks and noise is about 0
IMMUTABLE = (bool, int, float, complex, str, bytes, range, frozenset, type(None), Enum, torch.dtype, torch.device, type)
SETTINGS = (PrimeField, Noise)  # set by their constructors and by nothing else


def aggregator_laws(
    aggregator: Aggregator,
    parties: int = 4,
    width: int = 8,
    fewest: int = 1,
    error: float = 0.0,
    partly_held: bool = True,
) -> tuple[Law, ...]:
    """The laws that ``check_aggregator`` checks, one object each.

    Not guaranteed: laws that compare uploads, where two uploads of the same numbers differ because of random secrets or
        noise; take these from a seed, as ``insecure_seeded_secrets`` does, to have all laws checked.

    Args:
        aggregator: an object of your class; it is copied for each round.
        parties: M, at least 2.
        width: D, the embedding width that every party is asked for.
        fewest: the fewest included parties that the aggregator has to join; rounds that its wire gives up by
            ``needed`` and ``takes_part`` are left out anyway.
        error: how far a number of the aggregate may be from ``plain``, if the aggregator has a wire; infinity if the
            wire does not send embeddings but, for example, their signs.
        partly_held: whether an aggregator in the clear has to join records that some parties do not hold.

    Examples:
        >>> from lightning_vfl.aggregators import Mean
        >>> for law in aggregator_laws(Mean()):
        ...     law()
    """
    return laws_of(aggregator, Subject(aggregator, parties, width, fewest, error, partly_held), LAWS)


check_aggregator = checked(aggregator_laws)
"""Check all laws of an aggregator; the arguments are those of ``aggregator_laws``."""


# ---- the value and the gradients of a round


def messages_decode_to_clear(subject: Subject) -> None:
    """The messages of a round decode to ``wire.clear``, bit for bit, for every roll."""
    for who, played in subject.rounds():
        decoded = played.exchange().send()
        clear = wire_of(played.aggregator).clear(played.contribution, played.parties, played.server.roll)
        require_same_bits(decoded.value, clear.value, f"the decoded value against clear, {who}")


def a_round_is_plain(subject: Subject) -> None:
    """A round is ``plain``, within the stated error if there is a wire, in its dtype and as wide as ``out_width``."""
    for who, played in subject.rounds():
        value = played.exchange().run()
        plain = played.plain()
        dtype = played.contribution.leaves[0].dtype
        for what, tensor in (("the value of a round", value), ("plain", plain)):
            require(tensor.dtype == dtype, f"{what} is {tensor.dtype}, the embeddings are {dtype}; return their dtype")
        error = 0.0 if played.aggregator.wire is None else subject.error
        stated = "" if played.aggregator.wire is None or error else " (a wire that changes embeddings needs error=)"
        require_close(value, plain, 0.0, error, f"the value of a round against plain{stated}, {who}")
        width = played.aggregator.out_width(subject.width, subject.roster)
        require(value.shape == (len(ROWS), width), f"the value has shape {(*value.shape,)}, out_width is {width}")
        require(bool(torch.isfinite(value).all()), f"the value of a round with {who} is not finite: {value}")


def a_record_changes_its_own_row_alone(subject: Subject) -> None:
    """If the embeddings of one record change, no bit of ``plain`` changes in the rows of other records."""
    for who, played in subject.rounds():
        h = embeddings(played.contribution)
        value = played.plain(h)
        for row in range(len(ROWS)):
            other = torch.arange(len(ROWS)) != row
            again = played.plain(tuple(torch.where(other[:, None], x, x + 100.0) for x in h))
            what = f"other rows of plain after the embeddings of row {row} have changed, {who}"
            require_same_bits(again[other], value[other], what)


def columns_fit_the_value(subject: Subject) -> None:
    """``columns`` is a mask of the value's columns, and a column marked as absent is zero."""
    for who, played in subject.rounds():
        exchange = played.exchange()
        exchange.run()
        value = exchange.aggregate.value
        widths = played.aggregator.widths(subject.width, subject.roster)
        columns = played.aggregator.columns(widths, played.server.roll)
        require(columns.dtype == torch.bool, f"columns are {columns.dtype} instead of bool")
        require(columns.shape == value.shape[1:], f"{len(columns)} columns are marked, the value has {value.shape[1]}")
        require(not value[:, ~columns].any(), f"columns that are marked as absent hold other numbers than 0, {who}")


def answer_and_carry_are_the_adjoint_of_plain(subject: Subject) -> None:
    """<carry(answer(g)), v> is <g, J v>, with J v by central differences of ``plain`` in float64."""
    for who, played in subject.rounds(torch.float64):
        exchange = played.exchange()
        exchange.aggregate = exchange.send()
        leaves = played.contribution.leaves
        value = exchange.aggregate.value
        generator = torch.Generator().manual_seed(1)
        g = torch.randn(value.shape, generator=generator, dtype=torch.float64)
        v = [torch.randn(h.shape, generator=generator, dtype=torch.float64) for h in leaves]
        moved = []
        for step in (1e-6, -1e-6):
            h = tuple(leaf.detach() + step * direction for leaf, direction in zip(leaves, v, strict=True))
            moved.append(played.plain(embeddings(played.contribution, h)))
        expected = (g * (moved[0] - moved[1]) / 2e-6).sum()
        pulled = exchange.send_back(g.to(value.dtype))
        got = torch.stack([(p.double() * direction).sum() for p, direction in zip(pulled, v, strict=True)]).sum()
        relative = 1e-6 if value.dtype == torch.float64 else 1e-4
        require_close(got, expected, relative, relative / 100, f"<carry(answer(g)), v> against <g, J v>, {who}")


def uncounted_parties_change_nothing_and_learn_nothing(subject: Subject) -> None:
    """A party that is not included changes no bit of the value, and its gradient is exactly zero."""
    who, roll = subject.partly
    played = subject.play(roll)
    value = played.exchange().run()
    leaves = played.contribution.leaves
    grads = _gradients(value, leaves)
    changed = tuple(h if roll.included[m] else h + 100.0 for m, h in enumerate(leaves))
    again = subject.play(roll)
    other = again._replace(contribution=with_leaves(again.contribution, changed)).exchange().run()
    if not subject.random:
        require_same_bits(other, value, f"the value after embeddings of parties that are away have changed, {who}")
    for party in numbers_in(~roll.included):
        largest = float(grads[party].abs().max())
        require(largest == 0, f"party {party} is away and has a gradient of up to {largest:g}")


def _gradients(value: Tensor, leaves: Tensors, along: Tensor | None = None) -> list[Tensor]:
    """The gradients of the leaves, by default of the sum of the value; zeros where there is none."""
    if not value.requires_grad:
        return [torch.zeros_like(h) for h in leaves]
    along = torch.ones_like(value) if along is None else along
    grads = torch.autograd.grad(value, leaves, along, allow_unused=True)
    return [torch.zeros_like(h) if grad is None else grad for grad, h in zip(grads, leaves, strict=True)]


def rows_that_a_party_does_not_hold_do_not_count(subject: Subject) -> None:
    """For an aggregator in the clear: what stands in such rows changes no bit of the value and gets no gradient.

    A wire is given zeros in these rows, or refuses records that some parties do not hold.
    """
    if not subject.partly_held:
        return
    held = torch.rand(len(ROWS), subject.parties, generator=torch.Generator().manual_seed(3)) < 0.6
    held[0] = True
    if subject.bound.wire is not None:
        _refuses_or_accepts(subject, held)
        return
    played = subject.play(subject.rolls.get("everyone included"), held)
    leaves = played.contribution.leaves
    spoilt = tuple(torch.where(held[:, m, None], h, h + 100.0) for m, h in enumerate(leaves))
    value = played.plain(leaves, held)
    what = "the value after rows that parties do not hold have changed"
    require_same_bits(played.plain(spoilt, held), value, what)
    require(bool(torch.isfinite(value).all()), "the value is not finite where some parties do not hold a row")
    for party, grad in enumerate(_gradients(value, leaves)):
        require(not grad[~held[:, party]].any(), f"party {party} has a gradient in rows that it does not hold")


def _refuses_or_accepts(subject: Subject, held: Tensor) -> None:
    wire = wire_of(subject.bound)
    wire.refuse_partly_held(None, subject.roster)
    try:
        wire.refuse_partly_held(held, subject.roster)
    except ConfigurationError as error:
        require("\n" not in str(error), f"refuse_partly_held has to explain itself in one line; got {error}")


def what_is_charged_has_noise(subject: Subject) -> None:
    """An aggregate that ``accounting`` charges is drawn anew in every round."""
    if subject.bound.accounting is None:
        return
    values = [subject.play(number=number).exchange().run().detach() for number in range(2)]
    what = "accounting charges a round, but two rounds have the same aggregate; draw noise in upload, by view.names"
    require(not torch.equal(*values), what)


def the_short_way_is_the_way_through_messages(subject: Subject) -> None:
    """For an aggregator in the clear: autograd through ``plain`` and messages give the same values and gradients."""
    if subject.bound.wire is not None:
        return
    for who, played in subject.rounds():
        long = played._replace(aggregator=_with_a_wire(played.aggregator))
        value = played.exchange().run()
        value_long = long.exchange().run()
        leaves = played.contribution.leaves
        g = torch.randn(value.shape)
        require_same_bits(value_long.detach(), value.detach(), f"the value through messages against plain, {who}")
        pairs = zip(_gradients(value_long, leaves, g), _gradients(value, leaves, g), strict=True)
        for party, (a, b) in enumerate(pairs):
            require_same_bits(a, b, f"the gradient of party {party} through messages against autograd, {who}")


def _with_a_wire(aggregator: Aggregator) -> Aggregator:
    """The same aggregator in the clear, sent as messages."""
    long = type("Long", (type(aggregator),), {"wire": property(lambda self: InTheClear(aggregator))})
    made: Aggregator = object.__new__(long)
    vars(made).update(vars(aggregator))
    return made


# ---- messages


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


# ---- the two sides of a wire


def visible_is_what_the_code_does(subject: Subject) -> None:
    """``traits.visible`` says whether the server can read uploads.

    Uploads that it can read have the form of embeddings. Uploads that it cannot read may have this form too, but their
    numbers do not follow those of the embeddings, record by record.
    """
    played = subject.play()
    message = played.first()
    h = embeddings(played.contribution)
    shapes_fit = [piece.shape for piece in message.pieces] == [x.shape for x in h]
    form = message.to == "server" and shapes_fit and all(piece.is_floating_point() for piece in message.pieces)
    if wire_of(played.aggregator).traits.visible:
        require(form, f"visible is True, but '{message.kind}' to {message.to} is not one embedding for each party")
        return
    require(
        not (form and _follow(message.pieces, h)),
        f"visible is False, but the numbers of '{message.kind}' to {message.to} follow those of the embeddings",
    )


def _follow(pieces: Tensors, h: Sequence[Tensor]) -> bool:
    """Whether the numbers of uploads tell those at the same places of embeddings, on average over the parties."""
    pairs = [torch.stack([piece.flatten(), x.flatten()]).detach() for piece, x in zip(pieces, h, strict=True)]
    correlations = [torch.corrcoef(pair.double())[0, 1].abs() for pair in pairs]
    return float(torch.stack(correlations).mean()) > CLOSE


def hidden_embeddings_are_not_handed_over(subject: Subject) -> None:
    """If the server cannot read uploads, no message shares memory with embeddings or weights."""
    played = subject.play()
    if wire_of(played.aggregator).traits.visible:
        return
    messages, _ = played.messages()
    secrets = {leaf.untyped_storage().data_ptr() for leaf in played.contribution.leaves}
    for message in parts_of(messages):
        for sender, piece in zip(message.senders, message.pieces, strict=True):
            shared = piece.untyped_storage().data_ptr() in secrets
            require(not shared, f"'{message.kind}' of party {sender} is the memory of an embedding")


def the_sides_share_no_mutable_object(subject: Subject) -> None:
    """No mutable object can be reached from the party side and the server side, nor from an old and a new side."""
    wire = wire_of(subject.bound)
    party = mutable_objects(wire.party_side())
    for what, other in (("server", wire.server_side()), ("a new party", wire.party_side())):
        theirs = {id(one) for one in mutable_objects(other)}
        shared = [one for one in party if id(one) in theirs]
        names = ", ".join(sorted({type(one).__name__ for one in shared}))
        require(not shared, f"the party side and {what} side share {len(shared)} mutable objects: {names}")


def nothing_is_kept_between_rounds(subject: Subject) -> None:
    """A second round gives the same value after a first round as without one."""
    if subject.random:
        return
    first = subject.play()
    sides = Sides.of(wire_of(first.aggregator))
    first.exchange(sides).run()
    second = subject.play(number=1).exchange(sides).run()
    fresh = subject.play(number=1).exchange().run()
    require_same_bits(second, fresh, "the value of round 1 after round 0, against round 1 with new sides")


def the_printed_form_names_the_settings(subject: Subject) -> None:
    """The printed form, which checkpoints keep, has no memory address and is the same for an equal object."""
    printed = subject.aggregator.identity
    require(" at 0x" not in printed, f"the printed form has a memory address: {printed}; give the setting a __repr__")
    again = deepcopy(subject.aggregator).identity
    require(printed == again, f"the printed form of a copy differs: {again} instead of {printed}")


def mutable_objects(start: Any) -> list[Any]:
    """All objects that can be reached by attributes, items and closures, but for immutable ones.

    Immutable are plain values, tuples and frozen data classes themselves (their fields are walked), functions, and the
    classes of settings. An aggregator in the clear is shared with the server as configuration: it is walked too, and
    must hold nothing mutable.
    """
    objects: list[Any] = []
    queue = [start]
    seen = set()
    while queue:
        one = queue.pop()
        if isinstance(one, IMMUTABLE) or id(one) in seen:
            continue
        seen.add(id(one))
        if isinstance(one, tuple):
            queue += list(one)
        elif isinstance(one, FunctionType | MethodType | partial):
            queue += [cell.cell_contents for cell in getattr(one, "__closure__", None) or ()]
            queue += [getattr(one, "__self__", None), *getattr(one, "args", ()), *getattr(one, "keywords", {}).values()]
        elif isinstance(one, SETTINGS) or (is_dataclass(one) and _frozen(one)):
            queue += list(vars(one).values())
        else:
            objects.append(one)
            queue += list(one.values()) if isinstance(one, dict) else []
            queue += list(one) if isinstance(one, list | set) else []
            queue += list(vars(one).values()) if hasattr(one, "__dict__") else []
    return objects


def _frozen(one: Any) -> bool:
    return bool(type(one).__dataclass_params__.frozen)


LAWS = (
    messages_decode_to_clear,
    a_round_is_plain,
    a_record_changes_its_own_row_alone,
    columns_fit_the_value,
    answer_and_carry_are_the_adjoint_of_plain,
    uncounted_parties_change_nothing_and_learn_nothing,
    rows_that_a_party_does_not_hold_do_not_count,
    what_is_charged_has_noise,
    the_short_way_is_the_way_through_messages,
    messages_fit_their_legs,
    hosting_together_is_hosting_alone,
    carrying_together_is_carrying_alone,
    visible_is_what_the_code_does,
    hidden_embeddings_are_not_handed_over,
    the_sides_share_no_mutable_object,
    nothing_is_kept_between_rounds,
    the_printed_form_names_the_settings,
)
