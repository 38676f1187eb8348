"""Which embeddings follow from the sums of a run, against enumeration; what is refused; what a party refuses."""

from functools import partial
from itertools import combinations, product

import pytest
import torch
from torch import nn

from lightning_vfl.aggregators import LagrangeCoded, LagrangeShared, MaskedSum, Mean, PoissonBinomial
from lightning_vfl.aggregators.secure.recovery import Recovery
from lightning_vfl.errors import ConfigurationError
from lightning_vfl.federation.sum_guard import SumGuard
from lightning_vfl.missing import Skip
from lightning_vfl.networks import MLP, PolynomialNetwork
from lightning_vfl.protocols.subsets import DropParties
from lightning_vfl.protocols.subtraction import SummedSets, in_words
from lightning_vfl.simulation import Crashes, PartyDropout, Stragglers
from lightning_vfl.types import Roster, Stage
from lightning_vfl.waiting import Deadline, Threshold, WaitForAll
from tests.subjects import Blobs, split, trainer

ALLOWED = {"allow_embeddings_by_subtraction": True}


def follows(sums, party):
    """Whether integer factors of small size combine the sums to this party's embedding alone, or to twice of it."""
    for factors in product(range(-2, 3), repeat=len(sums)):
        total = [sum(f for f, who in zip(factors, sums, strict=True) if m in who) for m in range(4)]
        if total.pop(party) in (1, 2) and not any(total):
            return True
    return False


def test_what_follows_is_what_small_factors_combine():
    sets = [who for count in (2, 3, 4) for who in combinations(range(4), count)]
    roster = Roster.singles(4)
    for family in combinations(sets, 3):
        summed = SummedSets()
        for who in family:
            summed.enter("fit", who, torch.tensor([5]))
        assert set(summed.exposed(roster)) == {(m,) for m in range(4) if follows(family, m)}, family


def test_records_are_counted_one_by_one_and_kept_in_a_checkpoint():
    summed, roster = SummedSets(), Roster.singles(3)
    summed.enter("fit", (0, 1, 2), torch.arange(100))
    summed.enter("validation", (0, 1), torch.arange(50))  # other records
    assert summed.exposed(roster) == {}
    summed.enter("fit", (0, 1), torch.arange(90, 186))
    again = SummedSets()
    again.load(summed.state())
    assert again.exposed(roster) == summed.exposed(roster) == {(2,): 10}
    again.enter("fit", (0, 1, 2), torch.arange(186))
    words = "party 2's embeddings of 96 records can be computed from sums with and without it"
    assert in_words(again.exposed(roster)).startswith(words)


def coded(**settings):
    return split(LagrangeCoded(blocks=1), bottom=PolynomialNetwork, **settings)


@pytest.mark.parametrize(
    ("make", "fault"),
    [
        (lambda **s: split(MaskedSum(clip=50), subsets=DropParties(0.3, by="round"), **s), None),
        (lambda **s: split(MaskedSum(clip=50), **s), PartyDropout(0.3, 0.3)),
        (
            lambda **s: split(MaskedSum(clip=50, recovery=Recovery(2)), waiting=WaitForAll(9.0), **s),
            Crashes("guests", 0.1, 0.5),
        ),
        (lambda **s: split(MaskedSum(clip=50, recovery=Recovery(2)), waiting=Deadline(1.0), **s), None),
        (lambda **s: split(LagrangeShared(), waiting=WaitForAll(9.0), **s), Crashes("guests", 0.1, 0.5)),
        (lambda **s: coded(waiting=Threshold(9.0), **s), PartyDropout(0.3, 0.3)),
    ],
)
def test_sums_that_vary_are_refused_and_accepted_by_name(make, fault, tmp_path):
    for settings, refused in (({}, True), (ALLOWED, False)):
        module = make(**settings)
        if fault is not None:
            module.faults.add(fault)
        fit = trainer(tmp_path, max_epochs=2)
        if refused:
            with pytest.raises(ConfigurationError, match="the sums of a record with and without a party differ"):
                fit.fit(module, datamodule=Blobs(batch_size=10))
            continue
        fit.fit(module, datamodule=Blobs(batch_size=10))
        told = "can be computed from sums with and without" in module.protection(1)
        assert told == bool(module.summed.exposed(module.roster))


