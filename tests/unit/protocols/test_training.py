"""What holds around a step, whichever protocol it is of: copies, freed secrets, overrides, counts of one's own."""

import copy
import gc
import pickle
from dataclasses import make_dataclass
from functools import partial
from typing import Any

import pytest
import torch
from lightning.fabric.utilities.exceptions import MisconfigurationException
from lightning.pytorch import Callback

from lightning_vfl import AsyncVFL, CascadeVFL, DecoupledVFL, EnsembleVFL, LaserVFL, LocalVFL, OneShotVFL, SplitVFL
from lightning_vfl.aggregators import LagrangeCoded, MaskedSum, Mean
from lightning_vfl.aggregators.coded.blocks import Shares
from lightning_vfl.aggregators.secure.period_keys import Keys
from lightning_vfl.downlinks import MaxNorm
from lightning_vfl.errors import ConfigurationError
from lightning_vfl.missing import MissingPolicy, Skip, Stale
from lightning_vfl.networks import PolynomialNetwork
from lightning_vfl.protocols.books import Books
from lightning_vfl.protocols.build import take_untaken
from lightning_vfl.protocols.loading import BOOKS
from lightning_vfl.protocols.module import VFLModule
from lightning_vfl.protocols.step import Step
from lightning_vfl.simulation.clock import VirtualClock
from tests.further import few
from tests.subjects import Blobs, YesNo, trainer


class Thaws(Callback):
    """The bottoms are frozen until an epoch."""

    def __init__(self, thawed):
        self.thawed = thawed

    def on_train_epoch_start(self, trainer, pl_module):
        pl_module.bottoms.requires_grad_(trainer.current_epoch >= self.thawed)


MODULES = {
    "split": lambda: SplitVFL(Mean()),
    "masked": lambda: SplitVFL(MaskedSum()),
    "stale": lambda: SplitVFL(Mean(), missing=Stale()),
    "cascade": lambda: CascadeVFL(Mean()),
    "asynchronous": lambda: AsyncVFL(Mean()),
    "decoupled": lambda: DecoupledVFL(guest_epochs=1),
}


def fitted(folder, module, epochs=2):
    trainer(folder, max_epochs=epochs).fit(module, Blobs(batch_size=18))
    return module


@pytest.mark.parametrize("name", few(MODULES, "masked", "stale", "cascade"))
def test_a_trained_module_can_be_copied_and_trained_again(tmp_path, name):
    module = fitted(tmp_path, MODULES[name]())
    for other in (copy.deepcopy(module), pickle.loads(pickle.dumps(module))):
        own, same = module.state_dict(), other.state_dict()
        assert all(torch.equal(own[name], same[name]) for name in own)
        rounds = other.books.rounds["fit"]
        assert fitted(tmp_path, other).books.rounds["fit"] > rounds


@pytest.mark.parametrize(
    ("make", "secret"),
    [
        (lambda: SplitVFL(MaskedSum()), Keys),
        (lambda: SplitVFL(LagrangeCoded(), bottom=PolynomialNetwork), Shares),
    ],
    ids=["keys", "shares"],
)
def test_keys_and_shares_are_freed_after_the_fit(tmp_path, make, secret):
    of_others = [held for held in gc.get_objects() if isinstance(held, secret)]  # tests before this one
    module = fitted(tmp_path, make(), epochs=1)
    gc.collect()
    still = [held for held in gc.get_objects() if isinstance(held, secret)]
    assert [held for held in still if all(held is not other for other in of_others)] == []
    assert module.books.rounds["fit"]


def test_overrides_that_would_skip_the_step_are_refused():
    with pytest.raises(TypeError, match="Own overrides training_step, which calls step; implement step"):
        type("Own", (SplitVFL,), {"training_step": lambda self, *_: None})


@pytest.mark.parametrize(
    "protocol",
    [SplitVFL, CascadeVFL, AsyncVFL, DecoupledVFL, LaserVFL, EnsembleVFL, LocalVFL, OneShotVFL],
)
def test_the_step_of_a_finished_protocol_is_final(protocol):
    with pytest.raises(TypeError, match=f"Own overrides step of {protocol.__name__}.*derive from VFLModule"):
        type("Own", (protocol,), {"step": lambda self, batch, names: None})


