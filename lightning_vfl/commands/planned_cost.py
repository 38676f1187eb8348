"""What a fit costs its records in privacy, before it runs."""

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from itertools import islice

import torch
from lightning.pytorch import Trainer

from lightning_vfl.callbacks.injector import FaultInjector
from lightning_vfl.datamodules import VerticalDataModule
from lightning_vfl.privacy import Figure, PrivacyEvent, worst_epsilon, worst_figure
from lightning_vfl.privacy.solve import solve_epochs
from lightning_vfl.protocols import CascadeVFL
from lightning_vfl.protocols.accounts.charging import refuse_what_links_records
from lightning_vfl.protocols.accounts.planned_releases import Limits, Releases, planned_releases, releases_by_epoch
from lightning_vfl.protocols.module import VFLModule

MOST_COUNTED = 10_000  # epochs that are tried one after the other


class Plan:
    """The releases of a fit, and their privacy cost.

    Args:
        module: the protocol, built.
        data: set up for a fit.
        trainer: has the limits of the fit and the number of processes; no process is started.
    """

    def __init__(self, module: VFLModule, data: VerticalDataModule, trainer: Trainer) -> None:
        records = data.records("train")
        self.records, self.limits = len(records), Limits.of(trainer)
        self.parties = module.roster.parties
        self.schedule = partial(
            module.schedule, records, data.batch_size * trainer.world_size, data.seed, data.drop_last
        )
        loader = data.val_dataloader() if module.protected_evaluation else []
        self.validation = None if isinstance(loader, list) else loader.schedule
        self.releases = self._validated(planned_releases(self.schedule(), self.records, self.limits))
        self.events = module.possible_events()  # needs the schedule, which decides who joins embeddings
        self.timed = isinstance(module, CascadeVFL)
        self.width = module.width
        self.batch = data.batch_size
        self.largest_class = share_of_largest_class(records.labels_at(torch.arange(len(records))))

    def epsilon(self, delta: float, unit: str, events: Sequence[PrivacyEvent] | None = None) -> float:
        """The largest cost of the fit, or of the fit with other events."""
        return self._cost(self.releases, delta, unit, self.events if events is None else events)

    def figure(self, delta: float, unit: str, events: Sequence[PrivacyEvent]) -> Figure:
        """The smallest known bound on the cost of the fit with these events, and its account."""
        return worst_figure(events, self.releases.most, self.releases.total, delta, unit)

    def most_epochs(self, target: float, delta: float, unit: str) -> int:
        """The largest number of epochs that costs at most the target; the limit on steps is ignored."""
        limits = replace(self.limits, epochs=None, steps=None)
        schedule = self.schedule()
        if schedule.whole_passes and limits.batches_of(schedule.steps) == schedule.steps:

            def epsilon(epochs: int) -> float:
                training = Releases(epochs, epochs * schedule.steps, epochs, epochs * self.records)
                return self._cost(self._validated(training), delta, unit, self.events)

            return solve_epochs(target, epsilon)
        costs = []
        for releases in islice(releases_by_epoch(schedule, self.records, limits), MOST_COUNTED):
            costs.append(self._cost(self._validated(releases), delta, unit, self.events))
            if costs[-1] > target:
                break
        return solve_epochs(target, lambda epochs: costs[min(epochs, len(costs)) - 1], MOST_COUNTED)

    def _validated(self, training: Releases) -> Releases:
        """With the validations of the fit, if they release records through the protocol."""
        if self.validation is None:
            return training
        return self.limits.with_validation(training, self.schedule().steps, self.validation)

    @staticmethod
    def _cost(releases: Releases, delta: float, unit: str, events: Sequence[PrivacyEvent]) -> float:
        return worst_epsilon(events, releases.most, releases.total, delta, unit)


def planned(module: VFLModule, data: VerticalDataModule, trainer: Trainer) -> Plan:
    """The plan of a fit. The module, data and trainer are set up for it and must not be used for anything else."""
    data.setup("fit")
    for callback in trainer.callbacks:  # type: ignore[attr-defined]  # set in Trainer.__init__
        if isinstance(callback, FaultInjector):
            callback.setup(trainer, module, "fit")
    module.build_for(data)
    refuse_what_links_records(module, data)  # the fit refuses them too
    return Plan(module, data, trainer)


def share_of_largest_class(labels: torch.Tensor | None) -> float | None:
    """The accuracy of deciding for the most frequent class of these labels (N,); None: they are no classes."""
    if labels is None or labels.is_floating_point() or labels.dim() != 1:
        return None
    return float(torch.bincount(labels).max() / len(labels))