@pytest.mark.parametrize(
    ("make", "fault"),
    [
        (lambda: split(MaskedSum(clip=50), missing=Skip()), PartyDropout(0.3, 0.3)),
        (lambda: split(MaskedSum("segments", clip=50), active=0), PartyDropout(0.3, 0.3)),
        (
            lambda: split(PoissonBinomial(), bottom=partial(MLP, hidden=[5], output_activation=nn.Tanh)),
            PartyDropout(0.3, 0.3),
        ),
        (lambda: split(MaskedSum(clip=50)), Stragglers()),
        (lambda: split(Mean()), PartyDropout(0.3, 0.3)),
    ],
)
def test_sums_that_do_not_vary_or_are_charged_are_no_reason_to_refuse(make, fault, tmp_path):
    module = make()
    module.faults.add(fault)
    trainer(tmp_path, max_epochs=2).fit(module, datamodule=Blobs(batch_size=10))
    assert module.summed.exposed(module.roster) == {}


def test_stragglers_of_fedvs_are_in_every_mean_and_make_no_difference(tmp_path):
    """The server goes on without the late answers; every sum is over all parties all the same."""
    module = split(LagrangeCoded(blocks=1, privacy=0), bottom=PolynomialNetwork, waiting=Threshold())
    module.faults.add(Stragglers(parties=[2]))
    late = []
    plan_round = module.plan_round
    module.plan_round = lambda *given: late.append(plan_round(*given)) or late[-1]
    trainer(tmp_path, max_epochs=2).fit(module, datamodule=Blobs(batch_size=10))
    assert not all(bool(plan.roll.responders.all()) for plan in late)
    assert all(bool(plan.roll.included.all()) for plan in late)
    assert module.summed.exposed(module.roster) == {}


# ---- what a party of a federation refuses


@pytest.fixture
def guarded(tmp_path):
    """A party's guard, a module whose training records it knows, and batches of ten records."""
    data = Blobs(batch_size=10)
    data.prepare_data()
    data.setup("fit")
    module = split(MaskedSum(clip=50, recovery=Recovery(2)))
    module.build_for(data)
    module.trainer = trainer(tmp_path)
    module.trainer.datamodule = data
    module.books.epoch_batches = 6
    return SumGuard(0), module, list(data.train_dataloader())


def test_a_party_ends_before_more_records_than_its_limit_are_given_away(guarded):
    """A server that leaves out party 2 after the first epoch, whatever gradients it sends."""
    guard, module, batches = guarded
    guard.limit = 25
    for batch in batches:
        guard.enter(module, Stage.FIT, (0, 1, 2), batch)
    with pytest.warns(UserWarning, match="party 2's embeddings of 10 records can be computed"):
        guard.enter(module, Stage.FIT, (0, 1), batches[0])
    guard.enter(module, Stage.FIT, (0, 1), batches[1])
    with pytest.raises(ConfigurationError, match=r"its limit is 25 records; .* raise subtractable_records"):
        guard.enter(module, Stage.FIT, (0, 1), batches[2])


@pytest.mark.parametrize("settings", [{}, ALLOWED])
def test_a_party_that_is_left_out_counts_it_and_has_a_limit_unless_the_recipe_has_none(guarded, settings):
    guard, module, batches = guarded
    module.allow_embeddings_by_subtraction = bool(settings)
    for batch in batches:
        guard.enter(module, Stage.FIT, (0, 1, 2), batch)
    if settings:
        with pytest.warns(UserWarning, match="party 0's embeddings of 10 records"):
            guard.pass_by(module, Stage.FIT, batches[0])
        assert module.summed.exposed(module.roster) == {(0,): 10}
        return
    with pytest.raises(ConfigurationError, match="its limit is 5 records"):  # a tenth of 54
        guard.pass_by(module, Stage.FIT, batches[0])


def test_an_epoch_of_zero_gradients_is_refused(guarded):
    guard, module, _ = guarded
    for _ in range(5):
        guard.refuse_zeros(module, [torch.zeros(10, 4)])
    guard.refuse_zeros(module, [torch.full((10, 4), 1e-30)])
    for _ in range(5):
        guard.refuse_zeros(module, [torch.zeros(10, 4)])
    with pytest.raises(ConfigurationError, match="only zero gradients for 6 rounds, a whole epoch"):
        guard.refuse_zeros(module, [torch.zeros(10, 4)])
