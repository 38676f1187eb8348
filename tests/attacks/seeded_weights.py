"""Every column from uploads: a server that knows the initial bottoms inverts them, and repeats the parties' steps.

The server follows the protocol. It knows the recipe, the uploads (or their sum), and the gradients that it has sent.
With ``weights: seeded`` it builds the bottoms of all parties from the seed. A linear bottom that is at least as wide as
the columns is inverted by least squares; its optimiser's step follows from the columns and the gradients, and gives the
bottom of the next round. The noise of ``AsyncVFL`` follows from the seed too, and is subtracted.

With ``weights: secret`` the same attack starts from bottoms of another draw.
"""

import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast
from unittest.mock import patch

import torch
from torch import Tensor

from lightning_vfl import AsyncVFL, SplitVFL
from lightning_vfl.aggregators import MaskedSum, Mean
from lightning_vfl.aggregators.parts import ServerSide
from lightning_vfl.datamodules import BreastCancer, ContiguousColumns, Standardise
from lightning_vfl.networks import Linear
from lightning_vfl.protocols.owner_keys import new_key
from lightning_vfl.rounds.exchange import Sides
from lightning_vfl.streams import seed_of
from lightning_vfl.types import Event, Stage, VerticalBatch
from tests.attacks.row import Row
from tests.subjects import trainer

PARTIES, WIDTH, SEED = 3, 64, 0
SHAPES = [(10,)] * PARTIES


@dataclass(frozen=True)
class Seen:
    """What the server has of a round: records, uploads by party (None: their sum), gradients by party, the event."""

    ids: Tensor
    uploads: dict[int | None, Tensor]
    gradients: dict[int, Tensor]
    request: int = 0


class Listener:
    """The server's side of an aggregator, whose messages are kept."""

    def __init__(self, inner: Any, keep: Callable[[Seen], None]) -> None:
        self.inner, self.keep = inner, keep
        self._uploads: dict[int | None, Tensor] = {}

    def decode(self, messages: Any, view: Any) -> Any:
        aggregate = self.inner.decode(messages, view)
        if view.names.stage == Stage.FIT:
            message = messages[0]
            alone = type(self.inner).__name__ == "PlainServer"
            own: dict[int | None, Tensor] = dict(zip(message.senders, message.pieces, strict=True)) if alone else {}
            self._uploads = {m: x.detach().double() for m, x in own.items()} or {
                None: aggregate.value.detach().double()
            }
        return aggregate

    def answer(self, grad: Tensor, aggregate: Any, view: Any) -> Any:
        answer = self.inner.answer(grad, aggregate, view)
        sent = zip(answer.receivers, answer.pieces, strict=True)
        self.keep(Seen(view.rows.ids.clone(), self._uploads, {m: piece.clone() for m, piece in sent}))
        return answer


def listen(keep: Callable[[Seen], None]) -> None:
    """Keep what a server of this process gets and sends from now on."""
    made, event_loss = Sides.of, AsyncVFL.event_loss

    def listening(wire: Any) -> Sides:
        sides = made(wire)
        return sides._replace(server=cast("ServerSide", Listener(sides.server, keep)))

    def served(self: AsyncVFL, batch: VerticalBatch, event: Event, fresh: Tensor, names: Any) -> Tensor:
        upload = fresh.detach().double().clone()

        def answered(grad: Tensor) -> None:
            keep(Seen(batch.record_ids.clone(), {event.party: upload}, {event.party: grad.clone()}, event.request))

        fresh.register_hook(answered)
        return event_loss(self, batch, event, fresh, names)

    patch.object(Sides, "of", listening).start()
    patch.object(AsyncVFL, "event_loss", served).start()


def guessed(kind: type, aggregator: Any, seed: int = SEED, **settings: Any) -> Any:
    """The module as the server builds it from the recipe."""
    torch.manual_seed(seed)
    module = kind(aggregator, Linear, width=WIDTH, seed=seed, party_shapes=SHAPES, num_classes=2, **settings)
    module.configure_model()
    return module


def read(seen: list[Seen], module: Any, records: int) -> Tensor:
    """(N, 30) the columns of all records, as the server computes them from the bottoms of ``module``."""
    optimizer, columns = module.configure_optimizers(), torch.zeros(records, 10 * PARTIES, dtype=torch.float64)
    for one in seen:
        layers = [next(net for net in bottom.modules() if hasattr(net, "weight")) for bottom in module.bottoms.parties]
        found: dict[int, Tensor] = {}
        for party, upload in one.uploads.items():
            members = list(range(PARTIES)) if party is None else [party]
            weights = torch.cat([layers[m].weight.detach().double() for m in members], 1)
            rest = upload - sum(layers[m].bias.detach().double() for m in members)
            if party is not None and isinstance(module, AsyncVFL) and module.noise:
                names = "noise", Stage.FIT, "party", party, one.request
                generator = torch.Generator().manual_seed(seed_of(module.seed, *names))
                rest = rest - module.noise * torch.randn(rest.shape, generator=generator).double()
            solved = torch.linalg.lstsq(weights, rest.T).solution.T
            found |= dict(zip(members, solved.split(10, 1), strict=True))
        optimizer.zero_grad()
        for m, x in found.items():
            columns[one.ids, 10 * m : 10 * m + 10] = x
            (module.bottoms.parties[m](x.float()) * one.gradients[m]).sum().backward()
        optimizer.step()
    return columns


