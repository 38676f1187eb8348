"""The metrics of a trained model when one party is absent, or when its records are changed by a fault."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import isnan, nan
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torchmetrics import MetricCollection

from lightning_vfl import simulation
from lightning_vfl.absence.contribution import Scorer, interval_of
from lightning_vfl.absence.measure import refuse_unable
from lightning_vfl.absence.shapley import Numbers
from lightning_vfl.absence.stand_ins import AbsentStandIn, Exclude
from lightning_vfl.datamodules import VerticalDataModule
from lightning_vfl.errors import ConfigurationError, nearest
from lightning_vfl.networks.modes import evaluating
from lightning_vfl.protocols import VFLModule
from lightning_vfl.simulation.data_faults import DataFault

if TYPE_CHECKING:
    import pandas as pd

ABSENT, NOBODY = "absent", "nothing"
STRENGTHS = {  # the setting of each fault that the grid varies
    "Noise": "deviation",
    "Blur": "radius",
    "DroppedColumns": "share",
    "ShiftedUnits": "factor",
    "StaleTable": "share",
    "Misaligned": "share",
}
USUAL = ("Noise:1", "DroppedColumns:0.5", "ShiftedUnits:10", "StaleTable:1", "Misaligned:0.1,0.5")


@dataclass(frozen=True)
class Disturbance:
    """One column of the grid, for any party.

    Args:
        fault: the name of its class; ``absent``: the party does not take part.
        strength: the value of the setting in ``STRENGTHS``; None: absent.
    """

    fault: str
    strength: float | None = None

    @property
    def name(self) -> str:
        """As the table shows it."""
        return name_of(self.fault, nan if self.strength is None else self.strength)

    def settings(self, party: int) -> dict[str, Any]:
        """The settings of the fault at a party."""
        return {"party": party, STRENGTHS[self.fault]: self.strength}

    def at(self, party: int) -> DataFault:
        """The fault at a party.

        Raises:
            ConfigurationError: for a strength that the fault cannot have.
        """
        fault: DataFault = getattr(simulation, self.fault)(**self.settings(party))
        return fault


def name_of(fault: str, strength: float) -> str:
    """The name of a disturbance, from the columns of the table."""
    return fault if isnan(strength) else f"{fault} {strength:g}"


def parse_faults(words: Sequence[str]) -> list[Disturbance]:
    """Read ``--corrupt``: names of faults, each with its strengths.

    Raises:
        ConfigurationError: for an unknown name and for strengths that are no numbers.

    Examples:
        >>> [one.name for one in parse_faults(["Noise:0.5,1", "Blur:2"])]
        ['Noise 0.5', 'Noise 1', 'Blur 2']
    """
    disturbances = []
    for word in words:
        name, _, strengths = word.partition(":")
        if name not in STRENGTHS:
            raise ConfigurationError(f"--corrupt: there is no fault '{name}'; {nearest(name, STRENGTHS)}")
        try:
            values = [float(strength) for strength in strengths.split(",")]
        except ValueError:
            raise ConfigurationError(f"--corrupt needs strengths, such as {name}:0.5,1; got {word}") from None
        disturbances += [Disturbance(name, value) for value in values]
    for one in disturbances:
        one.at(0)  # refuses a strength out of range
    return disturbances


@dataclass(frozen=True)
class Robustness:
    """The grid.

    Args:
        table: one row for each party, disturbance and metric. Columns: ``party`` (-1: nobody is disturbed), ``fault``,
            ``strength`` (NaN: absent), ``metric``, ``value``, and ``harm``, by which the metric is worse than without a
            disturbance: a fall where higher is better, else a rise. ``low`` and ``high`` are the 95 % interval of the
            harm over resampled test records, the same with and without the disturbance (NaN: not asked for).
    """

    table: "pd.DataFrame"

    def ranking(self) -> "pd.DataFrame":
        """One row for each party, the most important one first, for the first metric.

        Columns: ``party``, ``mean_harm`` over all disturbances, ``worst`` (the name of a disturbance) and its ``harm``.
        The order depends on which disturbances were asked for.
        """
        import pandas as pd

        first = self.table[self.table["metric"] == self.table["metric"].iloc[0]]
        rows = []
        for party, own in first[first["party"] >= 0].groupby("party"):
            worst = own.loc[own["harm"].idxmax()]
            name = name_of(worst["fault"], worst["strength"])
            rows.append({"party": party, "mean_harm": own["harm"].mean(), "worst": name, "harm": worst["harm"]})
        return pd.DataFrame(rows).sort_values("mean_harm", ascending=False, kind="stable", ignore_index=True)


def by_test(
    module: VFLModule,
    data: VerticalDataModule,
    parties: Sequence[int],
    disturbances: Sequence[Disturbance],
    absent: Sequence[int] = (),
    stand_in: AbsentStandIn | None = None,
    resamples: int = 0,
) -> Robustness:
    """Measure a trained model on test records with one party disturbed at a time.

    Every bottom runs once for every record, and the bottom of a disturbed party once more for each disturbance.

    Args:
        module: the trained model; its metrics are used.
        data: set up for fit and test.
        parties: whose records are changed.
        disturbances: the faults, as columns of the grid.
        absent: the parties that are absent, one at a time.
        stand_in: the replacement for an absent party; None: ``Exclude()``.
        resamples: how often the test records are drawn anew with replacement, for the intervals; 0: no intervals.

    Guarantee: the metric of a fault is that of a test with the callback of the same name.
    Not guaranteed: what other draws of a fault, or another training, would give; the intervals are over records alone.

    Raises:
        ConfigurationError: for models that cannot predict without parties, and records that a fault cannot change.
    """
    stand_in = stand_in or Exclude()
    refuse_unable(module, stand_in)
    values: dict[tuple[int, Disturbance], Numbers] = {}
    with torch.no_grad(), evaluating(module):
        scorer = Scorer(module, data.test_dataloader(), data.train_dataloader(), stand_in, resamples)
        usual = scorer.scores()
        for party in absent:
            values[party, Disturbance(ABSENT)] = scorer.scores((party,))
        for party in parties:
            for disturbance in disturbances:
                sent = {party: _embedding(module, data, disturbance.at(party))}
                values[party, disturbance] = scorer.scores(sent=sent)
    return table_of(values, usual, module.test.metrics)


def table_of(
    values: Mapping[tuple[int, Disturbance], Numbers], usual: Numbers, metrics: MetricCollection
) -> Robustness:
    """The table of the grid.

    Args:
        values: (metrics × (1 + resamples),) by party and disturbance: of all records, and of each resample of them.
        usual: the same without a disturbance.
        metrics: in this order.
    """
    import pandas as pd

    undisturbed = usual.reshape(len(metrics), -1)
    rows = []
    for number, (name, metric) in enumerate(metrics.items()):
        sign = -1 if metric.higher_is_better is False else 1
        nobody = {"party": -1, "fault": NOBODY, "strength": nan, "metric": str(name)}
        rows.append(nobody | {"value": undisturbed[number, 0], "harm": 0.0, "low": nan, "high": nan})
        for (party, disturbance), disturbed in sorted(values.items(), key=lambda item: item[0][0]):
            value = disturbed.reshape(len(metrics), -1)[number]
            harm = sign * (undisturbed[number] - value)
            low, high = interval_of(harm[1:])
            strength = nan if disturbance.strength is None else disturbance.strength
            row = {"party": party, "fault": disturbance.fault, "strength": strength, "metric": str(name)}
            rows.append(row | {"value": value[0], "harm": harm[0], "low": low, "high": high})
    return Robustness(pd.DataFrame(rows))


def _embedding(module: VFLModule, data: VerticalDataModule, fault: DataFault) -> Tensor:
    """The embeddings of a party's test records after a fault."""
    data.add_fault(fault)
    try:
        features = data.records("test").features_of(fault.party, torch.arange(len(data.records("test"))))
    finally:
        data.remove_fault(fault)
    return module.bottoms.one(fault.party, features.to(module.device))
