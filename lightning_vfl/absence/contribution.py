"""What each party, and each column of a party, adds to the metrics of a trained model."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import one_hot

from lightning_vfl.absence.asked import Subset
from lightning_vfl.absence.measure import Embedded, embed, moments_of, predicted_without, refuse_unable
from lightning_vfl.absence.shapley import Numbers, coalitions_of, orders_of, shapley
from lightning_vfl.absence.stand_ins import AbsentStandIn, Exclude
from lightning_vfl.datamodules import VerticalDataModule
from lightning_vfl.errors import ConfigurationError
from lightning_vfl.networks.modes import evaluating
from lightning_vfl.protocols import VFLModule
from lightning_vfl.streams import permutation, stream, uniform
from lightning_vfl.types import Parties, VerticalBatch

if TYPE_CHECKING:
    import pandas as pd


@dataclass(frozen=True)
class Contributions:
    """The Shapley values of parties.

    Args:
        table: one row for each metric and each party that may be absent. Columns: ``metric``, ``party``, ``value``,
            ``standard_error`` (over sampled orders; 0: exact), ``low`` and ``high`` (the 95 % interval over resampled
            test records; NaN: not asked for), ``nobody`` and ``everybody`` (the metric without and with all of them).
        exact: whether every coalition was measured.
        evaluations: how many coalitions were measured.
    """

    table: "pd.DataFrame"
    exact: bool
    evaluations: int


def players_of(parties: int, active: int | None) -> Parties:
    """The parties that may be absent: all but the active party, which makes the prediction."""
    return tuple(party for party in range(parties) if party != active)


def by_absence(
    module: VFLModule,
    batches: Iterable[VerticalBatch],
    training: Iterable[VerticalBatch],
    stand_in: AbsentStandIn | None = None,
    resamples: int = 0,
) -> Contributions:
    """The Shapley value of each party, where the value of a coalition is the metric without the other parties.

    Every bottom runs once for every record, and the top once for every coalition. A record that nobody of a coalition
    holds gets the prediction of ``typical``, which needs no features.

    Args:
        module: the trained model; its metrics are used.
        batches: the test records.
        training: the training records, whose labels give ``typical``, and a stand-in its moments.
        stand_in: the replacement for absent parties; None: ``Exclude()``.
        resamples: how often the test records are drawn anew with replacement, for the intervals; 0: no intervals. Each
            costs one computation of the metrics for every coalition, and no prediction.

    Guarantee: exact for up to 12 parties that may be absent; each coalition is measured once. All coalitions are
        measured on the same records, and resampled in the same way.
    Not guaranteed: that the values are those of parties whose model was trained without the others.

    Raises:
        ConfigurationError: for models that cannot predict without parties.
    """
    stand_in = stand_in or Exclude()
    refuse_unable(module, stand_in)
    players = players_of(module.roster.parties, module.active)
    orders = orders_of(players, module.seed)
    values: dict[Subset, Numbers] = {}
    with torch.no_grad(), evaluating(module):
        scorer = Scorer(module, batches, training, stand_in, resamples)
        for coalition in coalitions_of(players, orders):
            values[coalition] = scorer.scores(tuple(player for player in players if player not in coalition))
    names = [str(name) for name in module.test.metrics.keys()]  # noqa: SIM118  # a MetricCollection's values differ
    return contributions(values, players, orders, names)


def contributions(
    values: Mapping[Subset, Numbers],
    players: Sequence[int],
    orders: Sequence[Subset] | None,
    metrics: Sequence[str],
) -> Contributions:
    """The table of Shapley values.

    Args:
        values: coalition -> (metrics × (1 + resamples),) the metrics on the records, and on each resample of them.
        players: the parties that may be absent.
        orders: the sampled orders; None: all coalitions are there.
        metrics: their names.
    """
    import pandas as pd  # imported here, because the import takes 0.5 s

    shares, errors = (found.reshape(len(players), len(metrics), -1) for found in shapley(values, players, orders))
    nobody = values[()].reshape(len(metrics), -1)
    everybody = values[tuple(sorted(players))].reshape(len(metrics), -1)
    rows = []
    for number, metric in enumerate(metrics):
        for place, party in enumerate(players):
            low, high = interval_of(shares[place, number, 1:])
            row: dict[str, Any] = {"metric": metric, "party": party, "value": shares[place, number, 0]}
            row |= {"standard_error": errors[place, number, 0], "low": low, "high": high}
            rows.append(row | {"nobody": nobody[number, 0], "everybody": everybody[number, 0]})
    return Contributions(pd.DataFrame(rows), orders is None, len(values))


def importance(
    module: VFLModule, batches: Iterable[VerticalBatch], party: int, columns: Sequence[str], repeats: int = 5
) -> "pd.DataFrame":
    """How much the metrics fall if a column of a party is permuted among the test records.

    The party permutes its own column and computes its embeddings anew; the server and the other parties do as in every
    prediction, and the owner of the labels returns the metric to the party.

    Args:
        module: the trained model, with everybody there.
        batches: the test records.
        party: the number of the party.
        columns: the names of its columns.
        repeats: permutations of each column.

    Returns:
        One row for each column and metric: ``party``, ``column``, ``metric``, ``value`` (the metric minus the mean
        metric with the column permuted) and ``standard_error`` over the permutations.

    Raises:
        ConfigurationError: for a party whose features are no table, and models that cannot predict without parties.
    """
    import pandas as pd

    everybody = Exclude()  # replaces nobody
    refuse_unable(module, everybody)
    batches = list(batches)
    features = torch.cat([batch.features[party] for batch in batches]).to(module.device)
    if features.ndim != 2:
        raise ConfigurationError(f"--columns: the features of party {party} are no table; name a party with columns")
    rows = []
    with torch.no_grad(), evaluating(module):
        scorer = Scorer(module, batches, batches, everybody)
        usual = scorer.scores()
        present = scorer.records.present
        held = torch.arange(len(features)) if present is None else present[:, party].nonzero()[:, 0].cpu()
        for position, column in enumerate(columns):
            drops = []
            for repeat in range(repeats):
                order = torch.from_numpy(permutation(len(held), module.seed, "importance", party, position, repeat))
                permuted = features.clone()
                permuted[held, position] = features[held[order], position]
                drops.append(usual - scorer.scores(sent={party: module.bottoms.one(party, permuted)}))
            mean = np.mean(drops, 0)
            error = np.std(drops, 0, ddof=1) / np.sqrt(repeats) if repeats > 1 else np.full_like(mean, np.nan)
            for number, metric in enumerate(module.test.metrics.keys()):
                row = {"party": party, "column": column, "metric": str(metric)}
                rows.append(row | {"value": mean[number], "standard_error": error[number]})
    return pd.DataFrame(rows)


def labels_of(batches: Iterable[VerticalBatch]) -> Tensor:
    """The labels of all records, on the CPU."""
    labels = [batch.labels.cpu() for batch in batches if batch.labels is not None]
    if not labels:
        raise ConfigurationError("a prediction without any party needs training records with labels")
    return torch.cat(labels)


def typical(labels: Tensor, like: Tensor) -> Tensor:
    """The prediction without any features: the mean label, or the share of each class.

    Args:
        labels: (N,) or (N, targets) of the training records.
        like: the prediction of one record, whose shape the result has.

    Raises:
        ConfigurationError: for predictions of another shape.
    """
    if like.shape == labels.shape[1:]:
        return labels.double().mean(0).to(like)
    if like.ndim == 1 and labels.ndim == 1:
        return one_hot(labels.long(), len(like)).double().mean(0).to(like)
    raise ConfigurationError(
        f"predictions of shape {tuple(like.shape)} have no typical value among labels of shape "
        f"{tuple(labels.shape[1:])}; use an objective whose predictions are probabilities or values"
    )


def without_features(module: VFLModule, data: VerticalDataModule) -> Numbers:
    """(metrics,) the metrics of the test records if nobody gives features, for a model that is built."""
    labels = torch.cat([batch.labels for batch in data.test_dataloader() if batch.labels is not None])
    outputs = torch.zeros(1, module.objective.outputs(data.num_classes))
    constant = typical(labels_of(data.train_dataloader()), module.objective.predict(outputs)[0])
    return scores(module, constant.expand(len(labels), *constant.shape), labels, [])


class Scorer:
    """The metrics of a trained model on records that every bottom has seen once, whoever is absent.

    A record that nobody answers gets the prediction of ``typical``, which needs no features. The module is in
    evaluation mode, without gradients.

    Args:
        module: the trained model; its metrics are used.
        batches: the records.
        training: the training records, whose labels give ``typical``, and a stand-in its moments.
        stand_in: the replacement for absent parties.
        resamples: how often the records are drawn anew.
    """

    def __init__(
        self,
        module: VFLModule,
        batches: Iterable[VerticalBatch],
        training: Iterable[VerticalBatch],
        stand_in: AbsentStandIn,
        resamples: int = 0,
    ) -> None:
        self.records = embed(module, batches)
        self._module = module
        self._stand_in = stand_in
        self._moments = moments_of(module, training) if stand_in.learns else None
        self._labels = labels_of(training)
        self._typical: Tensor | None = None
        self._draws = resampled(len(self.records.labels), resamples, module.seed)

    def scores(self, absent: Subset = (), sent: Mapping[int, Tensor] | None = None) -> Numbers:
        """(metrics × (1 + resamples),) the metrics without some parties.

        The first call needs a prediction of the model, to know its shape.

        Args:
            absent: their numbers.
            sent: by party, embeddings (N, D_m) that it sends in place of its own; None: there are none.
        """
        h = tuple((sent or {}).get(party, own) for party, own in enumerate(self.records.h))
        predictions = self._predictions(absent, self.records._replace(h=h))
        return scores(self._module, predictions, self.records.labels, self._draws)

    def _predictions(self, absent: Subset, records: Embedded) -> Tensor:
        predicted = None
        if len(absent) < len(records.h):
            answered, predicted = predicted_without(self._module, records, absent, self._stand_in, self._moments)
        if self._typical is None:
            if predicted is None:
                raise TypeError("the first prediction needs a party")
            self._typical = typical(self._labels, predicted[0])
        filled = self._typical.repeat(len(records.labels), *[1] * self._typical.ndim)
        if predicted is not None:
            filled[answered] = predicted
        return filled


def scores(module: VFLModule, predictions: Tensor, labels: Tensor, draws: Sequence[Tensor]) -> Numbers:
    """(metrics × (1 + draws),) the metrics of all records, and of each draw of them."""
    metrics = module.test.metrics.clone()
    columns = []
    for rows in (None, *draws):
        metrics.reset()
        if rows is None:
            metrics.update(predictions, labels)
        else:
            metrics.update(predictions[rows], labels[rows])
        columns.append([float(value) for value in metrics.compute().values()])
    return np.array(columns).T.reshape(-1)


def resampled(records: int, resamples: int, seed: int) -> list[Tensor]:
    """Positions of records, drawn with replacement; the same for every coalition."""
    draws = []
    for number in range(resamples):
        words = stream(seed, "contribution", "resample", number).random_raw(records)
        draws.append(torch.from_numpy((uniform(words) * records).astype(np.int64)))
    return draws


def interval_of(values: Numbers) -> tuple[float, float]:
    """The 2.5 and 97.5 % quantiles; NaN without resamples, and a resample without a value does not count."""
    defined = values[~np.isnan(values)]
    if not len(defined):
        return float("nan"), float("nan")
    low, high = np.quantile(defined, [0.025, 0.975])
    return float(low), float(high)
