"""Bytes, seconds and rounds of decoupled training, also where a fit follows another."""

from dataclasses import replace

import pytest
import torch

from lightning_vfl.datamodules import LimitedOverlap
from lightning_vfl.errors import ConfigurationError
from lightning_vfl.local_objectives import Reconstruction
from lightning_vfl.networks import MLP
from lightning_vfl.simulation import Crashes, VirtualClock
from lightning_vfl.simulation.faults import FaultModel, RoundOutcome
from tests.subjects import Blobs, trainer
from tests.unit.protocols.decoupled.decoupled_by_hand import (
    GUESTS,
    STEPS,
    B,
    ByHand,
    N,
    by_hand,
    decoupled,
    fit,
    weights_of,
)

QUIET = {"limit_val_batches": 0}
WIDTH, HOST_WIDTH, HOSTS = 4, 5, 3


def thin_wire():
    """A byte takes a second, computing nothing."""
    return VirtualClock(bandwidth=8.0, speed=1e300, server_speed=1e300)


FINAL = HOSTS * N * WIDTH * 4 + N * HOST_WIDTH * 4  # of the slowest guest, then of the slowest host


@pytest.mark.parametrize(("epochs", "k"), [(3, 1), (5, 2), (2, 2)])
def test_a_guest_needs_as_long_as_its_messages_take(tmp_path, epochs, k):
    module = decoupled(guest_epochs=epochs, communicate_every=k, clock=thin_wire())
    fit(tmp_path, module, **QUIET)
    assert module.clock.seconds == pytest.approx(epochs // k * HOSTS * N * WIDTH * 4 + FINAL)


def test_everybody_has_a_clock_of_their_own(tmp_path):
    """Guest m is late with every m-th message: the phase lasts as long as the latest of them, not as the sum."""

    class Late(FaultModel):
        def sample(self, request, roster, seed):
            delay = torch.tensor([0.0 if request % (m + 1) else 1000.0 for m in range(GUESTS)], dtype=torch.float64)
            delay[0] = 0.0
            return replace(RoundOutcome.nothing(roster), delay=delay)

    module = decoupled(guest_epochs=2, clock=VirtualClock(1e300, speed=1e300, server_speed=1e300))
    fit(tmp_path, module, faults=(Late(),), **QUIET)
    assert module.clock.seconds == pytest.approx(3 * 1000.0)


def test_who_is_down_takes_no_time(tmp_path):
    """Guest 0 would be late, and has the longest way to send; it never does."""

    class Away(FaultModel):
        def sample(self, request, roster, seed):
            outcome = RoundOutcome.nothing(roster)
            sends, delay = outcome.sends.clone(), outcome.delay.clone()
            sends[0], delay[0] = False, 1000.0
            return replace(outcome, sends=sends, delay=delay)

    module = decoupled(widths=[40, 2, 3], guest_epochs=2, clock=thin_wire())
    fit(tmp_path, module, faults=(Away(),), **QUIET)
    final = HOSTS * N * 40 * 4 + N * HOST_WIDTH * 4  # without faults
    assert module.clock.seconds == pytest.approx(2 * HOSTS * N * 3 * 4 + final)


def test_no_time_and_no_bytes_pass_in_evaluation(tmp_path):
    run = fit(tmp_path, decoupled(clock=thin_wire()), **QUIET)
    before = run.module.standing()
    run.trainer.test(run.module, datamodule=run.data, verbose=False)
    run.trainer.predict(run.module, datamodule=run.data)
    assert run.module.standing() == before


def test_passes_are_those_of_guests(tmp_path):
    module = decoupled(guest_epochs=2, replay_epochs=2)
    fit(tmp_path, module, **QUIET)
    assert module.books.mini_batches == GUESTS * 2 * STEPS
    assert module.books.rounds["fit"] == 5 * STEPS


def test_a_second_fit_collects_again_and_its_time_counts(tmp_path):
    module = decoupled(clock=thin_wire())
    fit(tmp_path, module, **QUIET)
    seconds, final = module.clock.seconds, module.books.meter.total("up", "final embeddings")
    again = fit(tmp_path, module, **QUIET)
    assert module.clock.seconds == pytest.approx(2 * seconds)
    assert torch.equal(module.books.meter.total("up", "final embeddings"), 2 * final)
    assert module.counts.communications == 4 * STEPS
    learnt = [name for name, value in weights_of(module).items() if not torch.equal(value, again.start[name])]
    assert len(learnt) == len(again.start)


def test_a_second_fit_is_by_hand_what_it_should_be(tmp_path):
    """The hosts go on with what their buffers hold; the owner learns from a new collection. SGD keeps no state."""

    def make(parameters):
        return torch.optim.SGD(parameters, lr=0.05)

    module = decoupled(communicate_every=2, optimizer=make)
    fit(tmp_path, module, **QUIET)
    told = module.replay.read(torch.arange(N))[0]
    run = fit(tmp_path, module, **QUIET)
    oracle = by_hand_again(run, told, make)
    for prefix, parameters in oracle.weights().items():
        mine = [value for key, value in weights_of(module).items() if key.startswith(prefix)]
        for own, other in zip(mine, parameters, strict=True):
            torch.testing.assert_close(own, other, rtol=0, atol=1e-6)


def by_hand_again(run, told, make):
    oracle, module = ByHand(run), run.module
    for participant in (*oracle.guests, *oracle.joiners):
        participant.optimizer = make([*participant.encoder.parameters(), *participant.decoder.parameters()])
    oracle.owners = make(oracle.owner.parameters())
    oracle.known = [set(range(N)) for _ in range(HOSTS)]
    oracle.told = [{i: dict(enumerate(told[i].split(WIDTH))) for i in range(N)} for _ in range(HOSTS)]
    oracle.train(run.batches, module.guest_epochs, module.replay_epochs, module.communicate_every)
    return oracle


def test_going_on_in_the_owners_phase_collects_nothing_new(tmp_path):
    run = fit(tmp_path, decoupled(clock=thin_wire()), **QUIET)
    before = run.module.standing()
    run.trainer.fit_loop.max_epochs = 5
    run.trainer.fit(run.module, datamodule=run.data)
    assert run.module.books.rounds["fit"] == 5 * STEPS
    assert run.module.standing() == pytest.approx(before)


def test_the_owners_work_takes_time(tmp_path):
    """Forward, and backward to the weights of two layers and between them: 2 numbers a product, at 1 FLOP a second."""
    clock = VirtualClock(bandwidth=1e300, speed=1e300, server_speed=1.0)
    module = decoupled(clock=clock, host_every=1000)
    seconds = []
    step = module.training_step
    module.training_step = lambda *a: (step(*a), seconds.append(module.clock.seconds))[0]
    fit(tmp_path, module, max_epochs=4, **QUIET)
    inputs, hidden, classes = HOSTS * HOST_WIDTH, 5, 3
    forward, backward = inputs * hidden + hidden * classes, inputs * hidden + 2 * hidden * classes
    passed = [after - before for before, after in zip(seconds[-4:], seconds[-3:], strict=False)]
    assert passed == pytest.approx([2 * (forward + backward) * rows for rows in (20, 20, 14)])


def test_every_epoch_has_as_many_steps(tmp_path):
    for cut in (None, LimitedOverlap(aligned=12)):
        run = fit(tmp_path, decoupled(replay_epochs=1), Blobs(cut, batch_size=B), max_epochs=5, **QUIET)
        epochs = [epoch for epoch, _ in run.batches]
        assert len({epochs.count(epoch) for epoch in range(5)}) == 1
        assert {len(ids) for epoch, ids in run.batches if epoch >= 3} <= ({20, 14} if cut is None else {12})


class Gaps(Blobs):
    """Guest 1 lacks every second record that is not trained on."""

    def load(self, names):
        splits = dict(super().load(names))
        for name in splits.keys() - {"train"}:
            present = torch.ones(len(splits[name].features), GUESTS, dtype=torch.bool)
            present[::2, 1] = False
            splits[name] = replace(splits[name], present=present)
        return splits


def test_what_a_guest_does_not_hold_is_zeros_to_the_hosts(tmp_path):
    data = Gaps(batch_size=B)
    run = fit(tmp_path, decoupled(standardise=True), data, limit_val_batches=0)
    records = data.records("val")
    oracle = by_hand(run)
    encodings = oracle.encode(records.rows(torch.arange(len(records))), records.present)
    expected = torch.nn.functional.cross_entropy(oracle.owner(oracle.seen(encodings)), records.labels)
    (logged,) = trainer(tmp_path).validate(run.module, datamodule=data, verbose=False)
    assert logged["val/loss"] == pytest.approx(float(expected.detach()), abs=1e-5)


class DeadWhereCollected(torch.nn.Linear):
    """A host's first unit is silent for the N records of the collection, and alive in other records."""

    def forward(self, x):
        encoding = super().forward(x)
        return torch.cat([encoding[:, :1] * (len(x) != N), encoding[:, 1:]], 1)


def test_an_encoding_that_never_varied_stays_as_it_is(tmp_path):
    decoder = Reconstruction(decoder=lambda width, shape: MLP(width, shape[0], hidden=()))
    module = decoupled(
        standardise=True, host=lambda inputs, width: DeadWhereCollected(inputs[0], width), host_objective=decoder
    )
    run = fit(tmp_path, module, **QUIET)
    x = run.data.records("val").rows(torch.arange(18))
    with torch.no_grad():
        h = torch.cat([network(own) for network, own in zip(module.bottoms.parties, x, strict=True)], 1)
        encodings = torch.cat([network(h) for network in module.hosts.parties], 1)
    seen = []
    module.top.register_forward_pre_hook(lambda network, inputs: seen.append(inputs[0].detach()))
    module.eval()(x)
    assert encodings[:, 0].any()
    for unit in range(HOSTS * HOST_WIDTH):
        as_it_is = torch.allclose(seen[0][:, unit], encodings[:, unit], rtol=0, atol=1e-5)
        assert as_it_is == (unit % HOST_WIDTH == 0)


@pytest.mark.parametrize("fits_before", [0, 1])
def test_a_limit_that_one_table_keeps_is_refused_where_faults_may_make_it_three(tmp_path, fits_before):
    module = decoupled(limit_bytes=N * GUESTS * WIDTH * 4)
    for _ in range(fits_before):
        fit(tmp_path, module, **QUIET)
    with pytest.raises(ConfigurationError, match="limit_bytes"):
        fit(tmp_path, module, faults=(Crashes("hosts", 0.5, 0.5),), **QUIET)
