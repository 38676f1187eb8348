"""What CascadeVFL refuses, each in one sentence that names the fix."""

import re
from functools import partial

import pytest
import torch
from torch import nn

from lightning_vfl import CascadeVFL
from lightning_vfl.aggregators import (
    Concat,
    LagrangeCoded,
    LagrangeShared,
    LocalGaussian,
    MaskedSum,
    Mean,
    PoissonBinomial,
    Sum,
)
from lightning_vfl.datamodules import ContiguousColumns, Groups, LabelPartition, LimitedOverlap
from lightning_vfl.errors import ConfigurationError
from lightning_vfl.missing import Exclude, PadAfterNorm, Skip, Stale, Zeros
from lightning_vfl.networks import MLP
from lightning_vfl.simulation import Crashes
from lightning_vfl.waiting import Deadline, Fastest
from tests.subjects import trainer
from tests.unit.protocols.cascade.cascade_by_hand import BOTTOM, TOP, WIDTH, B, FourParties, N, cascade, fit, shared


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (
            lambda: CascadeVFL(Mean(), variant="parallel"),  # type: ignore[arg-type]  # that is what is tested
            "variant must be 'async', 'sync', 'single' or 'centralized'; got 'parallel'",
        ),
        (lambda: CascadeVFL(Mean(), q=0.5), "q must be a finite number of at least 1; got 0.5"),
        (lambda: CascadeVFL(Mean(), q=float("nan")), "q must be a finite number of at least 1; got nan"),
        (lambda: CascadeVFL(Mean(), decay=-1e-3), "decay must be a finite number of at least 0; got -0.001"),
        (lambda: CascadeVFL(Mean(), decay=float("nan")), "decay must be a finite number of at least 0; got nan"),
        (
            lambda: CascadeVFL(Mean(), slower={1: 1.0}),
            "slower of party 1 must be a number of at least 0 and below 1; got 1.0",
        ),
        (
            lambda: CascadeVFL(Mean(), slower={1: -0.5}),
            "party 1 must be a number of at least 0 and below 1; got -0.5",
        ),
        (lambda: CascadeVFL(Mean(), active=0), "leave out active, and give the data a LabelPartition"),
        (lambda: CascadeVFL(LagrangeCoded()), "LagrangeCoded computes on shares of records and models, .*; use Concat"),
        (lambda: CascadeVFL(MaskedSum(layout="segments")), "makes sums for one active party, .*; use layout: sum"),
        (
            lambda: CascadeVFL(PoissonBinomial(MaskedSum(layout="segments"))),
            "makes sums for one active .*; use layout: sum",
        ),
        (
            lambda: CascadeVFL(Concat(), missing=PadAfterNorm()),
            "pads after a norm, but CascadeVFL has no norm; use Excl",
        ),
        (lambda: CascadeVFL(MaskedSum(), missing=Stale()), "replaces single embeddings, .*; use Exclude or Skip"),
        (lambda: CascadeVFL(MaskedSum(), missing=Zeros()), "replaces single embeddings, .*; use Exclude or Skip"),
        (lambda: CascadeVFL(LocalGaussian(), missing=Stale()), "hides these; use Exclude or Skip"),
    ],
)
def test_settings_that_cannot_be(make, message):
    with pytest.raises(ConfigurationError, match=message) as error:
        make()
    assert "\n" not in str(error.value)


def few(parties):
    return lambda: FourParties(LabelPartition(ContiguousColumns(parties)), batch_size=B)


def grouped():
    return FourParties(LabelPartition(Groups(ContiguousColumns(3), [1, 2, 1]), active=1), batch_size=B)


class Normed(nn.Module):
    """A top with running statistics, or with none."""

    def __init__(self, width, outputs, norm):
        super().__init__()
        self.layers = nn.Sequential(norm(width), nn.Linear(width, outputs))

    def forward(self, x):
        return self.layers(x)


BATCH_NORM = partial(Normed, norm=nn.BatchNorm1d)


