"""The protocols keep the laws of protocols, and each law finds a protocol that breaks it."""

import pytest
import torch

from lightning_vfl import AsyncVFL, CascadeVFL, DecoupledVFL, SplitVFL, VFLModule
from lightning_vfl.aggregators import Mean
from lightning_vfl.protocols import Step, TaskSampling
from lightning_vfl.testing import LawBroken, check_protocol, protocol_laws

slow = pytest.mark.slow


@pytest.mark.parametrize(
    ("make", "epochs"),
    [
        pytest.param(lambda: SplitVFL(Mean(), width=5, seed=0), 2, id="SplitVFL"),
        pytest.param(
            lambda: SplitVFL(Mean(), width=5, seed=0, subsets=TaskSampling()), 2, id="TaskSampling", marks=slow
        ),
        pytest.param(lambda: AsyncVFL(Mean(), width=5, seed=0), 2, id="AsyncVFL", marks=slow),
        pytest.param(lambda: CascadeVFL(Mean(), width=5, seed=0), 2, id="CascadeVFL", marks=slow),
        pytest.param(
            lambda: DecoupledVFL(width=5, seed=0, guest_epochs=1, replay_epochs=1), 4, id="DecoupledVFL", marks=slow
        ),
    ],
)
def test_the_protocols_keep_all_laws(make, epochs):
    check_protocol(make, epochs=epochs)


class Split(SplitVFL):
    """A protocol with one fault."""

    def __init__(self, **settings):
        super().__init__(Mean(), width=5, **{"seed": 0} | settings)


class FrozenTop(Split):
    def wrong_step(self, batch, names):
        step = super().step(batch, names)
        step.withheld += (self.top,)
        return step


class KeepsLosses(Split):
    """Every loss keeps the graph of its step."""

    def __init__(self, **settings):
        super().__init__(**settings)
        self.recent = {"losses": []}

    def wrong_step(self, batch, names):
        step = super().step(batch, names)
        self.recent["losses"].append(step.loss)
        return step


class Logits(Split):
    def forward(self, features):
        return super().forward(features) * 3


class OfTheBatch(Split):
    """The prediction of a record depends on the others."""

    def head(self, value, columns=None):
        return super().head(value - value.mean(0), columns)


class Drawing(Split):
    """Every fit draws other numbers."""

    drawn = 0

    def wrong_step(self, batch, names):
        Drawing.drawn += 1
        step = super().step(batch, names)
        return Step(step.loss * (1 + 0.1 * Drawing.drawn), step.learners)


class Undeclared(Split):
    """State between rounds that no checkpoint keeps."""

    def __init__(self, **settings):
        super().__init__(**settings)
        self.weight = 1.0

    def wrong_step(self, batch, names):
        step, self.weight = super().step(batch, names), self.weight * 0.5
        return Step(step.loss * self.weight, step.learners)


class Uncounted(Split):
    def wrong_step(self, batch, names):
        return Step(self.rank_loss(self.output_in_the_clear(batch), batch))


class TrainsInTests(Split):
    def output(self, batch, names):
        with torch.no_grad():
            next(self.parameters()).add_(1.0)
        return super().output(batch, names)


class LearnsAway(Split):
    """A party that is away gets weight decay."""

    def wrong_step(self, batch, names):
        step = super().step(batch, names)
        with torch.no_grad():
            for parameter in self.bottoms.parties[1].parameters():
                parameter.mul_(0.9)
        return step


class Unsaved(Split):
    """Predictions depend on something that is in no checkpoint."""

    scale = 1.0

    def on_train_end(self):
        super().on_train_end()
        self.scale = 2.0

    def head(self, value, columns=None):
        return super().head(value * self.scale, columns)


for cls in (FrozenTop, KeepsLosses, Drawing, Undeclared, Uncounted, LearnsAway):
    setattr(cls, "step", cls.wrong_step)  # noqa: B010  # the step of SplitVFL is final: a class body with another one is refused

BROKEN = {
    "a fit changes the networks": FrozenTop,
    "a fit keeps no graph": KeepsLosses,
    "predictions fit the task": Logits,
    "a prediction does not depend on other records": OfTheBatch,
    "the same fit gives the same bits": Drawing,
    "a resumed fit is the uninterrupted fit": Undeclared,
    "every step is counted": Uncounted,
    "evaluation changes nothing": TrainsInTests,
    "a party that sends nothing learns nothing": LearnsAway,
    "a checkpoint restores the predictions": Unsaved,
}


@pytest.mark.parametrize("name", BROKEN)
def test_a_law_finds_who_breaks_it(name):
    (law,) = [law for law in protocol_laws(BROKEN[name]) if law.name == name]
    with pytest.raises(LawBroken) as error:
        law()
    said = str(error.value)
    assert said.startswith(f"{BROKEN[name].__name__} breaks the law '{name}': ")
    assert "\n" not in said


class Deaf(VFLModule):
    """It asks for the faults, and does not heed them."""

    def output(self, batch, names):
        return self.output_in_the_clear(batch)

    def step(self, batch, names):
        self.enter_round(batch, names)
        return Step(self.rank_loss(self.output(batch, names), batch))


class Unasking(Deaf):
    """It does not ask for the faults."""

    def step(self, batch, names):
        return Step(self.rank_loss(self.output(batch, names), batch))


@pytest.mark.parametrize(
    ("cls", "words"),
    [
        (Unasking, "the step of Unasking has not asked for the faults of its first round, so _Away would"),
        (Deaf, "of party 1, which sent nothing: .+ differ"),
    ],
)
def test_the_law_of_absence_fails_who_ignores_faults(cls, words):
    name = "a party that sends nothing learns nothing"
    (law,) = [law for law in protocol_laws(lambda: cls(Mean(), width=5, seed=0)) if law.name == name]
    with pytest.raises(LawBroken, match=words):
        law()


def test_every_law_has_a_breaker():
    assert [law.name for law in protocol_laws(Split)] == list(BROKEN)
