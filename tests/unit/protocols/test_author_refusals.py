"""Habits of authors that cannot work with a round of messages end in one line, and those that can work."""

import math
import sys
from abc import ABC
from functools import partial

import onnxruntime
import pytest
import torch
from lightning.fabric.utilities.exceptions import MisconfigurationException
from lightning.pytorch import Callback, LightningDataModule
from lightning.pytorch.callbacks import BaseFinetuning, ModelPruning
from lightning.pytorch.loggers import TensorBoardLogger
from lightning.pytorch.serve import ServableModule
from lightning.pytorch.tuner.tuning import Tuner
from torch.multiprocessing.spawn import ProcessRaisedException
from torch.utils.data import DataLoader, IterableDataset

from lightning_vfl import AsyncVFL, SplitVFL, VerticalBatch, VFLModule
from lightning_vfl.aggregators import Mean
from lightning_vfl.callbacks import PartyDropout, TrainMetrics
from lightning_vfl.cli import run
from lightning_vfl.downlinks import Marvell, guard
from lightning_vfl.errors import ConfigurationError
from lightning_vfl.federation.refusals import refuse_protocol
from lightning_vfl.missing import Skip
from lightning_vfl.protocols import Step
from lightning_vfl.types import Roll
from tests.exported import one_registry
from tests.further import further
from tests.subjects import Blobs, Values, split, trainer

SHAPES = {"party_shapes": [(3,), (3,), (2,)], "num_classes": 3}
without_validation = pytest.mark.filterwarnings("ignore:You defined a `validation_step` but have no")


def ready():
    data = Blobs(batch_size=9)
    data.setup("fit")
    return data


@pytest.mark.parametrize("strategy", ["ddp_spawn", "ddp_fork", "ddp_notebook"])
def test_the_command_line_refuses_them_before_it_starts_a_process(strategy):
    words = ["--trainer.accelerator=cpu", "--trainer.devices=2", f"--trainer.strategy={strategy}"]
    with pytest.raises(ConfigurationError, match=r"^strategy ddp_(spawn|fork) .+ use strategy: ddp in a script"):
        run(["fit", "--config=data/digits", "--config=protocol/mean", *words])


@pytest.mark.slow
def test_a_started_process_refuses_them_by_name(tmp_path):
    t = trainer(tmp_path, strategy="ddp_spawn", devices=2)
    with pytest.raises(ProcessRaisedException, match=r"ConfigurationError: strategy ddp_spawn"):
        t.fit(split(), Blobs(batch_size=9))


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
    with pytest.raises(MisconfigurationException, match="closure hasn't been executed"):
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


def test_the_stage_is_no_place_for_an_own_value():
    with pytest.raises(ConfigurationError, match=r"stage is the trainer's stage.+ keep 'fit' under another name"):
        split().stage = "fit"


@pytest.mark.parametrize(("name", "value"), [("val", 1.0), ("top", torch.nn.Linear(2, 2)), ("bottoms", [])])
def test_an_own_attribute_is_not_replaced_by_a_network(name, value):
    module = split(**SHAPES)
    setattr(module, name, value)
    with pytest.raises(ConfigurationError, match=rf"SplitVFL sets {name}, .+ use another name \(self.own_{name}\)"):
        module.configure_model()


def test_parties_have_numbers_not_names():
    with pytest.raises(ConfigurationError, match="bottom_of must be a dictionary from numbers or names of parties"):
        SplitVFL(Mean(), bottom_of=[torch.nn.Linear], **SHAPES)
    with pytest.raises(
        ConfigurationError, match="party 'billing', which does not exist; the parties have no names here"
    ):
        SplitVFL(Mean(), bottom_of={"billing": torch.nn.Linear}, **SHAPES).configure_model()
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
def test_a_batch_is_an_example_input_too(tmp_path):
    features = torch.randn(2, 3), torch.randn(2, 3), torch.randn(2, 2)
    batch = VerticalBatch(features, torch.tensor([0, 1]), torch.arange(2))
    module = split()
    module.example_input_array = batch
    logger = TensorBoardLogger(tmp_path, log_graph=True)
    trainer(tmp_path, max_epochs=1, enable_model_summary=True, logger=logger).fit(module, Blobs(batch_size=9))
    logger.log_graph(module, batch)
    module.eval()
    for example in (None, batch):
        traced = module.to_torchscript(method="trace", example_inputs=example)
        torch.testing.assert_close(traced(*features), module(batch))


