"""Habits of authors that cannot work with a round of messages end in one line, and those that can work."""

import pytest
import torch
from lightning.pytorch import LightningDataModule
from lightning.pytorch.callbacks import ModelPruning
from lightning.pytorch.tuner.tuning import Tuner
from torch.utils.data import DataLoader, IterableDataset

from lightning_vfl import SplitVFL, VerticalBatch
from lightning_vfl.aggregators import Mean
from lightning_vfl.downlinks import Marvell, guard
from lightning_vfl.errors import ConfigurationError
from lightning_vfl.protocols.checks import refuse_trainer
from tests.subjects import Blobs, split, trainer

SHAPES = {"party_shapes": [(3,), (3,), (2,)], "num_classes": 3}
without_validation = pytest.mark.filterwarnings("ignore:You defined a `validation_step` but have no")


def ready():
    data = Blobs(batch_size=9)
    data.setup("fit")
    return data


@pytest.mark.parametrize("strategy", ["ddp_spawn", "ddp_fork", "ddp_notebook"])
def test_strategies_that_train_in_copies_are_refused_by_name(tmp_path, strategy):
    t = trainer(tmp_path, strategy=strategy, devices=2)
    with pytest.raises(ConfigurationError, match=r"strategy ddp_(spawn|fork).+ use strategy: ddp in a script"):
        refuse_trainer(t, compiled=False)


class Two(Blobs):
    def val_dataloader(self):
        return [super().val_dataloader()] * 2

    def test_dataloader(self):
        return [super().test_dataloader()] * 2


def test_several_loaders_of_an_evaluation_are_refused(tmp_path):
    with pytest.raises(ConfigurationError, match=r"2 validation loaders were given.+ call trainer.validate"):
        trainer(tmp_path).fit(split(), Two(batch_size=9))
    with pytest.raises(ConfigurationError, match=r"2 test loaders were given.+ call trainer.test"):
        trainer(tmp_path).test(split(), Two(batch_size=9))


class Own(SplitVFL):
    optimizer_class = torch.optim.SGD

    def configure_optimizers(self):
        return self.optimizer_class(self.parameters(), lr=0.1)


def test_an_own_configure_optimizers_goes_round_no_refusal(tmp_path):
    pruning = ModelPruning("l1_unstructured", amount=0.3)
    with pytest.raises(ConfigurationError, match="ModelPruning compares the weights of different parties"):
        trainer(tmp_path, callbacks=[pruning]).fit(Own(Mean(), width=4), Blobs(batch_size=9))
    module = Own(Mean(), width=4)
    module.optimizer_class = torch.optim.LBFGS
    with pytest.raises(ConfigurationError, match="LBFGS computes several rounds in one step"):
        trainer(tmp_path).fit(module, Blobs(batch_size=9))
    assert not module.books.rounds.get("fit")


def test_what_an_own_configure_optimizers_leaves_out_is_refused(tmp_path):
    with pytest.raises(ConfigurationError, match="Own was given optimizer, but its own configure_optimizers makes"):
        trainer(tmp_path).fit(Own(Mean(), width=4, optimizer=torch.optim.Adam), Blobs(batch_size=9))
    module = Own(Mean(), width=4)
    module.lr = 0.025
    with pytest.warns(UserWarning, match=r"rate 0.025 in self.lr.+ trains at 0.1; use self.lr"):
        trainer(tmp_path).fit(module, Blobs(batch_size=9))
    module = Own(Mean(), width=4)
    t = trainer(tmp_path)
    Tuner(t).lr_find(module, Blobs(batch_size=9), num_training=5)  # the search itself sets rates of its own


class Deaf(torch.optim.SGD):
    def step(self, closure=None):
        return super().step()


def test_an_optimiser_that_ignores_its_closure_is_refused(tmp_path):
    module = Own(Mean(), width=4)
    module.optimizer_class = Deaf
    with pytest.raises(ConfigurationError, match="the step of Deaf does not call the closure"):
        trainer(tmp_path).fit(module, Blobs(batch_size=9))


class Stream(IterableDataset[int]):
    def __iter__(self):
        return iter(range(54))


