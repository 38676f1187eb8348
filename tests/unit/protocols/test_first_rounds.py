"""What a protocol of one's own was given and does not use, and who does not learn, is said after the first rounds."""

from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import replace
from functools import partial
from typing import Any

import pytest
import torch
from lightning.pytorch import Callback
from torch import nn

from lightning_vfl import AsyncVFL, CascadeVFL, DecoupledVFL, EnsembleVFL, LocalVFL, SplitVFL, VFLModule
from lightning_vfl.aggregators import Concat, MaskedSum, Mean
from lightning_vfl.callbacks import FaultInjector
from lightning_vfl.compressors import Compressor, TopK
from lightning_vfl.datamodules import ContiguousColumns, Groups
from lightning_vfl.downlinks import RandomizedResponse
from lightning_vfl.downlinks.base import GradientDownlink
from lightning_vfl.errors import ConfigurationError
from lightning_vfl.local_updates import LocalSteps, LocalUpdate
from lightning_vfl.missing import Skip, Stale, StandIn, Zeros
from lightning_vfl.objectives import MultiClass
from lightning_vfl.protocols import Step
from lightning_vfl.protocols.books import Books
from lightning_vfl.simulation import FaultModel, PartyDropout, RoundOutcome
from lightning_vfl.simulation.clock import VirtualClock
from lightning_vfl.waiting import WaitForAll, WaitingRule
from tests.further import further
from tests.subjects import Blobs, trainer


class Uncounted(VFLModule):
    """It knows no faults, runs no messages and counts nothing."""

    def output(self, batch, names):
        return self.output_in_the_clear(batch)

    def step(self, batch, names):
        return Step(self.rank_loss(self.output(batch, names), batch))


class InTheClear(Uncounted):
    """It counts seconds, as a protocol does that sends nothing."""

    def step(self, batch, names):
        self.clock.advance(1.0)
        return super().step(batch, names)


class RoundInTheClear(VFLModule):
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


@pytest.mark.parametrize(
    ("cls", "rounds", "words"),
    [(ByHand, 9, "and no step of an optimiser was made by hand"), (Lazy, 5, "the optimiser has made no step that")],
    ids=["by hand", "idle"],
)
def test_nobody_learns_is_an_error(tmp_path, cls, rounds, words):
    """An author who steps by hand may do so at the end of an epoch, here of 9 rounds."""
    module = cls(Mean(), width=4, seed=0)
    message = f"no weight of {cls.__name__} has changed in the first {rounds} rounds: .*{words}"
    with pytest.raises(ConfigurationError, match=message):
        fit(tmp_path, module, max_epochs=2)
    assert module.books.rounds["fit"] == rounds


@pytest.mark.parametrize("settings", [{}, {"max_steps": 2}], ids=["five rounds", "a shorter fit"])
def test_a_step_that_counts_no_bytes_and_no_seconds_is_told(tmp_path, settings):
    words = "Uncounted has counted no bytes and no virtual seconds in its first .+; call round.+or enter_round"
    with pytest.warns(UserWarning, match=words):
        t = fit(tmp_path, Uncounted(Mean(), width=4, seed=0), **settings)
    assert t.global_step == settings.get("max_steps", 9)


class WithoutLoss(RoundInTheClear):
    """It forgets to return its loss."""

    def step(self, batch, names):
        super().step(batch, names)
        return Step(None)


@pytest.mark.parametrize("rounds", [1, 9])
def test_a_fit_without_a_loss_is_told(tmp_path, rounds):
    words = rf"no weight of WithoutLoss has changed .+ \({rounds} rounds? given up\); return Step\(loss\) from step"
    with pytest.warns(UserWarning, match=words):
        fit(tmp_path, WithoutLoss(Mean(), width=4, seed=0), max_steps=rounds)


class Twice(VFLModule):
    """It enters its round itself, and again by ``round``."""

    def step(self, batch, names):
        self.enter_round(batch, names)
        outcome = self.round(batch, names)
        return outcome.learn(self.rank_loss(outcome.output, outcome.batch))


@pytest.mark.parametrize("aggregator", [Mean, MaskedSum])
def test_a_step_that_enters_its_round_twice_is_refused(tmp_path, aggregator):
    """Its bytes would be counted twice, and two uploads would have the same masks."""
    module = Twice(aggregator(), width=4, seed=0)
    with pytest.raises(
        ConfigurationError, match=r"step of Twice enters round 0 twice, .+ call round or enter_round once"
    ):
        fit(tmp_path, module)


class TwoRounds(VFLModule):
    """It learns from two rounds of the same records, whose networks draw."""

    def step(self, batch, names):
        outcome = self.round(batch, names)
        again = self.round(batch, self.next_round())
        self.alike = torch.equal(outcome.aggregate, again.aggregate)
        return outcome.learn(self.rank_loss(outcome.output + again.output, outcome.batch))


