"""The plan of ``lightning-vfl privacy`` against fits: at least what they spend, and equal if nothing is random."""

from functools import partial
from itertools import islice

import pytest
import torch
from torch import nn

from lightning_vfl import CascadeVFL, SplitVFL
from lightning_vfl.aggregators import LocalGaussian, MaskedSum, PoissonBinomial
from lightning_vfl.callbacks import PartyDropout, Stragglers
from lightning_vfl.commands.planned_cost import planned
from lightning_vfl.datamodules import ContiguousColumns, LabelPartition
from lightning_vfl.errors import ConfigurationError
from lightning_vfl.missing import Exclude
from lightning_vfl.networks import MLP
from lightning_vfl.privacy import PoissonBinomialEvent
from lightning_vfl.privacy.events import UNITS
from lightning_vfl.protocols.accounts.planned_releases import Limits, planned_releases, releases_by_epoch
from lightning_vfl.schedules.batches import Shuffled
from lightning_vfl.simulation import VirtualClock
from lightning_vfl.waiting import Deadline, Fastest, WaitForAll
from tests.further import further
from tests.integration.processes import in_one_and_in_two
from tests.subjects import Blobs, trainer

TANH = partial(MLP, hidden=(4,), output_activation=nn.Tanh)


class FourParties(Blobs):
    """Three columns for everybody."""

    columns = 12

    def default_partitioner(self):
        return ContiguousColumns(4)


def pbm(recovery=None):
    return PoissonBinomial(MaskedSum(recovery=recovery), levels=4, beta=0.1)


def synchronous(aggregator=None, **settings):
    return SplitVFL(aggregator or pbm(), bottom=TANH, width=4, seed=0, **settings)


def cascade(aggregator=None, **settings):
    return CascadeVFL(aggregator or pbm(), bottom=TANH, width=4, seed=0, **settings)


def blobs(**settings):
    return FourParties(**{"batch_size": 10, **settings})


def uneven(**settings):
    """Party 0 holds a third of the labels, party 1 the others."""
    return FourParties(LabelPartition(classes=[[0], [1, 2]]), batch_size=5, **settings)


def absent():
    return [PartyDropout(0.6, 0.3)]


def silent():
    return [PartyDropout(0.6, 0.3, announced=False)]


# protocol, data, what the trainer is told, callbacks
EXACT = {
    "whole epochs": (synchronous, blobs, {"max_epochs": 2}, list),
    "one record less in each epoch": (synchronous, partial(blobs, drop_last=True), {"max_epochs": 4}, list),
    "drop_last, and steps": (
        synchronous,
        partial(blobs, batch_size=50, drop_last=True),
        {"max_epochs": -1, "max_steps": 10},
        list,
    ),
    "a part of an epoch": (synchronous, blobs, {"max_epochs": -1, "max_steps": 8}, list),
    "epochs before steps": (synchronous, blobs, {"max_epochs": 2, "max_steps": 100}, list),
    "the same few batches": (synchronous, blobs, {"max_epochs": 4, "limit_train_batches": 2}, list),
    "half of the batches": (synchronous, blobs, {"max_epochs": -1, "max_steps": 11, "limit_train_batches": 0.5}, list),
    "no epoch": (synchronous, blobs, {"max_epochs": 0}, list),
    "noise of each party": (partial(synchronous, LocalGaussian()), blobs, {"max_epochs": 2}, list),
    "cascade": (cascade, blobs, {"max_epochs": 2}, list),
    "cascade with a slow party": (partial(cascade, slower={0: 0.7}), uneven, {"max_epochs": 2}, list),
    "cascade, in steps": (cascade, uneven, {"max_epochs": -1, "max_steps": 17, "limit_train_batches": 5}, list),
    "cascade together": (partial(cascade, variant="sync"), uneven, {"max_epochs": 2}, list),
    "cascade of one": (partial(cascade, variant="single", alone=1), uneven, {"max_epochs": 2}, list),
    "cascade in one place": (partial(cascade, variant="centralized"), blobs, {"max_epochs": 1}, list),
    "cascade, noise of each party": (partial(cascade, LocalGaussian()), blobs, {"max_epochs": 2}, list),
}
BOUNDED = {
    "late parties that are waited for": (synchronous, blobs, {"max_epochs": 2}, lambda: [Stragglers(0.5)]),
    "absent parties": (partial(synchronous, missing=Exclude()), blobs, {"max_epochs": 2}, absent),
    "absent parties, noise of each": (partial(synchronous, LocalGaussian()), blobs, {"max_epochs": 2}, absent),
    "silent parties": (
        partial(synchronous, pbm("auto"), waiting=WaitForAll(timeout=1.0)),
        blobs,
        {"max_epochs": 3, "limit_train_batches": 4},
        silent,
    ),
    "a deadline": (
        partial(synchronous, LocalGaussian(), waiting=Deadline(0.05)),
        blobs,
        {"max_epochs": 2},
        lambda: [Stragglers(0.5)],
    ),
    "the fastest": (partial(synchronous, LocalGaussian(), waiting=Fastest(2)), blobs, {"max_epochs": 2}, list),
    "cascade with absent parties": (cascade, uneven, {"max_epochs": 2}, absent),
}


def both(folder, make, data, limits, callbacks):
    """ε by unit, planned and spent; the plan is made of parts of its own."""
    settings = {**limits, "limit_val_batches": 0}
    plan = planned(make(), data(), trainer(folder, callbacks=callbacks(), **settings))
    module = make()
    trainer(folder, callbacks=callbacks(), **settings).fit(module, datamodule=data())
    spent = module.privacy.figures() or dict.fromkeys(UNITS, 0.0)
    return plan, {unit: plan.epsilon(1e-5, unit) for unit in UNITS}, spent, module


