import copy
from functools import partial

import pytest
import torch
from lightning.pytorch import Callback
from sklearn.metrics import accuracy_score, average_precision_score, log_loss, r2_score, roc_auc_score
from torch import nn

from lightning_vfl import SplitVFL, VerticalBatch
from lightning_vfl.aggregators import Concat, Mean, Sum
from lightning_vfl.datamodules import ContiguousColumns
from lightning_vfl.errors import ConfigurationError
from lightning_vfl.networks import MLP, Linear
from lightning_vfl.types import Joint
from tests.subjects import Blobs, Values, YesNo, split, trainer


def fitted(tmp_path, data, module=None, **settings):
    module = module or split()
    t = trainer(tmp_path, **settings)
    t.fit(module, datamodule=data)
    return module, t


def test_a_fit_is_the_loop_that_one_would_write_by_hand(tmp_path):
    """Same networks, batches and optimiser, in plain torch: the same weights, bit for bit."""
    data = Blobs(batch_size=10)
    module = split(Sum(), optimizer=partial(torch.optim.SGD, lr=0.1, momentum=0.9))
    data.setup("fit")
    module.hparams["party_shapes"], module.hparams["num_classes"] = [list(s) for s in data.party_shapes], 3
    module.configure_model()
    bottoms, top = copy.deepcopy(module.bottoms.parties), copy.deepcopy(module.top)
    fitted(tmp_path, data, module)

    optimizer = torch.optim.SGD([*bottoms.parameters(), *top.parameters()], lr=0.1, momentum=0.9)
    schedule = module.schedule(data.records("train"), 10, data.seed)
    for epoch in range(2):
        for ids, _ in schedule.epoch(epoch):
            rows = torch.from_numpy(ids)
            h = [bottom(x) for bottom, x in zip(bottoms, data.records("train").rows(rows), strict=True)]
            loss = nn.functional.cross_entropy(top(torch.stack(h).sum(0)), data.records("train").labels[rows])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    for ours, theirs in zip(module.bottoms.parties.parameters(), bottoms.parameters(), strict=True):
        assert torch.equal(ours, theirs)


@pytest.mark.parametrize("data", [Blobs, YesNo, Values])
def test_metrics_are_those_of_scikit_learn(tmp_path, data):
    data = data(batch_size=7)
    module, t = fitted(tmp_path, data)
    logged = t.test(module, datamodule=data, verbose=False)[0]
    records = data.records("test")
    with torch.no_grad():
        p = module.eval()(records.rows(torch.arange(len(records)))).numpy()
    y = records.labels.numpy()
    if data.num_classes is None:
        mse = ((p - y) ** 2).mean()
        expected = {"mse": mse, "rmse": mse**0.5, "mae": abs(p - y).mean(), "r2": r2_score(y, p)}
        expected["loss"] = mse / float(module.objective.scale) ** 2  # the loss is that of standardised labels
    elif data.num_classes == 2:
        expected = {
            "accuracy": accuracy_score(y, p > 0.5),
            "auroc": roc_auc_score(y, p),
            "average_precision": average_precision_score(y, p),
            "loss": log_loss(y, p),
        }
    else:
        expected = {"accuracy": accuracy_score(y, p.argmax(1)), "loss": log_loss(y, p, labels=[0, 1, 2])}
    assert logged.keys() == {f"test/{name}" for name in expected}
    for name, value in expected.items():
        assert logged[f"test/{name}"] == pytest.approx(float(value), abs=1e-5)


def test_a_party_without_a_row_in_the_batch_takes_no_part():
    module = SplitVFL(Mean(), party_shapes=[(2,), (2,)], num_classes=2)
    module.configure_model()
    x = (torch.ones(3, 2), torch.ones(3, 2))
    present = torch.tensor([[True, False]] * 3)
    batch = VerticalBatch(x, None, torch.arange(3), present)
    assert module.plan_round(batch, 0).roll.included.tolist() == [True, False]
    joint = batch._replace(joint=Joint(0, 6, held=(0, 1)))  # another rank has rows of party 1
    assert module.plan_round(joint, 0).roll.included.tolist() == [True, True]
    assert module.plan_round(batch._replace(present=None), 0).roll.included.tolist() == [True, True]