def explained(columns: Tensor, truth: Tensor) -> float:
    """R² of all columns of all records."""
    return float(1 - (columns - truth).square().sum() / (truth - truth.mean(0)).square().sum())


CASES: dict[str, tuple[type, Callable[[], Any], dict[str, Any]]] = {
    "Mean": (SplitVFL, Mean, {}),
    "MaskedSum": (SplitVFL, lambda: MaskedSum(recovery="auto"), {}),
    "AsyncVFL(noise=1.0)": (AsyncVFL, Mean, {"noise": 1.0}),
}


def simulated(case: str, secret: bool) -> float:
    """R² of the attack on one epoch of three parties with ten columns each, in one process."""
    kind, aggregator, settings = CASES[case]
    data = BreastCancer(ContiguousColumns(PARTIES), normaliser=Standardise(public=True), batch_size=64, seed=SEED)
    torch.manual_seed(SEED)
    module, seen = kind(aggregator(), Linear, width=WIDTH, seed=SEED, **settings), list[Seen]()
    if secret:  # as in the replay of a federation: all owners are here, each with its own secret
        module.keys.update((owner, new_key()) for owner in (None, *range(PARTIES)))
    with tempfile.TemporaryDirectory() as folder:
        try:
            listen(seen.append)
            trainer(folder, max_epochs=1, limit_val_batches=0).fit(module, datamodule=data)
        finally:
            patch.stopall()
    records = data.records("train")
    truth = torch.cat([x.flatten(1) for x in records.rows(torch.arange(len(records)))], 1).double()
    columns = read(seen, guessed(kind, aggregator(), **settings), len(truth))
    visited = torch.cat([one.ids for one in seen]).unique()
    return explained(columns[visited], truth[visited])


def federated(case: str, weights: str, folder: Path) -> tuple[float, int]:
    """R² of the attack on one epoch over real processes, with mutual TLS; and how many records it reads."""
    from lightning_vfl.federation.events_at_party import EventsAtParty
    from lightning_vfl.federation.rounds_at_party import RoundsAtParty
    from tests.integration.federations import Federation, cut_digits

    parts = cut_digits(folder / "parts", PARTIES, "data/breast_cancer")
    names = tuple(f"party{m}" for m in range(PARTIES))
    protocol = {
        "Mean": "--config protocol/mean",
        "MaskedSum": "--config protocol/mean --model.aggregator MaskedSum --model.aggregator.recovery auto",
        "AsyncVFL(noise=1.0)": "--config protocol/vafl --model.noise 1.0",
    }[case]
    if case.startswith("Async"):
        protocol += " --model.aggregator Mean"
    recipe = f"{protocol} --model.bottom Linear --model.width {WIDTH} --trainer.max_epochs 1 --seed_everything {SEED}"
    data = ("--config", str(parts / "csv_tables.yaml"), "--data.data_dir", str(parts))
    one = Federation(folder, names, (*data, *recipe.split(), "--model.top", "Linear"), weights=weights)
    seen: list[Seen] = []

    def keep(round: Seen) -> None:
        seen.append(round)
        torch.save([vars(other) for other in seen], folder / "seen.pt")

    def watch(party: int) -> None:  # what the columns really were
        for kind in (RoundsAtParty, EventsAtParty):
            step, rows = kind.step, list[tuple[Tensor, Tensor]]()

            def stepping(self: Any, module: Any, batch: Any, names: Any, _step: Any = step, _rows: Any = rows) -> Any:
                _rows.append((batch.record_ids.clone(), batch.features[party].clone()))
                torch.save(_rows, folder / f"columns{party}.pt")
                return _step(self, module, batch, names)

            patch.object(kind, "step", stepping).start()

    one.before = {"scorer": lambda: listen(keep)} | {name: (lambda m=m: watch(m)) for m, name in enumerate(names)}
    one.everybody()
    if set(one.wait(120).values()) != {0}:
        raise RuntimeError("\n".join(one.log(name)[-2000:] for name in ("scorer", *names)))
    rounds = [Seen(**one) for one in torch.load(folder / "seen.pt")]
    truth: dict[int, Tensor] = {}
    records = 1 + max(int(round.ids.max()) for round in rounds)
    for party in range(PARTIES):
        truth[party] = torch.zeros(records, 10, dtype=torch.float64)
        for ids, x in torch.load(folder / f"columns{party}.pt"):
            inside = ids < records
            truth[party][ids[inside]] = x[inside].double()
    kind, aggregator, settings = CASES[case]
    columns = read(rounds, guessed(kind, aggregator(), **settings), records)
    visited = [torch.cat([r.ids for r in rounds if m in r.uploads or None in r.uploads]).unique() for m in truth]
    ours = torch.cat([columns[visited[m], 10 * m : 10 * m + 10] for m in truth])
    return explained(ours, torch.cat([truth[m][visited[m]] for m in truth])), len(visited[0])


def rows() -> list[Row]:
    """The attack over real processes, with seeded and with secret weights."""
    made = []
    for case in CASES:
        results = {}
        for weights in ("seeded", "secret"):
            with tempfile.TemporaryDirectory() as folder:
                results[weights], count = federated(case, weights, Path(folder))
        made.append(
            Row(
                f"all columns of the training records, {case}, linear bottoms, width {WIDTH}, one epoch",
                "an honest server: the recipe, uploads or their sum, the gradients that it sent; no known record",
                f"R² {results['seeded']:.4f} of {count} records (weights: seeded)",
                f"R² {results['secret']:.2f} (weights: secret; this attack alone)",
                "R² 0",
            )
        )
    return made
