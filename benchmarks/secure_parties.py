"""Parties of vFedSec as functions, unsecured and under the Secure Layer, and what each of them spends."""

import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from copy import deepcopy
from dataclasses import dataclass, field, fields
from functools import partial
from hashlib import sha256
from statistics import median
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from lightning_vfl.aggregators.secure.codec import Shift, uniform_words
from lightning_vfl.crypto import KeyPair, MaskNames, PairKeys, PairMasks, Sealed

BATCH, ROUNDS, RATE = 256, 5, 0.01  # appendix B
ACTIVE, KEY = 0, 32
Words = NDArray[np.uint32]


@dataclass(frozen=True)
class Group:
    """Parties with the same columns; several hold a share of the records each."""

    bottom: Callable[[], nn.Module]
    columns: tuple[int, ...]
    clients: int = 1


@dataclass(frozen=True)
class Setting:
    """A row of the paper's tables: tables of time and of bytes, D, and the groups, C_0 first."""

    data: str
    tables: tuple[int, int]
    width: int
    groups: tuple[Group, ...]


def mlp() -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Linear(196, 32), nn.ReLU(), nn.Linear(32, 128))


def cnn() -> nn.Module:
    return nn.Sequential(
        *(nn.Conv2d(1, 32, 3, padding=1), nn.BatchNorm2d(32), nn.ReLU(), nn.MaxPool2d(2)),
        *(nn.Conv2d(32, 64, 1), nn.BatchNorm2d(64), nn.ReLU(), nn.MaxPool2d(2)),
        *(nn.Flatten(), nn.Linear(448, 600)),
    )


def table(data: str, own: int, first: int, second: int) -> Setting:
    linear = partial(nn.Linear, out_features=64)
    shared = [Group(partial(linear, columns, bias=False), (columns,), 2) for columns in (first, second)]
    return Setting(data, (1, 2), 64, (Group(partial(linear, own), (own,)), *shared))


def images(data: str, tables: tuple[int, int], width: int, bottom: Callable[[], nn.Module]) -> Setting:
    return Setting(data, tables, width, (Group(bottom, (1, 7, 28)),) * 4)


SETTINGS = (
    table("Bank", 57, 3, 20),
    table("Income", 27, 63, 16),
    images("EMNIST, CNN", (1, 2), 600, cnn),
    images("Fashion, CNN", (1, 2), 600, cnn),
    images("EMNIST, MLP", (4, 5), 128, mlp),
    images("Fashion, MLP", (4, 5), 128, mlp),
)


@dataclass
class Bill:
    """What one party spends.

    Args:
        model: CPU seconds of what it does unsecured.
        protection: CPU seconds on top of that.
        sent: bytes sent and received, unsecured.
        more: bytes on top of that.
        setup: CPU seconds of set-up, among those of protection.
    """

    model: float = 0.0
    protection: float = 0.0
    sent: float = 0.0
    more: float = 0.0
    setup: float = 0.0

    @contextmanager
    def timed(self, *names: str) -> Iterator[None]:
        since = time.process_time()
        yield
        spent = time.process_time() - since
        for name in names:
            setattr(self, name, getattr(self, name) + spent)

    @property
    def seconds(self) -> float:
        return self.model + self.protection

    @property
    def bytes(self) -> float:
        return self.sent + self.more


def bill(bills: Sequence[Bill], summary: Callable[[Sequence[float]], float]) -> Bill:
    """One for many, field by field."""
    return Bill(**{part.name: summary([getattr(one, part.name) for one in bills]) for part in fields(Bill)})