def test_two_rounds_of_a_step_draw_for_themselves(tmp_path):
    def drops(shape, width):
        return nn.Sequential(nn.Linear(shape[0], width), nn.Dropout())

    module = TwoRounds(Mean(), drops, width=4, seed=0)
    fit(tmp_path, module, max_steps=1)
    assert not module.alike


class Summed(VFLModule):
    """It counts its round, after the backward pass."""

    def step(self, batch, names):
        loss = self.rank_loss(self.output_in_the_clear(batch), batch)
        return Step(loss, before_optimizer=lambda _: self.enter_round(batch, names))


def test_what_is_counted_after_the_backward_pass_is_counted(tmp_path):
    module = Summed(Mean(), width=4, seed=0)
    fit(tmp_path, module)
    assert module.books.meter.total("up").all()


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


# ---- who rightly does not change, or changes later, is not named: warnings are errors here


class Away(FaultModel):
    """Party 1 is away in the first five rounds or events."""

    def sample(self, request, roster, seed):
        there = torch.arange(roster.parties) != (1 if request < 10 else -1)
        return replace(RoundOutcome.nothing(roster), announced=there)


class Asking(InTheClear):
    """It asks for the faults, and leaves out who is away without saying so in its Step."""

    def step(self, batch, names):
        plan = self.enter_round(batch, names)
        h = self.bottoms.some(batch.features, plan.roll.included_parties)
        joined = [h[m] if m in h else batch.features[m].new_zeros(len(batch.record_ids), 4) for m in range(3)]
        return Step(self.rank_loss(self.top(torch.cat(joined, 1)), batch))


class Begins(FaultModel):
    """Party 1 is there in the first round alone."""

    def sample(self, request, roster, seed):
        there = torch.arange(roster.parties) != (1 if 0 < request < 10 else -1)
        return replace(RoundOutcome.nothing(roster), announced=there)


class BeginsWithoutLoss(Asking):
    """It gives up its first round, after the uploads."""

    def step(self, batch, names):
        step = super().step(batch, names)
        return Step(None) if names.round == 0 else step


class Ignored(InTheClear):
    """The gradient of party 1 is zero."""

    def output(self, batch, names):
        h = self.bottoms(batch.features)
        return self.top(torch.cat([h[0], h[1] * 0, h[2]], 1))


class Locally(InTheClear):
    """Parties take three local steps in a round, with optimisers of their own; the joint loss trains the server."""

    def step(self, batch, names):
        self.clock.advance(3.0)
        for bottom, x in zip(self.bottoms.parties, batch.features, strict=True):
            local = torch.optim.SGD(bottom.parameters(), lr=0.1)
            for _ in range(3):
                local.zero_grad()
                bottom(x).square().mean().backward()
                local.step()
        h = [h.detach() for h in self.bottoms(batch.features)]
        return Step(self.rank_loss(self.top(torch.cat(h, 1)), batch))


class Accumulating(InTheClear):
    """It steps by hand, the server in every round and the bottoms in every seventh."""

    def __init__(self, *arguments, **settings):
        super().__init__(*arguments, **settings)
        self.automatic_optimization = False

    def configure_optimizers(self):
        return torch.optim.SGD(self.bottoms.parameters(), lr=0.1), torch.optim.SGD(self.top.parameters(), lr=0.1)

    def step(self, batch, names):
        step = super().step(batch, names)
        self.manual_backward(step.loss)
        bottoms, top = self.optimizers()
        for optimizer in (top, bottoms) if names.round % 7 == 6 else (top,):
            optimizer.step()
            optimizer.zero_grad()
        return step


class Freezing(Callback):
    """It freezes a bottom at the first epoch."""

    def on_train_epoch_start(self, trainer, module):
        module.bottoms.parties[1].requires_grad_(False)


def dead(shape, width):
    """A bottom whose outputs are all below zero and cut there."""
    layer = nn.Linear(shape[0], width)
    nn.init.constant_(layer.bias, -100.0)
    return nn.Sequential(layer, nn.ReLU())


def frozen(shape, width):
    return nn.Linear(shape[0], width).requires_grad_(False)


def rising(start, optimizer):
    return torch.optim.lr_scheduler.LinearLR(optimizer, start, total_iters=3)


