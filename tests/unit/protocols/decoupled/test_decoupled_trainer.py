"""DecoupledVFL under Lightning's trainer: what is logged, clipped, stopped, rounded, resumed from and refused."""

from functools import partial

import pytest
import torch
from lightning.pytorch.callbacks import EarlyStopping, LambdaCallback
from lightning.pytorch.loggers import Logger

from lightning_vfl import DecoupledVFL
from lightning_vfl.callbacks import Crashes, DuringPhase
from lightning_vfl.datamodules import LimitedOverlap
from lightning_vfl.errors import ConfigurationError
from lightning_vfl.local_objectives import BarlowTwins
from tests.subjects import Blobs, trainer
from tests.unit.protocols.decoupled.decoupled_by_hand import GUEST, HOST, STEPS, TOP, B, N, decoupled, fit, weights_of

QUIET = {"limit_val_batches": 0}


# ---- what is seen of a fit


class Reader(Logger):
    """Keeps what is logged after a step or a validation."""

    name, version = "reader", 0

    def __init__(self):
        super().__init__()
        self.lines = []

    def log_metrics(self, metrics, step=None):
        self.lines.append(metrics)

    def log_hyperparams(self, *arguments, **more):
        return


@pytest.fixture(scope="module")
def logged(tmp_path_factory):
    """What is logged, by the epoch that it is logged in."""
    reader = Reader()
    module = decoupled(guest_epochs=6, replay_epochs=1, optimizer=partial(torch.optim.Adam, lr=5e-2))
    fit(tmp_path_factory.mktemp("logged"), module, logger=reader, max_epochs=18, log_every_n_steps=1)
    epochs = {epoch: [line for line in reader.lines if line["epoch"] == epoch] for epoch in range(18)}
    return {epoch: (module.phase_of(epoch), lines) for epoch, lines in epochs.items()}


def test_accuracy_is_logged_in_every_phase_and_in_the_end_good(logged):
    assert [phase for phase, _ in logged.values()] == ["representation"] * 6 + ["replay"] + ["owner"] * 11
    accuracies = [[line["val/accuracy"] for line in lines if "val/accuracy" in line] for _, lines in logged.values()]
    assert {len(values) for values in accuracies} == {1}
    assert accuracies[-1][0] > 0.8


def test_whose_loss_is_logged_is_who_learns(logged):
    who = {
        "representation": {"train/guest_loss", "train/host_loss"},
        "replay": {"train/host_loss"},
        "owner": {"train/owner_loss"},
    }
    everybody = set().union(*who.values())
    for phase, lines in logged.values():
        steps = [line for line in lines if "train/loss" in line]
        assert len(steps) == STEPS
        for line in steps:
            assert everybody & line.keys() == who[phase]
            total = sum((1 if name == "train/owner_loss" else 3) * line[name] for name in who[phase])
            assert line["train/loss"] == pytest.approx(total, rel=1e-5)  # three guests, three hosts, one owner


def test_patience_is_the_owners(tmp_path):
    """Nothing ever improves by 1: the owner's second validation ends the fit, and none of earlier phases did."""
    stopping = EarlyStopping("val/accuracy", mode="max", patience=1, min_delta=1.0)
    module = decoupled(guest_epochs=3, replay_epochs=1)
    run = fit(tmp_path, module, callbacks=[DuringPhase("owner", stopping)], max_epochs=20)
    assert run.trainer.current_epoch == 6
    assert module.phase_of(3) == "replay"
    assert [module.communicates(epoch) for epoch in range(5)] == [True] * 3 + [False] * 2


@pytest.mark.parametrize("k", [1, 2, 3, 5])
def test_guests_send_in_the_last_of_every_k_epochs(k):
    module = decoupled(guest_epochs=5, communicate_every=k)
    assert [e for e in range(9) if module.communicates(e)] == [e for e in range(5) if (e + 1) % k == 0]


def test_gradients_are_clipped_for_each_participant(tmp_path):
    """SGD at rate 1: everybody's step is as long as the threshold, encoder and decoder together."""
    module = decoupled(guest_epochs=1, optimizer=partial(torch.optim.SGD, lr=1.0))
    run = fit(tmp_path, module, gradient_clip_val=1e-2, limit_train_batches=1, **QUIET)
    moved = {name: value - run.start[name] for name, value in weights_of(module).items()}
    owners = [(f"bottoms.parties.{m}.", f"guest_partners.parties.{m}.") for m in range(3)]
    owners += [(f"hosts.parties.{h}.", f"host_partners.parties.{h}.") for h in range(3)]
    for own in (*owners, ("top.",)):
        steps = [value.flatten() for name, value in moved.items() if name.startswith(own)]
        assert torch.cat(steps).norm() == pytest.approx(1e-2, rel=1e-3)


