"""Pretraining is a plain loop of PyTorch on a party's own records, and a killed fit has the same bits."""

from copy import deepcopy
from functools import partial

import pytest
import torch
from lightning.pytorch import Callback
from torch import nn

from lightning_vfl import SplitVFL
from lightning_vfl.aggregators import LocalGaussian, Mean
from lightning_vfl.callbacks import Pretraining
from lightning_vfl.errors import ConfigurationError
from lightning_vfl.local_objectives import BarlowTwins, Reconstruction
from lightning_vfl.networks import MLP
from lightning_vfl.streams import seed_torch
from tests.further import further
from tests.subjects import Blobs, trainer

SMALL = partial(MLP, hidden=(6,))
DRAWING = partial(MLP, hidden=(6,), activation=nn.Dropout)
SHORT = {"epochs": 3, "batch_size": 16}


class Noting(Callback):
    """Keeps the bottoms as the joint training begins with them."""

    def on_fit_start(self, trainer, pl_module):
        self.initial = deepcopy(pl_module.bottoms.parties)

    def on_train_start(self, trainer, pl_module):
        self.pretrained = deepcopy(pl_module.bottoms.parties)
        self.seconds = pl_module.clock.seconds


class PartlyHeld(Blobs):
    partly_held = True


class Further(Blobs):
    """Party 1 has further records."""

    def extra_of(self, party):
        if party != 1:
            return None
        return torch.randn(20, *self.party_shapes[1], generator=torch.Generator().manual_seed(3))


def module_of(bottom=SMALL, **settings):
    torch.manual_seed(0)
    return SplitVFL(Mean(), bottom=bottom, width=5, seed=0, **settings)


def fitted(tmp_path, *callbacks, data=Blobs, module=None, **settings):
    module = module or module_of()
    trainer(tmp_path, callbacks=list(callbacks), **settings).fit(module, datamodule=data(batch_size=10))
    return module


def weights(networks):
    return torch.cat([tensor.flatten() for tensor in networks.state_dict().values()])


def plain(bottom, records, corruption, party, epochs=3, batch_size=16):
    """A denoising autoencoder in plain PyTorch, with the draws of torch's generator that the callback documents."""
    with torch.random.fork_rng():
        seed_torch(torch.device("cpu"), 0, "pretraining", "party", party)
        decoder = nn.Sequential(nn.Linear(5, 6), nn.ReLU(), nn.Linear(6, records.shape[1]))
        optimizer = torch.optim.Adam([*bottom.parameters(), *decoder.parameters()], lr=1e-3)
        for _ in range(epochs):
            order = torch.randperm(len(records))
            for start in range(0, len(records), batch_size):
                x = records[order[start : start + batch_size]]
                masked = x
                if corruption:
                    generator = torch.Generator().manual_seed(int(torch.randint(2**62, ())))
                    masked = x * (torch.rand(x.shape, generator=generator) >= corruption)
                optimizer.zero_grad()
                (decoder(bottom(masked)) - x).square().mean().backward()
                optimizer.step()
    return bottom


@pytest.mark.parametrize("corruption", [None, 0.3])
@pytest.mark.parametrize("data", [Blobs, Further, further(PartlyHeld)])
def test_it_is_a_plain_loop_on_the_own_records(tmp_path, data, corruption):
    noting = Noting()
    objective = Reconstruction(corruption=corruption)
    fitted(tmp_path, noting, Pretraining(objective, **SHORT), data=data)
    subject = data(batch_size=10)
    subject.setup("fit")
    train = subject.records("train")
    for party, (initial, found) in enumerate(zip(noting.initial, noting.pretrained, strict=True)):
        held = torch.arange(len(train)) if train.present is None else train.present[:, party].nonzero().flatten()
        own = train.rows(torch.arange(len(train)))[party][held]
        more = subject.extra_of(party)
        records = own if more is None else torch.cat([own, more])
        oracle = plain(initial, records, corruption, party)
        torch.testing.assert_close(weights(found), weights(oracle), rtol=1e-4, atol=1e-6)
        assert not torch.equal(weights(found), weights(module_of_first(party)))


def module_of_first(party):
    module = module_of()
    module.build_for(Blobs())
    return module.bottoms.parties[party]


def test_a_party_reads_no_records_of_others(tmp_path):
    class Changed(Blobs):
        def load(self, names):
            splits = super().load(names)
            for one in splits.values():
                one.features[:, 0] += torch.arange(len(one.features)) % 2  # a column of party 0
            return splits

    noting = [Noting(), Noting()]
    for note, data in zip(noting, (Blobs, Changed), strict=True):
        fitted(tmp_path, note, Pretraining(**SHORT), data=data)
    same = [
        torch.equal(weights(one), weights(other))
        for one, other in zip(noting[0].pretrained, noting[1].pretrained, strict=True)
    ]
    assert same == [False, True, True]


