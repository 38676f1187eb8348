"""The classes of ``examples/own_*.py``, which docs/extending.md shows, do what the page says of them."""

import importlib
import runpy
from dataclasses import replace
from functools import partial
from itertools import product
from math import inf
from pathlib import Path

import pytest
import torch
from lightning.pytorch.cli import LightningCLI

from lightning_vfl import SplitVFL
from lightning_vfl.aggregators import Concat, MaskedSum, Mean
from lightning_vfl.callbacks import FaultInjector
from lightning_vfl.cli import main, run
from lightning_vfl.datamodules import Digits
from lightning_vfl.rounds.exchange import Exchange, open_round
from lightning_vfl.simulation import PartyDropout
from lightning_vfl.simulation.faults import Faults
from lightning_vfl.testing import (
    check_aggregator,
    check_datamodule,
    check_fault_model,
    check_protocol,
    check_waiting_rule,
)
from lightning_vfl.types import Roll, Roster, RoundNames, Rows
from lightning_vfl.waiting import Fastest
from lightning_vfl.wire import Embeddings, PartyView, ServerView
from tests.subjects import Blobs, trainer

FOLDER = Path(__file__).parents[2] / "examples"


def own(example, name):
    """A class of an example, without its training."""
    return runpy.run_path(str(FOLDER / f"own_{example}.py"))[name]


EPOCHS = 4
FAST = partial(torch.optim.Adam, lr=0.03)


def learned(folder, module, data, callbacks=()):
    """The module after a few epochs at a high rate, which have to be enough."""
    t = trainer(folder, max_epochs=EPOCHS, callbacks=list(callbacks))
    t.fit(module, datamodule=data)
    assert float(t.callback_metrics["val/accuracy"]) > 0.8
    return module, t


@pytest.mark.parametrize(
    ("example", "name", "given", "size"),
    [
        ("aggregator", "TrimmedMean", (1,), 5 * 4),
        ("wire", "RoundedMean", (), 5 * 4),
        ("masked_sum", "MaskedVote", (), 5),  # 8 bits a number
        ("compression", "Largest", (1,), 4 + 1),  # a fifth of the numbers, and their places
    ],
)
def test_it_learns_and_an_upload_has_the_bytes_that_the_example_says(tmp_path, example, name, given, size):
    made = own(example, name)(*given)
    parts = {"aggregator": Mean(), "compressor": made} if example == "compression" else {"aggregator": made}
    module, _ = learned(tmp_path, SplitVFL(**parts, width=5, seed=0, optimizer=FAST), Blobs(batch_size=10))
    assert module.books.meter.total("up").tolist() == [EPOCHS * 54 * size] * 3
    if example == "compression":  # with feedback, what is left out is sent in time
        assert any(residue.any() for residue in module.sides.party.sender.state()["residues"].values())


def test_the_trimmed_mean():
    h = tuple(torch.full((2, 3), float(x)) for x in (1, 2, 90))
    for trim, value in ((0, 31.0), (1, 2.0)):
        assert own("aggregator", "TrimmedMean")(trim).plain(h, Roll.everyone(3))[0, 0] == value


@pytest.mark.parametrize(
    ("example", "name", "settings"),
    [
        ("aggregator", "TrimmedMean", {"fewest": 3, "partly_held": False}),
        ("wire", "RoundedMean", {"error": 1 / 32}),
        ("masked_sum", "MaskedVote", {"error": float("inf")}),
    ],
)
def test_the_laws_of_aggregators(example, name, settings):
    check_aggregator(own(example, name)(), **settings)


@pytest.mark.slow
def test_the_laws_of_protocols_and_data_sets():
    committee = own("protocol", "Committee")
    check_protocol(lambda: committee(Mean(), width=5, seed=0))
    check_datamodule(own("data_set", "Wine"))


@pytest.mark.slow
@pytest.mark.parametrize("aggregator", [Mean, partial(MaskedSum, layout="segments", allow_single=True)])
def test_the_laws_of_a_protocol_that_runs_rounds(aggregator):
    """They find that it meets faults, in the clear and under masks."""
    small = own("round", "SmallLogits")
    check_protocol(lambda: small(aggregator(), width=5, seed=0))