@pytest.mark.parametrize(
    ("precision", "register"),
    [
        ("bf16-mixed", "message"),
        ("64-true", "record"),
        pytest.param("bf16-mixed", "record", marks=pytest.mark.slow),
        pytest.param("64-true", "message", marks=pytest.mark.slow),
        pytest.param("bf16-true", "record", marks=pytest.mark.slow),
        pytest.param("bf16-true", "message", marks=pytest.mark.slow),
    ],
)
def test_other_precisions_run(tmp_path, precision, register):
    module = decoupled(guest_epochs=2, register=register)
    run = fit(tmp_path, module, callbacks=[Crashes("connections", 0.4, 0.4)], precision=precision)
    state = weights_of(module)
    assert all(bool(value.isfinite().all()) for value in state.values())
    assert not any(torch.equal(value, run.start[name].to(value)) for name, value in state.items())
    if precision == "64-true" and register == "record":
        reference = decoupled(guest_epochs=2, register=register)
        fit(tmp_path, reference, callbacks=[Crashes("connections", 0.4, 0.4)], **QUIET)
        for name, value in weights_of(reference).items():
            torch.testing.assert_close(value.double(), state[name], rtol=0, atol=1e-4)


def test_the_other_objective_runs_under_faults_and_few_common_records(tmp_path):
    twins = {"guest_objective": BarlowTwins((6, 8)), "host_objective": BarlowTwins((9,))}
    module = decoupled(guest_epochs=3, replay_epochs=1, **twins)
    data = Blobs(LimitedOverlap(aligned=24), batch_size=B)
    run = fit(tmp_path, module, data, callbacks=[Crashes("guests", 0.3, 0.3)], **QUIET)
    state = weights_of(module)
    assert all(bool(value.isfinite().all()) for value in state.values())
    assert not any(torch.equal(value, run.start[name]) for name, value in state.items())


def test_dropout_is_off_when_encodings_are_collected(tmp_path):
    """And on again afterwards."""
    from tests.subjects import dropping

    modes = []
    module = decoupled(bottom=dropping, guest_objective=BarlowTwins((4,)))
    collecting = LambdaCallback(on_train_batch_end=lambda t, m, *more: modes.append((m.phase, m.bottoms.training)))
    run = fit(tmp_path, module, callbacks=[collecting], max_epochs=4, **QUIET)
    assert set(modes) == {("representation", True), ("owner", True)}
    encodings, place = module._encodings
    x = run.data.records("train").rows(torch.arange(N))
    module.eval()
    with torch.no_grad():
        h = torch.cat([network(own) for network, own in zip(module.bottoms.parties, x, strict=True)], 1)
        expected = torch.cat([network(h) for network in module.hosts.parties], 1)
    torch.testing.assert_close(encodings[place], expected, rtol=0, atol=1e-6)


def test_fast_dev_run(tmp_path):
    trainer(tmp_path, fast_dev_run=True).fit(decoupled(guest_epochs=10), datamodule=Blobs(batch_size=B))


# ---- what comes out of a file


