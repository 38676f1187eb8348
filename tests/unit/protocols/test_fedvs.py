"""FedVS through the Trainer: SplitVFL with LagrangeCoded, on seven parties of one or two columns."""

import copy
from functools import partial
from itertools import pairwise
from math import log

import pytest
import torch
from lightning.pytorch.callbacks import Callback, ModelCheckpoint
from torch import nn

from lightning_vfl import SplitVFL, simulation
from lightning_vfl.aggregators import LagrangeCoded, LagrangeShared, Mean
from lightning_vfl.aggregators.coded.products import ProductParty
from lightning_vfl.callbacks import Crashes, PartyDropout, Stragglers
from lightning_vfl.datamodules import ContiguousColumns, Unchanged
from lightning_vfl.errors import ConfigurationError
from lightning_vfl.missing import Skip, Stale, Zeros
from lightning_vfl.networks import MLP, PolynomialNetwork
from lightning_vfl.rounds.exchange import ExpandedRecords
from lightning_vfl.simulation import VirtualClock
from lightning_vfl.streams import stream
from lightning_vfl.waiting import Deadline, Fastest, Ignore, Threshold, WaitForAll
from tests.further import further
from tests.subjects import Blobs, same, trainer

M, K, R, DEGREE, WIDTH = 7, 2, 5, 2, 5  # T = 1
COLUMNS = [2] + [1] * 6
BASIS = [DEGREE * n + 1 for n in COLUMNS]
TRAIN, CODED, STEPS = 54, 27, 6  # records, rows of K records, batches of 10 records in 5 coded rows
BITS = 31
SGD = partial(torch.optim.SGD, lr=0.05, momentum=0.9)
INSTANT = {"bandwidth": 1e300, "speed": 1e300, "server_speed": 1e300}


def data(kind=Blobs, **settings):
    return kind(ContiguousColumns(M), **{"batch_size": 10, **settings})


def fedvs(execution="coded", aggregator=None, **settings):
    torch.manual_seed(0)
    options = settings.pop("options", {})
    aggregator = aggregator or LagrangeCoded(blocks=K, privacy=1, execution=execution, **options)
    settings.setdefault("waiting", Threshold(timeout=9.0))
    settings.setdefault("bottom", partial(PolynomialNetwork, degree=DEGREE))
    settings.setdefault("optimizer", SGD)
    settings.setdefault("allow_embeddings_by_subtraction", True)
    return SplitVFL(aggregator, width=WIDTH, seed=0, **settings)


def fit(folder, module, source=None, **settings):
    settings.setdefault("max_epochs", 2)
    t = trainer(folder, **settings)
    t.fit(module, datamodule=source or data())
    return t


def everything(module, t):
    return {
        "weights": module.state_dict(),
        "optimizer": t.optimizers[0].state_dict(),
        "metrics": {k: float(v) for k, v in t.callback_metrics.items() if k != "train/loss"},
        "bytes": module.books.meter.state_dict(),
        "standing": module.standing(),
        "rounds": {k: v for k, v in module.books.rounds.items() if k != "sanity check"},
        "given up": module.books.given_up,
        "agreed": module.preparation.state(),
    }


FAULTS = {
    "none": list,
    "stragglers": lambda: [Stragglers()],
    "announced dropouts": lambda: [PartyDropout(0.5, 0.3)],
    "silent dropouts": lambda: [PartyDropout(0.5, 0.3, announced=False)],
    "everything": lambda: [
        Stragglers(),
        PartyDropout(0.4, 0.3),
        PartyDropout(0.2, 0.2, False),
        Crashes("guests", 0.3, 0.5),
    ],
}


@pytest.mark.parametrize(
    ("faults", "evaluate"),
    [
        *(pytest.param(faults, "protocol", marks=pytest.mark.slow) for faults in FAULTS if faults != "everything"),
        ("everything", "protocol"),
        further("everything", "plain"),
    ],
)
def test_coded_equivalent_and_seeded_runs_have_the_same_bits_and_books(tmp_path, faults, evaluate):
    runs = []
    for settings in ({}, {"execution": "equivalent"}, {"options": {"insecure_seeded_secrets": True}}):
        module = fedvs(evaluate=evaluate, **settings)
        t = fit(tmp_path, module, max_epochs=1, callbacks=FAULTS[faults]())
        runs.append(everything(module, t))
        runs[-1]["test"] = t.test(module, datamodule=data(), verbose=False)
        runs[-1]["after"] = module.books.meter.state_dict()
    assert all(same(runs[0], run) for run in runs[1:])
    assert (runs[0]["standing"]["clock/virtual_seconds"] > 1) == (faults not in ("none", "announced dropouts"))