def test_networks_without_an_owner_are_clipped_with_the_servers(tmp_path):
    class Own(SplitVFL):
        def build(self):
            super().build()
            self.extra = torch.nn.Linear(3, 2)

    module = Own(Mean(), width=4, party_shapes=[(2,), (3,)], num_classes=3)
    module.configure_model()
    for parameter in module.parameters():
        parameter.grad = torch.ones_like(parameter)
    module.trainer = trainer(tmp_path)
    module.configure_gradient_clipping(None, 0.5, "norm")
    server = [p.grad for network in (module.top, module.extra) for p in network.parameters()]
    assert torch.linalg.vector_norm(torch.cat([g.flatten() for g in server])) == pytest.approx(0.5)


def test_parties_without_gradients_are_left_out_of_clipping_by_value(tmp_path):
    """A party that is absent in a round has none, and torch refuses to clip nothing."""
    module = SplitVFL(Mean(), width=4, party_shapes=[(2,), (3,)], num_classes=3)
    module.configure_model()
    present = [*module.bottoms.parties[0].parameters(), *module.top.parameters()]
    for parameter in present:
        parameter.grad = torch.ones_like(parameter)
    module.trainer = trainer(tmp_path)
    module.configure_gradient_clipping(None, 0.5, "value")
    assert all((parameter.grad == 0.5).all() for parameter in present)
    assert all(parameter.grad is None for parameter in module.bottoms.parties[1].parameters())


class Clipping(SplitVFL):
    """Clips as Lightning's documentation shows, with the trainer's value or one of its own."""

    value: float | None = None
    algorithm: str | None = None

    def configure_gradient_clipping(self, optimizer, gradient_clip_val, gradient_clip_algorithm):
        self.clip_gradients(optimizer, self.value, self.algorithm)


def test_an_own_clipping_has_the_values_of_the_trainer(tmp_path):
    weights = []
    for kind in (SplitVFL, Clipping):
        torch.manual_seed(0)
        module = kind(Mean(), width=4, seed=0, optimizer=partial(torch.optim.SGD, lr=1.0))
        trainer(tmp_path, max_epochs=1, gradient_clip_val=1e-3).fit(module, Blobs(batch_size=9))
        weights.append(module.state_dict())
    assert all(torch.equal(a, b) for a, b in zip(weights[0].values(), weights[1].values(), strict=True))
    for module.value, module.algorithm, given in ((0.5, None, 1e-3), (None, "value", None)):
        with pytest.raises(MisconfigurationException, match="Please use only one of them"):
            trainer(tmp_path, gradient_clip_val=given, gradient_clip_algorithm="norm").fit(module, Blobs(batch_size=9))


def test_settings_are_those_of_the_beginning(tmp_path):
    class Noting(SplitVFL):
        def __init__(self, notes: list[Any]):
            super().__init__(Mean(), width=4)
            self.notes = notes

    notes: list[Any] = []
    module, t = Noting(notes), trainer(tmp_path, max_epochs=1)
    notes.append(module)  # which no checkpoint could hold
    t.fit(module, Blobs(batch_size=9))
    t.save_checkpoint(tmp_path / "noting.ckpt")
    assert torch.load(tmp_path / "noting.ckpt", weights_only=True)["hyper_parameters"]["notes"] == []


class Narrow(SplitVFL):
    def __init__(self, rate: float = 0.1):
        super().__init__(Mean(), width=4)


class Passing(Narrow):
    def __init__(self, extra: bool = True, **settings: Any):
        super().__init__(**settings)


class Open(SplitVFL):
    def __init__(self, extra: bool = True, **settings: Any):
        super().__init__(Mean(), **settings)


@pytest.mark.parametrize(("kind", "kept"), [(SplitVFL, True), (Narrow, False), (Passing, False), (Open, True)])
def test_the_settings_in_a_checkpoint_are_those_that_the_constructors_take(kind, kept):
    settings = {"seed": 0, "party_shapes": [[3]], "num_classes": 2, "party_groups": None}
    told = take_untaken(settings, kind)
    assert ("seed" in settings, "seed" in told) == (kept, not kept)
    assert len(settings) + len(told) == 4


def test_a_constructor_of_ones_own_trains_and_loads(tmp_path):
    class Own(SplitVFL):
        def __init__(self, alpha: float = 0.1):
            super().__init__(Mean(), width=5)
            self.alpha = alpha

    module, t = Own(0.3), trainer(tmp_path)
    t.fit(module, datamodule=Blobs(batch_size=9))
    t.save_checkpoint(tmp_path / "own.ckpt")
    loaded = Own.load_from_checkpoint(tmp_path / "own.ckpt")
    assert loaded.alpha == 0.3
    assert all(torch.equal(loaded.state_dict()[name], value) for name, value in module.state_dict().items())


