"""What a protocol of one's own was given and does not use, and who does not learn, is said after the first rounds."""

import pytest
import torch

from lightning_vfl import SplitVFL, VFLModule
from lightning_vfl.aggregators import Concat, MaskedSum, Mean
from lightning_vfl.callbacks import FaultInjector
from lightning_vfl.downlinks import RandomizedResponse
from lightning_vfl.errors import ConfigurationError
from lightning_vfl.missing import Skip
from lightning_vfl.protocols import Step
from lightning_vfl.protocols.books import Books
from lightning_vfl.protocols.round import RoundVFL
from lightning_vfl.simulation import PartyDropout
from lightning_vfl.simulation.clock import VirtualClock
from tests.subjects import Blobs, trainer


class InTheClear(VFLModule):
    """It knows no faults and runs no messages."""

    def output(self, batch, names):
        return self.output_in_the_clear(batch)

    def step(self, batch, names):
        return Step(self.rank_loss(self.output(batch, names), batch))


class RoundInTheClear(RoundVFL):
    def step(self, batch, names):
        return Step(self.rank_loss(self.output_in_the_clear(batch), batch))


class Unguarded(SplitVFL):
    def guard(self, value, batch, names):
        return value


def fit(folder, module, *callbacks, **settings):
    settings = {"max_epochs": 1} | settings
    t = trainer(folder, callbacks=list(callbacks), **settings)
    t.fit(module, Blobs(batch_size=6))
    return t


def test_faults_that_nobody_asks_for_are_an_error(tmp_path):
    faults = FaultInjector(PartyDropout(0.5, 0.5))
    with pytest.raises(ConfigurationError, match=r"step of InTheClear has not asked for the faults .+ so PartyDropout"):
        fit(tmp_path, InTheClear(Mean(), width=4, seed=0), faults)
    assert fit(tmp_path, SplitVFL(Mean(), width=4, seed=0), faults).global_step == 9


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: InTheClear(MaskedSum(), width=4, seed=0), "aggregator: MaskedSum of InTheClear had no part in its"),
        (lambda: RoundInTheClear(Mean(), missing=Skip(), width=4, seed=0), "missing: Skip of RoundInTheClear had no"),
    ],
    ids=["aggregator", "missing"],
)
def test_what_was_given_and_not_used_ends_the_first_round(tmp_path, make, words):
    module = make()
    with pytest.raises(ConfigurationError, match=words):
        fit(tmp_path, module)
    assert module.books.rounds["fit"] == 1


def test_a_downlink_that_changes_no_gradient_ends_the_first_round(tmp_path):
    t = trainer(tmp_path, max_epochs=1)
    with pytest.raises(
        ConfigurationError, match="downlink: RandomizedResponse of Unguarded had no part in its first round"
    ):
        t.fit(Unguarded(Mean(), width=4, seed=0, downlink=RandomizedResponse(1.0)), Blobs(batch_size=6))


def test_a_claim_is_of_the_rounds_in_which_its_part_ran():
    books = Books(VirtualClock())
    books.rounds["fit"], books.given_up = 7, 2
    assert books.claimed("aggregator", "hidden") == "none by the aggregator, which has run in no round"
    for _ in range(3):
        books.enter_part("aggregator")
    assert books.claimed("aggregator", "hidden") == (
        "none in 2 of 5 rounds, in which the aggregator has not run; in the others: hidden"
    )
    for _ in range(2):
        books.enter_part("aggregator")
    assert books.claimed("aggregator", "hidden") == "hidden"
    assert books.claimed("aggregator", None) is None


class ByHand(SplitVFL):
    """Lightning's manual optimisation, without a step."""

    def __init__(self, *arguments, **settings):
        super().__init__(*arguments, **settings)
        self.automatic_optimization = False


class Idle(torch.optim.SGD):
    """It runs the closure and changes nothing."""

    def step(self, closure=None):
        return closure()


class Lazy(SplitVFL):
    def configure_optimizers(self):
        return Idle(self.parameters(), lr=0.1)


@pytest.mark.parametrize("cls", [ByHand, Lazy])
def test_nobody_learns_is_an_error(tmp_path, cls):
    module = cls(Mean(), width=4, seed=0)
    with pytest.raises(ConfigurationError, match=f"no weight of {cls.__name__} has changed in the first 5 rounds"):
        fit(tmp_path, module)
    assert module.books.rounds["fit"] == 5


def test_it_is_said_at_the_end_of_a_shorter_fit(tmp_path):
    with pytest.raises(ConfigurationError, match="no weight of Lazy has changed in the first 2 rounds"):
        fit(tmp_path, Lazy(Mean(), width=4, seed=0), max_steps=2)


class Detached(InTheClear):
    """Party 1 gets no gradient."""

    def output(self, batch, names):
        h = list(self.bottoms(batch.features))
        h[1] = h[1].detach()
        return self.top(torch.cat(h, 1))


class PartOfThem(SplitVFL):
    def configure_optimizers(self):
        return torch.optim.SGD(self.bottoms.parameters(), lr=0.1)


@pytest.mark.parametrize(
    ("make", "who"),
    [
        (lambda: Detached(Concat(), width=4, seed=0), "the weights of party 1 have not changed in the first 5 rounds"),
        (lambda: PartOfThem(Mean(), width=4, seed=0), "the weights of the server have not changed in the first 5"),
    ],
    ids=["detached", "left out"],
)
def test_who_does_not_learn_is_named(tmp_path, make, who):
    with pytest.warns(UserWarning, match=who):
        fit(tmp_path, make())


def test_frozen_networks_are_not_named(tmp_path):
    module = SplitVFL(Mean(), width=4, seed=0)
    module.build_for(data := Blobs(batch_size=6))
    for parameter in module.bottoms.parties[1].parameters():
        parameter.requires_grad_(False)
    trainer(tmp_path, max_epochs=1).fit(module, data)
