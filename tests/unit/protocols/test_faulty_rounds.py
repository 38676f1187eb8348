"""SplitVFL with parties that are late, absent or cut off: who learns, what is refused, what the books say."""

import copy
import dataclasses
from dataclasses import replace
from functools import partial
from itertools import pairwise

import pytest
import torch

from lightning_vfl.aggregators import Concat, Max, Mean, Sum
from lightning_vfl.aggregators.clear import InTheClear
from lightning_vfl.errors import ConfigurationError
from lightning_vfl.missing import Exclude, Skip, Stale, Zeros
from lightning_vfl.simulation import PartyDropout, VirtualClock
from lightning_vfl.simulation.faults import FaultModel, RoundOutcome
from lightning_vfl.types import Roll, RoundNames, Stage, VerticalBatch
from lightning_vfl.waiting import Deadline, Fastest, Ignore, Threshold, WaitForAll
from tests.further import further
from tests.subjects import Blobs, split, trainer

M, ROUNDS = 3, 6  # 54 training records in batches of 10
SGD = partial(torch.optim.SGD, lr=0.05, momentum=0.9, weight_decay=0.1)
ADAM = partial(torch.optim.Adam, lr=1e-2, weight_decay=0.1)


class Scripted(FaultModel):
    """What is in a table {request: changes}; everything else goes well."""

    def __init__(self, script, silent=True, slow=()):
        self.script = script
        self._silent = silent
        self.slow = slow

    def sample(self, request, roster, seed):
        nothing = RoundOutcome.nothing(roster)
        script = self.script.get(request, {})
        changes = {name: torch.tensor(value, dtype=getattr(nothing, name).dtype) for name, value in script.items()}
        return dataclasses.replace(nothing, **changes)

    @property
    def silent(self):
        return self._silent

    def stragglers(self, roster, seed):
        return torch.tensor([m in self.slow for m in range(roster.parties)])


class Watching:
    """Keeps a copy of everybody's parameters and optimiser state after every round."""

    def __init__(self):
        self.seen = []

    def attach(self, module):
        step = module.optimizer_step

        def stepping(*args, **kwargs):
            step(*args, **kwargs)
            optimizer = module.trainer.optimizers[0]
            owners = [*module.bottoms.parties, module.top]
            self.seen.append(
                [
                    copy.deepcopy([(p.detach(), optimizer.state.get(p, {})) for p in owner.parameters()])
                    for owner in owners
                ]
            )

        module.optimizer_step = stepping


def same(one, other):
    return all(
        torch.equal(p, q)
        and s.keys() == t.keys()
        and all(torch.equal(torch.as_tensor(s[k]), torch.as_tensor(t[k])) for k in s)
        for (p, s), (q, t) in zip(one, other, strict=True)
    )


def fit(tmp_path, script, aggregator=None, silent=True, slow=(), **settings):
    module = split(aggregator or Mean(), **settings)
    module.faults.add(Scripted(script, silent, slow))
    watching = Watching()
    watching.attach(module)
    t = trainer(tmp_path, max_epochs=1)
    t.fit(module, datamodule=Blobs(batch_size=10))
    return module, watching.seen, t


def learners(seen):
    """For each round after the first, who has changed: parties, then M for the server."""
    return [
        [owner for owner in range(M + 1) if not same(before[owner], after[owner])] for before, after in pairwise(seen)
    ]


@pytest.mark.parametrize("optimizer", [further(SGD), ADAM], ids=["SGD", "Adam"])
@pytest.mark.parametrize("aggregator", [Concat(), Mean(), Max()], ids=repr)
def test_who_does_not_take_part_keeps_parameters_and_optimiser_state(tmp_path, optimizer, aggregator):
    """Round 1: party 1 is silent; 2: does not hear the answer; 3: its link back is down; 4: the server is down."""
    script = {
        2: {"sends": [True, False, True]},
        5: {"receives": [True, False, True]},
        7: {"links": [[True], [False], [True]]},
        9: {"hosts": [False]},
    }
    _, seen, _ = fit(tmp_path, script, aggregator, optimizer=optimizer, waiting=WaitForAll(timeout=1.0))
    assert learners(seen) == [[0, 2, 3], [0, 2, 3], [0, 2, 3], [], [0, 1, 2, 3]]