SPLIT, CASCADE = partial(SplitVFL, Mean(), width=4, seed=0), partial(CascadeVFL, Mean(), width=4, seed=0)
DECOUPLED = partial(DecoupledVFL, width=4, host_width=3, hosts=2, seed=0)
OWN: dict[str, Any] = {"width": 4, "seed": 0}
RIGHTLY_STILL: dict[str, Callable[[], VFLModule]] = {
    "frozen bottom": lambda: SPLIT(bottom_of={1: frozen}),
    "frozen later": SPLIT,
    "rate zero": lambda: SPLIT(optimizer=partial(torch.optim.Adam, lr=0.0, fused=True)),
    "rate zero, SGD": lambda: SPLIT(optimizer=partial(torch.optim.SGD, lr=0.0)),
    "warm-up from nearly zero": lambda: SPLIT(lr_scheduler=partial(rising, 1e-9)),
    "warm-up from zero": lambda: SPLIT(lr_scheduler=partial(torch.optim.lr_scheduler.LambdaLR, lr_lambda=float)),
    "dead": lambda: SPLIT(bottom_of={1: dead}),
    "all dead": lambda: SPLIT(dead),
    "away": SPLIT,
    "away, own protocol": lambda: Asking(Concat(), **OWN),
    "away after a round without a loss": lambda: BeginsWithoutLoss(Concat(), **OWN),
    "away, asynchronous": lambda: AsyncVFL(Mean(), **OWN),
    "gradient zero": lambda: Ignored(Concat(), **OWN),
    "local steps": lambda: Locally(Concat(), **OWN),
    "steps by hand": lambda: Accumulating(Concat(), **OWN),
    "groups": lambda: SPLIT(allow_invertible_updates=True),
    "ensemble": lambda: EnsembleVFL(**OWN),
    "one alone": lambda: LocalVFL(**OWN),
    **{f"cascade, {variant}": partial(CASCADE, variant=variant) for variant in ("async", "sync", "centralized")},
    "cascade, single": lambda: CASCADE(variant="single", alone=1),
    "cascade, away": lambda: CASCADE(slower={1: 0.5}, q=2.0),
    "decoupled": lambda: DECOUPLED(guest_epochs=1),
    "decoupled, away": lambda: DECOUPLED(guest_epochs=2, communicate_every=2),
}


STILL_ELSEWHERE = {  # each beside a quick case of the same reason
    "rate zero",
    "warm-up from nearly zero",
    "all dead",
    "away",
    "away, own protocol",
    "steps by hand",
    "ensemble",
    "cascade, async",
    "cascade, centralized",
    "cascade, single",
    "decoupled",
}


@pytest.mark.parametrize("name", [further(n) if n in STILL_ELSEWHERE else n for n in RIGHTLY_STILL])
def test_who_rightly_does_not_change_is_not_named(tmp_path, name):
    fault = Begins() if "without a loss" in name else Away()
    callbacks = ([FaultInjector(fault)] if "away" in name else []) + ([Freezing()] if name == "frozen later" else [])
    data = Blobs(Groups(ContiguousColumns(2), [1, 2]) if name == "groups" else None, batch_size=6)
    module = RIGHTLY_STILL[name]()
    trainer(tmp_path, max_epochs=3, callbacks=callbacks).fit(module, data)
    assert module.books.rounds["fit"] > 5
    assert module._movement is None


class Counting(LocalUpdate):
    """Learns from all rounds but every fifth; it counts them itself."""

    def __init__(self):
        self.rounds = 0

    def learn(self, party, bottom, features, gradient, optimizer):
        self.rounds += 1
        if self.rounds % 5:
            optimizer.step()

    def flops(self, party, bottom):
        return 0.0


class Scaled(Compressor):
    """Half numbers after a scale: a running one, or that of the first message."""

    def __init__(self, runs):
        self.runs = runs
        self.scale = None

    def encode(self, h):
        if self.scale is None or self.runs:
            self.scale = float(h.abs().max()) + 1
        return ((h / self.scale).half(),)

    def decode(self, tensors, width):
        return tensors[0].float() * self.scale


class Remembers(nn.Module):
    """A bottom that keeps a number of its rounds: a plain one, or a buffer."""

    def __init__(self, kind, shape, width):
        super().__init__()
        self.layer = nn.Linear(shape[0], width)
        self.kind = kind
        self.rounds = 0 if kind == "plain" else None
        self.register_buffer("count", torch.zeros(()), persistent=kind == "saved")

    def forward(self, x):
        if self.training and self.kind == "plain":
            self.rounds += 1
        elif self.training:
            self.count += 1
        return self.layer(x) * (1 + (self.rounds or 0) + self.count)


class Slower(FaultModel):
    """Party 0 is late, by more every time; the first request is always alike."""

    def __init__(self):
        self.asked = 0

    def sample(self, request, roster, seed):
        self.asked += 1
        nothing = RoundOutcome.nothing(roster)
        return replace(nothing, delay=nothing.delay + (self.asked if request > 8 else 0))


