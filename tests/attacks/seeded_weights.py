"""Every column from uploads: a server that knows the initial bottoms inverts them, and repeats the parties' steps.

The server follows the protocol. It knows the recipe, the uploads (or their sum), and the gradients that it has sent.
With ``weights: seeded`` it builds the bottoms of all parties from the seed. A linear bottom that is at least as wide as
the columns is inverted by least squares; its optimiser's step follows from the columns and the gradients, and gives the
bottom of the next round. The noise of ``AsyncVFL`` follows from the seed too, and is subtracted.

With ``weights: secret`` the same attack starts from bottoms of another draw.

Sums narrower than the columns give the columns of the smallest norm. A server that steps on the updates of a group
holds the group's bottom whatever the seed is.
"""

import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple, cast
from unittest.mock import patch

import torch
from torch import Tensor

from lightning_vfl import AsyncVFL, SplitVFL
from lightning_vfl.aggregators import LagrangeCoded, MaskedSum, Mean
from lightning_vfl.aggregators.parts import ServerSide
from lightning_vfl.datamodules import BreastCancer, ContiguousColumns, Digits, Groups, Standardise, VerticalDataModule
from lightning_vfl.networks import MLP, Linear, PolynomialNetwork
from lightning_vfl.protocols.owner_keys import new_key
from lightning_vfl.rounds.exchange import Sides
from lightning_vfl.streams import seed_of
from lightning_vfl.types import Event, Stage, VerticalBatch
from tests.attacks.row import Row
from tests.subjects import trainer

PARTIES, WIDTH, SEED = 3, 64, 0
SHAPES = [(10,)] * PARTIES
MEMBERS = [1, 4, 4]  # of the groups, of which the first has the labels and is one party
CLOSE = 0.05  # a cell is read if its error is at most this share of its column's deviation


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

    def __getattr__(self, name: str) -> Any:
        return getattr(self.inner, name)

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


class Subject(NamedTuple):
    """A training that is attacked.

    Args:
        protocol: the class.
        aggregator: makes it.
        settings: of the protocol, beside the aggregator and the seed.
        mean: the aggregate is the mean of embeddings, not their sum.
        data: makes the records.
    """

    protocol: type
    aggregator: Callable[[], Any]
    settings: dict[str, Any]
    mean: bool
    data: Callable[[], VerticalDataModule]


def guessed(subject: Subject, shapes: Sequence[tuple[int, ...]], classes: int) -> Any:
    """The module as the server builds it from the recipe."""
    torch.manual_seed(SEED)
    sizes: dict[str, Any] = {"party_shapes": list(shapes), "num_classes": classes}
    module = subject.protocol(subject.aggregator(), seed=SEED, **subject.settings, **sizes)
    module.configure_model()
    return module


def affine(bottom: torch.nn.Module) -> tuple[Tensor, Tensor]:
    """The weight (W, d) and the constant (W,) of a linear bottom."""
    layer: Any = next(net for net in bottom.modules() if hasattr(net, "weight"))
    weight = layer.weight.detach().double()
    if isinstance(layer, PolynomialNetwork):
        return weight[:-1].T, weight[-1]
    return weight, layer.bias.detach().double()


def solved(weight: Tensor, upload: Tensor) -> Tensor:
    """(B, d) the columns of the smallest norm that explain an upload (B, W) best."""
    columns: Tensor = torch.linalg.lstsq(weight, upload.T, driver="gelsd").solution.T
    return columns


def read(seen: list[Seen], module: Any, records: int, *, mean: bool = False) -> Tensor:
    """(N, d) the columns of all records, as the server computes them from the bottoms of ``module``."""
    bottoms = module.bottoms.parties
    optimizer = module.configure_optimizers()
    sizes = [affine(bottom)[0].shape[1] for bottom in bottoms]
    columns = torch.zeros(records, sum(sizes), dtype=torch.float64)
    for one in seen:
        found: dict[int, Tensor] = {}
        for party, upload in one.uploads.items():
            members = list(range(len(bottoms))) if party is None else [party]
            weights, constants = zip(*[affine(bottoms[m]) for m in members], strict=True)
            rest = upload * (len(members) if mean and party is None else 1) - sum(constants)
            if party is not None and isinstance(module, AsyncVFL) and module.noise:
                names = "noise", Stage.FIT, "party", party, one.request
                generator = torch.Generator().manual_seed(seed_of(module.seed, *names))
                rest = rest - module.noise * torch.randn(rest.shape, generator=generator).double()
            parts = solved(torch.cat(weights, 1), rest).split([sizes[m] for m in members], 1)
            found |= dict(zip(members, parts, strict=True))
        optimizer.zero_grad()
        for m, x in found.items():
            begin = sum(sizes[:m])
            columns[one.ids, begin : begin + sizes[m]] = x
            (bottoms[m](x.float()) * one.gradients[m]).sum().backward()
        optimizer.step()
    return columns


