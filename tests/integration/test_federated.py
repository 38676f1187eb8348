"""A federation of processes, over TLS, has the weights, the optimiser states and the books of the simulation."""

from dataclasses import replace

import pytest
import torch

from tests.integration.injected import DIGITS, federated, simulated

SHORT = ("--trainer.max_epochs", "1", "--trainer.limit_train_batches", "10", "--trainer.limit_val_batches", "2")
PARTLY = ("--data.partitioner", "LimitedOverlap", "--data.partitioner.aligned", "800")
LATE = ("--model.waiting", "Deadline", "--model.waiting.seconds", "0.3")
VARYING = ("--model.allow_embeddings_by_subtraction", "true")
MASKED = ("--model.aggregator", "MaskedSum", "--model.aggregator.clip", "4.0", "--model.aggregator.rekey_every", "3")
RECIPES = {
    "mean": ("--config", "protocol/mean", "--config", "policy/stale"),
    "concat": ("--config", "protocol/concat", "--config", "policy/zeros"),
    "sum": ("--config", "protocol/sum", "--config", "policy/buffer"),
    "max": ("--config", "protocol/max", *LATE),
    "vfedsec": ("--config", "protocol/vfedsec", "--model.aggregator.rekey_every", "3"),
    "neighbours": (
        *("--config", "protocol/mean", *MASKED, "--model.aggregator.neighbours.colluders", "0.1"),
        *("--model.aggregator.neighbours.smallest", "3", *VARYING),
    ),
    "recovery": ("--config", "protocol/mean", *MASKED, "--model.aggregator.recovery", "auto", *LATE, *VARYING),
    "pbm": (
        *("--config", "protocol/pbm", "--model.aggregator.draws", "seeded"),
        *("--model.aggregator.inner.recovery", "auto", *LATE),
    ),
    "guarded": (
        *("--config", "protocol/mean", "--model.downlink", "GaussianGradients", "--model.downlink.clip", "1.0"),
        *("--model.downlink.sigma", "0.5", "--model.downlink.draws", "seeded", *LATE),
    ),
    "response": (
        *("--config", "protocol/vfedsec", "--model.downlink", "RandomizedResponse", "--model.downlink.epsilon", "2.0"),
        *("--model.downlink.draws", "seeded"),
    ),
    "fedvs": ("--config", "protocol/fedvs", "--model.waiting.timeout", "1.0", *VARYING),
    "lagrange_shared": ("--config", "protocol/lagrange_shared", *LATE, *VARYING),
    "drop_parties": ("--config", "protocol/drop_parties", *LATE),
    "task_sampling": ("--config", "protocol/task_sampling", "--model.subsets.each_size", "disjoint", *LATE),
    "wait_dp": ("--config", "protocol/wait_dp", "--model.aggregator.draws", "seeded", *LATE),
}
FAULTS = (
    "dvfl_connection_crashes",
    "dvfl_guest_crashes",
    "dvfl_host_crashes",
    "fedvs_figure1",
    "fedvs_stragglers",
    "unreliable",
    "vfedsec_dropout",
)
SILENT = ("dvfl_connection_crashes", "dvfl_guest_crashes", "unreliable")  # refused where one lost upload loses the sum
CASES = [
    (name, faults) for name in RECIPES for faults in (None, *FAULTS) if not (name == "neighbours" and faults in SILENT)
]


@pytest.mark.processes
def test_a_federation_is_the_simulation_to_the_last_bit(tmp_path):
    recipe = (*DIGITS, "--config", "protocol/concat", "--data.partitioner.parties", "2")
    recipe += ("--trainer.max_epochs", "1", "--trainer.limit_train_batches", "5", "--trainer.limit_val_batches", "2")
    one, two = simulated(tmp_path, *recipe), federated(tmp_path, *recipe, parties=2)
    assert len(one.weights) == len(one.moments) == 12
    assert one.differences(two) == []
    assert one.metrics["val/loss"]
    assert two.books["meter"]["up/embeddings"].tolist() == [5 * 32 * 64 * 4] * 2


def under(faults):
    """The arguments of a recipe of faults."""
    return () if faults is None else ("--config", f"faults/{faults}")


