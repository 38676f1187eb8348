import pandas as pd
import pytest
import torch
import yaml
from jsonargparse import ArgumentParser
from lightning.pytorch import Callback
from lightning.pytorch.demos.boring_classes import BoringModel

from lightning_vfl import AsyncVFL, simulation
from lightning_vfl.aggregators import Mean
from lightning_vfl.callbacks import (
    Crashes,
    FaultInjector,
    PartyDropout,
    Stragglers,
    TraceRecorder,
    TraceReplay,
    VirtualTimeLimit,
)
from lightning_vfl.commands.recipes import with_full_paths
from lightning_vfl.configs import packaged
from lightning_vfl.errors import ConfigurationError
from lightning_vfl.simulation import Constant, Exponential
from tests.further import further
from tests.subjects import Blobs, split, trainer

FACTORIES = {
    "Stragglers": lambda folder: Stragglers(),
    "PartyDropout": lambda folder: PartyDropout(0.3, 0.1),
    "Crashes": lambda folder: Crashes("hosts", 0.3, 0.1),
    "TraceReplay": lambda folder: TraceReplay(str(folder / "trace.csv")),
    "FaultInjector": lambda folder: FaultInjector(simulation.Stragglers()),
}
every_injector = pytest.mark.parametrize("name", FACTORIES)


class Seen(Callback):
    """What stands in the module when the training starts, and what happens in it."""

    def on_train_start(self, trainer, pl_module):
        self.models = pl_module.faults.models

    def on_train_end(self, trainer, pl_module):
        self.outcomes = [pl_module.faults.at(t, pl_module.roster) for t in range(pl_module.requests_made())]
        self.weights = [p.detach().clone() for p in pl_module.parameters()]


def fit(folder, *callbacks, **settings):
    seen = Seen()
    module = split(**settings)
    trainer(folder, callbacks=[*callbacks, seen], max_epochs=1).fit(module, datamodule=Blobs(batch_size=10))
    return module, seen


@pytest.fixture
def folder(tmp_path):
    """With a faultless trace that is long enough."""
    requests = 40
    table = {"request": [t for t in range(requests) for _ in range(3)], "party": [0, 1, 2] * requests}
    pd.DataFrame({**table, "delay": 0.0, "up": 1, "down": 1}).to_csv(tmp_path / "trace.csv", index=False)
    return tmp_path


@every_injector
def test_the_model_is_there_during_the_training_and_gone_afterwards(name, folder):
    injector = FACTORIES[name](folder)
    module, seen = fit(folder, injector)
    assert seen.models == (injector.model,)
    assert module.faults.models == ()


@every_injector
def test_a_module_of_another_kind_is_refused(name, folder):
    with pytest.raises(
        ConfigurationError, match=f"{name} works only with a VFLModule; got BoringModel; .* leave the callback out"
    ):
        trainer(folder, callbacks=[FACTORIES[name](folder)]).fit(BoringModel())


@pytest.mark.parametrize("stage", ["validate", "test", "predict"])
def test_the_model_is_there_in_every_stage(stage, folder):
    crashes = Crashes("hosts", 0.3, 0.1)
    met = []

    class Look(Callback):
        def setup(self, trainer, pl_module, stage):
            met.append(pl_module.faults.models)

    run = trainer(folder, callbacks=[crashes, Look()])
    getattr(run, stage)(split(), datamodule=Blobs(batch_size=10), **({} if stage == "predict" else {"verbose": False}))
    assert met == [(crashes.model,)]


def test_two_of_a_kind_act_together_and_draw_apart(folder):
    both = [Crashes("hosts", 0.0, 0.0), Crashes("hosts", 0.5, 0.5), Crashes("hosts", 0.5, 0.5)]
    _, seen = fit(folder, *both)
    assert seen.models == tuple(crashes.model for crashes in both)
    alone = [fit(folder, *both[:n])[1] for n in (1, 2)]
    states = [[bool(outcome.hosts[0]) for outcome in met.outcomes] for met in (*alone, seen)]
    assert states[0] == [True] * len(states[0])
    assert all(not three or two for two, three in zip(states[1], states[2], strict=True))
    assert states[1] != states[2]


@pytest.mark.parametrize("file", ["deep/trace.csv", "trace.parquet"])
def test_a_recorded_training_is_replayed_to_the_bit(file, folder, capsys):
    path = str(folder / file)
    recorder = TraceRecorder(path)
    _, recorded = fit(folder, Stragglers(), PartyDropout(0.5, 0.4), recorder)
    assert f"trace of {len(recorded.outcomes)} requests: {path}" in capsys.readouterr().out
    _, replayed = fit(folder, TraceReplay(path))
    _, faultless = fit(folder)
    for a, b in zip(recorded.outcomes, replayed.outcomes, strict=True):
        assert all(torch.equal(x, y) for x, y in zip(vars(a).values(), vars(b).values(), strict=True))
    assert all(torch.equal(a, b) for a, b in zip(recorded.weights, replayed.weights, strict=True))
    assert not all(torch.equal(a, b) for a, b in zip(recorded.weights, faultless.weights, strict=True))


def test_the_end_of_a_trace_ends_the_training_with_one_line(folder):
    table = pd.read_csv(folder / "trace.csv")
    table[table["request"] < 4].to_csv(folder / "trace.csv", index=False)
    with pytest.raises(
        ConfigurationError, match=r"request 4 is past the end of .* requests 0 to 3 .*; record a longer trace"
    ):
        fit(folder, TraceReplay(str(folder / "trace.csv")))