class Member:
    """A party's half of the Secure Layer, for one key period."""

    def __init__(self, number: int, codec: Shift, stage: str) -> None:
        self.number = number
        self.codec = codec
        self.stage = stage
        self.own = KeyPair()
        self.channels: dict[int, Sealed] = {}

    def agree(self, publics: Mapping[int, bytes]) -> None:
        session = sha256(b"".join(publics[number] for number in sorted(publics))).digest()
        self.keys = PairKeys(self.number, self.own, publics, session)
        self.masks = PairMasks(self.keys)

    def channel(self, other: int) -> Sealed:
        """The way from C_0 to a holder of records."""
        if other not in self.channels:
            self.channels[other] = Sealed(self.keys.key(other, "record ids", self.stage, 0))
        return self.channels[other]

    def protected(self, values: Tensor, purpose: str, segment: int, members: Sequence[int], round: int) -> Words:
        """Quantised and masked: what may be sent."""
        words = uniform_words(tuple(values.shape), 0, "rounding", purpose, self.stage, self.number, round)
        integers = self.codec.to_int(values, words)[0].numpy().astype(np.uint32)
        self.masks.add_to(integers, members, MaskNames(purpose, self.stage, segment, rank=0, period=0), round)
        return integers


class Party(Member):
    """A party with its records and its bottom; ``held`` are the rows of a batch that it holds."""

    def __init__(
        self, number: int, group: int, bottom: nn.Module, x: Tensor, held: NDArray[np.bool_], stage: str
    ) -> None:
        with (account := Bill()).timed("protection", "setup"):
            super().__init__(number, Shift(), stage)
        self.bill = account
        self.group, self.bottom, self.x, self.held = group, bottom, x, held
        self.mates: list[int] = []


def parties_of(setting: Setting, stage: str) -> list[Party]:
    torch.manual_seed(0)
    parties: list[Party] = []
    for number, group in enumerate(setting.groups):
        bottom, x = group.bottom().train(stage == "fit"), torch.randn(ROUNDS * BATCH, *group.columns)
        first = len(parties)
        for client in range(group.clients):
            held = np.arange(BATCH) % group.clients == client
            parties.append(Party(len(parties), number, deepcopy(bottom), x, held, stage))
        for party in parties[first:]:
            party.mates = list(range(first, len(parties)))
    return parties


def summed(uploads: Sequence[Words], codec: Shift) -> Tensor:
    """What the server does: add in the ring, dequantise."""
    total = uploads[0].copy()
    for upload in uploads[1:]:
        total += upload
    return torch.from_numpy(codec.to_real(total, len(uploads))).float()


def must_agree(what: str, found: Any, true: Any, tolerance: float) -> None:
    """Raise unless a protected result is the plain one."""
    gap = float(np.abs(np.asarray(found, np.float64) - np.asarray(true, np.float64)).max())
    if not gap <= tolerance:
        raise RuntimeError(f"{what} is off by {gap:g}, more than {tolerance:g}: what was timed does not work")


@dataclass
class Run:
    """Bills by party, the server's unsecured and ours, and what was hidden in the last round: sums over parties."""

    bills: list[Bill]
    server: Bill
    sums: list[dict[int, Tensor]] = field(default_factory=list)


def run(setting: Setting, stage: str) -> Run:
    """One set-up and five rounds, unsecured and ours at once: protection is timed apart."""
    parties = parties_of(setting, stage)
    everyone, server, codec = list(range(len(parties))), Bill(), Shift()
    publics = {party.number: party.own.public for party in parties}
    for party in parties:
        with party.bill.timed("protection", "setup"):
            party.agree(publics)
        party.bill.more += KEY * len(parties)  # own public key up, the others' down
    done = Run([party.bill for party in parties], server)
    draw = torch.Generator().manual_seed(1)
    for round in range(ROUNDS):
        done.sums = []
        ids = torch.randperm(ROUNDS * BATCH, generator=draw)[:BATCH].numpy()
        letters = send_ids(parties, ids, round)
        embeddings, uploads = {}, []
        for party in parties:
            mine = receive_ids(party, letters, ids, round)
            with party.bill.timed("model"), torch.set_grad_enabled(stage == "fit"):
                own = mine >= 0
                h = party.bottom(party.x[mine[own]])
                if not own.all():  # zeros in the places of other parties' records
                    h = torch.zeros(BATCH, setting.width).index_put((torch.from_numpy(own),), h)
                embeddings[party.number] = h
            with party.bill.timed("protection"):
                uploads.append(party.protected(h, "embeddings", 0, everyone, round))
            party.bill.sent += h.nbytes
        plain = {number: h.detach().clamp(-codec.clip, codec.clip) for number, h in embeddings.items()}
        done.sums.append(plain)
        with server.timed("model"):
            true = torch.stack(list(plain.values())).sum(0)
        with server.timed("protection"):
            total = summed(uploads, codec)
        must_agree("the masked sum", total, true, 1.01 * len(parties) * codec.step + 1e-5)
        if stage == "fit":
            gradient = torch.randn(BATCH, setting.width, generator=draw) / BATCH
            backward(parties, embeddings, gradient, done, round)
    return done


