"""The law of aggregators about devices."""

from dataclasses import replace

import torch
from torch import Tensor

from lightning_vfl.testing.law import require, require_same_bits
from lightning_vfl.testing.rounds import Played, Subject, with_leaves
from lightning_vfl.wire import Embeddings
from tests.another_device import DEVICE, another_device, on_the_cpu


def another_device_gives_the_same_value(subject: Subject) -> None:
    """A round on a device that stands in for a GPU has its value and gradients there, with the same bits.

    Not checked for an aggregator whose parties share data in a set-up: a fit on the device checks these.
    """
    if subject.bound.setup is not None or not isinstance(subject.play().contribution, Embeddings):
        return
    for who, roll in subject.rolls.items():
        here = _value_and_gradients(subject.play(roll))
        played = subject.play(roll)
        with another_device():
            there = _value_and_gradients(_moved(played))
            devices = {what: found.device for what, found in there.items()}
            near = on_the_cpu(there)
        for what, device in devices.items():
            require(device == DEVICE, f"{what} is on {device}, the embeddings are on another device, {who}")
            if not subject.random:
                require_same_bits(near[what], here[what], f"{what} on another device, {who}")


def _value_and_gradients(played: Played) -> dict[str, Tensor]:
    value, leaves = played.exchange().run(), played.contribution.leaves
    found = {"the value": value.detach()}
    if value.requires_grad:
        grads = torch.autograd.grad(value.sum(), leaves, allow_unused=True)
        found |= {f"the gradient of party {m}": grad for m, grad in enumerate(grads) if grad is not None}
    return found


def _moved(played: Played) -> Played:
    """The same round, with the embeddings and the positions of the records on the other device."""
    leaves = tuple(h.detach().to(DEVICE).requires_grad_() for h in played.contribution.leaves)
    rows = replace(played.parties.rows, ids=played.parties.rows.ids.to(DEVICE))
    return played._replace(
        contribution=with_leaves(played.contribution, leaves),
        parties=replace(played.parties, rows=rows),
        server=replace(played.server, rows=rows),
    )