def test_a_fit_is_the_loop_that_one_would_write_by_hand(tmp_path):
    """Same networks, batches, rounding and optimiser in plain torch, rounded data and weights as real numbers."""
    module, source = fedvs(), data()
    source.setup("fit")
    module.hparams["party_shapes"], module.hparams["num_classes"] = [list(s) for s in source.party_shapes], 3
    module.configure_model()
    bottoms, top = copy.deepcopy(module.bottoms.parties), copy.deepcopy(module.top)
    fit(tmp_path, module, source)

    l_w, number = module.preparation.agreed["l_w"], 0
    optimizer = SGD([*bottoms.parameters(), *top.parameters()])
    schedule = module.schedule(source.records("train"), 10, source.seed)
    assert schedule.steps == STEPS
    for epoch in range(2):
        for ids, _ in schedule.epoch(epoch):
            optimizer.zero_grad()
            joined = torch.zeros(len(ids), WIDTH, dtype=torch.float64)
            for party, (bottom, x) in enumerate(
                zip(bottoms, source.records("train").rows(torch.from_numpy(ids)), strict=True)
            ):
                rounded = torch.floor(bottom.expand(x).double() * 2**8 + 0.5) * 2.0**-8
                words = stream(0, "weights", "fit", number, party).random_raw(bottom.weight.numel())
                drawn = torch.tensor([(int(word) >> 11) * 2.0**-53 for word in words]).double().view_as(bottom.weight)
                scaled = bottom.weight.detach().double() * 2.0**l_w
                whole = (scaled.floor() + (drawn < scaled - scaled.floor())) * 2.0**-l_w
                joined = joined + rounded @ (bottom.weight.double() + (whole - bottom.weight.double()).detach()) / M
            loss = nn.functional.cross_entropy(
                top(joined.float()), source.records("train").labels[torch.from_numpy(ids)]
            )
            loss.backward()
            optimizer.step()
            number += 1
    for ours, theirs in zip(
        [*module.bottoms.parameters(), *module.top.parameters()],
        [*bottoms.parameters(), *top.parameters()],
        strict=True,
    ):
        torch.testing.assert_close(ours, theirs, rtol=0, atol=2e-6)


@pytest.mark.slow
def test_it_learns_as_well_as_the_mean_in_the_clear(tmp_path):
    accuracies = []
    for module in (fedvs(), fedvs(aggregator=Mean())):
        fit(tmp_path, module, max_epochs=12, callbacks=[Stragglers()])
        accuracies.append(trainer(tmp_path).test(module, datamodule=data(), verbose=False)[0]["test/accuracy"])
    assert accuracies[0] == pytest.approx(accuracies[1], abs=1 / 18 + 1e-6)
    assert accuracies[0] > 0.8


# ---- books