def send_ids(parties: Sequence[Party], ids: NDArray[np.int64], round: int) -> dict[int, bytes]:
    """C_0's sealed messages, all of one length: the ids that a party holds, -1 in place of the others'."""
    letters, own = {}, parties[ACTIVE].bill
    with own.timed("protection"):
        for party in parties[1:]:
            message = np.where(party.held, ids, -1).astype("<i8").tobytes()
            letters[party.number] = parties[ACTIVE].channel(party.number).seal(message, round)
    own.more += sum(map(len, letters.values()))
    return letters


def receive_ids(party: Party, letters: Mapping[int, bytes], ids: NDArray[np.int64], round: int) -> NDArray[np.int64]:
    if party.number == ACTIVE:
        return ids
    letter = letters[party.number]
    with party.bill.timed("protection"):
        mine = np.frombuffer(party.channel(ACTIVE).open(letter, round), "<i8")
    party.bill.more += len(letter)
    return mine


def backward(
    parties: Sequence[Party], embeddings: Mapping[int, Tensor], gradient: Tensor, done: Run, round: int
) -> None:
    """Labels up, gradients down, one step of every bottom; groups of several through the server."""
    parties[ACTIVE].bill.sent += torch.zeros(BATCH, dtype=torch.int64).nbytes  # labels
    updates: dict[int, list[tuple[Tensor, Words]]] = defaultdict(list)
    for party in parties:
        party.bill.sent += gradient.nbytes
        weights = list(party.bottom.parameters())
        with party.bill.timed("model"):
            torch.autograd.backward(embeddings[party.number], gradient)
            step = torch.cat([-RATE * weight.grad.flatten() for weight in weights if weight.grad is not None])
            party.bottom.zero_grad()
        if len(party.mates) == 1:
            with party.bill.timed("model"):
                move(weights, step)
            continue
        with party.bill.timed("protection"):
            hidden = party.protected(step, "updates", party.group, party.mates, round)
        updates[party.group].append((step, hidden))
        party.bill.sent += 2 * step.nbytes  # the update up, the model down
    for group, pairs in updates.items():
        codec, mates = parties[ACTIVE].codec, [party for party in parties if party.group == group]
        with done.server.timed("model"):
            true = torch.stack([step for step, _ in pairs]).sum(0)
        with done.server.timed("protection"):
            total = summed([hidden for _, hidden in pairs], codec)
        must_agree("the masked update", total, true, 1.01 * len(pairs) * codec.step + 1e-6)
        for mate in mates:
            move(list(mate.bottom.parameters()), total)
        done.sums.append({mate.number: step for mate, (step, _) in zip(mates, pairs, strict=True)})


def move(weights: Sequence[nn.Parameter], step: Tensor) -> None:
    with torch.no_grad():
        nn.utils.vector_to_parameters(nn.utils.parameters_to_vector(weights) + step, weights)


def measured(setting: Setting, stage: str, repeats: int) -> Run:
    """Medians of the repeats, party by party."""
    run(setting, stage)  # warm
    runs = [run(setting, stage) for _ in range(repeats)]
    bills = [bill(own, median) for own in zip(*(one.bills for one in runs), strict=True)]
    return Run(bills, bill([one.server for one in runs], median), runs[-1].sums)