def small(aggregator=None, **settings):
    return CascadeVFL(aggregator or Mean(), **{"bottom": BOTTOM, "top": TOP, "width": WIDTH, "seed": 0, **settings})


REFUSED = {
    "groups": (small, grouped, "does not support groups with a shared bottom"),
    "a sum of two": (
        partial(small, MaskedSum()),
        few(2),
        "could read the other embedding of a sum of two parties; use at least 3 parties",
    ),
    "draws of two": (partial(small, PoissonBinomial()), few(2), "use at least 3 parties"),
    "shares": (
        partial(small, LagrangeShared()),
        shared,
        "LagrangeShared hides embeddings only from a server, .* use Concat, Sum, Mean, MaskedSum or Pois",
    ),
    "batch norm": (partial(small, top=BATCH_NORM), shared, "use LayerNorm in the top, or no norm"),
    "batches": (small, lambda: many(19), "batch_size must be a whole number from 1 to 18; got 19"),
    "slower": (
        partial(small, slower={3: 0.5}),
        shared,
        r"slower names party 3, but labels are held by parties \[0, 1, 2\]; name one of these",
    ),
    "alone": (
        partial(small, variant="single", alone=3),
        shared,
        r"alone names party 3, but labels are held by parties \[0, 1, 2\]; name one of these",
    ),
    "limit": (partial(small, limit_bytes=1000), shared, "limit_bytes = 1000; raise the limit, or use smaller networks"),
    "faults": (
        partial(small, waiting=Fastest(2), missing=Skip()),
        shared,
        "gives up such rounds, so no network would learn; use WaitForAll or Deadline, or missing: Exclude",
    ),
    "masks": (
        partial(small, MaskedSum(), waiting=Deadline(1.0)),
        shared,
        "their masks are in the other uploads",
    ),
}


def many(batch_size):
    data = shared()
    data.batch_size = batch_size
    return data


def refusal(folder, module, data):
    with pytest.raises(ConfigurationError) as error:
        trainer(folder, max_epochs=1).fit(module, datamodule=data)
    return str(error.value)


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_refused_before_training_is_refused_again(tmp_path, name):
    make, data, message = REFUSED[name]
    module = make()
    for _ in range(2):
        said = refusal(tmp_path, module, data())
        assert re.search(message, said), said
        assert "\n" not in said


def test_labels_that_nobody_holds_are_refused(tmp_path):
    """All labels that anybody holds are of records that are left out of training."""
    cut = partial(LimitedOverlap, aligned=6, only_aligned=True)
    kept = set(cut(ContiguousColumns(4)).kept("train", N).tolist())
    rows = "".join(f"{1000 + i},0\n" for i in range(N) if i not in kept)
    (tmp_path / "labels.csv").write_text("id,party\n" + rows)
    held = cut(LabelPartition(ContiguousColumns(4), file=tmp_path / "labels.csv"))
    said = refusal(tmp_path, small(), FourParties(held, batch_size=B))
    assert re.search("label.*;", said), said
    assert "\n" not in said


def test_silent_losses_need_a_timeout(tmp_path):
    module = small()
    module.faults.add(Crashes("connections", 0.5, 0.5))
    assert "give a timeout in seconds, or use Deadline" in refusal(tmp_path, module, shared())


def test_a_loader_alone_does_not_say_who_holds_labels(tmp_path):
    data = shared()
    data.setup("fit")
    module, loaders = (
        small(party_shapes=data.party_shapes, num_classes=3),
        (data.train_dataloader(), data.val_dataloader()),
    )
    with pytest.raises(ConfigurationError, match="give the trainer a VerticalDataModule instead of a loader"):
        trainer(tmp_path, max_epochs=1).fit(module, *loaders)


