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
    for who, roll in subject.rolls.items():
        played = subject.play(roll)
        decoded = played.exchange().send()
        clear = wire_of(played.aggregator).clear(played.contribution, played.parties, roll)
        require_same_bits(decoded.value, clear.value, f"the decoded value against clear, {who}")
        require_same_bits(decoded.columns, clear.columns, f"the columns of the decoded value, {who}")


def a_round_is_plain(subject: Subject) -> None:
    """A round is ``plain``, within the stated error if there is a wire, in its dtype and as wide as ``out_width``."""
    for who, roll in subject.rolls.items():
        played = subject.play(roll)
        value = played.exchange().run()
        plain = played.aggregator.plain(embeddings(played.contribution), roll)
        error = 0.0 if played.aggregator.wire is None else subject.error
        given = played.contribution.leaves[0].dtype
        for what, own in (("the value of a round", value), ("plain", plain)):
            require(own.dtype == given, f"{what} is {own.dtype}, the embeddings are {given}; return their dtype")
        stated = "" if played.aggregator.wire is None or error else " (a wire that changes embeddings needs error=)"
        require_close(value, plain, 0.0, error, f"the value of a round against plain{stated}, {who}")
        wide = played.aggregator.out_width(subject.width, subject.roster)
        require(value.shape == (len(ROWS), wide), f"the value has shape {(*value.shape,)}, out_width is {wide}")
        require(bool(torch.isfinite(value).all()), f"the value of a round with {who} is not finite: {value}")


def a_record_changes_its_own_row_alone(subject: Subject) -> None:
    """If the embeddings of one record change, no bit of ``plain`` changes in the rows of other records."""
    for who, roll in subject.rolls.items():
        played = subject.play(roll)
        h = embeddings(played.contribution)
        value = played.aggregator.plain(h, roll)
        for row in range(len(ROWS)):
            other = torch.arange(len(ROWS)) != row
            changed = tuple(torch.where(other[:, None], x, x + 100.0) for x in h)
            again = played.aggregator.plain(changed, roll)
            what = f"other rows of plain after the embeddings of row {row} have changed, {who}"
            require_same_bits(again[other], value[other], what)


def columns_fit_the_value(subject: Subject) -> None:
    """``columns`` is a mask of the value's columns, and a column marked as absent is zero."""
    for who, roll in subject.rolls.items():
        exchange = subject.play(roll).exchange()
        exchange.run()
        value, columns = exchange.aggregate.value, exchange.aggregate.columns
        require(columns.dtype == torch.bool, f"columns are {columns.dtype} instead of bool")
        require(columns.shape == value.shape[1:], f"{len(columns)} columns are marked, the value has {value.shape[1]}")
        require(not value[:, ~columns].any(), f"columns that are marked as absent hold other numbers than 0, {who}")


def answer_and_carry_are_the_adjoint_of_plain(subject: Subject) -> None:
    """<carry(answer(g)), v> is <g, J v>, with J v by central differences of ``plain`` in float64."""
    for who, roll in subject.rolls.items():
        played = subject.play(roll, dtype=torch.float64)
        exchange = played.exchange()
        exchange.aggregate = exchange.send()
        leaves, value = played.contribution.leaves, exchange.aggregate.value
        generator = torch.Generator().manual_seed(1)
        g = torch.randn(value.shape, generator=generator, dtype=torch.float64)
        v = tuple(torch.randn(h.shape, generator=generator, dtype=torch.float64) for h in leaves)
        ahead, behind = (
            played.aggregator.plain(
                embeddings(
                    played.contribution, tuple(h.detach() + s * 1e-6 * d for h, d in zip(leaves, v, strict=True))
                ),
                roll,
            )
            for s in (1, -1)
        )
        pulled = exchange.send_back(g.to(value.dtype))
        expected = (g * (ahead - behind) / 2e-6).sum()
        got = sum(((p.double() * d).sum() for p, d in zip(pulled, v, strict=True)), torch.zeros((), dtype=g.dtype))
        relative = 1e-6 if value.dtype == torch.float64 else 1e-4
        require_close(got, expected, relative, relative / 100, f"<carry(answer(g)), v> against <g, J v>, {who}")