def explained(columns: Tensor, truth: Tensor) -> float:
    """R² of all columns of all records."""
    return float(1 - (columns - truth).square().sum() / (truth - truth.mean(0)).square().sum())


def breast_cancer() -> VerticalDataModule:
    """Three parties with ten columns each."""
    return BreastCancer(ContiguousColumns(PARTIES), normaliser=Standardise(public=True), batch_size=64, seed=SEED)


def digits() -> VerticalDataModule:
    """Four parties with 64 pixels in all."""
    return Digits(batch_size=64, seed=SEED)


def fedvs(width: int) -> Subject:
    """FedVS with linear bottoms."""
    coded = partial(LagrangeCoded, blocks=1, privacy=1)
    return Subject(SplitVFL, coded, {"bottom": PolynomialNetwork, "width": width}, True, digits)


LINEAR: dict[str, Any] = {"bottom": Linear, "width": WIDTH}
CASES = {
    "Mean": Subject(SplitVFL, Mean, LINEAR, True, breast_cancer),
    "MaskedSum": Subject(SplitVFL, lambda: MaskedSum(recovery="auto"), LINEAR, False, breast_cancer),
    "AsyncVFL(noise=1.0)": Subject(AsyncVFL, Mean, {**LINEAR, "noise": 1.0}, True, breast_cancer),
}
CODED = {f"FedVS on Digits, width {width}": fedvs(width) for width in (64, 48, 32)}


def trained(module: Any, data: VerticalDataModule, keep: Callable[[Seen], None], *, secret: bool) -> None:
    """One epoch in one process, whose server keeps what it sees."""
    if secret:  # as in the replay of a federation: all owners are here, each with its own secret
        data.setup("fit")
        module.keys.update((owner, new_key()) for owner in (None, *range(len(data.party_shapes))))
    with tempfile.TemporaryDirectory() as folder:
        try:
            listen(keep)
            trainer(folder, max_epochs=1, limit_val_batches=0).fit(module, datamodule=data)
        finally:
            patch.stopall()


def simulated(subject: Subject, *, secret: bool) -> tuple[float, int]:
    """R² of the attack on one epoch in one process, and how many records it reads."""
    data = subject.data()
    torch.manual_seed(SEED)
    module = subject.protocol(subject.aggregator(), seed=SEED, **subject.settings)
    seen = list[Seen]()
    trained(module, data, seen.append, secret=secret)
    records = data.records("train")
    truth = torch.cat([x.flatten(1) for x in records.rows(torch.arange(len(records)))], 1).double()
    guess = guessed(subject, data.party_shapes, data.num_classes or 0)
    columns = read(seen, guess, len(truth), mean=subject.mean)
    visited = torch.cat([one.ids for one in seen]).unique()
    return explained(columns[visited], truth[visited]), len(visited)


class OfGroups(NamedTuple):
    """What the first sums of vFedSec tell.

    Args:
        cells: the share of all cells that are read within 5 % of their column's deviation.
        groups: R² of the columns of the groups whose bottoms the server holds.
        first: R² of the columns of the party with the labels, whose bottom is its own.
    """

    cells: float
    groups: float
    first: float


