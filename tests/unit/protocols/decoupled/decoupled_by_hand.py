"""DVFL written out by hand: plain torch networks, one Adam a participant, buffers in dictionaries; and what it trains.

Section 4 and appendices C and D of the paper, with the issue's choices where the paper is silent: nothing here is
asked of the protocol but initial weights and the records of its batches.
"""

from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from lightning_vfl import DecoupledVFL
from lightning_vfl.networks import MLP
from lightning_vfl.simulation.faults import FaultModel, Faults
from lightning_vfl.types import Roster
from tests.subjects import Blobs, trainer

GUESTS, B, N = 3, 20, 54  # batches of 20, 20 and 14 records
STEPS = 3
OPTIMIZER = partial(torch.optim.Adam, lr=1e-2, eps=1e-4)  # rounding of a gradient near 0 is not blown up to a step
GUEST = partial(MLP, hidden=(6,), activation=nn.LeakyReLU)
HOST = partial(MLP, hidden=(7,), activation=partial(nn.LeakyReLU, 0.1), output_activation=nn.LeakyReLU)
TOP = partial(MLP, hidden=(5,), activation=nn.LeakyReLU)


def decoupled(seed: int = 0, data: Any = None, **settings: Any) -> DecoupledVFL:
    """A small DecoupledVFL, built; its weights depend on nothing but the seed here."""
    settings = {
        "bottom": GUEST,
        "host": HOST,
        "top": TOP,
        "width": 4,
        "host_width": 5,
        "hosts": 3,
        "guest_epochs": 2,
        "optimizer": OPTIMIZER,
        "seed": 0,
        **settings,
    }
    module = DecoupledVFL(**settings)
    torch.manual_seed(seed)
    module.build_for(data or Blobs())
    return module


def weights_of(module: DecoupledVFL) -> dict[str, Tensor]:
    """A copy of all parameters."""
    return {name: parameter.detach().clone() for name, parameter in module.named_parameters()}


class Alike(Blobs):
    """Guests with as many columns each, who are all run in one call; of ``Blobs`` the last has fewer."""

    columns = 9


@dataclass
class Run:
    """A fit and what was noted of it: weights before it, and (epoch, record ids) of every batch."""

    module: DecoupledVFL
    trainer: Any
    data: Any
    start: dict[str, Tensor]
    batches: list[tuple[int, Tensor]]
    faults: tuple[FaultModel, ...] = ()


def fit(
    folder: object,
    module: DecoupledVFL,
    data: Any = None,
    faults: tuple[FaultModel, ...] = (),
    ckpt_path: Path | None = None,
    **settings: Any,
) -> Run:
    """Train this module to the end of one epoch of the owner, unless ``max_epochs`` says more."""
    data = data or Blobs(batch_size=B)
    for model in faults:
        module.faults.add(model)
    batches: list[tuple[int, Tensor]] = []
    step = module.training_step

    def noted(batch: Any, batch_idx: int) -> Tensor:
        batches.append((module.current_epoch, batch.record_ids.clone()))
        return step(batch, batch_idx)

    module.training_step = noted  # type: ignore[method-assign, misc]
    start = weights_of(module)
    settings.setdefault("max_epochs", module.guest_epochs + module.replay_epochs + 1)
    t = trainer(folder, **settings)
    try:
        t.fit(module, datamodule=data, ckpt_path=ckpt_path)
    finally:
        del module.training_step
    return Run(module, t, data, start, batches, faults)


@dataclass
class Participant:
    """An encoder, its decoder, and an optimiser of their own."""

    encoder: nn.Sequential
    decoder: nn.Sequential
    optimizer: Any = field(init=False)

    def __post_init__(self) -> None:
        parameters = [*self.encoder.parameters(), *self.decoder.parameters()]
        self.optimizer = torch.optim.Adam(parameters, lr=1e-2, eps=1e-4, foreach=False)

    def embed(self, x: Tensor) -> Tensor:
        with torch.no_grad():
            h: Tensor = self.encoder(x)
        return h

    def learn(self, x: Tensor, counts: Tensor) -> None:
        """Descend on the mean squared error of the rows that count."""
        self.optimizer.zero_grad()
        errors = ((self.decoder(self.encoder(x)) - x) ** 2).sum(1) / x.shape[1]
        (errors[counts].sum() / counts.sum()).backward()
        self.optimizer.step()


