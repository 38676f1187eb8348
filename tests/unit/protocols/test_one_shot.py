"""OneShotVFL against a loop of plain torch, its bytes, its faults, and the labels that its gradients tell."""

from copy import deepcopy
from functools import partial

import numpy as np
import pytest
import torch
from lightning.pytorch import Callback
from lightning.pytorch.callbacks import EarlyStopping, ModelCheckpoint
from scipy.optimize import linear_sum_assignment
from sklearn.cluster import KMeans
from torch import nn
from torch.nn.functional import cross_entropy

from lightning_vfl import OneShotVFL
from lightning_vfl.aggregators import Concat, Mean
from lightning_vfl.callbacks import FaultInjector
from lightning_vfl.datamodules import Digits, MissingAtRandom
from lightning_vfl.errors import ConfigurationError
from lightning_vfl.networks import MLP
from lightning_vfl.networks.record_table import RecordTable
from lightning_vfl.protocols.one_shot import NONE, clusters_of, local_loss
from lightning_vfl.simulation import PartyDropout
from tests.subjects import Blobs, Values, trainer

ADAM = partial(torch.optim.Adam, lr=1e-2)
SMALL = partial(MLP, hidden=(6,))
LOCAL = 2
N, WIDTH = 54, 5


def one_shot(**settings):
    torch.manual_seed(0)
    settings = {"width": WIDTH, "seed": 0, "local_epochs": LOCAL, "optimizer": ADAM, "bottom": SMALL} | settings
    return OneShotVFL(settings.pop("aggregator", Concat()), **settings)


def fitted(folder, module, data=None, epochs=LOCAL + 3, callbacks=(), **more):
    t = trainer(folder, max_epochs=epochs, callbacks=list(callbacks), **more)
    t.fit(module, datamodule=data or Blobs(batch_size=10))
    return module


class Watching(Callback):
    """Keeps the networks before training, all batches, and the clusters."""

    def on_train_start(self, trainer, module):
        self.bottoms, self.heads, self.top = deepcopy(([*module.bottoms.parties], [*module.heads], module.top))
        self.batches = []

    def on_train_batch_start(self, trainer, module, batch, batch_idx):
        self.batches.append((trainer.current_epoch, batch))

    def on_train_epoch_end(self, trainer, module):
        if module.phase == "local":
            self.labels = module._labels


def by_hand(watching):
    """The clusters and all weights: one exchange, local epochs, and the top alone."""
    bottoms, heads, top = watching.bottoms, watching.heads, watching.top
    gradients = [torch.zeros(N, WIDTH) for _ in bottoms]
    records = {}
    for epoch, batch in watching.batches:
        if epoch == 0:
            h = [bottom(x) for bottom, x in zip(bottoms, batch.features, strict=True)]
            losses = cross_entropy(top(torch.cat(h, 1)), batch.labels, reduction="none")
            for table, own in zip(gradients, torch.autograd.grad(losses.sum(), h), strict=True):
                table[batch.record_ids] = own
    clusters = [KMeans(3, n_init=10, random_state=0).fit(own.double().numpy()).labels_ for own in gradients]
    alone = [ADAM([*bottom.parameters(), *head.parameters()]) for bottom, head in zip(bottoms, heads, strict=True)]
    owner = ADAM(top.parameters())
    for epoch, batch in watching.batches:
        if 0 < epoch <= LOCAL:
            for m, optimizer in enumerate(alone):
                optimizer.zero_grad()
                target = torch.from_numpy(clusters[m]).long()[batch.record_ids]
                cross_entropy(heads[m](bottoms[m](batch.features[m])), target).backward()
                optimizer.step()
        if epoch > LOCAL:
            for number, record in enumerate(batch.record_ids.tolist()):
                if record not in records:  # the last upload: bottoms do not change any more
                    own = [bottom(x[number : number + 1]) for bottom, x in zip(bottoms, batch.features, strict=True)]
                    records[record] = torch.cat(own, 1).detach()
            owner.zero_grad()
            joined = torch.cat([records[record] for record in batch.record_ids.tolist()])
            cross_entropy(top(joined), batch.labels).backward()
            owner.step()
    return clusters, [*nn.ModuleList(bottoms).parameters(), *nn.ModuleList(heads).parameters(), *top.parameters()]


def weights(module):
    return [*module.bottoms.parameters(), *module.heads.parameters(), *module.top.parameters()]


def test_clusters_and_weights_are_those_of_a_plain_loop(tmp_path):
    watching = Watching()
    module = fitted(tmp_path, one_shot(), callbacks=[watching])
    clusters, expected = by_hand(watching)
    assert np.array_equal(watching.labels.T.numpy(), np.stack(clusters))
    for mine, theirs in zip(weights(module), expected, strict=True):
        torch.testing.assert_close(mine, theirs, rtol=1e-4, atol=1e-5)


def test_a_record_is_sent_twice_and_answered_once_however_long_it_trains(tmp_path):
    for epochs in (LOCAL + 2, LOCAL + 4):
        meter = fitted(tmp_path, one_shot(), epochs=epochs).books.meter
        assert meter.total("up").tolist() == [2 * N * WIDTH * 4] * 3
        assert meter.total("down").tolist() == [N * WIDTH * 4] * 3


@pytest.mark.filterwarnings("ignore:no party holds")
def test_records_that_a_party_lacks_are_neither_sent_nor_learnt(tmp_path):
    data = Blobs(MissingAtRandom(p=0.3), batch_size=6)
    watching = Watching()
    module = fitted(tmp_path, one_shot(aggregator=Mean()), data, callbacks=[watching])
    present = data.records("train").present
    assert 0 < int(present.sum()) < present.numel()
    assert torch.equal(watching.labels != NONE, present)
    assert module.books.meter.total("up", "final embeddings").tolist() == (present.sum(0) * WIDTH * 4).tolist()