class PartlyHeld(Blobs):
    """Party 2 holds nothing of the first 20 training records' batches."""

    def load(self, names):
        splits = super().load(names)
        for name, part in splits.items():
            part.present = torch.ones(len(part.features), 3, dtype=torch.bool)
            part.present[:20, 2] = name != "train"
        return splits


class InOrderSplit(SplitVFL):
    def schedule(self, records, batch_size, seed, drop_last=False):
        from lightning_vfl.schedules.batches import InOrder

        return InOrder(len(records), batch_size)


@pytest.mark.parametrize("make", [partial(torch.optim.SGD, lr=0.1, momentum=0.9), torch.optim.Adam])
def test_who_takes_no_part_keeps_parameters_and_optimiser_state(tmp_path, make):
    """Two rounds without party 2: it has no optimiser state at all, and its initial weights."""
    module = InOrderSplit(Mean(), width=5, seed=0, optimizer=make)
    data = PartlyHeld(batch_size=10)
    data.setup("fit")
    module.hparams["party_shapes"], module.hparams["num_classes"] = [list(s) for s in data.party_shapes], 3
    module.configure_model()
    before = copy.deepcopy(module.bottoms.parties)
    _, t = fitted(tmp_path, data, module, max_steps=2, limit_val_batches=0)
    state = t.optimizers[0].state
    for party, (old, new) in enumerate(zip(before, module.bottoms.parties, strict=True)):
        for a, b in zip(old.parameters(), new.parameters(), strict=True):
            assert torch.equal(a, b) == (party == 2)
            assert (b in state) == (party != 2)
    assert module.books.meter.total("up").tolist() == [2 * 10 * 5 * 4, 2 * 10 * 5 * 4, 0]
    assert module.books.meter.total("down").tolist() == [2 * 10 * 5 * 4, 2 * 10 * 5 * 4, 0]


def test_dropout_is_a_function_of_round_and_process(monkeypatch):
    def drawn(rank):
        monkeypatch.setattr(SplitVFL, "global_rank", rank)
        module, draws = split(), []
        for _ in range(3):
            module.next_round(seed_global=True)
            draws.append(float(torch.rand(())))
        return draws

    assert drawn(0) == drawn(0)
    assert len({*drawn(0), *drawn(1)}) == 6


def test_bytes_are_rows_times_width_times_four(tmp_path):
    module, t = fitted(tmp_path, Blobs(batch_size=10), split(Concat()))
    assert module.books.meter.total("up").tolist() == [2 * 54 * 5 * 4] * 3
    assert t.callback_metrics["comm/up_bytes"].dtype == torch.float64
    assert int(t.callback_metrics["comm/up_bytes"]) == 3 * 2 * 54 * 5 * 4


def test_evaluation_through_the_protocol_has_the_same_values_and_is_metered_apart(tmp_path):
    data = Blobs(batch_size=10)
    results = {}
    for way in ("plain", "protocol"):
        module, t = fitted(tmp_path, data, split(evaluate=way), num_sanity_val_steps=2, max_epochs=1)
        results[way] = (t.test(module, datamodule=data, verbose=False)[0], module.books.meter)
    assert results["plain"][0] == results["protocol"][0]
    assert results["plain"][1].kinds("up") == ("embeddings",)
    kinds = ("embeddings", "sanity check embeddings", "test embeddings", "validation embeddings")
    assert results["protocol"][1].kinds("up") == kinds
    assert results["protocol"][1].total("up", "test embeddings").tolist() == [18 * 5 * 4] * 3


def test_no_shapes_and_no_datamodule_names_the_fix(tmp_path):
    with pytest.raises(ConfigurationError, match="give the trainer a datamodule"):
        trainer(tmp_path).fit(split(), train_dataloaders=[1], val_dataloaders=[1])


def test_other_data_than_the_model_was_built_for(tmp_path):
    module, _ = fitted(tmp_path, Blobs(batch_size=10))
    with pytest.raises(ConfigurationError, match="use the partitioner that it was trained with"):
        trainer(tmp_path).test(module, datamodule=Blobs(ContiguousColumns(2)), verbose=False)