def on_the_wire(elements, bits=BITS):
    return -(-elements * bits // 8)


@pytest.mark.parametrize("rerandomise", [True, False])
def test_bytes_have_a_closed_form(tmp_path, rerandomise):
    """Six rounds an epoch, of 5 coded rows and in the end of 2; data shares once."""
    module = fedvs(options={"rerandomise": rerandomise}, evaluate="plain")
    fit(tmp_path, module)
    rounds = 2 * ([5] * 5 + [2])
    meter = module.books.meter
    assert meter.total("peer", "data shares").tolist() == [on_the_wire(6 * CODED * w) for w in BASIS]
    assert meter.total("peer", "model shares").tolist() == [12 * on_the_wire(6 * w * WIDTH) for w in BASIS]
    assert meter.total("up", "products").tolist() == [sum(on_the_wire(rows * WIDTH) for rows in rounds)] * M
    assert meter.total("down", "gradients").tolist() == [2 * TRAIN * WIDTH * 4] * M
    zeros = sum(on_the_wire(6 * rows * WIDTH) for rows in rounds) if rerandomise else 0
    assert meter.total("peer", "zero shares").tolist() == [zeros] * M
    assert meter.kinds("peer") == ("data shares", "model shares", "zero shares")[: 2 + rerandomise]
    assert (meter.kinds("up"), meter.kinds("down")) == (("products",), ("gradients",))


def test_a_round_takes_all_model_shares_and_the_r_th_upload(tmp_path):
    """Without compute and bandwidth: ln² M / |B| of the largest delay among peers, then the R-th smallest delay."""
    module = fedvs(clock=VirtualClock(**INSTANT))
    module.faults.add(simulation.Stragglers())
    fit(tmp_path, module, max_epochs=1)
    seconds = 0.0
    for number in range(STEPS):
        outcome, rows = module.faults.at(2 * number, module.roster), 5 if number < STEPS - 1 else 2
        seconds += float(outcome.peer_delay.max()) * log(M) ** 2 / rows + sorted(outcome.delay.tolist())[R - 1]
    assert module.clock.seconds == pytest.approx(seconds, rel=1e-9)
    assert seconds > 1


def test_the_clock_counts_set_up_once_and_the_work_of_products(tmp_path):
    """Against the formulas of sections 4 and 5.3: slow machines, a slow network, a slow server, one at a time."""
    for slow, set_up in (
        ("speed", 2 * M * (K + 1) * CODED * max(BASIS) / 1e6),
        ("bandwidth", on_the_wire(6 * CODED * max(BASIS)) / 1e6),
        ("server_speed", 0.0),
    ):
        clock = VirtualClock(**{**INSTANT, slow: 8e6 if slow == "bandwidth" else 1e6})
        module = fedvs(clock=clock)
        fit(tmp_path, module, max_epochs=1)
        seconds = set_up
        for rows, records in [(5, 10)] * 5 + [(2, 4)]:
            if slow == "bandwidth":
                shares = on_the_wire(6 * max(BASIS) * WIDTH) + on_the_wire(6 * rows * WIDTH)
                seconds += (shares + on_the_wire(rows * WIDTH) + records * WIDTH * 4) / 1e6
            elif slow == "server_speed":  # a linear top of 3 outputs, forward and twice back; then the decoding
                seconds += records * (3 * 2 * WIDTH * 3 + 2 * R * WIDTH) / 1e6
            else:
                shares = 2 * M * 2 * max(BASIS) * WIDTH + 2 * M * (R - K) * rows * WIDTH
                products = 2 * rows * sum(BASIS) * WIDTH
                backward = 2 * records * max(BASIS) * WIDTH
                seconds += (shares + products + backward) / 1e6
        assert clock.seconds == pytest.approx(seconds, rel=1e-9)


def test_evaluation_through_the_protocol_is_close_to_plain_and_metered_apart(tmp_path):
    """The 18 test records in two batches of 5 and 4 coded rows; no virtual time passes."""
    module = fedvs(evaluate="protocol", options={"l_x": 10})
    t = fit(tmp_path, module, num_sanity_val_steps=2)
    books, seconds = module.books.meter.state_dict(), module.clock.seconds
    (coded,) = t.test(module, datamodule=data(), verbose=False)
    assert module.clock.seconds == seconds
    new = {name: count.tolist() for name, count in module.books.meter.state_dict().items() if name not in books}
    assert new == {
        "peer/test data shares": [on_the_wire(6 * 9 * w) for w in BASIS],
        "peer/test model shares": [2 * on_the_wire(6 * w * WIDTH) for w in BASIS],
        "peer/test zero shares": [on_the_wire(6 * 5 * WIDTH) + on_the_wire(6 * 4 * WIDTH)] * M,
        "up/test products": [on_the_wire(5 * WIDTH) + on_the_wire(4 * WIDTH)] * M,
    }
    assert all(same(count, module.books.meter.state_dict()[name]) for name, count in books.items())
    for stage, epochs in (("validation", 2), ("sanity check", 1)):
        assert module.books.meter.total("up", f"{stage} products").tolist() == [epochs * new["up/test products"][0]] * M
    assert module.books.meter.total("peer", "validation data shares").tolist() == new["peer/test data shares"]
    module.protected_evaluation = False
    (plain,) = trainer(tmp_path).test(module, datamodule=data(), verbose=False)
    assert coded["test/accuracy"] == pytest.approx(plain["test/accuracy"], abs=1 / 18)
    assert coded["test/loss"] == pytest.approx(plain["test/loss"], abs=2e-3)
    assert coded["test/loss"] != plain["test/loss"]
    predicted = []
    for protected in (True, False):
        module.protected_evaluation = protected
        predicted.append(t.predict(module, datamodule=data()))
        assert module.books.meter.total("up", "predict products").sum() > 0
    through, clear = (torch.cat([p.values for p in batches]) for batches in predicted)
    assert torch.cat([p.record_ids for p in predicted[0]]).tolist() == list(range(18))
    torch.testing.assert_close(through, clear, atol=5e-3, rtol=0)


@pytest.mark.parametrize("evaluate", [further("plain"), "protocol"])
def test_shares_are_given_back_and_never_saved(tmp_path, evaluate):
    """Plain values alone go into a checkpoint or a copy: not a share, not a key."""
    module = fedvs(evaluate=evaluate)
    held = []

    class Looking(Callback):
        def on_train_batch_end(self, trainer, module, *rest):
            held.append(set(module.preparation.memory))
            copied = copy.deepcopy(module.preparation)
            assert copied.memory == copied.sources == {}
            assert copied.agreed == module.preparation.agreed
            assert "memory" not in repr(module.preparation)

    t = fit(tmp_path, module, callbacks=[Looking()], num_sanity_val_steps=2, max_epochs=1)
    assert set(map(frozenset, held)) == {frozenset({"fit"} | ({"validation"} if evaluate == "protocol" else set()))}
    assert module.preparation.memory == {}
    t.save_checkpoint(tmp_path / "one.ckpt")
    books = torch.load(tmp_path / "one.ckpt", weights_only=True)["lightning_vfl"]
    booked = ["fit", "validation"] if evaluate == "protocol" else ["fit"]
    assert books["preparation"] == {"agreed": module.preparation.agreed, "booked": booked}
    for act in (t.test, t.validate, t.predict):
        act(module, datamodule=data(), **({} if act == t.predict else {"verbose": False}))
        assert module.preparation.memory == {}


# ---- who takes part


class Following(Callback):
    """Which parties and whether the server have changed in every round."""

    def __init__(self):
        self.seen = []

    def on_train_batch_start(self, trainer, module, *rest):
        self.seen.append([copy.deepcopy(list(owner.parameters())) for owner in module.owners()])

    on_train_end = on_train_batch_start

    def learners(self):
        return [
            [i for i, pair in enumerate(zip(a, b, strict=True)) if not all(map(torch.equal, *pair))]
            for a, b in pairwise(self.seen)
        ]


def test_stragglers_learn_in_every_round(tmp_path):
    """The point of FedVS: whoever is late has shared its model, so the mean has its embedding, and it learns."""
    following = Following()
    module = fedvs()
    fit(tmp_path, module, callbacks=[Stragglers(), following])
    assert following.learners() == [list(range(M + 1))] * 12
    assert module.standing()["progress/passes"] == 2.0  # epochs of 6 batches, the last of which is smaller


@pytest.mark.parametrize("execution", ["coded", further("equivalent")])
def test_who_is_away_keeps_its_weights_and_fewer_than_r_give_a_round_up(tmp_path, execution):
    """Footnote 2: the sum is over those who have shared their models; 5 of 7 have to answer."""
    following, present = Following(), []
    module = fedvs(execution)
    module.faults.add(simulation.PartyDropout(0.7, 0.5))
    fit(tmp_path, module, callbacks=[following], max_epochs=3)
    for number in range(3 * STEPS):
        here = module.faults.at(2 * number, module.roster).announced.nonzero().flatten().tolist()
        present.append([*here, M] if len(here) >= R else [])
    assert following.learners() == present
    assert module.books.given_up == present.count([])
    assert 0 < module.books.given_up < 3 * STEPS


def test_a_wrong_upload_changes_no_bit_and_its_party_is_named_and_counted(tmp_path, monkeypatch):
    """Party 2 lies in every round; the books remember it, also those of a run that goes on."""
    modules, multiply = [], ProductParty._multiply

    def lying(self, received, included, view):
        message = multiply(self, received, included, view)
        message.pieces[view.parties.index(2)].add_(1).remainder_(self.coding.field.modulus)
        return message

    for liar in (False, True):
        module = fedvs(options={"wrong": 1})
        if liar:
            monkeypatch.setattr(ProductParty, "_multiply", lying)
            with pytest.warns(UserWarning, match="party 2 was wrong and was corrected") as said:
                t = fit(tmp_path, module, max_epochs=1)
            assert len([w for w in said if "corrected" in str(w.message)]) == 1
        else:
            t = fit(tmp_path, module, max_epochs=1)
        modules.append(module)
    honest, lied = modules
    assert same(honest.state_dict(), lied.state_dict())
    assert (honest.books.corrected, lied.books.corrected) == ({}, {2: STEPS})
    t.save_checkpoint(tmp_path / "one.ckpt")
    assert torch.load(tmp_path / "one.ckpt", weights_only=True)["lightning_vfl"]["corrected"] == {2: STEPS}


# ---- refused before training


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        (
            {"waiting": Fastest(4)},
            "ends a round with 4 answers, but the aggregator needs 5 answers to decode; use Threshold",
        ),
        ({"waiting": Ignore(), "faults": [Stragglers(0.5)]}, "ends a round with 4 answers"),
        ({"missing": Zeros()}, "missing: Zeros replaces single embeddings, but LagrangeCoded hides these"),
        ({"missing": Stale()}, "missing: Stale replaces .* use Exclude, PadAfterNorm or Skip"),
        ({"missing": Skip(), "waiting": Ignore(), "faults": [Stragglers(0.2)]}, "leaves out a party in every round"),
        ({"waiting": Threshold(), "faults": [PartyDropout(0.1, 0.1, False)]}, "wait for ever"),
        ({"bottom": MLP}, "linear in one weight matrix, but party 0 has MLP; use PolynomialNetwork"),
        ({"bottom_of": {3: MLP}}, "party 3 has MLP; use PolynomialNetwork"),
        ({"options": {"blocks": 4}}, r"need 9 answers, more than the 7 parties; use blocks: 3"),
        ({"options": {"scale": 24}}, "scale: 24 overflows with the weights that training begins with"),
        ({"options": {"l_x": 26}}, "no l_w fits"),
        ({"source": {"batch_size": 55}}, "batch_size must be a whole number from 1 to 54; got 55"),
    ],
)
@pytest.mark.parametrize("execution", ["coded", further("equivalent")])
def test_what_cannot_train_is_refused_with_the_fix(tmp_path, settings, words, execution):
    settings = dict(settings)
    faults, source = settings.pop("faults", []), data(**settings.pop("source", {}))
    options = {"blocks": K, **settings.pop("options", {})}
    following = Following()
    module = fedvs(aggregator=LagrangeCoded(privacy=1, execution=execution, **options), **settings)
    with pytest.raises(ConfigurationError, match=words):
        fit(tmp_path, module, source, callbacks=[*faults, following])
    assert following.learners() == []