class Moving(Callback):
    """Notes which parties are there in each round, and which change."""

    def __init__(self):
        self.moved = []
        self.there = []

    def on_train_batch_start(self, trainer, module, batch, batch_idx):
        self.before = [nn.utils.parameters_to_vector(own.parameters()).clone() for own in module.bottoms.parties]
        self.there.append(module.faults.at(2 * len(self.there), module.roster).announced)

    def on_train_batch_end(self, trainer, module, outputs, batch, batch_idx):
        after = [nn.utils.parameters_to_vector(own.parameters()) for own in module.bottoms.parties]
        self.moved.append([not torch.equal(old, new) for old, new in zip(self.before, after, strict=True)])


def test_a_party_that_is_away_gets_no_gradient_and_does_not_learn(tmp_path):
    moving = Moving()
    module = one_shot()
    fault = FaultInjector(PartyDropout(0.6, 0.5))
    watching = Watching()
    fitted(tmp_path, module, epochs=LOCAL + 2, callbacks=[fault, moving, watching])
    expected = torch.zeros(N, 3, dtype=torch.bool)
    for number, (epoch, batch) in enumerate(watching.batches):
        there = moving.there[number]
        if epoch == 0:
            expected[batch.record_ids] = there
        assert moving.moved[number] == ([False] * 3 if epoch in (0, LOCAL + 1) else there.tolist())
    assert 0 < int(expected.sum()) < expected.numel()
    assert torch.equal(watching.labels != NONE, expected)


def test_the_local_loss_takes_confident_predictions_where_there_is_no_label():
    logits = torch.tensor([[2.0, 0.0], [9.0, 0.0], [0.1, 0.0], [9.0, 0.0]])
    labels = torch.tensor([1, NONE, NONE, NONE])
    there = torch.tensor([True, True, True, False])  # the third prediction is not confident
    loss = local_loss(logits, labels, there, 0.95)
    assert float(loss) == pytest.approx((np.log1p(np.exp(2.0)) + np.log1p(np.exp(-9.0))) / 2, rel=1e-6)
    nothing = local_loss(logits, torch.full((4,), NONE), torch.zeros(4, dtype=torch.bool), 0.95)
    assert float(nothing) == 0.0


def found(labels, clusters):
    """The share of records whose label follows from their cluster, for the best names of clusters."""
    table = np.zeros((labels.max() + 1, clusters.max() + 1))
    np.add.at(table, (labels, clusters), 1)
    rows, columns = linear_sum_assignment(-table)
    return table[rows, columns].sum() / len(labels)


def test_every_party_learns_the_labels_from_one_exchange(tmp_path):
    """What the page says of the digits; the classes are as good as told."""
    data = Digits()
    watching = Watching()
    fitted(tmp_path, one_shot(width=64, bottom=MLP, local_epochs=1), data, 3, [watching], limit_val_batches=0)
    records = data.records("train")
    labels = records.labels_at(torch.arange(len(records))).numpy()
    shares = [found(labels, watching.labels[:, party].numpy()) for party in range(4)]
    assert min(shares) > 0.99, shares


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """A fit and the folder of its checkpoints."""
    folder = tmp_path_factory.mktemp("whole")
    saved = ModelCheckpoint(folder, "{epoch}", save_top_k=-1)
    return fitted(folder, one_shot(), callbacks=[saved], enable_checkpointing=True), folder


@pytest.mark.filterwarnings("ignore:Be aware that when using `ckpt_path`")
@pytest.mark.parametrize("epoch", [0, 1, LOCAL + 1])
def test_a_resumed_fit_has_the_bits_of_the_whole_one(tmp_path, whole, epoch):
    uninterrupted, folder = whole
    again = one_shot()
    t = trainer(tmp_path, max_epochs=LOCAL + 3)
    t.fit(again, datamodule=Blobs(batch_size=10), ckpt_path=folder / f"epoch={epoch}.ckpt", weights_only=True)
    for mine, theirs in zip(weights(again), weights(uninterrupted), strict=True):
        assert torch.equal(mine, theirs)
    assert torch.equal(again.books.meter.total("up"), uninterrupted.books.meter.total("up"))
    assert again.clock.seconds == uninterrupted.clock.seconds


def test_a_party_with_fewer_gradients_than_classes_has_no_clusters():
    table = RecordTable(4, (2, 1))
    table.write(torch.tensor([0, 1]), 0, torch.ones(2, 2))
    table.write(torch.tensor([0, 1, 3]), 1, torch.tensor([[5.0], [1.0], [1.1]]))
    labels = clusters_of(table, 3).T.tolist()
    assert labels[0] == [NONE] * 4
    assert labels[1][2] == NONE
    assert sorted(labels[1]) == [NONE, 0, 1, 2]


@pytest.mark.parametrize(
    ("settings", "fit", "message"),
    [
        ({}, {"epochs": LOCAL + 1}, r"max_epochs must be at least 4, because the owner's phase begins after 3 epochs"),
        ({}, {"data": Values(batch_size=10)}, "finds clusters for classes, and these labels are numbers"),
        ({}, {"callbacks": [EarlyStopping("val/loss")]}, "wrap it: class_path DuringPhase"),
        ({"local_epochs": 0}, {}, "local_epochs must be a whole number, 1 or more"),
        ({"confidence": 1.5}, {}, "confidence must be a number from 0 to 1"),
        ({"limit_bytes": 10}, {}, "raise limit_bytes"),
    ],
)
def test_what_would_go_wrong_is_refused_before_training(tmp_path, settings, fit, message):
    with pytest.raises(ConfigurationError, match=message):
        fitted(tmp_path, one_shot(**settings), **fit)
