"""The laws of aggregators about the two sides of a wire."""

from collections.abc import Sequence
from copy import deepcopy

import torch
from torch import Tensor

from lightning_vfl.aggregators.clear import wire_of
from lightning_vfl.rounds.exchange import Sides
from lightning_vfl.testing.law import require, require_same_bits
from lightning_vfl.testing.reachable import mutable_objects
from lightning_vfl.testing.rounds import Subject, embeddings, parts_of

CLOSE = 0.8  # the correlation above which numbers tell an embedding; that of masks and noise is about 0


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


def _follow(pieces: tuple[Tensor, ...], h: Sequence[Tensor]) -> bool:
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