@pytest.mark.parametrize("optimizer", [further(SGD), ADAM], ids=["SGD", "Adam"])
def test_a_round_that_is_given_up_moves_nobody(tmp_path, optimizer):
    script = {2: {"sends": [True, False, True]}, 6: {"announced": [False, True, True]}, 8: {"sends": [False] * 3}}
    settings = {"optimizer": optimizer, "waiting": WaitForAll(timeout=1.0), "missing": Skip()}
    module, seen, t = fit(tmp_path, script, **settings)
    assert learners(seen) == [[], [0, 1, 2, 3], [], [], [0, 1, 2, 3]]
    assert module.books.given_up == 3
    assert t.global_step == module.books.rounds["fit"] == ROUNDS
    assert module.books.mini_batches == 3 * M
    # 5 rounds of 10 rows and one of 4, 5 numbers of 4 bytes each: sent by all but who is silent or not called
    assert module.books.meter.total("up").tolist() == [
        (54 - 10 - 10) * 20,
        (54 - 10 - 10 - 10) * 20,
        (54 - 10 - 10) * 20,
    ]
    assert module.books.meter.total("down").tolist() == [(54 - 30) * 20] * 3


def test_the_mean_loss_leaves_out_rounds_that_nobody_learnt_from(tmp_path):
    silent = {request: {"sends": [True, True, False]} for request in range(2, 12, 2)}
    module, _, t = fit(tmp_path, silent, waiting=WaitForAll(timeout=1.0), missing=Skip())
    first = float(t.callback_metrics["train/loss_epoch"])
    again, _, u = fit(tmp_path, {}, waiting=WaitForAll(timeout=1.0), missing=Skip())
    assert module.books.given_up == 5
    assert again.books.given_up == 0
    assert first == float(t.callback_metrics["train/loss"])
    assert first != float(u.callback_metrics["train/loss_epoch"])


def test_the_clock_adds_up_the_rounds(tmp_path):
    """Without compute and bandwidth, a round takes as long as its slowest party."""
    instant = VirtualClock(bandwidth=1e300, speed=1e300, server_speed=1e300)
    script = {2 * r: {"delay": [0.1 * r, 0.5, 0.25]} for r in range(ROUNDS)}
    module, _, t = fit(tmp_path, script, silent=False, clock=instant)
    assert module.clock.seconds == pytest.approx(sum(max(0.1 * r, 0.5) for r in range(ROUNDS)), abs=1e-9)
    logged = t.callback_metrics["clock/virtual_seconds"]
    assert logged.dtype == torch.float64
    assert float(logged) == module.clock.seconds
    assert module.standing()["progress/passes"] == pytest.approx(ROUNDS / 6)  # batches of an epoch of 54 records
    fastest = VirtualClock(bandwidth=1e300, speed=1e300, server_speed=1e300)
    module, _, _ = fit(tmp_path, script, silent=False, clock=fastest, waiting=Fastest(2))
    assert module.clock.seconds == pytest.approx(sum(sorted((0.1 * r, 0.5, 0.25))[1] for r in range(ROUNDS)), abs=1e-9)


def test_the_default_clock_counts_bytes_and_flops(tmp_path):
    module, _, _ = fit(tmp_path, {}, silent=False)
    assert 0 < module.clock.seconds < 1e-2


def test_ignore_leaves_the_stragglers_out_of_training_and_evaluation(tmp_path):
    module, seen, _ = fit(tmp_path, {}, Mean(), silent=False, slow=(1,), waiting=Ignore())
    assert learners(seen) == [[0, 2, 3]] * (ROUNDS - 1)
    data = Blobs(batch_size=18)
    data.setup("fit")
    (batch,) = list(data.val_dataloader())
    names = module.next_round()
    with torch.no_grad():
        h = module.eval().bottoms(batch.features)
        assert torch.equal(module.output(batch, names), module.top((h[0] + h[2]) / 2))


RULES = {
    "wait": WaitForAll(),
    "timeout": WaitForAll(timeout=0.3),
    "ignore": Ignore(),
    "fastest": Fastest(2),
    "deadline": Deadline(0.3),
    "threshold": Threshold(),
}
LATE = {2 * r: {"delay": [0.0, 0.5 if r % 2 else 0.1, 0.2]} for r in range(ROUNDS)}