def silent(shape, width):
    """A factory that fails without a word."""
    raise ValueError


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"bottom": silent}, "and fails with: ValueError"),
        ({"top": partial(Linear, outputs=7)}, "7.* but 3 are needed"),
        ({"top": lambda width: nn.Linear(width + 1, 3)}, "the top Linear cannot take input"),
        ({"bottom": lambda shape, width: nn.Linear(shape[0], width + 1)}, "bottom Linear of party 0 outputs .6"),
        ({"bottom": lambda shape, width: nn.Linear(99, width)}, "cannot take input of per-record shape .3"),
        ({"bottom": partial(MLP, hidden=(-1,))}, "the bottom of party 0 cannot be built"),
        (
            {"bottom": lambda columns, width: nn.Linear(columns, width)},
            r"factory is called with \(\(3,\), 5\) and fails",
        ),
        (
            {"bottom": lambda *_: nn.Sequential(nn.ReLU(inplace=True), nn.Linear(3, 5))},
            "of party 0 writes into its input",
        ),
        ({"top": lambda width: nn.Sequential(nn.ReLU(inplace=True), nn.Linear(width, 3))}, "give its first layers"),
        ({"bottom_of": {5: MLP}}, "a party of bottom_of must be a whole number from 0 to 2; got 5"),
    ],
)
def test_networks_that_do_not_fit_name_the_fix(tmp_path, settings, message):
    with pytest.raises(ConfigurationError, match=message):
        fitted(tmp_path, Blobs(batch_size=10), split(**settings))


def test_bottoms_may_differ_between_parties_and_a_top_that_knows_its_outputs_is_called_with_the_width(tmp_path):
    given = {"bottom_of": {1: Linear}, "top": lambda width: nn.Linear(width, 3)}
    module, _ = fitted(tmp_path, Blobs(batch_size=10), split(**given), max_epochs=1)
    assert [type(b).__name__ for b in module.bottoms.parties] == ["MLP", "Linear", "MLP"]
    assert module.top.out_features == 3


class Unheld(PartlyHeld):
    """Nobody holds any feature of the first 20 training records."""

    def load(self, names):
        splits = super().load(names)
        if "train" in splits:
            splits["train"].present[:20] = False
        return splits


def test_a_round_that_nobody_takes_part_in_passes(tmp_path):
    module = InOrderSplit(Mean(), width=5, seed=0, optimizer=partial(torch.optim.SGD, lr=0.1))
    _, t = fitted(tmp_path, Unheld(batch_size=10), module, max_steps=2, limit_val_batches=0)
    assert t.global_step == 2
    assert module.books.meter.total("up").tolist() == [0, 0, 0]


def test_classes_that_are_not_the_datas_are_refused(tmp_path):
    module = split(party_shapes=[(3,), (3,), (2,)])
    with pytest.raises(ConfigurationError, match="give the same num_classes"):
        fitted(tmp_path, Blobs(batch_size=10), module)


def test_a_second_fit_has_epoch_losses_of_its_own(tmp_path):
    data = Blobs(batch_size=54)
    module, _ = fitted(tmp_path, data, max_epochs=1)
    t = trainer(tmp_path, max_epochs=1, log_every_n_steps=1)
    t.fit(module, datamodule=data)
    assert float(t.callback_metrics["train/loss_epoch"]) == pytest.approx(float(t.callback_metrics["train/loss"]))


def test_a_validation_before_the_fit_changes_nothing(tmp_path):
    """It runs in inference mode, the validations of a fit do not."""
    results = []
    for validated in (True, False):
        module = split()
        if validated:
            trainer(tmp_path).validate(module, datamodule=Blobs(batch_size=10), verbose=False)
        t = trainer(tmp_path)
        t.fit(module, datamodule=Blobs(batch_size=10))
        results.append({name: float(value) for name, value in t.callback_metrics.items()})
    assert results[0] == results[1]


def test_a_test_that_was_broken_off_does_not_count_in_the_next(tmp_path):
    class Stop(Callback):
        def on_test_batch_end(self, *args):
            raise KeyError("broken off")

    module = split()
    with pytest.raises(KeyError):
        trainer(tmp_path, callbacks=[Stop()]).test(module, datamodule=Blobs(batch_size=4), verbose=False)
    again = trainer(tmp_path).test(module, datamodule=Blobs(batch_size=4), verbose=False)
    clean = split()
    assert again == trainer(tmp_path).test(clean, datamodule=Blobs(batch_size=4), verbose=False)
