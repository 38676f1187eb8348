"""The metrics of a trained model for every subset of absent parties."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from math import comb, sqrt
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor

from lightning_vfl.absence.asked import Asked, Subset, by_probability, subsets_of
from lightning_vfl.absence.stand_ins import AbsentStandIn, Exclude, Moments
from lightning_vfl.errors import ConfigurationError
from lightning_vfl.networks.modes import evaluating
from lightning_vfl.objectives import predictions
from lightning_vfl.protocols import DecoupledVFL, HeadsVFL, VFLModule
from lightning_vfl.types import Roll, Tensors, VerticalBatch, mask_of

if TYPE_CHECKING:
    import pandas as pd

_CHUNK = 8192  # records that go through the top at once
ABLE = "Mean, Sum, Max, Concat, MaskedSum and PoissonBinomial"


class Embedded(NamedTuple):
    """The embeddings of all records of a split: M of (N, D_m), labels (N,) or (N, C), holders (N, M) or None."""

    h: Tensors
    labels: Tensor
    present: Tensor | None


@dataclass(frozen=True)
class Measured:
    """The result of ``--absent``.

    Args:
        table: one row for each metric and each subset, number absent and probability. Columns: ``what`` (``subset``,
            ``number`` or ``probability``), ``absent`` (the numbers of the absent parties), ``number`` (absent), ``p``,
            ``metric``, ``value``, ``half_width`` (of the 95 % interval where subsets are sampled; 0: exact),
            ``subsets`` (how many were measured), ``records`` (scored), ``left_out`` (records without a prediction).
        exact: whether all subsets were measured.
    """

    table: "pd.DataFrame"
    exact: bool


def measure(
    module: VFLModule,
    batches: Iterable[VerticalBatch],
    asked: Asked,
    stand_in: AbsentStandIn | None = None,
    training: Iterable[VerticalBatch] = (),
) -> Measured:
    """Measure a trained model without some of its parties.

    Every bottom runs once for every record. For each subset the aggregate and the top are computed in real arithmetic.

    Args:
        module: the trained model; its metrics are used.
        batches: the test records.
        asked: which subsets and probabilities.
        stand_in: the replacement for absent parties; None: ``Exclude()``.
        training: the training records, for a stand-in that learns.

    Guarantee: with at most 12 parties that may be absent, all rows are exact: a row by number is the mean over all
        subsets of this size, a row by probability the mean over all subsets with their probabilities, given that at
        least one party is there. With more parties, 32 subsets of each size are drawn, and ``half_width`` is that of a
        95 % interval.
    Not guaranteed: for metrics that are no means over records (F1, AUROC), a row by probability is the mean of the
        metric over subsets that apply to the whole test set, not the metric of a test set with mixed subsets.

    Raises:
        ConfigurationError: for parties that do not exist and models that cannot predict without parties.
    """
    stand_in = stand_in or Exclude()
    subsets, exact = refuse(module, asked, stand_in)
    parties = module.roster.parties
    with torch.no_grad(), evaluating(module):
        records = embed(module, batches)
        moments = moments_of(module, training) if stand_in.learns else None
        rows = [row for subset in subsets for row in _of_subset(module, records, subset, stand_in, moments)]
    import pandas as pd  # imported here, because the import takes 0.5 s

    table = pd.DataFrame(rows)
    if asked.absent is None:
        passive = parties - (module.active is not None)
        table = pd.DataFrame([*rows, *_summaries(table, asked.probabilities, passive, exact)])
    return Measured(table, exact)


def moments_of(module: VFLModule, training: Iterable[VerticalBatch]) -> Moments:
    """The moments of the training records' embeddings, for a stand-in that learns."""
    moments = Moments(module.embedding_widths)
    for batch in training:
        held = None if batch.present is None else batch.present.all(1)
        h = module.bottoms(_features(module, batch))
        moments.add(h if held is None else tuple(x[held.to(x.device)] for x in h))
    return moments


def output_without(
    module: VFLModule,
    h: Sequence[Tensor],
    held: Tensor | None,
    absent: Subset,
    stand_in: AbsentStandIn,
    moments: Moments | None,
) -> tuple[Tensor, Tensor | None]:
    """The server's output for records without some of the parties.

    Args:
        module: the trained model.
        h: M embeddings (B, D_m).
        held: (B, M) bool, the parties that hold each record; None: all.
        absent: the numbers of the absent parties.
        stand_in: their replacement.
        moments: what a stand-in that learns has learned.

    Returns:
        (B,) bool, the records that get an output, and the output of these; None if there are none.
    """
    there = ~mask_of(absent, module.roster.parties)
    answered = module.answers(Roll.of(there).holders(h[0], held))
    if not answered.any():
        return answered, None
    filled = stand_in.fill(tuple(x[answered] for x in h), there, moments)
    present = None
    if held is not None:  # a replacement counts for every record
        present = held[answered] | filled.roll.filled.to(held.device)
    columns = None
    if not isinstance(module, DecoupledVFL | HeadsVFL):
        columns = module.aggregator.columns(module.embedding_widths, filled.roll)
    return answered, module.output_of(filled.h, filled.roll, present, columns)


def refuse(module: VFLModule, asked: Asked, stand_in: AbsentStandIn) -> tuple[tuple[Subset, ...], bool]:
    """Refuse what ``measure`` cannot do, before records are read.

    Returns:
        The subsets of absent parties to be measured, and whether they are all subsets of their sizes.

    Raises:
        ConfigurationError: for parties that do not exist and models that cannot predict without parties.
    """
    refuse_unable(module, stand_in)
    return subsets_of(asked, module.roster.parties, module.active, module.seed)