@pytest.mark.slow
@pytest.mark.processes
@pytest.mark.parametrize(("name", "faults"), CASES)
def test_injected_faults_are_those_of_the_simulation(tmp_path, name, faults):
    recipe = (*DIGITS, *RECIPES[name], *SHORT, *under(faults))
    one = simulated(tmp_path, *recipe)
    assert one.books["rounds"]["fit"] == 10
    assert one.differences(federated(tmp_path, *recipe)) == []


RING = (  # each of six has four neighbours, and one may be lost
    *RECIPES["recovery"],
    *("--model.aggregator.neighbours.colluders", "0.1", "--model.aggregator.neighbours.dropouts", "0.1"),
    *("--model.aggregator.neighbours.failure", "0", "--model.aggregator.neighbours.smallest", "3"),
)
ASYNCHRONOUS = (
    *("--config", "protocol/vafl", "--model.noise", "0.1", "--trainer.max_epochs", "2"),
    *("--model.bottom.activation", "torch.nn.Dropout", "--model.top.activation", "torch.nn.Dropout"),
    *("--model.local_update", "LocalSteps", "--model.local_update.steps", "2"),
)
COMPRESSED = (
    *("--model.compressor", "TopK", "--model.compressor.k", "8", "--model.compressor.feedback", "true"),
    *("--model.gradient_compressor", "Quantise", "--model.gradient_compressor.bits", "4"),
    *("--model.gradient_compressor.feedback", "true", "--trainer.max_epochs", "2"),
)
HEADS = {
    "ensemble": (),
    "laser": (),
    "laser with the maximum": ("--model.aggregator", "Max", *PARTLY),
    "laser with dropout": (
        *("--model.bottom.activation", "torch.nn.Dropout"),
        *("--model.top", "MLP", "--model.top.activation", "torch.nn.Dropout", "--trainer.gradient_clip_val", "0.1"),
    ),
    "ensemble with dropout": ("--model.bottom.activation", "torch.nn.Dropout", *PARTLY),
}
SETTINGS = {
    "momentum and steps": "--optimizer SGD --optimizer.lr 0.05 --optimizer.momentum 0.9"
    " --lr_scheduler StepLR --lr_scheduler.step_size 1",
    "plateau": "--lr_scheduler ReduceLROnPlateau --lr_scheduler.patience 0"
    " --lr_scheduler.threshold 10.0 --lr_scheduler.threshold_mode abs",
    "clipped": "--trainer.gradient_clip_val 0.1",
    "local steps": "--model.local_update LocalSteps --model.local_update.steps 3 --trainer.gradient_clip_val 0.1"
    " --model.bottom.activation torch.nn.Dropout",
    "rates by party": "--model.local_update LocalSteps --model.local_update.steps 2 --model.local_update.proximal 1.0"
    ' --model.optimizer_of={"0":{"lr":0.01,"weight_decay":0.1}}',
    "evaluations between rounds": "--trainer.val_check_interval 3",
}
FURTHER = (
    {f"asynchronous, {faults}": (*ASYNCHRONOUS, *under(faults)) for faults in (None, *FAULTS)}
    | {f"heads, {case}": ("--config", f"protocol/{case.split()[0]}", *more) for case, more in HEADS.items()}
    | {
        f"compressed {name}, {faults}": (*recipe, *COMPRESSED, *under(faults))
        for name, recipe in (("mean", RECIPES["mean"]), ("vafl", ("--config", "protocol/vafl")))
        for faults in (None, "unreliable")
    }
    | {
        f"{name}, {case}": (*RECIPES[name], "--trainer.max_epochs", "3", *more.split())
        for name in ("concat", "recovery")
        for case, more in SETTINGS.items()
    }
    | {
        f"{name}, {parties} parties": RECIPES[name]
        for name in ("concat", "recovery", "lagrange_shared")
        for parties in ("3", "8")
    }
    | {f"recovery in a ring, {faults}, 6 parties": (*RING, *under(faults)) for faults in (None, *SILENT)}
)


