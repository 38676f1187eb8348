"""How often a planned fit releases each record, from the protocol's own schedule and the trainer's limits."""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import count, islice

import numpy as np
from lightning.pytorch import Trainer

from lightning_vfl.errors import ConfigurationError
from lightning_vfl.schedules.batches import Schedule


@dataclass(frozen=True)
class Releases:
    """What a fit, or the first epochs of it, releases.

    Args:
        epochs: epochs that were begun.
        rounds: rounds, which are optimiser steps.
        most: how often the record that is released most often is released.
        total: releases of all records together.
    """

    epochs: int = 0
    rounds: int = 0
    most: int = 0
    total: int = 0


@dataclass(frozen=True)
class Limits:
    """Where a fit ends, as the trainer says.

    Args:
        epochs: the most epochs; None: no limit.
        steps: the most optimiser steps; None: no limit.
        batches: the most batches of an epoch, or a share of them.
    """

    epochs: int | None
    steps: int | None
    batches: int | float = 1.0

    @classmethod
    def of(cls, trainer: Trainer) -> "Limits":
        """The limits of this trainer.

        Raises:
            ConfigurationError: if neither epochs nor steps are limited.
        """
        epochs, steps = trainer.max_epochs, trainer.max_steps
        limits = cls(
            None if epochs is None or epochs < 0 else epochs,
            None if steps < 0 else steps,
            trainer.limit_train_batches,
        )
        if limits.epochs is None and limits.steps is None:
            raise ConfigurationError(
                "a training without end has no price; give --trainer.max_epochs or --trainer.max_steps"
            )
        return limits

    def batches_of(self, steps: int) -> int:
        """Batches of an epoch whose schedule has so many."""
        return min(steps, self.batches) if isinstance(self.batches, int) else int(steps * self.batches)


def planned_releases(schedule: Schedule, records: int, limits: Limits) -> Releases:
    """What a whole fit releases if no party is ever missing and nothing ends it early.

    The schedule has to be new; one with state is moved on.
    """
    batches = limits.batches_of(schedule.steps)
    if not batches or limits.epochs == 0 or limits.steps == 0:
        return Releases()
    if limits.epochs is not None and schedule.whole_passes and batches == schedule.steps:
        rounds = limits.epochs * batches
        if limits.steps is None or rounds <= limits.steps:
            return Releases(limits.epochs, rounds, limits.epochs, limits.epochs * records)
    last = Releases()
    for last in islice(releases_by_epoch(schedule, records, limits), limits.epochs):  # noqa: B007  # the last counts
        pass
    return last


def releases_by_epoch(schedule: Schedule, records: int, limits: Limits) -> Iterator[Releases]:
    """What the first epoch releases, the first two, and so on; without end unless ``limits.steps`` is reached."""
    times = np.zeros(records, np.int64)
    rounds, batches = 0, limits.batches_of(schedule.steps)
    for epoch in count():
        left = batches if limits.steps is None else min(batches, limits.steps - rounds)
        for positions, _ in islice(schedule.epoch(epoch), left):
            np.add.at(times, positions, 1)
        rounds += left
        yield Releases(epoch + 1, rounds, int(times.max()), int(times.sum()))
        if left < batches or rounds == limits.steps:
            return
        schedule.advance(left)