def test_an_optimiser_of_one_s_own_refreshes_the_replicas(tmp_path):
    class Own(CascadeVFL):
        def configure_optimizers(self):
            return torch.optim.SGD(self.parameters(), lr=0.1)

    counts = fitted(tmp_path, Own(Mean())).counts
    assert all(version > 0 for version in counts.seen.values())


@pytest.mark.parametrize("wrap", [tuple, list, lambda both: (both, [])], ids=["tuple", "list", "with schedules"])
def test_two_optimisers_are_refused_in_one_line(tmp_path, wrap):
    class Own(SplitVFL):
        def configure_optimizers(self):
            networks = self.bottoms, self.top
            return wrap([torch.optim.SGD(network.parameters(), lr=0.1) for network in networks])

    module = Own(Mean(), width=4, seed=0)
    with pytest.raises(ConfigurationError, match="configure_optimizers of Own returns 2 optimisers, and a round makes"):
        trainer(tmp_path, max_epochs=1).fit(module, datamodule=Blobs(batch_size=9))
    assert "fit" not in module.books.rounds


def test_a_step_by_hand_learns_whatever_the_round_before_returned(tmp_path):
    class ByHand(VFLModule):
        moved = ()

        def step(self, batch, names):
            optimizer = self.optimizers()
            weight = next(self.top.parameters())
            before = weight.detach().clone()
            outcome = self.round(batch, names)
            optimizer.zero_grad()
            self.manual_backward(self.rank_loss(outcome.output, batch))
            optimizer.step()
            self.moved = (*self.moved, not torch.equal(before, weight))
            return Step(None)

    module = ByHand(Mean(), width=4, seed=0)
    module.automatic_optimization = False
    trainer(tmp_path, max_epochs=1).fit(module, datamodule=Blobs(batch_size=9))
    assert len(module.moved) > 2
    assert all(module.moved)


def test_counts_of_one_s_own_have_names_of_their_own(tmp_path):
    """No entry of a checkpoint takes the place of a field: every one is refused, whichever class of ours writes it."""
    names = set()
    for module in (SplitVFL(Mean(), downlink=MaxNorm()), SplitVFL(MaskedSum(), missing=Skip())):
        t = trainer(tmp_path, max_epochs=1)
        t.fit(module, YesNo(batch_size=18))
        t.save_checkpoint(tmp_path / "whole.ckpt")
        names |= torch.load(tmp_path / "whole.ckpt", weights_only=True)[BOOKS].keys()
    assert {"rounds", "memory", "downlink", "summed", "start"} <= names
    for name in names:
        counts = make_dataclass("Counts", [(name, int, 0)])
        with pytest.raises(ConfigurationError, match=f"Counts has a field {name}, a name that every checkpoint has"):
            Books(VirtualClock(), counts())


def test_a_clock_that_is_set_later_counts_everything(tmp_path):
    module = SplitVFL(Mean())
    module.clock = VirtualClock(latency=1.0)
    fitted(tmp_path, module, epochs=1)
    assert module.books.clock is module.clock
    assert module.standing()["clock/virtual_seconds"] >= 2 * module.books.rounds["fit"]


def test_bottoms_that_a_callback_thaws_take_the_time_of_their_backward_pass_from_then_on(tmp_path):
    """Two epochs take what an epoch with frozen bottoms and one in which they learn take alone."""

    def seconds(epochs, thawed):
        module, t = SplitVFL(Mean()), trainer(tmp_path, max_epochs=epochs, callbacks=[Thaws(thawed)])
        module.clock = VirtualClock(server_speed=1e6, speed=1e6)
        t.fit(module, datamodule=Blobs(batch_size=9))
        return module.standing()["clock/virtual_seconds"]

    frozen, learning = seconds(1, thawed=9), seconds(1, thawed=0)
    assert frozen < learning
    assert seconds(2, thawed=1) == pytest.approx(frozen + learning, rel=1e-9)


def test_a_policy_that_counts_the_missing_has_to_say_what_stands_in(tmp_path):
    class Counted(MissingPolicy):
        def plan(self, held, included):
            return held & ~included

    with pytest.raises(ConfigurationError, match="Counted counts missing parties and has no stand_in"):
        fitted(tmp_path, SplitVFL(Mean(), missing=Counted()))


def test_a_checkpoint_without_a_count_is_refused():
    state = Books(VirtualClock()).state()
    del state["left_out"]
    with pytest.raises(
        ConfigurationError, match="the checkpoint has no left_out: another version wrote it; train anew"
    ):
        Books(VirtualClock()).load(state)