def test_a_round_meets_faults_rules_and_charges(tmp_path):
    """A protocol of one call of ``round`` has the bits, bytes and seconds of SplitVFL with the same loss."""

    def trained(kind):
        module = kind(MaskedSum(layout="segments", allow_single=True), width=5, seed=0, waiting=Fastest(2))
        t = trainer(tmp_path, max_epochs=2, callbacks=[FaultInjector(PartyDropout(0.5, 0.4))])
        t.fit(module, datamodule=Blobs(batch_size=10))
        return module

    mine = trained(partial(own("round", "SmallLogits"), penalty=0.0))
    split = trained(SplitVFL)
    assert all(torch.equal(a, b) for a, b in zip(mine.parameters(), split.parameters(), strict=True))
    assert mine.clock.seconds == split.clock.seconds
    assert torch.equal(mine.books.meter.total("up"), split.books.meter.total("up"))
    assert mine.standing() == split.standing()


def masked_round(made, h):
    """A round of three parties under new keys, and the view of these parties."""
    roster, rows, names = Roster.singles(3), Rows(torch.arange(4), 0, 4), RoundNames(0, "fit", 0)
    bound, roll = made.among(roster), Roll.everyone(3)
    view = PartyView(names, roster, (0, 1, 2), roll.called, rows)
    view = replace(view, memory=open_round(bound.opening, bound.opening.empty_memory(view), view))
    exchange = Exchange(bound, Embeddings(h), view, ServerView(names, roster, rows, roll, (5,) * 3))
    return exchange, view


def test_the_masked_sum():
    """It is the sum of the signs."""
    made = own("masked_sum", "MaskedVote")()
    h = tuple(torch.randn(4, 5, generator=torch.Generator().manual_seed(m)).requires_grad_() for m in range(3))
    exchange, view = masked_round(made, h)
    value = exchange.run()
    assert torch.equal(value, torch.stack(h).sign().sum(0))
    assert torch.equal(value, exchange.wire.clear(Embeddings(h), view, Roll.everyone(3)).value)
    assert all(torch.equal(g, torch.ones(4, 5)) for g in torch.autograd.grad(value.sum(), h))


def test_masks_of_pair_keys_hide_the_votes_and_cancel_in_the_sum():
    """One upload is uniform in the ring and new under new keys; the sum of all is the sum of the votes."""
    made, votes = own("masked_sum", "MaskedVote")(), torch.ones(3, 4, 256)
    uploads = []
    for _ in range(2):
        exchange, view = masked_round(made, tuple(votes))
        message = next(exchange.sides.party.upload(exchange.contribution, view))
        uploads.append(torch.stack(message.pieces).to(torch.int64))
        assert torch.equal(uploads[-1].sum(0) % 256, torch.full((1, 4, 256), 3))
    for upload in (*uploads[0], *uploads[1]):  # 1,024 words of 8 bits, all of which stand for a one
        assert len(upload.unique()) > 200
    assert not torch.equal(uploads[0], uploads[1])
    pair = uploads[0][:2].sum(0) % 256
    assert len(pair.unique()) > 200  # nothing cancels where one upload is missing


def test_the_wire():
    made = own("wire", "RoundedMean")()
    h = tuple(torch.full((2, 5), x) for x in (0.03, 0.04, 1.0))
    roster, rows, roll = Roster.singles(3), Rows(torch.arange(2), 0, 2), Roll.everyone(3)
    views = RoundNames(0, "fit", 0), roster
    view, server = PartyView(*views, (0, 1, 2), roll.called, rows), ServerView(*views, rows, roll, (5,) * 3)
    value = Exchange(made, Embeddings(h), view, server).run()
    assert torch.equal(value, torch.full((2, 5), (0.0 + 1 / 16 + 1.0) / 3))


def test_the_protocol(tmp_path):
    data = Blobs(batch_size=10)
    module, t = learned(tmp_path, own("protocol", "Committee")(Mean(), width=5, seed=0, optimizer=FAST), data)
    assert t.test(module, datamodule=data, verbose=False)[0]["test/accuracy"] > 0.8
    assert module.books.rounds["fit"] == EPOCHS * 6
    assert module.books.meter.total("up").tolist() == [EPOCHS * 54 * 5 * 4] * 3
    assert module.books.meter.total("down").tolist() == module.books.meter.total("up").tolist()
    assert module.standing()["progress/passes"] == EPOCHS  # every record once, also those of the smaller last batch
    assert module.clock.seconds > 0


