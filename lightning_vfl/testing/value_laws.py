"""The laws of aggregators about the value and the gradients of a round."""

import torch
from torch import Tensor

from lightning_vfl.aggregators.base import Aggregator
from lightning_vfl.aggregators.clear import InTheClear, wire_of
from lightning_vfl.errors import ConfigurationError
from lightning_vfl.testing.law import require, require_close, require_same_bits
from lightning_vfl.testing.rounds import ROWS, Subject, embeddings, with_leaves


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
    for party in (~roll.included).nonzero().flatten().tolist():
        largest = float(grads[party].abs().max())
        require(largest == 0, f"party {party} is away and has a gradient of up to {largest:g}")


def _gradients(value: Tensor, leaves: tuple[Tensor, ...], along: Tensor | None = None) -> list[Tensor]:
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