@pytest.mark.slow
@pytest.mark.processes
@pytest.mark.parametrize("case", FURTHER)
def test_further_recipes_are_those_of_the_simulation(tmp_path, case):
    recipe = (*DIGITS, *SHORT, *FURTHER[case])
    parties = int(case.split()[-2]) if case.endswith("parties") else 4
    recipe += ("--data.partitioner.parties", f"{parties}") if case.endswith("parties") else ()
    one = simulated(tmp_path, *recipe)
    if case.startswith("asynchronous"):
        assert one.books["rounds"]["fit"] == 20
    if case.startswith("heads"):
        assert one.metrics["train/loss_epoch"]
    if case.startswith("compressed"):
        assert int(one.books["meter"]["up/embeddings"].sum()) % (8 * 4 + 8) == 0
    assert one.differences(federated(tmp_path, *recipe, parties=parties)) == []


@pytest.mark.slow
@pytest.mark.processes
@pytest.mark.parametrize("faults", [None, "unreliable"])
def test_a_top_in_halves_is_that_of_the_simulation(tmp_path, faults):
    """The label holder, party 0, has the metrics."""
    recipe = (*DIGITS, "--config", "protocol/u_shape", *SHORT)
    recipe += () if faults is None else (*LATE, *under(faults))
    one, two = simulated(tmp_path, *recipe), federated(tmp_path, *recipe)
    assert without_loss(one).differences(two) == []
    assert two.metrics["val/loss"]
    assert two.books["meter"]["up/cut gradients"].tolist()[1:] == [0, 0, 0]
    assert not any("labels" in kind for kind in two.books["meter"])


DECOUPLED = (
    *("--config", "protocol/dvfl", *SHORT, "--trainer.max_epochs", "5", "--model.hosts", "2"),
    *("--model.guest_epochs", "2", "--model.replay_epochs", "1"),
)
DECOUPLED_CASES = {
    "nothing more": (),
    "silent epochs": ("--model.communicate_every", "2"),
    "dropout": ("--model.bottom.activation", "torch.nn.Dropout", "--model.host.activation", "torch.nn.Dropout"),
    "objectives with draws": ("--model.guest_objective", "BarlowTwins", "--model.host_every", "2"),
    "guest crashes": ("--config", "faults/dvfl_guest_crashes"),
    "host crashes": ("--config", "faults/dvfl_host_crashes"),
    "connection crashes": ("--config", "faults/dvfl_connection_crashes", "--model.register", "message"),
    "other widths": ("--model.widths", "[8, 16, 24, 8]"),
    "owner at a party": ("--model.active", "1", "--trainer.gradient_clip_val", "0.1"),
    "partly held": ("--data.partitioner", "LimitedOverlap", "--data.partitioner.aligned", "800"),
}


@pytest.mark.slow
@pytest.mark.processes
@pytest.mark.parametrize("case", DECOUPLED_CASES)
def test_decoupled_training_is_that_of_the_simulation(tmp_path, case):
    """The server has the hosts and the owner, and is not told the guests' losses."""
    recipe = (*DIGITS, *DECOUPLED, *DECOUPLED_CASES[case])
    one, two = simulated(tmp_path, *recipe), federated(tmp_path, *recipe)
    assert one.books["rounds"]["fit"] == 50
    assert one.books["meter"].keys() == {"up/embeddings", "up/final embeddings"}
    assert without_loss(one).differences(without_loss(two)) == []
    networks = ("bottoms.parties.{}.", "guest_partners.parties.{}.")
    (folder,) = (tmp_path / "fed").glob("federation-*")
    for party in range(4):
        (checkpoint,) = (folder / f"party{party}").rglob("*.ckpt")
        owner = ("top.", "encoding_") if case == "owner at a party" and party == 1 else ()
        own = (*(name.format(party) for name in networks), *owner)
        assert all(name.startswith(own) for name in torch.load(checkpoint, weights_only=True)["state_dict"])


def without_loss(outcome):
    """An outcome without the training loss, of which the server of a federation knows a part alone."""
    return replace(outcome, metrics={name: at for name, at in outcome.metrics.items() if name != "train/loss_epoch"})