@pytest.mark.filterwarnings("ignore")
def test_a_model_that_has_not_run_is_exported_to_onnx(tmp_path):
    Roll.everyone.cache_clear()
    module = split(**SHAPES)
    module.configure_model()
    features = torch.randn(4, 3), torch.randn(4, 3), torch.randn(4, 2)
    path = tmp_path / "model.onnx"
    with one_registry():
        module.eval().to_onnx(path, VerticalBatch(features, None, torch.arange(4)))
    session = onnxruntime.InferenceSession(path)
    inputs = {entry.name: own.numpy() for entry, own in zip(session.get_inputs(), features, strict=True)}
    torch.testing.assert_close(torch.from_numpy(session.run(None, inputs)[0]), module(features).detach())


@pytest.mark.filterwarnings("ignore")
def test_a_trace_predicts_and_a_script_is_refused():
    example = torch.randn(2, 3), torch.randn(2, 3), torch.randn(2, 2)
    module = split(**SHAPES).eval()
    module.configure_model()
    module.eval()
    traced = module.to_torchscript(method="trace", example_inputs=example)
    torch.testing.assert_close(traced(*example), module(example))
    for script in (module.to_torchscript, partial(torch.jit.script, module)):
        with pytest.raises(ConfigurationError, match=r"torch.jit.script cannot compile a round of messages"):
            script()


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
    with pytest.raises(ConfigurationError, match=r"trained with power 2.0 of Marvell, and this fit has 3.0"):
        guard.refuse_other_downlink(Marvell(3.0), kept)


class Frozen(BaseFinetuning):
    def freeze_before_training(self, module):
        self.freeze(module.bottoms)

    def finetune_function(self, module, epoch, optimizer):
        if epoch == 1:
            self.unfreeze_and_add_param_group(module.bottoms, optimizer)


class Reading(Callback):
    def setup(self, trainer, module, stage):
        self.weights = {name: value.clone() for name, value in module.state_dict().items()}


@pytest.mark.filterwarnings("ignore:The provided params to be frozen already exist")
def test_callbacks_find_the_networks_in_their_setup(tmp_path):
    read, module = Reading(), split()
    trainer(tmp_path, max_epochs=1, callbacks=[read, Frozen()]).fit(module, Blobs(batch_size=9))
    after = module.state_dict()
    changed = {name for name, value in read.weights.items() if not torch.equal(value, after[name])}
    assert any(name.startswith("top.") for name in changed)
    assert not any(name.startswith("bottoms.") for name in changed)


def batches(positions):
    records, ids = ready().records("train"), torch.tensor(positions)
    return VerticalBatch(records.rows(ids), records.labels[ids], ids)


class Loading(SplitVFL):
    """A module with a loader of its own, as Lightning allows."""

    def train_dataloader(self):
        return ready().train_dataloader()


def from_toolkit():
    return split(**SHAPES), {"train_dataloaders": ready().train_dataloader()}


def from_a_plain_datamodule():
    return split(**SHAPES), {"datamodule": Plain()}


def from_the_module():
    return Loading(Mean(), width=4, **SHAPES), {}


def from_torch():
    return split(**SHAPES), {"train_dataloaders": DataLoader(range(54), 9, shuffle=True, collate_fn=batches)}


@without_validation
@pytest.mark.filterwarnings("ignore:You requested to overfit")
@pytest.mark.parametrize("loaders", [from_toolkit, from_a_plain_datamodule, from_the_module, from_torch])
def test_overfit_batches_has_the_same_batches_wherever_the_loader_is_from(tmp_path, loaders):
    seen, (module, given) = [], loaders()

    class Seeing(Callback):
        def on_train_batch_start(self, trainer, module, batch, batch_idx):
            seen.append(batch.record_ids.tolist())

    t = trainer(tmp_path, max_epochs=2, overfit_batches=2, callbacks=[Seeing()])
    t.fit(module, **given)
    assert seen[:2] == seen[2:]
    t.fit(module, **given)  # a second fit of the trainer asks for the loader again
    given_loader = given.get("train_dataloaders")
    assert not hasattr(given_loader, "schedule") or not given_loader.schedule.same_every_epoch


@without_validation
@pytest.mark.parametrize("overfit", [0, 2])
def test_a_list_of_batches_is_no_loader(tmp_path, overfit):
    several = [batches(list(range(start, start + 9))) for start in range(0, 54, 9)]
    with pytest.raises(ConfigurationError, match=r"a list of batches.+ give DataLoader\(batches, batch_size=None\)"):
        trainer(tmp_path, overfit_batches=overfit).fit(split(**SHAPES), several)
    t = trainer(tmp_path, max_epochs=1)
    t.fit(split(**SHAPES), DataLoader(several, batch_size=None))
    assert t.global_step == 6