def refuse_unable(module: VFLModule, stand_in: AbsentStandIn) -> None:
    """Refuse a model that cannot predict without some parties.

    Raises:
        ConfigurationError: with what can.
    """
    aggregator = module.aggregator
    name = type(aggregator).__name__
    if aggregator.setup is not None:
        raise ConfigurationError(
            f"--absent: {name} codes the data of all parties before a prediction, so a party that is not there cannot "
            f"be left out; aggregators that can: {ABLE}"
        )
    if module.protected_evaluation and aggregator.wire is not None and aggregator.wire.traits.visible:
        raise ConfigurationError(
            f"--absent: {name} changes embeddings in evaluation too, and the table is computed without that; use "
            "--model.evaluate plain"
        )
    if stand_in.learns and (aggregator.wire is not None or isinstance(module, HeadsVFL)):
        raise ConfigurationError(
            f"--stand_in: {type(stand_in).__name__} replaces single embeddings at the server, which "
            f"{name if aggregator.wire is not None else type(module).__name__} does not show it; use Exclude or Zeros"
        )
    if module.roster.shared:
        raise ConfigurationError("--absent works with parties of their own columns, not with groups of parties")
    if module.place is not None:
        raise ConfigurationError("--absent runs simulated only; test the checkpoint of the federation with a recipe")


def embed(module: VFLModule, batches: Iterable[VerticalBatch]) -> Embedded:
    """The embeddings of all records, on the device of the module."""
    h: list[Tensors] = []
    labels = []
    present = []
    for batch in batches:
        if batch.labels is None:
            raise ConfigurationError("--absent needs test records with labels")
        h.append(module.bottoms(_features(module, batch)))
        labels.append(batch.labels.to(module.device))
        present.append(batch.present)
    held = [
        torch.ones(len(y), module.roster.parties, dtype=torch.bool) if p is None else p
        for p, y in zip(present, labels, strict=True)
    ]
    joined = None if all(p is None for p in present) else torch.cat(held).to(module.device)
    return Embedded(tuple(torch.cat(own) for own in zip(*h, strict=True)), torch.cat(labels), joined)


def _features(module: VFLModule, batch: VerticalBatch) -> Tensors:
    """The features of a batch, on the device and in the precision of the bottoms; whole numbers as they are."""
    like = next(module.bottoms.parameters(), torch.empty(0, device=module.device))
    return tuple(x.to(like) if x.is_floating_point() else x.to(module.device) for x in batch.features)


def predicted_without(
    module: VFLModule, records: Embedded, absent: Subset, stand_in: AbsentStandIn, moments: Moments | None
) -> tuple[Tensor, Tensor | None]:
    """(N,) bool, the records that get a prediction without some of the parties, and the predictions of these.

    None in place of predictions if there are none.
    """
    answers = []
    predicted = []
    for start in range(0, len(records.labels), _CHUNK):
        part = slice(start, start + _CHUNK)
        held = None if records.present is None else records.present[part]
        answered, output = output_without(module, [x[part] for x in records.h], held, absent, stand_in, moments)
        answers.append(answered)
        if output is not None:
            predicted.append(predictions(module.objective, output))
    return torch.cat(answers), torch.cat(predicted) if predicted else None


def _of_subset(
    module: VFLModule, records: Embedded, absent: Subset, stand_in: AbsentStandIn, moments: Moments | None
) -> list[dict[str, Any]]:
    """The rows of one subset of absent parties."""
    metrics = module.test.metrics.clone()
    metrics.reset()
    answered, predicted = predicted_without(module, records, absent, stand_in, moments)
    scored = int(answered.sum())
    if predicted is not None:
        metrics.update(predicted, records.labels[answered])
    values = metrics.compute() if scored else dict.fromkeys(metrics.keys(), torch.tensor(float("nan")))
    row = {"what": "subset", "absent": " ".join(map(str, absent)), "number": len(absent), "p": float("nan")}
    counts = {"half_width": 0.0, "subsets": 1, "records": scored, "left_out": len(records.labels) - scored}
    return [row | {"metric": str(name), "value": float(value)} | counts for name, value in values.items()]


def _summaries(
    table: "pd.DataFrame", probabilities: Sequence[float], passive: int, exact: bool
) -> Iterator[dict[str, Any]]:
    """The rows by number absent and by probability."""
    for metric, own in table.groupby("metric", sort=False):
        means = []
        halves = []
        for number in range(int(own["number"].max()) + 1):
            same = own[own["number"] == number]
            n = len(same)
            error = 0.0 if exact or n < 2 or n == comb(passive, number) else float(same["value"].std()) / sqrt(n)
            means.append(float(same["value"].mean()))
            halves.append(1.96 * error)
            said = {"what": "number", "absent": "", "number": number, "p": float("nan"), "metric": metric}
            yield said | {"value": means[-1], "half_width": halves[-1]} | _counted(same)
        for p in probabilities:
            shares = by_probability(p, passive, len(means) - 1)
            value = sum(share * mean for share, mean in zip(shares, means, strict=True) if share > 0)
            half = sqrt(sum((share * one) ** 2 for share, one in zip(shares, halves, strict=True)))
            said = {"what": "probability", "absent": "", "number": float("nan"), "p": p, "metric": metric}
            yield said | {"value": value, "half_width": half} | _counted(own)


def _counted(subsets: "pd.DataFrame") -> dict[str, int]:
    """How many subsets a row is about, and their records."""
    return {
        "subsets": len(subsets),
        "records": int(subsets["records"].sum()),
        "left_out": int(subsets["left_out"].sum()),
    }