OFTEN = {  # each a way to count that another case has as well
    "one record less in each epoch",
    "epochs before steps",
    "half of the batches",
    "cascade",
    "cascade together",
    "cascade, in steps",
    "cascade, noise of each party",
}


@pytest.mark.parametrize("case", [pytest.param(c, marks=pytest.mark.slow) if c in OFTEN else c for c in EXACT])
def test_where_nothing_is_random_the_plan_is_what_is_spent(tmp_path, case):
    plan, told, spent, module = both(tmp_path, *EXACT[case])
    assert told == pytest.approx(spent, rel=1e-12)
    assert plan.releases.rounds == module.books.rounds.get("fit", 0)
    if "one place" not in case and "no epoch" not in case:
        assert spent["party"] > 0


@pytest.mark.parametrize("case", [further(c) if c in ("absent parties", "the fastest") else c for c in BOUNDED])
def test_where_parties_may_be_missing_the_plan_is_not_below_what_is_spent(tmp_path, case):
    _, told, spent, _ = both(tmp_path, *BOUNDED[case])
    for unit in UNITS:
        assert told[unit] >= spent[unit] > 0


def test_a_slow_link_is_late_without_any_fault(tmp_path):
    """A timeout is enough to lose a party, so the sum may be of fewer."""
    slow = VirtualClock(speed_of={3: 1.0})
    make = partial(synchronous, pbm("auto"), waiting=WaitForAll(timeout=1.0), clock=slow)
    _, told, spent, module = both(tmp_path, make, blobs, {"max_epochs": 2}, list)
    assert {event.parties for event in module.privacy.accountant._counts} == {3}
    assert told["party-record"] >= spent["party-record"] > 0


# ---- the counting by itself


def test_epochs_counted_one_by_one_are_the_passes_counted_at_once():
    for epochs in (1, 4):
        slow = list(islice(releases_by_epoch(Shuffled(23, 5, 0), 23, Limits(None, None)), epochs))[-1]
        assert planned_releases(Shuffled(23, 5, 0), 23, Limits(epochs, None)) == slow
        assert (slow.most, slow.total, slow.rounds) == (epochs, 23 * epochs, 5 * epochs)


def test_a_record_is_released_as_often_as_the_schedule_names_it():
    limits = Limits(None, 9, 3)
    named = [int(i) for epoch in range(3) for ids, _ in Shuffled(23, 5, 7).epoch(epoch)[:3] for i in ids]
    made = planned_releases(Shuffled(23, 5, 7), 23, limits)
    assert (made.most, made.total) == (max(map(named.count, named)), len(named))
    assert (made.epochs, made.rounds) == (3, 9)


def test_a_training_without_end_is_refused(tmp_path):
    with pytest.raises(ConfigurationError, match="the privacy cost of a training without an end is unbounded"):
        planned(synchronous(), blobs(), trainer(tmp_path, max_epochs=-1))


def test_what_is_solved_for_meets_the_target_in_a_fit(tmp_path):
    """As many epochs of few batches as a target allows; one more would pass it."""
    data, limits = partial(blobs, drop_last=True, batch_size=25), {"limit_train_batches": 1}
    target = 15.0
    plan = planned(synchronous(), data(), trainer(tmp_path, max_epochs=1, **limits))
    epochs = plan.most_epochs(target, 1e-5, "party-record")
    for more in (0, 1):
        _, _, spent, _ = both(tmp_path, synchronous, data, {**limits, "max_epochs": epochs + more}, list)
        assert (spent["party-record"] <= target) == (more == 0)


# ---- several processes


def spend(folder, devices):
    """Up to 14 rounds with batches of 4 in each process."""
    strategy = "ddp" if devices > 1 else "auto"
    t = trainer(folder, devices=devices, strategy=strategy, max_epochs=-1, max_steps=14, limit_val_batches=0)
    module = synchronous()
    t.fit(module, datamodule=blobs(batch_size=4))
    if t.is_global_zero:
        torch.save(module.privacy.figures(), folder / "spent.pt")


@pytest.mark.slow
@pytest.mark.processes
def test_two_processes_spend_what_was_planned_without_starting_any(tmp_path):
    folders = [tmp_path / name for name in ("one", "two")]
    for folder in folders:
        folder.mkdir()
    in_one_and_in_two(spend, *folders)
    figures = []
    for devices, folder in enumerate(folders, start=1):
        strategy = "ddp" if devices > 1 else "auto"
        t = trainer(folder, devices=devices, strategy=strategy, max_epochs=-1, max_steps=14)
        plan = planned(synchronous(), blobs(batch_size=4), t)
        assert plan.events == (PoissonBinomialEvent(4, 0.1, 4, 4),)
        spent = torch.load(folder / "spent.pt", weights_only=True)
        figures.append(spent["party-record"])
        assert {unit: plan.epsilon(1e-5, unit) for unit in UNITS} == pytest.approx(spent, rel=1e-12)
    assert figures[1] > 1.4 * figures[0]


def test_two_processes_share_a_joint_batch_of_twice_the_size(tmp_path):
    settings = {"max_epochs": -1, "max_steps": 14}
    two = planned(synchronous(), blobs(batch_size=4), trainer(tmp_path, devices=2, strategy="ddp", **settings))
    _, told, spent, _ = both(tmp_path, synchronous, partial(blobs, batch_size=8), settings, list)
    assert {unit: two.epsilon(1e-5, unit) for unit in UNITS} == told == pytest.approx(spent, rel=1e-12)