def of_groups(*, secret: bool) -> OfGroups:
    """The attack on groups of [1, 4, 4] parties with 30 columns, all records in one batch, which no guard refuses."""
    cut = Groups(ContiguousColumns(len(MEMBERS)), MEMBERS)
    data = BreastCancer(cut, normaliser=Standardise(public=True), batch_size=398, seed=SEED)
    settings: dict[str, Any] = {**LINEAR, "top": partial(MLP, hidden=[128]), "active": 0, "evaluate": "plain"}
    subject = Subject(SplitVFL, partial(MaskedSum, layout="segments"), settings, False, lambda: data)
    torch.manual_seed(SEED)
    module = subject.protocol(subject.aggregator(), seed=SEED, **settings)
    rounds = list[tuple[Seen, list[tuple[Tensor, Tensor]]]]()

    def keep(
        seen: Seen,
    ) -> None:  # before the step; a group's bottom is with the server, which steps on it and sends it
        leaders = [group[0] for group in module.roster.shared]
        rounds.append((seen, [affine(module.bottoms.parties[leader]) for leader in leaders]))

    trained(module, data, keep, secret=secret)
    groups = [list(group) for group in module.roster.groups]
    settings["party_groups"] = groups
    guess = guessed(subject, data.party_shapes, data.num_classes or 0)
    seen, held = rounds[0]
    first, constant = affine(guess.bottoms.parties[0])  # (2 W, 10): a segment of W with each of the two groups
    sizes = [10] * len(groups)
    weight = torch.cat([first, torch.block_diag(*[shared for shared, _ in held])], 1)
    constants = constant + torch.cat([shift for _, shift in held])
    upload = seen.uploads[None]
    columns = solved(weight, upload - constants)
    records = data.records("train")
    rows, present = records.rows(seen.ids), records.present
    if present is None:
        raise TypeError("Groups says who holds what")
    here = present[seen.ids]
    of_group = [sum(torch.where(here[:, m, None], rows[m], 0.0).double() for m in group) for group in groups]
    truth = torch.cat([torch.as_tensor(part) for part in of_group], 1)
    close = (columns - truth).abs() <= CLOSE * truth.std(0)
    own = sizes[0]
    return OfGroups(
        float(close.double().mean()),
        explained(columns[:, own:], truth[:, own:]),
        explained(columns[:, :own], truth[:, :own]),
    )


def federated(case: str, weights: str, folder: Path) -> tuple[float, int]:
    """R² of the attack on one epoch over real processes, with mutual TLS; and how many records it reads."""
    from lightning_vfl.federation.events import EventsAtParty
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
    subject = CASES[case]
    columns = read(rounds, guessed(subject, SHAPES, 2), records, mean=subject.mean)
    visited = [torch.cat([r.ids for r in rounds if m in r.uploads or None in r.uploads]).unique() for m in truth]
    ours = torch.cat([columns[visited[m], 10 * m : 10 * m + 10] for m in truth])
    return explained(ours, torch.cat([truth[m][visited[m]] for m in truth])), len(visited[0])


SEES = "an honest server: the recipe, uploads or their sum, the gradients that it sent; no known record"


def rows() -> list[Row]:
    """The attack with seeded and with secret weights: over real processes; on coded means and on groups simulated."""
    made = []
    for case in CASES:
        results = {}
        for weights in ("seeded", "secret"):
            with tempfile.TemporaryDirectory() as folder:
                results[weights], count = federated(case, weights, Path(folder))
        name = f"all columns of the training records, {case}, linear bottoms, width {WIDTH}, one epoch"
        made.append(of_weights(name, results["seeded"], results["secret"], count))
    return made + simulated_rows()


def of_weights(name: str, seeded: float, secret: float, count: int) -> Row:
    """A row of R² with seeded weights, and with secret ones."""
    return Row(
        name,
        SEES,
        f"R² {seeded:.4f} of {count} records (weights: seeded)",
        f"R² {secret:.2f} (weights: secret; this attack alone)",
        "R² 0",
    )


def simulated_rows() -> list[Row]:
    """Coded means of all pixels, and groups whose bottoms the server holds."""
    made = []
    for case, subject in CODED.items():
        seeded, count = simulated(subject, secret=False)
        secret, _ = simulated(subject, secret=True)
        made.append(of_weights(f"all columns of the training records, {case}, one epoch", seeded, secret, count))
    results = [of_groups(secret=secret) for secret in (False, True)]
    said = [
        f"{found.cells:.0%} of cells within 5 %; R² {found.groups:.4f} of the groups' columns, {found.first:.4f} of "
        f"C_0's (weights: {weights})"
        for found, weights in zip(results, ("seeded", "secret"), strict=True)
    ]
    sees = "an honest server: the recipe, the segments of one round, the bottoms of the groups that it steps on"
    name = "all columns of the training records, vFedSec with groups of [1, 4, 4], batch 398, one round"
    return [*made, Row(name, sees, said[0], said[1], "R² 0")]