@pytest.mark.parametrize("rule", [WaitForAll(), Fastest(5), further(Fastest(6)), Deadline(9.0)], ids=repr)
def test_every_rule_that_ends_with_enough_answers_trains(tmp_path, rule):
    """Threshold is the rule of the other tests."""
    module = fedvs(waiting=rule)
    fit(tmp_path, module, max_epochs=1, callbacks=[Stragglers()])
    assert module.books.given_up == 0


class PartlyHeld(Blobs):
    partly_held = True

    def load(self, names):
        splits = super().load(names)
        for split in splits.values():
            split.present = torch.ones(len(split.features), M, dtype=torch.bool)
            split.present[1, 2] = False
        return splits


@pytest.mark.parametrize("execution", ["coded", "equivalent"])
def test_partly_held_records_and_loaders_are_refused(tmp_path, execution):
    for module in (fedvs(execution), fedvs(aggregator=LagrangeShared(), bottom=MLP)):
        name = type(module.aggregator).__name__
        with pytest.raises(ConfigurationError, match=f"{name} needs every party to hold every record; use overlap"):
            fit(tmp_path, module, data(PartlyHeld))
    source = data()
    source.setup("fit")
    module = fedvs(execution, party_shapes=source.party_shapes, num_classes=3)
    with pytest.raises(ConfigurationError, match="give the trainer a VerticalDataModule instead of a loader"):
        trainer(tmp_path).fit(module, source.train_dataloader(), source.val_dataloader())