@pytest.mark.parametrize(
    ("policy", "rule"),
    [
        (policy, rule) if (i + j) % 3 == 0 else further(policy, rule)
        for i, policy in enumerate((Exclude, Zeros, Stale, Skip))
        for j, rule in enumerate(RULES)
    ],
)
def test_every_pair_trains_or_is_refused(tmp_path, rule, policy):
    settings = {"waiting": copy.deepcopy(RULES[rule]), "missing": policy(), "silent": False, "slow": (1,)}
    if policy is Skip and rule in ("ignore", "fastest", "threshold"):
        with pytest.raises(ConfigurationError, match="no network would learn; use WaitForAll or Deadline"):
            fit(tmp_path, LATE, **settings)
        return
    module, seen, _ = fit(tmp_path, LATE, **settings)
    assert module.books.given_up == (3 if policy is Skip and rule in ("timeout", "deadline") else 0)
    assert not same(seen[0][M], seen[-1][M])


PLAIN = (Concat, Sum, Mean, Max)


@pytest.mark.parametrize(
    ("policy", "rule", "aggregator"),
    [
        pytest.param(policy, rule, aggregator, marks=() if (i + j + k) % len(PLAIN) == 1 else pytest.mark.slow)
        for i, policy in enumerate((Exclude, Zeros, Stale, Skip))
        for j, rule in enumerate(RULES)
        for k, aggregator in enumerate(PLAIN)
    ],
)
def test_every_pair_gives_gradients_with_every_plain_aggregator(aggregator, rule, policy):
    """Rounds without a trainer: the included have gradients, the others none, and the value is finite."""
    module = split(aggregator(), waiting=RULES[rule], missing=policy(), party_shapes=[(4,)] * M, num_classes=3)
    module.configure_model()
    if module.memory is not None:
        module.memory.prepare(20, module.embedding_widths, module.device)
    module.faults.add(Scripted(LATE, slow=(1,)))
    for number in range(ROUNDS):
        ids = torch.arange(8) + 2 * number
        batch = VerticalBatch(tuple(torch.randn(8, 4) for _ in range(M)), torch.zeros(8), ids)
        plan = module.plan_round(batch, number)
        if not plan.skipped:
            module.zero_grad()
            output, _ = module.run_round(batch, RoundNames(0, Stage.FIT, number), plan.roll, module.missing)
            output.square().sum().backward()
            moved = [any(p.grad is not None for p in party.parameters()) for party in module.bottoms.parties]
            assert moved == plan.roll.included.tolist()
            assert all(p.grad is None or torch.isfinite(p.grad).all() for p in module.parameters())


def test_waiting_for_ever_is_refused_before_training(tmp_path):
    with pytest.raises(ConfigurationError, match="give a timeout in seconds, or use Deadline"):
        fit(tmp_path, {}, silent=True)


class Hidden(Mean):
    """A mean whose uploads the server cannot read one by one."""

    @property
    def wire(self):
        return HiddenWire(self)


class HiddenWire(InTheClear):
    @property
    def traits(self):
        return replace(super().traits, visible=False)


def test_stale_is_refused_where_uploads_are_hidden(tmp_path):
    with pytest.raises(
        ConfigurationError, match="Hidden hides these from the server; use Exclude, PadAfterNorm or Skip"
    ):
        fit(tmp_path, {}, Hidden(), silent=False, missing=Stale())


def test_a_table_above_its_limit_is_refused_before_training(tmp_path):
    with pytest.raises(ConfigurationError, match="raise limit_bytes, lower width"):
        fit(tmp_path, {}, silent=False, missing=Stale(limit_bytes=10))


def test_skipping_the_bottoms_of_the_late_changes_no_bit(tmp_path):
    """Only the included parties' bottoms are run; the value is that of running them all."""
    module = split(Mean(), party_shapes=[(3,)] * M, num_classes=3)
    module.configure_model()
    x = tuple(torch.randn(4, 3) for _ in range(M))
    roll = Roll.of(torch.tensor([True, False, True]))
    from lightning_vfl.rounds.exchange import contribute_some

    some = contribute_some(module.bottoms, x, roll.included_parties, module.embedding_widths)
    assert torch.equal(module.aggregator.plain(some.leaves, roll), module.aggregator.plain(module.bottoms(x), roll))


def test_round_t_asks_about_requests_2t_and_2t_plus_1(tmp_path):
    module = split(waiting=Deadline(1.0))
    asked = []
    at = module.faults.at
    module.faults.at = lambda request, roster: (asked.append(request), at(request, roster))[1]
    module.faults.add(Scripted({}))
    trainer(tmp_path, max_epochs=1).fit(module, datamodule=Blobs(batch_size=10))
    assert asked == list(range(2 * ROUNDS))


