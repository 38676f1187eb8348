"""The metrics of a trained model when one party is absent, or when its records are changed by a fault."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import isnan, nan
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torchmetrics import MetricCollection

from lightning_vfl import simulation
from lightning_vfl.absence.contribution import Filler, labels_of, scores
from lightning_vfl.absence.measure import Embedded, embed, moments_of, refuse_unable
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
            disturbance: a fall where higher is better, else a rise.
    """

    table: "pd.DataFrame"

    def ranking(self) -> "pd.DataFrame":
        """One row for each party, the most important one first, for the first metric.

        Columns: ``party``, ``mean_harm`` over all disturbances, ``worst`` (the name of a disturbance) and its ``harm``.
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

    Guarantee: the metric of a fault is that of a test with the callback of the same name.

    Raises:
        ConfigurationError: for models that cannot predict without parties, and records that a fault cannot change.
    """
    stand_in = stand_in or Exclude()
    refuse_unable(module, stand_in)
    batches = list(data.test_dataloader())
    values: dict[tuple[int, Disturbance], Any] = {}
    with torch.no_grad(), evaluating(module):
        records = embed(module, batches)
        moments = moments_of(module, data.train_dataloader()) if stand_in.learns else None
        filler = Filler(labels_of(data.train_dataloader()))

        def measured(some: Embedded, away: tuple[int, ...] = ()) -> Any:
            return scores(module, filler.predictions(module, some, away, stand_in, moments), some.labels, [])

        usual = measured(records)
        for party in absent:
            values[party, Disturbance(ABSENT)] = measured(records, (party,))
        for party in parties:
            for disturbance in disturbances:
                h = list(records.h)
                h[party] = _embedding(module, data, disturbance.at(party))
                values[party, disturbance] = measured(records._replace(h=tuple(h)))
    return table_of(values, usual, module.test.metrics)


def table_of(values: Mapping[tuple[int, Disturbance], Any], usual: Any, metrics: MetricCollection) -> Robustness:
    """The table of metrics: (metrics,) by party and disturbance, and ``usual`` without a disturbance."""
    import pandas as pd

    rows = []
    for number, (name, metric) in enumerate(metrics.items()):
        sign = -1 if metric.higher_is_better is False else 1
        nobody = {"party": -1, "fault": NOBODY, "strength": nan, "metric": str(name)}
        rows.append(nobody | {"value": usual[number], "harm": 0.0})
        for (party, disturbance), value in sorted(values.items(), key=lambda item: item[0][0]):
            strength = nan if disturbance.strength is None else disturbance.strength
            row = {"party": party, "fault": disturbance.fault, "strength": strength, "metric": str(name)}
            rows.append(row | {"value": value[number], "harm": sign * (usual[number] - value[number])})
    return Robustness(pd.DataFrame(rows))


def _embedding(module: VFLModule, data: VerticalDataModule, fault: DataFault) -> Tensor:
    """The embeddings of a party's test records after a fault."""
    data.add_fault(fault)
    try:
        features = data.records("test").features_of(fault.party, torch.arange(len(data.records("test"))))
    finally:
        data.remove_fault(fault)
    return module.bottoms.one(fault.party, features.to(module.device))