def test_forward_through_the_protocol_has_no_shares_to_compute_on(tmp_path):
    source = data()
    source.setup("fit")
    features = source.records("train").rows(torch.arange(3))
    module = fedvs(evaluate="protocol", party_shapes=source.party_shapes, num_classes=3)
    module.configure_model()
    with pytest.raises(ConfigurationError, match=r"set up for the records of a stage .* or evaluate: plain"):
        module(features)
    fit(tmp_path, module, source)
    with pytest.raises(ConfigurationError, match="set up for the records of a stage"):
        module(features)
    plain = fedvs(party_shapes=source.party_shapes, num_classes=3)
    plain.configure_model()
    assert plain(features).shape == (3, 3)


# ---- more than one run


RUNS = {
    "in the clear": {},
    "through the protocol": {"evaluate": "protocol"},
    "equivalent": {"evaluate": "protocol", "execution": "equivalent"},
    "fixed scale": {"options": {"scale": 12, "wrong": 1}},
}


@pytest.mark.parametrize(
    ("run", "kills"),
    [
        ("through the protocol", (5,)),
        ("fixed scale", (11,)),
        *(further(run, (1, 5, 7, 11)) for run in RUNS),
    ],
    ids=str,
)
@pytest.mark.filterwarnings("ignore:Be aware that when using `ckpt_path`")
def test_a_killed_run_resumes_to_the_same_bits_with_fresh_secrets(tmp_path, run, kills):
    """Weights, books, the agreed scale; set-up is done again and is in the books once."""
    saver = ModelCheckpoint(tmp_path, "{step}", every_n_train_steps=1, save_top_k=-1, save_on_train_epoch_end=False)
    faults = FAULTS["silent dropouts" if run == "fixed scale" else "everything"]  # a wrong answer costs two others
    whole = fedvs(**copy.deepcopy(RUNS[run]))
    t = fit(tmp_path, whole, callbacks=[*faults(), saver], enable_checkpointing=True)
    expected = everything(whole, t)
    assert expected["rounds"]["fit"] == 2 * STEPS
    assert 0 < expected["given up"] < 2 * STEPS
    for step in kills:
        again = fedvs(**copy.deepcopy(RUNS[run]))
        u = trainer(tmp_path, callbacks=faults())
        u.fit(again, datamodule=data(), ckpt_path=tmp_path / f"step={step}.ckpt")
        got = everything(again, u)
        for books in (got, expected):  # Lightning repeats its sanity check
            books["bytes"] = {k: v for k, v in books["bytes"].items() if "sanity check" not in k}
            for name in ("comm/up_bytes", "comm/peer_bytes"):
                books["metrics"].pop(name, None), books["standing"].pop(name, None)
        assert {k for k in expected if not same(expected[k], got[k])} == set()
    assert whole.books.meter.total("peer", "data shares").tolist() == [on_the_wire(6 * CODED * w) for w in BASIS]