def test_a_second_fit_remembers(tmp_path):
    module, _, _ = fit(tmp_path, LATE, silent=False, waiting=Fastest(2), missing=Stale())
    rows = module.missing.memory.table.rows
    trainer(tmp_path, max_epochs=1).fit(module, datamodule=Blobs(batch_size=10))
    assert module.missing.memory.table.rows is rows
    assert module.books.rounds["fit"] == 2 * ROUNDS


def test_whom_training_left_out_is_left_out_when_the_checkpoint_is_tested(tmp_path):
    module, _, t = fit(tmp_path, {}, silent=False, slow=(1,), waiting=Ignore())
    t.save_checkpoint(tmp_path / "it.ckpt")
    again = split(Mean())
    quiet, data = trainer(tmp_path), Blobs(batch_size=10)
    (tested,) = quiet.test(again, datamodule=data, ckpt_path=tmp_path / "it.ckpt", verbose=False)
    assert again.books.left_out == module.books.left_out == (1,)
    assert tested == quiet.test(module, datamodule=data, verbose=False)[0]


def test_ignoring_nobody_is_said(tmp_path):
    with pytest.warns(UserWarning, match="no fault model names a straggler"):
        fit(tmp_path, {}, silent=False, waiting=Ignore())


def test_the_active_party_never_drops_out(tmp_path):
    module = split(active=2)
    module.faults.add(PartyDropout(1.0, 1.0))
    trainer(tmp_path, max_epochs=1).fit(module, datamodule=Blobs(batch_size=10))
    assert module.books.meter.total("up", "embeddings").tolist() == [0, 0, 54 * 5 * 4]
    assert module.books.meter.total("up", "labels").tolist() == [0, 0, 54 * 4]
    with pytest.raises(ConfigurationError, match="active must be a whole number from 0 to 2; got 3"):
        trainer(tmp_path).fit(split(active=3), datamodule=Blobs(batch_size=10))


@pytest.mark.parametrize("policy", [further(Exclude), Stale])
@pytest.mark.parametrize("precision", ["64-true", "bf16-true", "bf16-mixed"])
def test_precisions(tmp_path, policy, precision):
    module = split(waiting=Fastest(2), missing=policy())
    module.faults.add(Scripted(LATE, silent=False))
    trainer(tmp_path, max_epochs=1, precision=precision).fit(module, datamodule=Blobs(batch_size=10))
    assert all(torch.isfinite(p).all() for p in module.parameters())


@pytest.mark.filterwarnings("ignore:You defined a `validation_step`")
def test_what_cannot_train_is_refused_before_training(tmp_path):
    with pytest.raises(ConfigurationError, match="use a first-order optimiser"):
        fit(tmp_path, {}, silent=False, optimizer=torch.optim.LBFGS)
    with pytest.raises(ConfigurationError, match="a party of speed_of must be a whole number from 0 to 2; got 7"):
        fit(tmp_path, {}, silent=False, clock=VirtualClock(speed_of={7: 1e9}))
    data = Blobs(batch_size=10)
    data.setup("fit")
    known = {"party_shapes": data.party_shapes, "num_classes": 3}
    quiet = trainer(tmp_path)
    with pytest.raises(ConfigurationError, match="give the trainer a VerticalDataModule instead of a loader"):
        quiet.fit(split(missing=Stale(), **known), train_dataloaders=data.train_dataloader())


def test_a_checkpoint_can_be_saved_without_a_fit(tmp_path):
    module = split(missing=Stale())
    t = trainer(tmp_path)
    t.validate(module, datamodule=Blobs(batch_size=10), verbose=False)
    t.save_checkpoint(tmp_path / "it.ckpt")
    saved = torch.load(tmp_path / "it.ckpt", weights_only=True)["lightning_vfl"]
    assert saved["rounds"] == module.books.rounds
    assert not saved.get("memory")


def test_an_epoch_that_nobody_learnt_from_has_no_loss(tmp_path):
    silent = {request: {"sends": [True, True, False]} for request in range(0, 12, 2)}
    with pytest.warns(UserWarning, match=r"no weight of SplitVFL .+ \(6 rounds given up\); use a policy that goes on"):
        module, _, t = fit(tmp_path, silent, waiting=WaitForAll(timeout=1.0), missing=Skip())
    assert module.books.given_up == ROUNDS
    assert not any(name.startswith("train/loss") for name in t.callback_metrics)