def test_the_fault(tmp_path):
    module = SplitVFL(Mean(), width=5, seed=0)
    injector = FaultInjector(own("fault", "Weekends")([1]))
    trainer(tmp_path, max_epochs=7, callbacks=[injector]).fit(module, datamodule=Blobs(batch_size=9))
    assert module.books.rounds["fit"] == 7 * 6
    rounds = [7 * 6, 7 * 6 * 5 // 7, 7 * 6]
    assert module.books.meter.total("up").tolist() == [n * 9 * 5 * 4 for n in rounds]


REGIONS = [[0], [1, 2]]


def test_the_laws_of_outages_of_regions_and_of_the_rule_by_information():
    outages = own("outage", "RegionOutages")(REGIONS, 0.4)
    check_fault_model(outages, Roster.singles(3))
    for seed in range(20):
        sends = outages.sample(6, Roster.singles(3), seed).sends
        assert sends[1] == sends[2]
        assert torch.equal(sends, outages.sample(7, Roster.singles(3), seed).sends)
    rule = own("outage", "EnoughInformation")
    for information, share in (((1.0, 1.0, 1.0), 0.7), ((2.0, 1.0, 5.0), 0.3)):
        check_waiting_rule(rule(information, share, 2.0))


def brute_force(information, share, timeout, arrivals):
    """The parties in the order of arrival, one after the other, until they hold enough or the time is up."""
    coming = sorted((seconds, party) for party, seconds in enumerate(arrivals) if seconds < inf)
    included, held, last = [], 0.0, 0.0
    for seconds, party in coming:
        if seconds > timeout:
            return included, timeout
        included.append(party)
        held, last = held + information[party], seconds
        if held >= share * sum(information):
            return included, last
    return included, last if len(coming) == len(arrivals) else timeout


@pytest.mark.parametrize("share", [0.25, 0.5, 0.8, 1.0])
def test_the_rule_by_information_closes_as_one_counts_by_hand(share):
    information, timeout = (1.0, 4.0, 2.0), 2.5
    rule = own("outage", "EnoughInformation")(information, share, timeout)
    for arrivals in product((1.0, 2.0, 3.0, inf), repeat=3):
        who, when = rule.close(torch.tensor(arrivals, dtype=torch.float64))
        included, closed = brute_force(information, share, timeout, arrivals)
        assert (who.nonzero().flatten().tolist(), when) == (sorted(included), closed)


def test_the_outages(tmp_path):
    """A round goes on without a region if the others hold enough, and the timeout counts only where they do not."""
    outages = own("outage", "RegionOutages")(REGIONS, 0.4)
    module = SplitVFL(Mean(), width=5, seed=0, waiting=own("outage", "EnoughInformation")((4.0, 1.0, 1.0), 0.5, 9.0))
    t = trainer(tmp_path, max_epochs=5, callbacks=[FaultInjector(outages)])
    t.fit(module, datamodule=Blobs(batch_size=9))
    faults = Faults(seed=0)
    faults.add(outages)
    down = [~faults.at(2 * number, module.roster).sends for number in range(module.books.rounds["fit"])]
    alone = sum(bool(one[0]) for one in down)
    assert 0 < alone < len(down)
    assert 9.0 * alone <= module.clock.seconds < 9.0 * alone + 5.0
    assert module.books.given_up == sum(bool(one.all()) for one in down)


def test_the_low_rank_update_and_its_two_rates(tmp_path):
    """Frozen weights stay, the bottom is that of the whole matrix, and Adam's first step has the rate of the group."""
    lora, two_rates = own("lora", "LoRA"), own("lora", "TwoRates")
    module = two_rates(Mean(), bottom=lora, width=5, seed=0)
    module.build_for(Blobs(batch_size=9))
    first = {name: value.clone() for name, value in module.state_dict().items()}
    trainer(tmp_path, max_steps=1, max_epochs=1).fit(module, datamodule=Blobs(batch_size=9))
    for name, value in module.state_dict().items():
        moved = (value - first[name]).abs()
        if ".frozen." in name or name.endswith(".down"):  # the gradient of down is zero while up is
            assert not moved.any()
        elif name.endswith(".up"):
            assert moved.median() == pytest.approx(16e-3, rel=1e-3)
        elif name.startswith("top"):
            assert moved.median() == pytest.approx(1e-3, rel=1e-3)
    bottom = module.bottoms.parties[0]
    x = torch.randn(4, *module.hparams["party_shapes"][0], dtype=torch.float64)
    whole = (bottom.frozen.weight + bottom.up @ bottom.down).double()
    expected = x @ whole.T + bottom.frozen.bias.double()
    torch.testing.assert_close(bottom(x.float()).double(), expected, rtol=1e-5, atol=1e-5)


OWN = """
from lightning_vfl import SplitVFL
from lightning_vfl.aggregators import Mean


class Mine(SplitVFL):
    def __init__(self, alpha: float = 0.1):
        super().__init__(Mean(), width=4)
        self.alpha = alpha
"""


def test_a_subclass_with_a_constructor_of_its_own_runs_in_both_command_lines(tmp_path, monkeypatch, capsys):
    (tmp_path / "mine_of_a_test.py").write_text(OWN, encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr("sys.argv", ["fit"])  # LightningCLI warns of arguments that it is not to read
    quiet = ["--trainer.fast_dev_run=2", "--trainer.accelerator=cpu", "--trainer.enable_progress_bar=false"]
    main(["fit", "--model=mine_of_a_test.Mine", "--model.alpha=0.3", "--data=Digits", *quiet])
    mine = importlib.import_module("mine_of_a_test").Mine
    ran = LightningCLI(mine, Digits, args=["fit", "--model.alpha=0.3", *quiet])
    assert ran.model.alpha == 0.3
    assert ran.trainer.global_step == 2
    monkeypatch.setenv("PL_FIT__MODEL__ALPHA", "0.7")  # which LightningCLI reads on request, and lightning-vfl never
    read = LightningCLI(mine, Digits, args=["fit", *quiet], parser_kwargs={"default_env": True})
    assert read.model.alpha == 0.7
    told = run(["fit", "--model=mine_of_a_test.Mine", "--data=Digits", *quiet])
    assert told.model.alpha == 0.1
    assert "PL_FIT__MODEL__ALPHA has no effect: a run is what its recipes and options say; give --model.alpha" in (
        capsys.readouterr().err
    )


def test_a_top_that_is_told_who_is_there(tmp_path):
    """The attention over parties gives an absent party no weight, and learns with absent parties."""
    attention = own("top", "Attention")
    module = SplitVFL(Concat(), top=attention, width=5, seed=0, optimizer=FAST)
    learned(tmp_path, module, Blobs(batch_size=10), [FaultInjector(PartyDropout(0.5, 0.4))])
    joint, there = torch.randn(3, 15), torch.tensor([True, False, True]).repeat_interleave(5)
    changed = torch.where(there, joint, joint + 9)
    assert torch.equal(module.top(joint, there), module.top(changed, there))


def test_a_checkpoint_of_such_a_subclass_is_read_by_a_lightning_cli(tmp_path, monkeypatch):
    """LightningCLI gives the constructor the settings that the checkpoint keeps."""
    (tmp_path / "kept_of_a_test.py").write_text(OWN, encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr("sys.argv", ["fit"])
    kept = importlib.import_module("kept_of_a_test").Mine
    quiet = ["--trainer.accelerator=cpu", "--trainer.enable_progress_bar=false", "--trainer.logger=false"]
    once = ["--trainer.max_epochs=1", "--trainer.limit_train_batches=2", "--trainer.limit_val_batches=1"]
    for by_name in (False, True):
        named = ["--model=kept_of_a_test.Mine"] if by_name else []
        cli = partial(LightningCLI, SplitVFL if by_name else kept, Digits, subclass_mode_model=by_name)
        cli = partial(cli, save_config_callback=None, seed_everything_default=0)
        fitted = cli(args=["fit", *named, "--model.alpha=0.3", *quiet, *once])
        path = fitted.trainer.checkpoint_callback.best_model_path
        tested = cli(args=["test", *named, *quiet, "--trainer.limit_test_batches=2", f"--ckpt_path={path}"])
        assert tested.model.alpha == 0.3
        assert tested.model.books.rounds["fit"] == 2
        loaded = kept.load_from_checkpoint(path)
        assert (loaded.alpha, loaded.hparams["party_shapes"]) == (0.3, fitted.model.hparams["party_shapes"])


def test_the_local_update(tmp_path):
    """Columns of the first layer are those of a step without it, shrunk as the group lasso says."""
    made = own("local_update", "FewColumns")
    first = {}
    for name, update in {"none": None, "kept": made(0.0), "shrunk": made(0.5)}.items():
        module = SplitVFL(Mean(), width=5, seed=0, local_update=update, optimizer=partial(torch.optim.SGD, lr=0.1))
        t = trainer(tmp_path, max_steps=1, limit_val_batches=0)
        torch.manual_seed(0)
        module.build_for(Blobs(batch_size=10))
        t.fit(module, datamodule=Blobs(batch_size=10))
        first[name] = module.bottoms.parties[1].layers[1].weight.detach()
    norms = first["none"].square().sum(0).sqrt()
    assert torch.equal(first["none"], first["kept"])
    assert norms.min() > 0.5
    torch.testing.assert_close(first["shrunk"], first["none"] * (1 - 0.5 / norms))
