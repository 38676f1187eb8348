"""Two hidden sums of the same records, one with and one without a party: the difference is the party's embedding.

The server looks at the sums that it decodes, at who is in them, and at the record ids. Between two visits of a record,
its embeddings move by what training has changed; a server that sends zero gradients keeps them where they are.
"""

import tempfile
from collections import defaultdict
from contextlib import ExitStack
from dataclasses import replace
from typing import Any, NamedTuple
from unittest.mock import patch

import torch
from torch import Tensor

from lightning_vfl import SplitVFL
from lightning_vfl.aggregators import MaskedSum
from lightning_vfl.aggregators.secure.masked_wire import MaskedParty, MaskedServer
from lightning_vfl.datamodules import BreastCancer, ContiguousColumns, Standardise
from lightning_vfl.errors import ConfigurationError
from lightning_vfl.networks import MLP
from lightning_vfl.protocols.subsets import DropParties
from lightning_vfl.simulation import FaultModel, RoundOutcome
from lightning_vfl.types import Roster
from lightning_vfl.wire import Aggregate, Contribution, Message, PartyView, ServerView
from tests.attacks.row import Row
from tests.subjects import trainer

PARTIES = 4


class Sum(NamedTuple):
    """What the server decodes in a round (B, D), of which parties and records; and, to score it, their embeddings."""

    parties: tuple[int, ...]
    ids: list[int]
    value: Tensor
    embeddings: dict[int, Tensor]


class Read(NamedTuple):
    """What differences give: R² over the pairs of a record and a party that are read, and their share of all pairs."""

    r2: float
    share: float


class EachInTurn(FaultModel):
    """A server that calls everybody in the first epoch, and leaves out one party in each epoch after it."""

    def __init__(self, rounds: int) -> None:
        self.rounds = rounds  # of an epoch

    def sample(self, request: int, roster: Roster, seed: int) -> RoundOutcome:
        epoch = request // 2 // self.rounds
        there = torch.arange(roster.parties) != epoch - 1
        return replace(RoundOutcome.nothing(roster), announced=there)


def listen(epochs: int, zero_gradients: bool = False, batch: int = 64, **settings: Any) -> tuple[list[Sum], SplitVFL]:
    """What a server sees of a real training with masks and Adam, in the order of the rounds."""
    torch.manual_seed(0)
    data = BreastCancer(ContiguousColumns(PARTIES), normaliser=Standardise(public=True), batch_size=batch)
    usual: dict[str, Any] = {"evaluate": "plain", "width": 8, "seed": 0, "top": MLP}
    module = SplitVFL(settings.pop("aggregator", MaskedSum(clip=16)), **(usual | settings))
    if zero_gradients:
        data.prepare_data()
        data.setup("fit")
        module.faults.add(EachInTurn(-(-len(data.records("train")) // batch)))
    sums: list[Sum] = []
    truth: dict[int, Tensor] = {}
    upload, decode, answer = MaskedParty.upload, MaskedServer.decode, MaskedServer.answer

    def uploading(self: MaskedParty, contribution: Contribution, view: PartyView) -> Any:
        truth.update(zip(view.parties, (h.detach().double() for h in contribution.leaves), strict=True))
        return upload(self, contribution, view)

    def decoding(self: MaskedServer, messages: tuple[Message, ...], view: ServerView) -> Aggregate:
        found = decode(self, messages, view)
        sums.append(Sum(view.roll.included_parties, view.rows.ids.tolist(), found.value.double(), dict(truth)))
        return found

    def answering(self: MaskedServer, grad: Tensor, aggregate: Aggregate, view: ServerView) -> Message:
        return answer(self, grad * 0 if zero_gradients else grad, aggregate, view)

    with ExitStack() as patched, tempfile.TemporaryDirectory() as folder:
        patched.enter_context(patch.object(MaskedParty, "upload", uploading))
        patched.enter_context(patch.object(MaskedServer, "decode", decoding))
        patched.enter_context(patch.object(MaskedServer, "answer", answering))
        fit = trainer(folder, max_epochs=epochs, num_sanity_val_steps=0, limit_val_batches=0)
        fit.fit(module, datamodule=data)
    return sums, module


def subtract(sums: list[Sum]) -> Read:
    """Every pair of a record and a party, from the two visits nearest in time whose sums differ by this party alone."""
    visits: dict[int, list[tuple[int, int]]] = defaultdict(list)  # record -> (number of the sum, row)
    for number, one in enumerate(sums):
        for row, record in enumerate(one.ids):
            visits[record].append((number, row))
    nearest: dict[tuple[int, int], tuple[int, Tensor, Tensor]] = {}
    for record, seen in visits.items():
        for first, row in seen:
            for other, other_row in seen:
                with_it, without = sums[first], sums[other]
                more = {*with_it.parties} - {*without.parties}
                if len(more) != 1 or not {*without.parties} < {*with_it.parties}:
                    continue
                party, apart = min(more), abs(first - other)
                if (record, party) not in nearest or apart < nearest[record, party][0]:
                    guess = with_it.value[row] - without.value[other_row]
                    nearest[record, party] = apart, guess, with_it.embeddings[party][row]
    if not nearest:
        return Read(0.0, 0.0)
    guesses = torch.stack([guess for _, guess, _ in nearest.values()])
    truth = torch.stack([own for _, _, own in nearest.values()])
    who = torch.tensor([party for _, party in nearest])
    means = torch.stack([truth[who == m].mean(0) if (who == m).any() else truth.mean(0) for m in range(PARTIES)])
    r2 = 1 - float((guesses - truth).square().sum() / (truth - means[who]).square().sum())
    return Read(r2, len(nearest) / (len(visits) * PARTIES))


ALLOWED = {"allow_embeddings_by_subtraction": True}


def dropped_rounds(epochs: int = 20, **settings: Any) -> tuple[Read, SplitVFL]:
    """An honest server under ``DropParties`` by round."""
    sums, module = listen(epochs, subsets=DropParties(0.3, by="round"), **settings)
    return subtract(sums), module


def zero_gradients(**settings: Any) -> tuple[Read, SplitVFL]:
    """A lying server: zero gradients, everybody called in one epoch, and one party left out in each later one."""
    sums, module = listen(PARTIES + 1, True, aggregator=MaskedSum(clip=16, recovery="auto"), **settings)
    return subtract(sums), module


def refusal(attack: Any) -> str:
    """Why a training is not begun."""
    try:
        attack()
    except ConfigurationError as error:
        return str(error)
    raise RuntimeError("the training was not refused")


def rows() -> list[Row]:
    """The rows of the table."""
    found = []
    cases = (
        ("subtract sums with and without a party: `DropParties(by='round')`", "honest", dropped_rounds),
        (
            "the same: zero gradients, one party left out in turn (`recovery: auto`, t = 3 of 4)",
            "lying",
            zero_gradients,
        ),
    )
    for name, server, attack in cases:
        read, _ = attack(**ALLOWED)
        found.append(
            Row(
                name,
                f"sums, who is in them, record ids; {server} server",
                f"R² {read.r2:.3f} of the embeddings of {read.share:.0%} of (record, party)",
                f"{refused_in(attack)}",
                "R² 0",
            )
        )
    return found


def refused_in(attack: Any) -> str:
    """The word of the refusal for the table, which is checked."""
    why = refusal(attack)
    if "allow_embeddings_by_subtraction" not in why:
        raise RuntimeError(why)
    more = "; a party of a federation ends after `subtractable_records`" if attack is zero_gradients else ""
    return f"refused: allow_embeddings_by_subtraction{more}"