def test_virtual_time_is_that_of_the_slowest_party(tmp_path):
    noting, without = Noting(), Noting()
    fitted(tmp_path, noting, Pretraining(**SHORT), data=Further)
    fitted(tmp_path, without, data=Further)
    flops = []
    for party, width in enumerate((3, 3, 2)):
        records = 54 + 20 * (party == 1)
        bottom = 2 * (width * 6 + 6 * 5)
        forward = bottom + 2 * (5 * 6 + 6 * width)
        input_gradients = 2 * 6 * 5 + 2 * (5 * 6 + 6 * width)  # not of the bottom's first layer
        flops.append(3 * records * (forward + forward + input_gradients))
    assert noting.seconds == pytest.approx(max(flops) / 1e10)
    assert without.seconds == 0.0


class Killed(Reconstruction):
    """Fails in the middle of the second party."""

    made = 0

    def losses(self, *given):
        Killed.made += 1
        if Killed.made == 15:
            raise KeyboardInterrupt
        return super().losses(*given)


@pytest.mark.parametrize("bottom", [SMALL, further(DRAWING)])
def test_a_fit_that_is_killed_anywhere_has_the_same_bits(tmp_path, bottom):
    whole = fitted(tmp_path, Pretraining(Reconstruction(corruption=0.3), **SHORT), module=module_of(bottom))
    module = module_of(bottom)
    module.build_for(Blobs())
    initial = weights(module)
    Killed.made = 0
    with pytest.raises((KeyboardInterrupt, SystemExit)):
        fitted(tmp_path, Pretraining(Killed(corruption=0.3), **SHORT), module=module)
    assert torch.equal(weights(module), initial)  # what a checkpoint of an interrupted run has
    again = fitted(tmp_path, Pretraining(Reconstruction(corruption=0.3), **SHORT), module=module)
    assert torch.equal(weights(again), weights(whole))


@pytest.mark.parametrize("rounds", [0, 2])
def test_a_resumed_fit_does_not_pretrain_again(tmp_path, rounds):
    class Saving(Callback):
        def on_train_batch_start(self, trainer, pl_module, batch, batch_idx):
            if trainer.global_step == rounds:
                trainer.save_checkpoint(tmp_path / "cut.ckpt")

    whole = fitted(tmp_path, Pretraining(**SHORT), Saving())
    module = module_of()
    again = trainer(tmp_path, callbacks=[Pretraining(**SHORT)])
    again.fit(module, datamodule=Blobs(batch_size=10), ckpt_path=tmp_path / "cut.ckpt")
    assert torch.equal(weights(module), weights(whole))
    assert module.clock.seconds == whole.clock.seconds


def test_a_model_that_has_trained_is_left_alone(tmp_path):
    callback = Pretraining(**SHORT)
    module = fitted(tmp_path, callback)
    before = Noting()
    with pytest.warns(UserWarning, match="left out: these networks have trained for 12 rounds already"):
        fitted(tmp_path, before, callback, module=module)
    assert torch.equal(weights(before.initial), weights(before.pretrained))


def test_other_objectives_and_frozen_bottoms(tmp_path, told):
    noting = Noting()

    def frozen(shape, width):
        network = MLP(shape, width, hidden=(6,))
        return network.requires_grad_(False) if shape == (2,) else network

    with pytest.warns(UserWarning, match="Pretraining leaves out party '2', whose bottom is frozen"):
        fitted(tmp_path, noting, Pretraining(BarlowTwins((8, 8)), **SHORT), module=module_of(frozen))
    changed = [not torch.equal(weights(a), weights(b)) for a, b in zip(noting.initial, noting.pretrained, strict=True)]
    assert changed == [True, True, False]
    assert any("party '0' has learnt from 54 records of its own for 3 epochs, loss" in text for text in told)


def test_refusals(tmp_path):
    class Whole(Blobs):
        def setup(self, stage):
            super().setup(stage)
            records = self._records["train"]
            records.dtypes, records._other = ("int64", "", ""), {0: torch.int64}

    module = SplitVFL(LocalGaussian(), bottom=SMALL, width=5, seed=0)
    with pytest.raises(ConfigurationError, match="LocalGaussian accounts for the privacy of a record"):
        fitted(tmp_path, Pretraining(), module=module)
    with pytest.raises(ConfigurationError, match="objective must be a LocalObjective"):
        Pretraining(objective="auto")
    with pytest.raises(ConfigurationError, match="epochs must be"):
        Pretraining(epochs=0)
    with pytest.raises(ConfigurationError, match="mirror"):
        fitted(tmp_path, Pretraining(), module=module_of(lambda shape, width: nn.Linear(shape[0], width)))
    with pytest.raises(ConfigurationError, match=r"masks real numbers, and party '0' has torch\.int64"):
        fitted(tmp_path, Pretraining(), data=Whole)


def test_records_that_cannot_be_read_are_refused_before_any_party_is_pretrained(tmp_path, told):
    class Unreadable(Blobs):
        def extra_of(self, party):
            if party == 1:
                raise ConfigurationError("the file cannot be read")

    with pytest.raises(ConfigurationError, match="the file cannot be read"):
        fitted(tmp_path, Pretraining(**SHORT), data=Unreadable)
    assert not any("has learnt" in text for text in told)