def uncounted_parties_change_nothing_and_learn_nothing(subject: Subject) -> None:
    """A party that is not included changes no bit of the value, and its gradient is exactly zero."""
    who, roll = subject.partly
    played = subject.play(roll)
    value, leaves = played.exchange().run(), played.contribution.leaves
    grads: tuple[Tensor | None, ...] = (None,) * len(leaves)
    if value.requires_grad:
        grads = torch.autograd.grad(value.sum(), leaves, allow_unused=True)
    changed = tuple(h if roll.included[m] else h + 100.0 for m, h in enumerate(leaves))
    again = subject.play(roll)
    other = again._replace(contribution=with_leaves(again.contribution, changed)).exchange().run()
    if not subject.random:
        require_same_bits(other, value, f"the value after embeddings of parties that are away have changed, {who}")
    for party, grad in enumerate(grads):
        if not roll.included[party] and grad is not None:
            require(not grad.any(), f"party {party} is away and has a gradient of up to {float(grad.abs().max()):g}")


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
    everyone = subject.rolls.get("everyone included")
    played = subject.play(everyone, held)
    leaves = played.contribution.leaves
    spoilt = tuple(torch.where(held[:, m, None], h, h + 100.0) for m, h in enumerate(leaves))
    plain, roll = played.aggregator.plain, played.server.roll
    value, other = plain(leaves, roll, held), plain(spoilt, roll, held)
    require_same_bits(other, value, "the value after rows that parties do not hold have changed")
    require(bool(torch.isfinite(value).all()), "the value is not finite where some parties do not hold a row")
    grads = torch.autograd.grad(value.sum(), leaves, allow_unused=True)
    for party, grad in enumerate(grads):
        if grad is not None:
            require(not grad[~held[:, party]].any(), f"party {party} has a gradient in rows that it does not hold")


def _refuses_or_accepts(subject: Subject, held: Tensor) -> None:
    wire = wire_of(subject.bound)
    wire.refuse_partly_held(None, subject.roster)
    try:
        wire.refuse_partly_held(held, subject.roster)
    except ConfigurationError as error:
        require("\n" not in str(error), f"refuse_partly_held has to explain itself in one line; got {error}")


def the_short_way_is_the_way_through_messages(subject: Subject) -> None:
    """For an aggregator in the clear: autograd through ``plain`` and messages give the same values and gradients."""
    if subject.bound.wire is not None:
        return
    for who, roll in subject.rolls.items():
        played = subject.play(roll)
        g = torch.randn(len(ROWS), played.aggregator.out_width(subject.width, subject.roster))
        found: list[tuple[Tensor, list[Tensor]]] = []
        for way in (played.exchange(), played._replace(aggregator=_with_a_wire(played.aggregator)).exchange()):
            value, leaves = way.run(), played.contribution.leaves
            grads: tuple[Tensor | None, ...] = (None,) * len(leaves)
            if value.requires_grad:
                grads = torch.autograd.grad(value, leaves, g, allow_unused=True)
            zeroed = [torch.zeros_like(h) if x is None else x for x, h in zip(grads, leaves, strict=True)]
            found.append((value.detach(), zeroed))
        (short, grads_short), (long, grads_long) = found
        require_same_bits(long, short, f"the value through messages against plain, {who}")
        for party, (a, b) in enumerate(zip(grads_long, grads_short, strict=True)):
            require_same_bits(a, b, f"the gradient of party {party} through messages against autograd, {who}")


def _with_a_wire(aggregator: Aggregator) -> Aggregator:
    """The same aggregator in the clear, sent as messages."""
    long = type("Long", (type(aggregator),), {"wire": property(lambda self: InTheClear(aggregator))})
    made: Aggregator = object.__new__(long)
    vars(made).update(vars(aggregator))
    return made