class ByHand:
    """The same training, participant by participant and record by record."""

    def __init__(self, run: Run, **settings: Any) -> None:
        module = run.module
        self.hosts, self.every = module.host_count, module.host_every
        self.literal, self.half = module.register_kind == "message", module.table_dtype == "float16"
        self.records = run.data.records("train")
        self.widths = list(module.embedding_widths)
        joined, out = sum(self.widths), module.host_width
        leaky, host_leaky = nn.LeakyReLU(), nn.LeakyReLU(0.1)
        self.guests = [
            Participant(
                nn.Sequential(nn.Linear(columns, 6), leaky, nn.Linear(6, width)),
                nn.Sequential(nn.Linear(width, 6), leaky, nn.Linear(6, columns)),
            )
            for columns, width in zip(self.records.widths, self.widths, strict=True)
        ]
        self.joiners = [
            Participant(
                nn.Sequential(nn.Linear(joined, 7), host_leaky, nn.Linear(7, out), leaky),
                nn.Sequential(nn.Linear(out, 7), host_leaky, nn.Linear(7, joined)),
            )
            for _ in range(self.hosts)
        ]
        self.owner = nn.Sequential(nn.Linear(self.hosts * out, 5), leaky, nn.Linear(5, 3))
        self.owners = torch.optim.Adam(self.owner.parameters(), lr=1e-2, eps=1e-4, foreach=False)
        for name, network in self.networks().items():
            there = [value for key, value in run.start.items() if key.startswith(name)]
            for own, value in zip(network.parameters(), there, strict=True):
                own.data.copy_(value)
        self.faults, self.roster = Faults(module.seed), Roster(tuple((m,) for m in range(GUESTS)), None, self.hosts)
        for model in run.faults:
            self.faults.add(model)
        self.told: list[dict[int, dict[int, Tensor]]] = [{} for _ in range(self.hosts)]  # [host][record][guest]
        self.known: list[set[int]] = [set() for _ in range(self.hosts)]  # the records that anything has been told of
        self.register: list[list[Tensor | None]] = [[None] * GUESTS for _ in range(self.hosts)]
        self.bytes = [0] * GUESTS
        self.rounds = self.communications = 0
        self.learnt: list[set[str]] = []  # who has, by iteration
        self.encodings: dict[int, Tensor] = {}  # [record], once they are collected
        self.standardise = module.standardise

    def networks(self) -> dict[str, nn.Module]:
        named: dict[str, nn.Module] = {"top.": self.owner}
        for kind, beside, own in (
            ("bottoms", "guest_partners", self.guests),
            ("hosts", "host_partners", self.joiners),
        ):
            for number, participant in enumerate(own):
                named[f"{kind}.parties.{number}."] = participant.encoder
                named[f"{beside}.parties.{number}."] = participant.decoder
        return named

    def train(self, batches: list[tuple[int, Tensor]], guest_epochs: int, replay_epochs: int, k: int) -> None:
        for epoch, ids in batches:
            self.learnt.append(set())
            if epoch < guest_epochs:
                sending = self.guests_iterate(ids)
                if (epoch + 1) % k == 0:
                    self.communicate(ids, sending)
            if epoch < guest_epochs + replay_epochs:
                if self.rounds % self.every == 0:
                    self.hosts_iterate(ids if ids.dim() == 1 else ids[:, GUESTS])
            else:
                self.owner_iterates(ids)
            self.rounds += 1

    def guests_iterate(self, ids: Tensor) -> dict[int, Tensor]:
        """What those who are alive would send, embedded in the forward pass of their own update."""
        alive = self.faults.at(self.rounds, self.roster).sends
        sending = {}
        for m in range(GUESTS):
            if alive[m]:
                x = self.records.features_of(m, ids if ids.dim() == 1 else ids[:, m])
                sending[m] = self.guests[m].embed(x)
                self.guests[m].learn(x, torch.ones(len(x), dtype=torch.bool))
                self.learnt[-1].add(f"guest {m}")
        return sending

    def communicate(self, ids: Tensor, sending: dict[int, Tensor]) -> None:
        links = self.faults.at(self.communications, self.roster).links
        up = self.faults.at(self.rounds, self.roster).hosts
        self.communications += 1
        for m, h in sending.items():
            self.bytes[m] += self.hosts * h.numel() * 4
        for host in range(self.hosts):
            for m in range(GUESTS):
                own = (ids if ids.dim() == 1 else ids[:, m]).tolist()
                arrives = m in sending and bool(links[m, host])
                if arrives:  # D.2: whether a register is written depends on the guest and the connection alone
                    self.register[host][m] = sending[m]
                if not up[host]:  # and the last item of the buffer is dropped
                    continue
                rows: Any = sending[m] if arrives else self.register[host][m] if self.literal else None
                if self.literal:  # the item that enters the buffer is what the registers hold, row by row
                    for i in own:
                        self.told[host].setdefault(i, {}).pop(m, None)
                if rows is not None:
                    for i, row in zip(own, rows, strict=False):
                        self.told[host].setdefault(i, {})[m] = row.half().float() if self.half else row
                        self.known[host].add(i)

    def read(self, host: int, i: int) -> Tensor:
        known = self.told[host].get(i, {})
        return torch.cat([known.get(m, torch.zeros(width)) for m, width in enumerate(self.widths)])

    def hosts_iterate(self, ids: Tensor) -> None:
        up = self.faults.at(self.rounds, self.roster).hosts
        for host, participant in enumerate(self.joiners):
            counts = torch.tensor([i in self.known[host] for i in ids.tolist()])
            if up[host] and counts.any():
                participant.learn(torch.stack([self.read(host, i) for i in ids.tolist()]), counts)
                self.learnt[-1].add(f"host {host}")

    def owner_iterates(self, ids: Tensor) -> None:
        if not self.encodings:
            self.collect()
        self.owners.zero_grad()
        seen = torch.stack([self.encodings[i] for i in ids.tolist()])
        cross_entropy(self.owner(self.seen(seen)), self.records.labels[ids]).backward()
        self.owners.step()
        self.learnt[-1].add("owner")

    def collect(self) -> None:
        """Once, of every record that all hold."""
        there = self.records.present
        common = torch.arange(len(self.records)) if there is None else there.all(1).nonzero().flatten()
        encodings = self.encode([self.records.features_of(m, common) for m in range(GUESTS)])
        self.encodings = dict(zip(common.tolist(), encodings, strict=True))
        self.mean, self.deviation = encodings.mean(0), encodings.var(0, correction=0).sqrt()

    def encode(self, features: Any, present: Tensor | None = None) -> Tensor:
        """What the hosts make of records, of which a guest may not hold some."""
        h = [guest.embed(x) for guest, x in zip(self.guests, features, strict=True)]
        if present is not None:
            h = [own * present[:, m : m + 1] for m, own in enumerate(h)]
        return torch.cat([joiner.embed(torch.cat(h, 1)) for joiner in self.joiners], 1)

    def seen(self, encodings: Tensor) -> Tensor:
        """As the owner's network sees them."""
        return (encodings - self.mean) / self.deviation if self.standardise else encodings

    def weights(self) -> dict[str, list[Tensor]]:
        return {name: [p.detach() for p in network.parameters()] for name, network in self.networks().items()}

    def tables(self) -> Tensor:
        """(H, N, Σ D_m)."""
        return torch.stack(
            [torch.stack([self.read(host, i) for i in range(len(self.records))]) for host in range(self.hosts)]
        )


def tables_of(module: DecoupledVFL) -> Tensor:
    """(H, N, Σ D_m): what the hosts would read of every record."""
    read = module.replay.read(torch.arange(module.replay.records))
    return read.expand(module.host_count, -1, -1)


def by_hand(run: Run) -> ByHand:
    """The run again, by hand."""
    oracle, module = ByHand(run), run.module
    oracle.train(run.batches, module.guest_epochs, module.replay_epochs, module.communicate_every)
    return oracle