def test_scaled_losses_and_accumulated_gradients_are_refused(tmp_path):
    """A scaler of half precision runs on a GPU; the plugin of the processor is given one."""
    t = trainer(tmp_path, max_epochs=1)
    t.precision_plugin.scaler = object()
    with pytest.raises(ConfigurationError, match="use precision bf16-mixed"):
        t.fit(small(), datamodule=shared())
    with pytest.raises(ConfigurationError, match="raise batch_size instead"):
        trainer(tmp_path, max_epochs=1, accumulate_grad_batches=2).fit(small(), datamodule=shared())


# ---- what is close to that, and trains


@pytest.mark.parametrize(
    ("settings", "data"),
    [
        ({"aggregator": MaskedSum(), "evaluate": "plain"}, few(3)),
        ({"aggregator": Mean()}, few(2)),
        ({"aggregator": Concat(), "slower": {2: 0.5, 1: 0.0}, "variant": "single", "alone": 1}, shared),
        ({"top": partial(Normed, norm=nn.LayerNorm)}, shared),
        ({"top": partial(Normed, norm=partial(nn.BatchNorm1d, track_running_stats=False))}, shared),
        ({"top": BATCH_NORM, "variant": "centralized"}, shared),
        ({"variant": "centralized", "limit_bytes": 0.0, "slower": {3: 0.5}}, shared),
        ({"missing": Zeros(), "aggregator": Sum()}, shared),
        ({"missing": Skip(), "waiting": Deadline(1.0)}, shared),
        ({"missing": Exclude(), "aggregator": LocalGaussian(), "evaluate": "plain"}, shared),
        ({}, lambda: many(18)),
    ],
    ids=lambda case: ", ".join(case) if isinstance(case, dict) else "",  # addresses would differ between processes
)
def test_what_is_close_to_that_trains(tmp_path, settings, data):
    aggregator = settings.get("aggregator")
    module = small(aggregator, **{name: value for name, value in settings.items() if name != "aggregator"})
    t = trainer(tmp_path, max_epochs=1, limit_val_batches=0)
    t.fit(module, datamodule=data())
    assert t.global_step > 0
    assert all(torch.isfinite(p).all() for p in module.parameters())


def test_precisions(tmp_path):
    exact, *runs = (
        fit(tmp_path, cascade(Concat(), slower={0: 0.5}, q=3.0), precision=precision).logged[-1]["train/loss_epoch"]
        for precision in ("32-true", "64-true", "bf16-true", "bf16-mixed")
    )
    assert runs == pytest.approx([exact] * 3, rel=0.02)


@pytest.mark.parametrize("frozen", [1, 4], ids=["bottom", "top"])
def test_a_frozen_network_stays_and_the_others_learn(tmp_path, frozen):
    module = cascade(slower={0: 0.5}, q=2.0)
    [*module.bottoms.parties, module.top][frozen].requires_grad_(False)
    run = fit(tmp_path, module, epochs=1)
    kept = [
        all(torch.equal(p, q) for p, q in zip(own, before.parameters(), strict=True))
        for own, before in zip(run.parameters().values(), [*run.bottoms, run.top], strict=True)
    ]
    assert kept == [network == frozen for network in range(5)]


def test_gradients_are_clipped_for_everybody_apart(tmp_path):
    """By norm, after the factor: plain SGD moves everybody by as much as the limit allows, and no further."""
    rate, limit = 0.5, 1e-4
    module = cascade(Sum(), optimizer=partial(torch.optim.SGD, lr=rate), slower={0: 0.5}, q=5.0, bottom=MLP)
    moves = []
    step = module.optimizer_step

    def noted(*arguments, **settings):
        networks = [*module.bottoms.parties, module.top]
        before = [[p.detach().clone() for p in network.parameters()] for network in networks]
        step(*arguments, **settings)
        for network, old in zip(networks, before, strict=True):
            squares = sum(float(((p.detach() - q) ** 2).sum()) for p, q in zip(network.parameters(), old, strict=True))
            moves.append(squares**0.5)

    module.optimizer_step = noted
    fit(tmp_path, module, epochs=1, gradient_clip_val=limit)
    assert len(moves) == 9 * 5
    assert moves == pytest.approx([rate * limit] * len(moves), rel=0.02)