@pytest.mark.filterwarnings("ignore:Be aware that when using `ckpt_path`")
def test_a_resumed_run_keeps_the_scale_of_the_beginning_unless_a_lower_one_is_given(tmp_path):
    """Weights have grown since: agreeing again would give fewer bits, and other roundings."""
    module, source = fedvs(), data()
    t = fit(tmp_path, module, source, max_epochs=1)
    agreed = module.preparation.agreed
    with torch.no_grad():
        for bottom in module.bottoms.parties:
            bottom.weight.mul_(4)
    t.save_checkpoint(tmp_path / "grown.ckpt")
    records = ExpandedRecords(source.records("train"), module.bottoms, torch.device("cpu"))
    weights, setup = enumerate(b.weight.detach() for b in module.bottoms.parties), module.aggregator.setup
    fresh = setup.settle([setup.propose(records, m, w, module.roster) for m, w in weights])
    assert fresh["l_w"] < agreed["l_w"]
    for again, bits in ((fedvs(), agreed["l_w"]), (fedvs(options={"scale": 6}), 6)):
        trainer(tmp_path).fit(again, datamodule=data(), ckpt_path=tmp_path / "grown.ckpt")
        assert again.preparation.agreed == agreed
        setup = again.aggregator.setup
        assert setup.scale.codec(setup.coding.field, again.preparation.agreed).l_w == bits
        assert again.books.rounds["fit"] == 2 * STEPS