def saved(tmp_path, module, name="one.ckpt"):
    t = trainer(tmp_path, max_epochs=1)
    t.fit(module, Blobs(batch_size=9))
    t.save_checkpoint(tmp_path / name)
    return tmp_path / name


class Renamed(SplitVFL):
    pass


class Kept(SplitVFL):
    def parts(self):
        return {**super().parts(), "protocol": "SplitVFL"}


class Needing(torch.nn.Module):
    def __init__(self, width: int, outputs: int):
        super().__init__()
        self.layer = torch.nn.Linear(width, outputs)

    def forward(self, x):
        return self.layer(x)


@pytest.mark.filterwarnings("ignore:.*weights_only")
def test_the_line_about_another_checkpoint_names_what_helps(tmp_path, monkeypatch):
    path = saved(tmp_path, SplitVFL(Mean(), width=8))
    with pytest.raises(ConfigurationError, match="width is 8 there and 16 here: use the same width"):
        SplitVFL.load_from_checkpoint(path, width=16)
    with pytest.raises(ConfigurationError, match=r"if the class has only another name now, let its parts\(\) return"):
        Renamed.load_from_checkpoint(path)
    assert Kept.load_from_checkpoint(path).books.rounds["fit"] == 6
    path = saved(tmp_path, SplitVFL(Mean(), top=Needing, width=8))
    own = Needing.__module__
    assert isinstance(SplitVFL.load_from_checkpoint(path, trusted=[own]).top, Needing)
    monkeypatch.delattr(sys.modules[own], "Needing")
    with pytest.raises(ConfigurationError, match=r"there is no such class here; make the class available"):
        SplitVFL.load_from_checkpoint(path, trusted=[own])


def test_a_class_of_another_program_is_not_to_be_trusted_but_made_available(tmp_path, monkeypatch):
    path = saved(tmp_path, SplitVFL(Mean(), top=Needing, width=8))
    content = torch.load(path, weights_only=True)
    content["hyper_parameters"]["top"]["class_path"] = "__main__.Gone"
    torch.save(content, path)
    with pytest.raises(ConfigurationError, match=r"no such class here: another program has defined it"):
        SplitVFL.load_from_checkpoint(path)


class Wide(SplitVFL):
    def top_width(self):
        return 11


def test_an_own_width_of_the_top_must_be_that_of_its_input(tmp_path):
    with pytest.raises(ConfigurationError, match="top_width of Wide is 11, but Mean gives the top 4 numbers"):
        trainer(tmp_path).fit(Wide(Mean(), width=4), Blobs(batch_size=9))
    with pytest.raises(TypeError, match="sets top_width to 8, but top_width is a method"):
        type("Eight", (SplitVFL,), {"top_width": 8})


class Listening(Callback):
    def __init__(self):
        self.losses = []

    def on_train_batch_end(self, trainer, module, outputs, batch, batch_idx):
        self.losses.append(float(outputs["loss"]))


@pytest.mark.filterwarnings("ignore:The number of training batches")
def test_a_round_that_is_given_up_has_no_loss(tmp_path):
    listening, dropout = Listening(), PartyDropout(0.3, 0.3)
    module = split(missing=Skip())
    t = trainer(tmp_path, max_epochs=3, callbacks=[dropout, listening])
    t.fit(module, Blobs(batch_size=9))
    assert sum(map(math.isnan, listening.losses)) == module.books.given_up > 0
    assert min(loss for loss in listening.losses if not math.isnan(loss)) > 0
    found = Tuner(trainer(tmp_path, max_epochs=9, callbacks=[PartyDropout(0.3, 0.3)])).lr_find(
        split(missing=Skip()), Blobs(batch_size=9), num_training=30, early_stop_threshold=None
    )
    known = [loss for loss in found.results["loss"] if not math.isnan(loss)]
    assert len(known) > 15
    assert min(known) > 0.1


class Searched(SplitVFL):
    def __init__(self):
        super().__init__(Mean(), width=4)
        self.learning_rate = 0.1

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=self.learning_rate)


def test_a_search_finds_the_learning_rate_that_an_own_configure_optimizers_uses(tmp_path):
    module, t = Searched(), trainer(tmp_path, max_epochs=5)
    Tuner(t).lr_find(module, Blobs(batch_size=9), num_training=25, early_stop_threshold=None)
    assert module.learning_rate != 0.1
    t.fit(module, Blobs(batch_size=9))
    assert t.optimizers[0].param_groups[0]["lr"] == module.learning_rate