def test_a_training_without_rounds_leaves_no_trace(folder):
    run = trainer(folder, callbacks=[TraceRecorder(str(folder / "none.csv"))], max_epochs=0)
    run.fit(split(), datamodule=Blobs(batch_size=10))
    assert not (folder / "none.csv").exists()


def test_recorders_refuse_what_they_cannot_write(folder):
    with pytest.raises(ConfigurationError, match="change the ending"):
        TraceRecorder("trace.txt")
    with pytest.raises(ConfigurationError, match="TraceRecorder works only with a VFLModule; got BoringModel"):
        trainer(folder, callbacks=[TraceRecorder()]).fit(BoringModel())


def built(trainer_part):
    """The callbacks of a recipe, as the command line makes them."""
    parser = ArgumentParser(exit_on_error=False)
    parser.add_argument("--callbacks", type=list[Callback])
    (callbacks,) = trainer_part.values()
    config = parser.parse_object({"callbacks": with_full_paths(callbacks)})
    return parser.instantiate_classes(config).callbacks


FAULTS = {
    "faults/fedvs_stragglers": [simulation.Stragglers()],
    "faults/fedvs_figure1": [simulation.Stragglers(0.6, Constant(0.1), Exponential(0.5))],
    "faults/vfedsec_dropout": [PartyDropout(0.3, 0.1).model],
    "faults/dvfl_guest_crashes": [simulation.Crashes("guests", 0.3, 0.1)],
    "faults/dvfl_host_crashes": [simulation.Crashes("hosts", 0.3, 0.1)],
    "faults/dvfl_connection_crashes": [simulation.Crashes("connections", 0.3, 0.1)],
    "faults/unreliable": [simulation.Stragglers(), simulation.Crashes("guests", 0.1, 0.3)],
}
PACES = ["faults/cvfl_slow_50", "faults/cvfl_slow_95"]  # settings of a protocol, no callbacks


@pytest.mark.parametrize("name", FAULTS)
def test_recipes_build_their_callbacks(name):
    recipe = yaml.safe_load(packaged()[name].read_text())
    assert [repr(injector.model) for injector in built(recipe["trainer"])] == [repr(model) for model in FAULTS[name]]


def test_no_recipe_of_faults_goes_untried():
    assert sorted([*FAULTS, *PACES]) == sorted(name for name in packaged() if name.startswith("faults/"))


def test_every_setting_of_stragglers_can_be_said_in_yaml():
    text = """
        callbacks+:
          - class_path: Stragglers
            init_args:
              parties: [2, 0]
              fast: {class_path: lightning_vfl.simulation.Uniform, init_args: {low: 0.0, high: 1.0}}
              delay_of:
                1: {class_path: lightning_vfl.simulation.LogNormal, init_args: {median: 0.5, sigma: 1.0}}
                2: {class_path: lightning_vfl.simulation.ComputeBound, init_args: {slowdown: 2.0}}
    """
    (injector,) = built(yaml.safe_load(text))
    assert injector.model.parties == [2, 0]
    assert repr(injector.model.fast) == "Uniform(low=0.0, high=1.0, step=0.0)"
    assert {party: repr(delay) for party, delay in injector.model.delay_of.items()} == {
        1: "LogNormal(median=0.5, sigma=1.0, step=0.0)",
        2: "ComputeBound(slowdown=2.0, step=0.0)",
    }


@pytest.mark.parametrize(
    "losses", [further([]), [PartyDropout(0.4, 0.4, announced=False)], further([Crashes("hosts", 0.2, 0.5)])]
)
def test_an_asynchronous_training_is_recorded_and_replayed_to_the_bit(folder, losses):
    path, weights = str(folder / "recorded.csv"), []
    for callbacks in ([Stragglers(), *losses, TraceRecorder(path)], [TraceReplay(path)]):
        torch.manual_seed(0)
        module = AsyncVFL(Mean(), width=5, seed=0)
        trainer(folder, callbacks=callbacks).fit(module, datamodule=Blobs(batch_size=10))
        weights.append([p.detach().clone() for p in module.parameters()])
    assert all(torch.equal(a, b) for a, b in zip(*weights, strict=True))


def test_a_synchronous_trace_is_replayed_without_waiting(folder):
    path = str(folder / "recorded.csv")
    fit(folder, Stragglers(), TraceRecorder(path))
    module = AsyncVFL(Mean(), width=5, seed=0)
    run = trainer(folder, callbacks=[TraceReplay(path), VirtualTimeLimit(0.2)], max_epochs=1)
    run.fit(module, datamodule=Blobs(batch_size=10))
    assert module.books.rounds["fit"] > 1


def test_a_time_limit_that_has_passed_trains_nothing_more(folder):
    module = split()
    for _ in range(2):
        callbacks = [Stragglers(), VirtualTimeLimit(0.5)]
        trainer(folder, callbacks=callbacks, max_epochs=5).fit(module, datamodule=Blobs(batch_size=10))
        rounds = module.books.rounds["fit"]
        assert module.clock.seconds >= 0.5
    assert rounds < 5 * 6
    assert module.books.rounds["fit"] == rounds
    with pytest.raises(ConfigurationError, match="VirtualTimeLimit works only with a VFLModule; got BoringModel"):
        trainer(folder, callbacks=[VirtualTimeLimit(1.0)]).fit(BoringModel())
