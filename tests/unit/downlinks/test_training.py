"""Downlinks in trainings: what leaves the server, what is charged, and that a resumed run has the same bits."""

import pytest
import torch
from lightning.pytorch.callbacks import ModelCheckpoint
from torch import nn

from lightning_vfl.aggregators import Concat, MaskedSum, Mean
from lightning_vfl.callbacks import RunSummary
from lightning_vfl.datamodules import ContiguousColumns
from lightning_vfl.datamodules.records.records import Request
from lightning_vfl.downlinks import GaussianGradients, LaplaceLabels, MaxNorm, RandomizedResponse
from lightning_vfl.errors import ConfigurationError
from lightning_vfl.objectives import MultiClass
from lightning_vfl.privacy import gaussian_epsilon, rounded_up
from lightning_vfl.types import Roll
from tests.further import further
from tests.subjects import Blobs, same, split, trainer


def fit(folder, module, ckpt_path=None, **settings):
    t = trainer(folder, **{"max_epochs": 2, **settings})
    t.fit(module, datamodule=Blobs(ContiguousColumns(4), batch_size=10), ckpt_path=ckpt_path)
    return t


def ready():
    """The data of ``fit``, before a training."""
    data = Blobs(ContiguousColumns(4), batch_size=10)
    data.setup("fit")
    return data


def spied(downlink):
    """The gradients that a downlink is given, and what it sends."""
    seen, protect = [], downlink.protect

    def spy(grad, labels, names, first):
        sent = protect(grad, labels, names, first)
        seen.append((grad.clone(), sent.clone(), labels.clone()))
        return sent

    downlink.protect = spy
    return seen


@pytest.mark.parametrize("aggregator", [Mean, Concat, lambda: MaskedSum(clip=4.0, insecure_seeded_secrets=True)])
def test_parties_learn_from_what_is_sent_and_the_top_from_the_truth(tmp_path, aggregator):
    class Nothing(MaxNorm):
        def protect(self, grad, labels, names, first):
            return torch.zeros_like(grad)

    module = split(aggregator(), downlink=Nothing())
    module.build_for(ready())
    before = {name: p.clone() for name, p in module.named_parameters()}
    fit(tmp_path, module)
    moved = {name for name, p in module.named_parameters() if not torch.equal(p, before[name])}
    assert moved
    assert all(name.startswith("top.") for name in moved)


def test_a_downlink_is_given_the_gradients_of_single_records(tmp_path):
    downlink = MaxNorm("seeded")
    seen = spied(downlink)
    fit(tmp_path, split(Mean(), downlink=downlink), max_steps=1)
    module = split(Mean())
    data = ready()
    module.build_for(data)
    ids, _ = next(iter(module.schedule(data.records("train"), 10, data.seed).epoch(0)))
    batch = data.records("train")[Request(torch.from_numpy(ids), None, None)]
    z = module.aggregator.plain(module.bottoms(batch.features), Roll.everyone(4)).detach().requires_grad_()
    each = [
        torch.autograd.grad(module.objective.loss(module.head(z[i : i + 1]), batch.labels[i : i + 1]), z)[0][i]
        for i in range(len(z))
    ]
    assert torch.allclose(seen[0][0], torch.stack(each), atol=1e-6)
    assert torch.equal(seen[0][2], batch.labels)


def test_every_release_of_a_label_is_charged_and_told(tmp_path):
    downlink = GaussianGradients(clip=1.0, sigma=3.0, draws="seeded")
    module = split(Mean(), downlink=downlink)
    summary = RunSummary()
    fit(tmp_path, module, max_epochs=3, callbacks=[summary])
    spent = module.label_privacy.epsilon()
    assert spent == rounded_up(gaussian_epsilon(3.0, 2.0, 1e-5, uploads=3))
    assert list(tmp_path.rglob("privacy-*.jsonl"))