def test_a_seed_gives_the_same_weights_in_every_process_unless_torch_is_seeded(tmp_path):
    def weights(state, **settings):
        torch.set_rng_state(state)
        module = SplitVFL(Mean(), width=4, **SHAPES, **settings)
        module.configure_model()
        assert torch.equal(torch.get_rng_state(), state) == (torch.initial_seed() > 2**32 and "seed" in settings)
        return torch.cat([p.detach().flatten() for p in module.parameters()])

    kept = torch.get_rng_state()
    try:
        fresh = [torch.Generator().manual_seed(2**50 + n).get_state() for n in (1, 2)]  # as torch begins a process
        seeded = torch.Generator().manual_seed(5).get_state()
        assert torch.equal(*(weights(state, seed=1) for state in fresh))
        assert not torch.equal(weights(fresh[0], seed=1), weights(fresh[0], seed=2))
        assert torch.equal(weights(seeded, seed=1), weights(seeded, seed=2))
    finally:
        torch.set_rng_state(kept)


def test_a_federation_refuses_what_its_processes_would_not_call():
    class Other(SplitVFL):
        def output(self, batch, names):
            return super().output(batch, names) * 2

    class Head(SplitVFL):
        def head(self, value, columns=None):
            return super().head(value, columns) * 2

    refuse_protocol(Head)
    with pytest.raises(ConfigurationError, match="Other runs simulated only, because it overrides output"):
        refuse_protocol(Other)
    Head.step = lambda self, batch, names: None  # past the check of the class body
    with pytest.raises(ConfigurationError, match="Head runs simulated only, because it overrides step"):
        refuse_protocol(Head)


class AbstractFirst(ABC, torch.nn.Module):
    pass


class NetworkFirst(torch.nn.Module, ABC):
    pass


@pytest.mark.parametrize("mixin", [AbstractFirst, NetworkFirst, ServableModule])
@pytest.mark.parametrize("protocol", [SplitVFL, AsyncVFL, VFLModule])
def test_a_protocol_has_mixins_as_a_plain_module_has(protocol, mixin):
    kinds = [type("Mixed", bases, {}) for bases in ((protocol, mixin), (mixin, protocol))]
    assert all(issubclass(kind, mixin) and issubclass(kind, protocol) for kind in kinds)
    with pytest.raises(TypeError, match=r"abstract class VFLModule.*step"):
        VFLModule(Mean())


class OwnOutput(VFLModule):
    """It predicts from the mean of the embeddings, in a form of the test's own."""

    def __init__(self, form, **settings):
        super().__init__(Mean(), width=4, seed=0, **settings)
        self.form = form

    def output(self, batch, names):
        return self.form(self.output_in_the_clear(batch), batch)

    def step(self, batch, names):
        self.enter_round(batch, names)
        return Step(self.rank_loss(self.output(batch, names), batch))


FORMS = {
    "flat": lambda output, batch: output.mean(1),
    "deep": lambda output, batch: output.unsqueeze(1),
    "a row less": lambda output, batch: output[1:],
    "one row": lambda output, batch: output.mean(0, keepdim=True),
    "a column more": lambda output, batch: torch.cat([output, output[:, :1]], 1),
    "no tensor": lambda output, batch: output.tolist(),
}


@pytest.mark.parametrize("form", FORMS.values(), ids=FORMS)
@pytest.mark.parametrize("data", [further(Blobs), Values])
def test_an_output_of_another_shape_is_refused(tmp_path, form, data):
    """A mean squared error would broadcast one row to all."""
    with pytest.raises(ConfigurationError, match=r"OwnOutput is .+ for 9 records; return a tensor \(9, [13]\)"):
        trainer(tmp_path).fit(OwnOutput(form), datamodule=data(batch_size=9))
    right = OwnOutput(lambda output, batch: output)
    trainer(tmp_path, max_steps=2).fit(right, datamodule=data(batch_size=9))
    right.form = form
    with pytest.raises(ConfigurationError, match="output of OwnOutput is"):
        trainer(tmp_path).validate(right, datamodule=data(batch_size=9), verbose=False)


def test_an_evaluation_gives_the_output_no_labels(tmp_path):
    """What an output makes of the labels would score itself."""
    seen = []

    def noting(output, batch):
        seen.append(batch.labels is None)
        return output

    module, data, t = OwnOutput(noting), Blobs(batch_size=9), trainer(tmp_path, max_steps=2, callbacks=[TrainMetrics()])
    t.fit(module, datamodule=data)
    assert seen.count(False) == 2  # the rounds
    seen.clear()
    t.validate(module, datamodule=data, verbose=False)
    t.test(module, datamodule=data, verbose=False)
    t.predict(module, datamodule=data)
    module(next(iter(data.train_dataloader())))
    assert len(seen) > 6
    assert all(seen)