class Patient(WaitingRule):
    """It waits for all, and counts how often."""

    patience = None

    def __init__(self):
        self.closed = 0

    def close(self, arrivals, needed=1):
        self.closed += 1
        return WaitForAll().close(arrivals, needed)

    def fewest(self, parties, needed=1):
        return parties


class RunningMean(Zeros):
    """Fills in the running mean of a party's embeddings."""

    def __init__(self):
        self.stand_in = MeanSoFar()


class MeanSoFar(StandIn):
    def __init__(self):
        self.mean = 0.0

    def fill(self, message, view):
        self.mean = 0.9 * self.mean + 0.1 * float(message.pieces[0].detach().mean())
        return message


class Rescaled(GradientDownlink):
    """Gradients in units of the largest so far, which it may put into checkpoints."""

    def __init__(self):
        self.largest = 0.0

    def protect(self, grad, labels, names, first):
        self.largest += float(grad.abs().max())
        return grad / self.largest

    def claim(self):
        return "nothing"


class RescaledAndSaved(Rescaled):
    def state(self):
        return {"largest": self.largest}

    def load(self, state):
        self.largest = state["largest"]


class Smoothed(VFLModule):
    """Its loss has a running mean of losses in it."""

    def __init__(self, *arguments, **settings):
        super().__init__(*arguments, **settings)
        self.mean = 0.0

    def step(self, batch, names):
        outcome = self.round(batch, names)
        loss = self.rank_loss(outcome.output, batch)
        self.mean = 0.9 * self.mean + 0.1 * float(loss.detach())
        return outcome.learn(loss / self.mean)


class Weighted(MultiClass):
    """Losses in units of the first, and then of the last."""

    def loss(self, output, labels):
        loss = super().loss(output, labels)
        self.scale, scale = float(loss.detach()), getattr(self, "scale", 1.0)
        return loss / scale


class Elsewhere(nn.Module):
    """A bottom whose state is in checkpoints, or computed again: nothing is to be told."""

    def __init__(self, shape, width):
        super().__init__()
        self.layer = nn.Linear(shape[0], width)
        self.layers = {"first": self.layer, "weights": (self.layer.weight,)}
        self.history = []
        self.scaled = None

    def forward(self, x):
        self.history.append(float(x.mean()))
        self.scaled = self.layer.weight * 2
        return nn.functional.linear(x, self.scaled, self.layer.bias)


class Extra(Remembers):
    """Its plain number is in checkpoints by torch's own way."""

    def get_extra_state(self):
        return {"rounds": self.rounds}

    def set_extra_state(self, state):
        self.rounds = state["rounds"]


class SmoothedAndSaved(Smoothed):
    def on_save_checkpoint(self, checkpoint):
        checkpoint["mean"] = self.mean

    def on_load_checkpoint(self, checkpoint):
        self.mean = checkpoint["mean"]


TOLD = "changes from round to round, and no checkpoint has it"


@pytest.mark.parametrize(
    ("make", "told"),
    [
        (partial(SPLIT, local_update=Counting()), "Counting.rounds"),
        (partial(SPLIT, compressor=Scaled(True)), "Scaled.scale"),
        (partial(SPLIT, compressor=Scaled(False)), None),
        (partial(SPLIT, local_update=LocalSteps(2), compressor=TopK(2, feedback=True)), None),
        (partial(SPLIT, partial(Remembers, "plain")), "Remembers.rounds"),
        (partial(SPLIT, partial(Remembers, "lost")), "Remembers.count"),
        (partial(SPLIT, partial(Remembers, "saved")), None),
        (partial(SPLIT, waiting=Patient()), "Patient.closed"),
        (partial(SPLIT, missing=RunningMean()), "MeanSoFar.mean"),
        (partial(SPLIT, missing=Stale()), None),
        (partial(SPLIT, downlink=Rescaled()), "Rescaled.largest"),
        (partial(SPLIT, downlink=RescaledAndSaved()), None),
        (partial(SPLIT, objective=Weighted()), "Weighted.scale"),
        (partial(Smoothed, Mean(), **OWN), "Smoothed.mean"),
        (partial(SPLIT, Elsewhere), None),
        (partial(SPLIT, partial(Extra, "plain")), None),
        (partial(SmoothedAndSaved, Mean(), **OWN), None),
        (SPLIT, "Slower.asked"),
    ],
)
def test_what_an_own_class_keeps_between_rounds_is_told(tmp_path, make, told):
    module = make()
    absences = PartyDropout(0.5, 0.5)
    fault = {"Patient.closed": absences, "MeanSoFar.mean": absences, "Slower.asked": Slower()}.get(told)
    with nullcontext() if told is None else pytest.warns(UserWarning, match=f"{told} {TOLD}"):  # others are errors
        fit(tmp_path, module, *([FaultInjector(fault)] if fault else []))
