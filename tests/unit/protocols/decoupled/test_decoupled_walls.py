"""No gradient crosses a boundary, and nothing else does that is not sent."""

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from itertools import chain
from typing import Any

import pytest
import torch
from lightning.pytorch import Callback

from lightning_vfl.local_objectives import Reconstruction
from lightning_vfl.networks import MLP
from lightning_vfl.simulation import Crashes
from lightning_vfl.simulation.faults import FaultModel
from tests.subjects import Blobs, dropping
from tests.unit.protocols.decoupled.decoupled_by_hand import GUESTS, B, decoupled, fit


class Noting(Reconstruction):
    """Keeps the losses of a step, each still with its graph."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[torch.Tensor] = []

    def losses(self, *arguments: Any) -> tuple[torch.Tensor, torch.Tensor]:
        losses, h = super().losses(*arguments)
        self.seen += losses.unbind()
        return losses, h


class Walls(Callback):
    """Before every backward pass of a step, follows every loss alone to the parameters that it reaches."""

    def __init__(self, guests: Noting, hosts: Noting) -> None:
        self.objectives = {"guest": guests, "host": hosts}
        self.reached: set[tuple[str, tuple[str, ...]]] = set()

    def on_before_backward(self, trainer: Any, module: Any, loss: torch.Tensor) -> None:
        parts = {
            "guest": [
                [*a.parameters(), *b.parameters()]
                for a, b in zip(module.bottoms.parties, module.guest_partners.parties, strict=True)
            ],
            "host": [
                [*a.parameters(), *b.parameters()]
                for a, b in zip(module.hosts.parties, module.host_partners.parties, strict=True)
            ],
            "owner": [list(module.top.parameters())],
        }
        losses = [(kind, one) for kind, noting in self.objectives.items() for one in noting.seen]
        losses += [("owner", loss)] if module.phase == "owner" else []
        for kind, one in losses:
            one.backward(retain_graph=True)
            for other, owners in parts.items():
                if other != kind:
                    assert all(p.grad is None for p in chain.from_iterable(owners)), (kind, other)
                    continue
                learning = [
                    number
                    for number, own in enumerate(owners)
                    if any(p.grad is not None and bool(p.grad.any()) for p in own)
                ]
                assert len(learning) == 1, (kind, learning)  # of its own kind, too, it moves nobody else
                self.reached.add((kind, tuple(f"{other} {number}" for number in learning)))
            module.zero_grad()
        for noting in self.objectives.values():
            noting.seen.clear()


@pytest.mark.parametrize("alike", [True, False])
def test_no_gradient_crosses_a_boundary(tmp_path, alike):
    guests, hosts = Noting(), Noting()
    widths = None if alike else [2, 5, 3]
    module = decoupled(widths=widths, guest_objective=guests, host_objective=hosts, replay_epochs=1)
    walls = Walls(guests, hosts)
    fit(tmp_path, module, callbacks=[walls], limit_val_batches=0)
    everybody = [f"guest {m}" for m in range(GUESTS)] + [f"host {h}" for h in range(3)] + ["owner 0"]
    assert walls.reached == {(name.split()[0], (name,)) for name in everybody}


# ---- to the bit


class Relabelled(Blobs):
    """Other labels, and everybody else's columns as they were."""

    def target(self, y: torch.Tensor) -> torch.Tensor:
        return (y + torch.arange(len(y)) // 7) % 3


class OtherColumns(Blobs):
    """Guest 2 has other data."""

    def load(self, names: Any) -> Any:
        def changed(x: torch.Tensor) -> torch.Tensor:
            return torch.cat([x[:, :6], x[:, 6:].sin()], 1)

        return {name: replace(split, features=changed(split.features)) for name, split in super().load(names).items()}


class Only(FaultModel):
    """The crashes of another model, of these guests, hosts and links alone."""

    def __init__(self, model: FaultModel, numbers: tuple[int, ...]) -> None:
        self.model, self.numbers = model, numbers

    def sample(self, request: int, roster: Any, seed: int) -> Any:
        outcome = self.model.sample(request, roster, seed)
        guests = torch.tensor([m not in self.numbers for m in range(roster.parties)])
        hosts = torch.tensor([h not in self.numbers for h in range(roster.hosts)])
        return replace(
            outcome,
            sends=outcome.sends | guests,
            receives=outcome.receives | guests,
            hosts=outcome.hosts | hosts,
            links=outcome.links | hosts,
        )


def crashing(what: str, *numbers: int) -> FaultModel:
    return Only(Crashes(what, 0.4, 0.4), numbers)


def of_guests(module: Any, numbers: tuple[int, ...] = tuple(range(GUESTS))) -> list[torch.Tensor]:
    banks = module.bottoms.parties, module.guest_partners.parties
    return [p.detach() for bank in banks for m in numbers for p in bank[m].parameters()]


def of_hosts(module: Any, numbers: tuple[int, ...] = (0,)) -> list[torch.Tensor]:
    banks = module.hosts.parties, module.host_partners.parties
    return [p.detach() for bank in banks for h in numbers for p in bank[h].parameters()]


def trained(folder: Any, start: Any, data: Any = None, faults: tuple[FaultModel, ...] = (), **settings: Any) -> Any:
    """A module that began with these guests, and with these hosts where it has such."""
    module = decoupled(seed=1, **settings)
    with torch.no_grad():
        pairs = [*zip(of_guests(module), of_guests(start), strict=True)]
        if [p.shape for p in of_hosts(module)] == [p.shape for p in of_hosts(start)]:
            pairs += zip(of_hosts(module), of_hosts(start), strict=True)
        for mine, theirs in pairs:
            mine.copy_(theirs)
    fit(folder, module, data, faults, limit_val_batches=0, max_epochs=module.guest_epochs + module.replay_epochs + 1)
    return module


SETTINGS: dict[str, Any] = {"guest_epochs": 2, "replay_epochs": 1}


@pytest.fixture(scope="module")
def reference(tmp_path_factory):
    folder = tmp_path_factory.mktemp("reference")
    start = decoupled(**SETTINGS)
    return start, trained(folder, start, **SETTINGS)


GUESTS_SEE_NOTHING_OF: dict[str, dict[str, Any]] = {
    "the number of hosts": {"hosts": 1},
    "hosts' widths": {"host_width": 9},
    "hosts' networks": {"host": partial(MLP, hidden=())},
    "the owner's network": {"top": partial(MLP, hidden=(11, 3))},
    "labels": {"data": Relabelled(batch_size=B)},
    "faults of hosts and links": {"faults": (Crashes("hosts", 0.4, 0.4), Crashes("connections", 0.4, 0.4))},
    "what hosts learn": {"host_every": 3},
    "registers": {"register": "message", "faults": (Crashes("connections", 0.4, 0.4),)},
    "how often they send": {"communicate_every": 2},
    "epochs without them": {"replay_epochs": 0},
}


LESS_LIKELY = ("hosts' networks", "the owner's network", "what hosts learn", "epochs without them")


@pytest.mark.parametrize(
    "case", [pytest.param(c, marks=pytest.mark.slow) if c in LESS_LIKELY else c for c in GUESTS_SEE_NOTHING_OF]
)
def test_guests_are_the_same_to_the_bit_whatever_happens_behind_them(reference, tmp_path, case):
    start, expected = reference
    module = trained(tmp_path, start, **{**SETTINGS, **GUESTS_SEE_NOTHING_OF[case]})
    assert not any(torch.equal(a, b) for a, b in zip(of_guests(module), of_guests(start), strict=True))
    assert all(torch.equal(a, b) for a, b in zip(of_guests(module), of_guests(expected), strict=True))


@pytest.mark.parametrize(
    "other", [{"data": OtherColumns(batch_size=B)}, {"faults": (crashing("guests", 2),)}], ids=["data", "faults"]
)
def test_a_guest_is_the_same_to_the_bit_whatever_another_guest_has(reference, tmp_path, other):
    start, expected = reference
    module = trained(tmp_path, start, **SETTINGS, **other)
    assert all(torch.equal(a, b) for a, b in zip(of_guests(module, (0, 1)), of_guests(expected, (0, 1)), strict=True))
    assert not any(torch.equal(a, b) for a, b in zip(of_guests(module, (2,)), of_guests(expected, (2,)), strict=True))


def test_a_guest_is_the_same_to_the_bit_when_the_one_it_is_batched_with_crashes(reference, tmp_path):
    start, expected = reference
    module = trained(tmp_path, start, faults=(crashing("guests", 1),), **SETTINGS)
    assert all(torch.equal(a, b) for a, b in zip(of_guests(module, (0,)), of_guests(expected, (0,)), strict=True))
    assert not any(torch.equal(a, b) for a, b in zip(of_guests(module, (1,)), of_guests(expected, (1,)), strict=True))


HOSTS_SEE_NOTHING_OF: dict[str, dict[str, Any]] = {
    "labels": {"data": Relabelled(batch_size=B)},
    "the owner's network": {"top": partial(MLP, hidden=(11, 3))},
    "another number of hosts": {"hosts": 2},
    "faults of other hosts": {"faults": (crashing("hosts", 1, 2),)},
    "faults of other hosts' links": {"faults": (crashing("connections", 1, 2),)},
}


@pytest.mark.parametrize("case", HOSTS_SEE_NOTHING_OF)
def test_a_host_is_the_same_to_the_bit_whatever_labels_and_other_hosts_are(reference, tmp_path, case):
    """The other hosts begin with other weights, too."""
    start, expected = reference
    module = trained(tmp_path, start, **{**SETTINGS, **HOSTS_SEE_NOTHING_OF[case]})
    assert not any(torch.equal(a, b) for a, b in zip(of_hosts(module), of_hosts(start), strict=True))
    assert all(torch.equal(a, b) for a, b in zip(of_hosts(module), of_hosts(expected), strict=True))


def test_a_host_alone_is_what_it_is_among_others(reference, tmp_path):
    """Run by itself and not in a batched call: the same but for rounding."""
    start, expected = reference
    module = trained(tmp_path, start, **{**SETTINGS, "hosts": 1})
    for a, b in zip(of_hosts(module), of_hosts(expected), strict=True):
        torch.testing.assert_close(a, b, rtol=0, atol=1e-6)


DRAWING: dict[str, Any] = {
    "bottom": dropping,
    "host": dropping,
    "guest_objective": Reconstruction(decoder=lambda width, shape: MLP(width, shape[0], hidden=())),
    "host_objective": Reconstruction(decoder=lambda width, shape: MLP(width, shape[0], hidden=())),
}


@pytest.mark.parametrize(
    ("who", "faults"),
    [(of_guests, crashing("guests", 0)), (of_hosts, crashing("hosts", 0))],
    ids=["guests", "hosts"],
)
def test_what_one_draws_is_the_same_when_another_crashes(tmp_path, who: Callable[..., Any], faults):
    modules = []
    for models in ((), (faults,)):
        module = decoupled(guest_epochs=2, **DRAWING)
        fit(tmp_path, module, faults=models, limit_val_batches=0)
        modules.append(who(module, (1, 2)))
    assert all(torch.equal(a, b) for a, b in zip(*modules, strict=True))
