"""The laws of aggregators about the two sides of a wire and the state that parties keep."""

from collections.abc import Sequence
from copy import deepcopy

import torch
from torch import Tensor

from lightning_vfl.aggregators.clear import wire_of
from lightning_vfl.aggregators.parts import PartyState
from lightning_vfl.rounds.exchange import Sides
from lightning_vfl.rounds.kept_state import KeptState
from lightning_vfl.testing.law import require, require_same_bits
from lightning_vfl.testing.reachable import mutable_objects
from lightning_vfl.testing.rounds import RECORDS, Subject, Upload, embeddings

CLOSE = 0.8  # the correlation above which numbers tell an embedding; that of masks and noise is about 0


def visible_is_what_the_code_does(subject: Subject) -> None:
    """``traits.visible`` says whether the server can read uploads.

    Uploads that it can read have the form of embeddings. Uploads that it cannot read may have this form too, but their
    numbers do not follow those of the embeddings, record by record.
    """
    played = subject.play()
    message = Upload(played.aggregator, played.contribution, played.parties).first
    own = embeddings(played.contribution)
    form = message.to == "server" and [piece.shape for piece in message.pieces] == [h.shape for h in own]
    form = form and all(piece.is_floating_point() for piece in message.pieces)
    if wire_of(played.aggregator).traits.visible:
        require(form, f"visible is True, but '{message.kind}' to {message.to} is not one embedding for each party")
        return
    require(
        not (form and _follow(message.pieces, own)),
        f"visible is False, but the numbers of '{message.kind}' to {message.to} follow those of the embeddings",
    )


def _follow(pieces: tuple[Tensor, ...], own: Sequence[Tensor]) -> bool:
    """Whether the numbers of uploads tell those at the same places of embeddings, on average over the parties."""
    both = (torch.stack([piece.flatten(), h.flatten()]).detach().double() for piece, h in zip(pieces, own, strict=True))
    return float(torch.stack([torch.corrcoef(pair)[0, 1].abs() for pair in both]).mean()) > CLOSE


def hidden_embeddings_are_not_handed_over(subject: Subject) -> None:
    """If the server cannot read uploads, no message shares memory with embeddings or weights."""
    played = subject.play()
    if wire_of(played.aggregator).traits.visible:
        return
    messages, _ = played.messages()
    secrets = {leaf.untyped_storage().data_ptr() for leaf in played.contribution.leaves}
    for message in (part for m in messages for part in (m, m.alongside) if part is not None):
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


def nothing_undeclared_is_kept_between_rounds(subject: Subject) -> None:
    """A second round gives the same value after a first round as without one: what is kept is declared."""
    if subject.random:
        return
    first = subject.play(state=_state(subject).begin())
    sides = Sides.of(wire_of(first.aggregator))
    first.exchange(sides).run()
    second = subject.play(number=1, state=_state(subject).begin()).exchange(sides).run()
    fresh = subject.play(number=1, state=_state(subject).begin()).exchange().run()
    require_same_bits(second, fresh, "the value of round 1 after round 0, against round 1 with new sides")


def a_state_changes_in_rounds_that_include_its_party(subject: Subject) -> None:
    """Each party's state is a function of its own uploads; other parties and a round without it change no bit."""
    if subject.bound.party_state is None:
        return
    who, roll = subject.partly
    kept, untouched = _state(subject), _state(subject)
    other = {id(t) for tables in untouched.tables.values() for t in tables.values()}
    for party, tables in kept.tables.items():
        for name, table in tables.items():
            require(
                id(table) not in other, f"empty gives the same tensor '{name}' twice; make a new one for each party"
            )
            require_same_bits(table, untouched.tables[party][name], f"the empty state '{name}' of party {party}")
    before = kept.begin()
    subject.play(roll, state=before).exchange().send()
    for party, name, table, old in _tables(kept, untouched):
        require_same_bits(table, old, f"'{name}' of party {party} before the round is over; use state.write")
    before.settle(roll.included)
    changed = 0
    for party, name, table, old in _tables(kept, untouched):
        if not roll.included[party]:
            require_same_bits(table, old, f"'{name}' of party {party}, which is away, {who}")
        changed += not torch.equal(table, old)
    require(changed > 0, "a round changes the state of no party; leave party_state out, or use state.write in upload")
    for party in roll.included_parties if not subject.random else ():
        alone = _state(subject)
        state = alone.begin()
        own = subject.play(roll, hosted=(party,), state=state)
        next(wire_of(own.aggregator).party_side().upload(own.contribution, own.parties))
        state.settle(roll.included)
        for name, table in alone.tables[party].items():
            require_same_bits(table, kept.tables[party][name], f"'{name}' of party {party} hosted alone")


def _tables(kept: KeptState, old: KeptState) -> list[tuple[int, str, Tensor, Tensor]]:
    return [(m, name, t, old.tables[m][name]) for m, tables in kept.tables.items() for name, t in tables.items()]


class _Nothing(PartyState):
    """No state."""

    def empty(self, records: int, width: int) -> dict[str, Tensor]:
        return {}


def _state(subject: Subject) -> KeptState:
    """The empty state of all parties."""
    kept = KeptState(subject.bound.party_state or _Nothing())
    kept.prepare(RECORDS, subject.bound.widths(subject.width, subject.roster), torch.device("cpu"))
    return kept


def the_printed_form_names_the_settings(subject: Subject) -> None:
    """The printed form, which checkpoints keep, has no memory address and is the same for an equal object."""
    printed = subject.aggregator.identity
    require(" at 0x" not in printed, f"the printed form has a memory address: {printed}; give the setting a __repr__")
    again = deepcopy(subject.aggregator).identity
    require(printed == again, f"the printed form of a copy differs: {again} instead of {printed}")