def test_a_second_fit_or_test_sends_fresh_shares_and_counts_them(tmp_path):
    """Twice in one module: coded and equivalent stay the same bits; a resumed fit belongs to the one before."""
    runs = []
    for execution in ("coded", "equivalent"):
        module, sent = fedvs(execution, evaluate="protocol"), []
        for _ in range(2):
            t = fit(tmp_path, module, max_epochs=1)
            sent.append(int(module.books.meter.total("peer", "data shares").sum()))
        runs.append(everything(module, t))
        for _ in range(2):
            t.test(module, datamodule=data(), verbose=False)
            sent.append(int(module.books.meter.total("peer", "test data shares").sum()))
        assert sent[1] == 2 * sent[0]
        assert sent[3] == 2 * sent[2]
    assert same(*runs)
    assert runs[0]["rounds"]["fit"] == 2 * STEPS


class Other(Blobs):
    """Other records of the same shape."""

    def load(self, names):
        splits = super().load(names)
        for split in splits.values():
            split.features = -3 * split.features.flip(0)
        return splits


class Breaks(Callback):
    def on_train_batch_end(self, trainer, module, *rest):
        if trainer.global_step == 7:
            raise RuntimeError("broken off")

    def on_test_batch_end(self, *rest):
        raise RuntimeError("broken off")


@pytest.mark.parametrize("execution", ["coded", further("equivalent")])
def test_a_test_that_was_broken_off_leaves_nothing_to_the_next_one(tmp_path, execution):
    losses = []
    for broken in (True, False):
        module = fedvs(execution, evaluate="protocol")
        fit(tmp_path, module, max_epochs=1)
        if broken:
            with pytest.raises(RuntimeError, match="broken off"):
                trainer(tmp_path, callbacks=[Breaks()]).test(module, datamodule=data(), verbose=False)
        module.books.rounds["test"] = 10  # roundings are named by round
        module.test.loss.reset(), module.test.metrics.reset()
        losses.append(trainer(tmp_path).test(module, datamodule=data(Other), verbose=False))
    assert losses[0] == losses[1]


@pytest.mark.parametrize("execution", [further("coded"), "equivalent"])
def test_a_fit_that_was_broken_off_leaves_nothing_to_the_next_one(tmp_path, execution):
    losses = []
    for cleared in (True, False):
        module = fedvs(execution, evaluate="protocol", options={"headroom": 100.0})
        with pytest.raises(RuntimeError, match="broken off"):
            fit(tmp_path, module, callbacks=[Breaks()])
        if cleared:
            module.preparation.memory.clear()
        losses.append(float(fit(tmp_path, module, data(Other), max_epochs=1).callback_metrics["val/loss"]))
    assert losses[0] == losses[1]


class Larger(Blobs):
    """Training records a hundred times as large as the others, unscaled."""

    def default_normaliser(self):
        return Unchanged()

    def load(self, names):
        splits = super().load(names)
        for name, split in splits.items():
            split.features = split.features * (1.0 if name == "train" else 0.01)
        return splits