@without_validation
def test_a_loader_without_length_trains(tmp_path):
    records = ready().records("train")

    def collate(positions):
        ids = torch.tensor(positions)
        return VerticalBatch(records.rows(ids), records.labels[ids], ids)

    module, t = split(**SHAPES), trainer(tmp_path, max_epochs=2)
    t.fit(module, DataLoader(Stream(), batch_size=9, collate_fn=collate))
    assert t.global_step == 12
    assert module.books.epoch_batches == 1


class Plain(LightningDataModule):
    """A data module of Lightning's whose loader gives vertical batches."""

    def train_dataloader(self):
        return ready().train_dataloader()


@without_validation
def test_a_plain_datamodule_of_vertical_batches_trains(tmp_path):
    t = trainer(tmp_path, max_epochs=1)
    t.fit(split(**SHAPES), datamodule=Plain())
    assert t.global_step == 6


def test_the_stage_is_no_place_for_an_own_value():
    with pytest.raises(ConfigurationError, match=r"stage is the trainer's stage.+ keep 'fit' under another name"):
        split().stage = "fit"


def test_parties_have_numbers_not_names():
    for wrong in ({"billing": torch.nn.Linear}, [torch.nn.Linear]):
        with pytest.raises(ConfigurationError, match="bottom_of must be a dictionary from party numbers"):
            SplitVFL(Mean(), bottom_of=wrong, **SHAPES)
    module = split(**SHAPES)
    module.configure_model()
    with pytest.raises(ConfigurationError, match="a tensor for each of 3 parties, in order of their numbers; got dict"):
        module({"operator": torch.zeros(2, 3)})


def test_example_inputs_are_a_tensor_for_each_party(tmp_path):
    example = torch.zeros(2, 3), torch.zeros(2, 3), torch.zeros(2, 2)
    module = split()
    module.example_input_array = example
    trainer(tmp_path, max_epochs=1, enable_model_summary=True).fit(module, Blobs(batch_size=9))
    module.eval()
    moved = module._apply_batch_transfer_handler(example)
    assert torch.equal(module(*moved), module(moved))


@pytest.mark.filterwarnings("ignore")
def test_a_trace_predicts_and_a_script_is_refused():
    example = torch.randn(2, 3), torch.randn(2, 3), torch.randn(2, 2)
    module = split(**SHAPES).eval()
    module.configure_model()
    module.eval()
    traced = module.to_torchscript(method="trace", example_inputs=example)
    torch.testing.assert_close(traced(*example), module(example))
    with pytest.raises(ConfigurationError, match=r"torch.jit.script cannot compile a round of messages"):
        module.to_torchscript()


def test_weights_build_the_networks_or_are_refused():
    made = split(**SHAPES)
    made.configure_model()
    other = split(**SHAPES)
    other.load_state_dict(made.state_dict(), strict=False)
    assert all(torch.equal(other.state_dict()[name], value) for name, value in made.state_dict().items())
    with pytest.raises(ConfigurationError, match="weights cannot be loaded before the networks are built"):
        split().load_state_dict(made.state_dict(), strict=False)


def test_a_loaded_module_takes_another_seed(tmp_path):
    t = trainer(tmp_path, max_epochs=1)
    t.fit(split(), Blobs(batch_size=9))
    t.save_checkpoint(tmp_path / "one.ckpt")
    assert SplitVFL.load_from_checkpoint(tmp_path / "one.ckpt", seed=7).seed == 7
    assert SplitVFL.load_from_checkpoint(tmp_path / "one.ckpt").seed == 0


def test_a_resumed_fit_keeps_the_settings_of_its_downlink():
    kept = {"title": "Marvell", "settings": guard.settings_of(Marvell(2.0))}
    guard.refuse_other_downlink(Marvell(power=2.0), kept)
    guard.refuse_other_downlink(Marvell(3.0), {"title": "Marvell"})  # an older checkpoint does not say
    with pytest.raises(ConfigurationError, match=r"trained with power 2.0 of Marvell, and this fit has 3.0"):
        guard.refuse_other_downlink(Marvell(3.0), kept)