@pytest.mark.parametrize(
    "make",
    [
        lambda: GaussianGradients(1.0, 2.0, draws="seeded"),
        lambda: RandomizedResponse(1.0),
        further(lambda: LaplaceLabels(1.0)),
    ],
    ids=["gaussian", "response", "laplace"],
)
@pytest.mark.filterwarnings("ignore:Be aware that when using `ckpt_path`")
def test_a_resumed_training_has_the_same_bits(tmp_path, make):
    torch.manual_seed(0)
    downlink = make()
    module = split(Mean(), downlink=downlink)
    saver = ModelCheckpoint(every_n_train_steps=4, save_top_k=-1, filename="{step}")
    fit(tmp_path / "whole", module, callbacks=[saver], enable_checkpointing=True)
    (kept,) = (tmp_path / "whole").rglob("step=4.ckpt")
    resumed = split(Mean(), downlink=make())
    fit(tmp_path / "again", resumed, ckpt_path=str(kept))
    assert same(module.state_dict(), resumed.state_dict())
    assert resumed.label_privacy.epsilon() >= module.label_privacy.epsilon()


def test_networks_that_mix_records_are_refused(tmp_path):
    module = split(Mean(), norm=nn.BatchNorm1d, downlink=GaussianGradients(1.0, 1.0))
    with pytest.raises(ConfigurationError, match="BatchNorm1d in the server's network mixes the records of a batch"):
        fit(tmp_path, module)


@pytest.mark.parametrize("downlink", [GaussianGradients(1.0, 1.0), RandomizedResponse(1.0), LaplaceLabels(1.0)])
def test_class_weights_of_the_counts_of_true_labels_are_refused(tmp_path, downlink):
    module = split(Mean(), objective=MultiClass(class_weights="balanced"), downlink=downlink)
    with pytest.raises(ConfigurationError, match="balanced is made of the true labels"):
        fit(tmp_path, module)


def test_a_loss_that_divides_by_the_weights_of_a_batch_is_refused(tmp_path):
    loss = nn.CrossEntropyLoss(weight=torch.ones(2))
    module = split(Mean(), objective=MultiClass(loss), downlink=GaussianGradients(1.0, 1.0))
    with pytest.raises(ConfigurationError, match="divides by those of the whole batch"):
        fit(tmp_path, module)


def test_scaled_gradients_are_refused_where_they_are_clipped(tmp_path):
    """A scaler of half precision runs on a GPU; the plugin of the processor is given one."""
    t = trainer(tmp_path, max_epochs=1)
    t.precision_plugin.scaler = object()
    with pytest.raises(ConfigurationError, match="clipped to their bound while they are scaled; use precision bf16-m"):
        t.fit(split(Mean(), downlink=GaussianGradients(clip=1.0, sigma=1.0)), datamodule=ready())


@pytest.mark.filterwarnings("ignore:Be aware that when using `ckpt_path`")
@pytest.mark.parametrize(
    ("before", "after", "message"),
    [
        (None, RandomizedResponse(1.0), r"trained with no downlink, and this fit has RandomizedResponse \(labels have"),
        (
            None,
            GaussianGradients(1.0, 1.0),
            "trained with no downlink, and this fit has GaussianGradients, which claims",
        ),
        (RandomizedResponse(1.0), RandomizedResponse(2.0), r"with RandomizedResponse .*ε = 1, .*has Rand.*ε = 2, δ"),
        (MaxNorm(), LaplaceLabels(1.0), "trained with MaxNorm, and this fit has LaplaceLabels"),
        (GaussianGradients(1.0, 1.0), GaussianGradients(1.0, 2.0), None),  # every round is charged with its own noise
        (RandomizedResponse(1.0), None, None),
    ],
)
def test_a_resumed_fit_claims_nothing_of_rounds_that_had_another_downlink(tmp_path, before, after, message):
    done = fit(tmp_path / "a", split(Mean(), downlink=before), max_epochs=1)
    done.save_checkpoint(tmp_path / "last.ckpt")
    again = {"ckpt_path": str(tmp_path / "last.ckpt"), "max_epochs": 2}
    if message is None:
        fit(tmp_path / "b", split(Mean(), downlink=after), **again)
    else:
        with pytest.raises(ConfigurationError, match=message):
            fit(tmp_path / "b", split(Mean(), downlink=after), **again)
    trainer(tmp_path / "c").test(split(Mean(), downlink=after), ready(), ckpt_path=again["ckpt_path"], verbose=False)