def test_the_scale_of_a_fit_is_agreed_on_by_its_own_records(tmp_path):
    module = fedvs(evaluate="protocol")
    trainer(tmp_path, inference_mode=False).validate(module, datamodule=data(Larger), verbose=False)
    fit(tmp_path, module, data(Larger), inference_mode=False, max_epochs=1)
    alone = fedvs(evaluate="protocol")
    fit(tmp_path, alone, data(Larger), inference_mode=False, max_epochs=1)
    assert module.preparation.agreed == alone.preparation.agreed


class Halves(Blobs):
    """Values whose squares round to another integer in float32 than in float64."""

    def default_normaliser(self):
        return Unchanged()

    def load(self, names):
        splits = super().load(names)
        x = torch.linspace(0.5, 3.0, 100_000, dtype=torch.float64).float()
        single, double = (torch.floor((v * v).double() * 2**8 + 0.5) for v in (x, x.double()))
        found = x[single != double]
        for split in splits.values():
            n = split.features.numel()
            split.features = found[torch.arange(n) % len(found)].view_as(split.features)
        return splits


@pytest.mark.parametrize("precision", [further("32-true"), "64-true", "bf16-mixed", further("bf16-true")])
def test_coded_is_equivalent_in_every_precision(tmp_path, precision):
    runs = []
    for execution in ("coded", "equivalent"):
        module = fedvs(execution)
        fit(tmp_path, module, data(Halves), precision=precision, max_epochs=1)
        runs.append(module.state_dict())
    assert same(*runs)


def test_batches_of_other_records_than_were_shared_are_refused(tmp_path):
    """The trainer keeps the datamodule of an earlier call when it is given a loader."""
    module, other = fedvs(evaluate="protocol"), data(Larger)
    t = fit(tmp_path, module, num_sanity_val_steps=2, max_epochs=1)
    other.setup("test")
    with pytest.raises(ConfigurationError, match="the batches have other records than LagrangeCoded was set up with"):
        t.test(module, dataloaders=other.test_dataloader(), verbose=False)
    other.setup("fit")
    with pytest.raises(ConfigurationError, match="the batches have other records"):
        t.fit(module, train_dataloaders=other.train_dataloader(), val_dataloaders=other.val_dataloader())


def test_an_absent_party_is_sent_nothing_and_costs_nobody_a_receiver(tmp_path):
    whole, fewer = fedvs(), fedvs(waiting=Ignore())
    fit(tmp_path, whole, max_epochs=1)
    fit(tmp_path, fewer, max_epochs=1, callbacks=[Stragglers(0.15)])  # one of seven is left out
    (left_out,) = fewer.books.left_out
    a, b = (module.books.meter.total("peer", "model shares") for module in (whole, fewer))
    assert b[left_out] == 0
    others = [m for m in range(M) if m != left_out]
    assert torch.allclose(b[others].double(), a[others].double() * (M - 2) / (M - 1), atol=STEPS)


def test_networks_that_begin_with_zeros_train(tmp_path):
    def zeros(shape, width):
        network = PolynomialNetwork(shape, width, degree=DEGREE)
        nn.init.zeros_(network.weight)
        return network

    module = fedvs(bottom=zeros)
    fit(tmp_path, module, max_epochs=1)
    assert module.preparation.agreed["l_w"] < 25
    assert all(bottom.weight.abs().max() > 0 for bottom in module.bottoms.parties)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@pytest.mark.parametrize("evaluate", ["plain", "protocol"])
def test_coded_and_equivalent_have_the_same_bits_on_a_gpu(tmp_path, evaluate):
    runs = []
    for execution in ("coded", "equivalent"):
        module = fedvs(execution, evaluate=evaluate)
        runs.append(everything(module, fit(tmp_path, module, accelerator="gpu", devices=1)))
    assert same(*runs)


def test_the_summary_says_what_was_hidden():
    assert LagrangeCoded().wire.protection(1) == (
        "T = 1 colluding parties learn nothing of others' data; single uploads are hidden: the server learns the means"
    )
    assert "not re-randomised" in LagrangeCoded(rerandomise=False).wire.protection(1)
    assert "nothing was hidden" in LagrangeCoded(execution="equivalent").wire.protection(1)
    assert "from the seed" in LagrangeShared(insecure_seeded_secrets=True).wire.protection(1)
    assert "none against parties" in LagrangeShared(privacy=0).wire.protection(1)
