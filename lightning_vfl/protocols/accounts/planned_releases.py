"""The number of releases of each record in a planned fit, from the protocol's schedule and the trainer's limits."""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import count, islice

import numpy as np
from lightning.pytorch import Trainer

from lightning_vfl.errors import ConfigurationError
from lightning_vfl.schedules.batches import Schedule


@dataclass(frozen=True)
class Releases:
    """The releases of a fit, or of its first epochs.

    Args:
        epochs: epochs that have begun.
        rounds: rounds (optimiser steps).
        most: releases of the record that is released most often.
        total: releases of all records together.
    """

    epochs: int = 0
    rounds: int = 0
    most: int = 0
    total: int = 0


@dataclass(frozen=True)
class Limits:
    """The trainer's limits of a fit.

    Args:
        epochs: the largest number of epochs; None: no limit.
        steps: the largest number of optimiser steps; None: no limit.
        batches: the largest number of batches of an epoch (int), or a fraction of the batches (float).
        every_epochs: epochs from one validation to the next; None: ``every_batches`` counts over epochs.
        every_batches: batches of training from one validation to the next (int), or a fraction of an epoch (float).
        validated: as ``batches``, of a validation.
        checked: batches of validation that are evaluated before training; -1: all.
    """

    epochs: int | None
    steps: int | None
    batches: int | float = 1.0
    every_epochs: int | None = 1
    every_batches: int | float = 1.0
    validated: int | float = 1.0
    checked: int = 0

    @classmethod
    def of(cls, trainer: Trainer) -> "Limits":
        """The limits of a trainer.

        Raises:
            ConfigurationError: if neither epochs nor steps are limited.
        """
        epochs = trainer.max_epochs
        steps = trainer.max_steps
        limits = cls(
            None if epochs is None or epochs < 0 else epochs,
            None if steps < 0 else steps,
            trainer.limit_train_batches,
            trainer.check_val_every_n_epoch,
            trainer.val_check_interval,
            trainer.limit_val_batches,
            trainer.num_sanity_val_steps if isinstance(trainer.num_sanity_val_steps, int) else -1,
        )
        if limits.epochs is None and limits.steps is None:
            raise ConfigurationError(
                "the privacy cost of a training without an end is unbounded; give --trainer.max_epochs or "
                "--trainer.max_steps"
            )
        return limits

    def batches_of(self, steps: int) -> int:
        """The batches of an epoch whose schedule has ``steps`` batches."""
        return min(steps, self.batches) if isinstance(self.batches, int) else int(steps * self.batches)

    def with_validation(self, training: "Releases", steps: int, schedule: Schedule) -> "Releases":
        """The releases of training and of its validations, at most, if they go through the protocol.

        Args:
            training: the releases of training.
            steps: the batches of an epoch of training.
            schedule: the batches of a validation.
        """
        batches = self.validated if isinstance(self.validated, int) else int(schedule.steps * self.validated)
        sizes = [len(positions) for positions, _ in islice(schedule.epoch(0), batches)]
        if not sizes or not training.rounds:
            return training
        by_fraction = isinstance(self.every_batches, float)
        every = max(1, int(steps * self.every_batches)) if by_fraction else int(self.every_batches)
        if self.every_epochs is None:
            times = training.rounds // every
        else:
            times = training.epochs // self.every_epochs * max(1, self.batches_of(steps) // every)
        checked = len(sizes) if self.checked < 0 else min(self.checked, len(sizes))
        most = max(training.most, times + bool(checked))
        return replace(training, most=most, total=training.total + times * sum(sizes) + sum(sizes[:checked]))


def planned_releases(schedule: Schedule, records: int, limits: Limits) -> Releases:
    """The releases of a whole fit without missing parties and without an early end.

    The schedule must be new, because the function advances its state.
    """
    batches = limits.batches_of(schedule.steps)
    if not batches or limits.epochs == 0 or limits.steps == 0:
        return Releases()
    if limits.epochs is not None and schedule.whole_passes and batches == schedule.steps:
        rounds = limits.epochs * batches
        if limits.steps is None or rounds <= limits.steps:
            return Releases(limits.epochs, rounds, limits.epochs, limits.epochs * records)
    last = Releases()
    for last in islice(releases_by_epoch(schedule, records, limits), limits.epochs):  # noqa: B007  # only the last value is used
        pass
    return last


def releases_by_epoch(schedule: Schedule, records: int, limits: Limits) -> Iterator[Releases]:
    """The releases of the first epoch, of the first two, and so on; endless unless ``limits.steps`` is reached."""
    times = np.zeros(records, np.int64)
    rounds = 0
    batches = limits.batches_of(schedule.steps)
    for epoch in count():
        left = batches if limits.steps is None else min(batches, limits.steps - rounds)
        for positions, _ in islice(schedule.epoch(epoch), left):
            np.add.at(times, positions, 1)
        rounds += left
        yield Releases(epoch + 1, rounds, int(times.max()), int(times.sum()))
        if left < batches or rounds == limits.steps:
            return
        schedule.advance(left)
