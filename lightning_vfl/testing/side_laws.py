"""The laws of aggregators about the two sides of a wire."""

from copy import deepcopy

from lightning_vfl.aggregators.clear import wire_of
from lightning_vfl.rounds.exchange import Sides
from lightning_vfl.testing.law import require, require_same_bits
from lightning_vfl.testing.reachable import mutable_objects
from lightning_vfl.testing.rounds import Subject, Upload, embeddings


def visible_is_what_the_code_does(subject: Subject) -> None:
    """``traits.visible`` says whether uploads have the form of embeddings that the server can read."""
    played = subject.play()
    message = Upload(played.aggregator, played.contribution, played.parties).first
    shapes = [h.shape for h in embeddings(played.contribution)]
    reads = message.to == "server" and [piece.shape for piece in message.pieces] == shapes
    reads = reads and all(piece.is_floating_point() for piece in message.pieces)
    told = wire_of(played.aggregator).traits.visible
    require(reads == told, f"visible is {told}, but '{message.kind}' to {message.to} {'is' if reads else 'is not'} one")


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