def test_what_is_loaded_answers_the_same(tmp_path):
    module = decoupled(widths=[2, 5, 3])
    run = fit(tmp_path, module)
    t, path = run.trainer, tmp_path / "it.ckpt"
    tested = t.test(module, datamodule=run.data, verbose=False)
    predicted = t.predict(module, datamodule=run.data)
    t.save_checkpoint(path)
    loaded = DecoupledVFL.load_from_checkpoint(path, bottom=GUEST, host=HOST, top=TOP)
    assert trainer(tmp_path).test(loaded, datamodule=run.data, verbose=False) == tested
    again = trainer(tmp_path).predict(loaded, datamodule=run.data)
    for one, other in zip(predicted, again, strict=True):
        assert torch.equal(one.values, other.values)
        assert torch.equal(one.record_ids, other.record_ids)
    x = run.data.records("predict").rows(torch.arange(N // 3))
    torch.testing.assert_close(module(x), loaded(x), rtol=0, atol=0)
    assert loaded.standing() == module.standing()
    assert loaded.counts.communications == module.counts.communications


@pytest.fixture(scope="module")
def kept(tmp_path_factory):
    folder = tmp_path_factory.mktemp("kept")
    fit(folder, decoupled(guest_epochs=1), **QUIET).trainer.save_checkpoint(folder / "it.ckpt")
    return folder / "it.ckpt"


@pytest.mark.parametrize(
    ("other", "message"),
    [
        ({"hosts": 2}, "another hosts than this model has: 3 there, 2 here"),
        ({"host": partial(GUEST, hidden=(9,))}, "another host"),
        ({"register": "message"}, "another register than this model has: record there, message here"),
        ({"host_objective": BarlowTwins((4,))}, "another host_objective"),
        ({"guest_epochs": 2}, "guest_epochs 1, but this model has 2; resume with 1"),
        ({"replay_epochs": 1}, "replay_epochs 0, but this model has 1"),
        ({"host_every": 2}, "host_every 1, but this model has 2"),
        ({"table_dtype": "float16"}, "table_dtype float32, but this model has float16"),
        ({"guest_objective": BarlowTwins((4,))}, "another guest_objective"),
    ],
)
def test_a_checkpoint_of_another_training_is_refused(tmp_path, kept, other, message):
    with pytest.raises(ConfigurationError, match=message):
        trainer(tmp_path, max_epochs=9).fit(
            decoupled(**{"guest_epochs": 1, **other}), datamodule=Blobs(batch_size=B), ckpt_path=kept
        )


# ---- what is refused before training


REFUSED_AT_ONCE = {
    "never sends": (
        {"guest_epochs": 3, "communicate_every": 4},
        r"communicate_every must be a whole number from 1 to 3; got 4; .*\(guest_epochs\)",
    ),
    "sends in no epoch": ({"communicate_every": 0}, "communicate_every must be a whole number from 1 to .*; got 0"),
    "no epochs of guests": ({"guest_epochs": 0}, "guest_epochs must be a whole number, 1 or more; got 0"),
    "replay": ({"replay_epochs": -1}, "replay_epochs must be a whole number, 0 or more; got -1"),
    "hosts": ({"hosts": 0}, "hosts must be a whole number, 1 or more; got 0"),
    "host_width": ({"host_width": 0}, "host_width must be a whole number, 1 or more; got 0"),
    "host_every": ({"host_every": 0}, "host_every must be a whole number, 1 or more; got 0"),
    "width": ({"width": 0}, "width must be at least 1; got 0"),
    "widths": ({"widths": [4, 0, 2]}, "give every party a width"),
    "as many widths": ({"widths": [4, 4]}, "widths are given for 2 parties, but there are 3"),
    "dtype": ({"table_dtype": "float64"}, "'float32' or 'float16'"),
    "register": ({"register": "latest"}, "'record' or 'message'"),
    "protected": ({"evaluate": "protocol"}, "does not support protected evaluation"),
    "a host of another width": (
        {"host": lambda inputs, width: torch.nn.Linear(inputs[0], 3)},
        r"the host Linear outputs",
    ),
    "no mirror": (
        {"bottom": lambda shape, width: torch.nn.Linear(shape[0], width)},
        "only an MLP encoder has a mirrored decoder",
    ),
}


@pytest.mark.parametrize("case", REFUSED_AT_ONCE)
def test_what_cannot_be_is_refused_when_it_is_built(case):
    settings, message = REFUSED_AT_ONCE[case]
    with pytest.raises(ConfigurationError, match=message):
        decoupled(**settings)


REFUSED_BEFORE_TRAINING = {
    "no owner": ({"guest_epochs": 3, "replay_epochs": 1}, {"max_epochs": 4}, "max_epochs must be at least 5"),
    "limit": ({"limit_bytes": 100.0}, {}, "more than limit_bytes = 100"),
    "patience": ({}, {"callbacks": [EarlyStopping("val/accuracy")]}, "DuringPhase"),
}


@pytest.mark.parametrize("case", REFUSED_BEFORE_TRAINING)
def test_what_cannot_be_trained_is_refused_before_the_first_round(tmp_path, case):
    settings, more, message = REFUSED_BEFORE_TRAINING[case]
    module = decoupled(**settings)
    with pytest.raises(ConfigurationError, match=message):
        fit(tmp_path, module, **{"max_epochs": 9, **more})
    assert "fit" not in module.books.rounds


def test_no_owner_yet_at_the_limit(tmp_path):
    """One epoch of the owner is enough, and a fit without an end has one."""
    fit(tmp_path, decoupled(guest_epochs=1), max_epochs=2, **QUIET)
    run = fit(tmp_path, decoupled(guest_epochs=1), max_epochs=-1, max_steps=2 * STEPS, **QUIET)
    assert run.module.counts.collected


def test_messages_and_few_common_records_are_refused_before_training(tmp_path):
    module = decoupled(register="message", guest_epochs=2, communicate_every=2)
    with pytest.raises(ConfigurationError, match="use register: record"):
        fit(tmp_path, module, Blobs(LimitedOverlap(aligned=24), batch_size=B))
    assert "fit" not in module.books.rounds
