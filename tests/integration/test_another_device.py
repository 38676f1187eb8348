"""Trainings on a device that is not the CPU have the bits of the CPU: no tensor is left on the wrong device.

A machine without a GPU runs these tests: ``tests.another_device`` stands in for the GPU. All golden
runs are trained in the same way by ``python -m tests.golden --elsewhere``.
"""

import subprocess
import sys
from contextlib import nullcontext
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch

from lightning_vfl import AsyncVFL, CascadeVFL, DecoupledVFL, EnsembleVFL, LaserVFL, LocalVFL, OneShotVFL, SplitVFL
from lightning_vfl.aggregators import Concat, LagrangeCoded, MaskedSum, Mean
from lightning_vfl.callbacks import Audit, PartyDropout, TrainMetrics
from lightning_vfl.datamodules import (
    ContiguousColumns,
    Digits,
    Grid,
    Groups,
    LabelPartition,
    LimitedOverlap,
    MissingAtRandom,
)
from lightning_vfl.downlinks import GaussianGradients, LaplaceLabels, Marvell, MaxNorm, RandomizedResponse
from lightning_vfl.errors import ConfigurationError
from lightning_vfl.local_objectives import BarlowTwins
from lightning_vfl.missing import LastMessage, PadAfterNorm, Stale
from lightning_vfl.networks import ConvNet, Linear, PolynomialNetwork, ResNet18
from lightning_vfl.objectives import Binary, MultiClass
from lightning_vfl.protocols import DropParties, TaskSampling
from lightning_vfl.waiting import Deadline
from tests.another_device import DEVICE, another_device, on_the_cpu, strategy
from tests.subjects import Blobs, Values, YesNo, same, split, trainer

pytestmark = pytest.mark.filterwarnings("ignore")

seeded = partial(MaskedSum, insecure_seeded_secrets=True)
small: dict[str, Any] = {"width": 4, "seed": 0}
phases: dict[str, Any] = {"guest_epochs": 1, "replay_epochs": 0, "host_width": 4}
groups: dict[str, Any] = {"bottom": Linear, "allow_invertible_updates": True}


def dropout():
    return PartyDropout(1, 0.5)


def in_groups():
    return Blobs(Groups(ContiguousColumns(2), [3, 3]), batch_size=6)


QUICK: dict[str, tuple[Any, Any, Any]] = {  # name: what makes the module, the data, callbacks
    "subsets by record": (partial(split, subsets=DropParties(0.5)), Blobs, ()),
    "masks, faults in evaluation": (
        partial(
            split,
            seeded(recovery="auto"),
            waiting=Deadline(0.5),
            faults_in_evaluation=True,
            evaluate="protocol",
            allow_embeddings_by_subtraction=True,
        ),
        Blobs,
        (dropout,),
    ),
    "DecoupledVFL, Barlow Twins": (
        partial(DecoupledVFL, **small, **phases, guest_objective=BarlowTwins()),
        lambda: Blobs(LimitedOverlap(ContiguousColumns(3), 20), batch_size=6),
        (),
    ),
}
FURTHER: dict[str, tuple[Any, Any, Any]] = {
    "updates of groups": (partial(split, seeded(), **groups), in_groups, ()),
    "Marvell, audited": (
        partial(split, downlink=Marvell(draws="seeded")),
        YesNo,
        (partial(Audit, "server"), TrainMetrics),
    ),
    "CascadeVFL, labels of several": (
        partial(CascadeVFL, seeded(), **small),
        lambda: Blobs(LabelPartition(ContiguousColumns(3)), batch_size=6),
        (),
    ),
    "subsets by round": (partial(split, subsets=DropParties(0.5, by="round")), Blobs, ()),
    "task sampling": (partial(split, subsets=TaskSampling()), Blobs, ()),
    "task sampling, all": (partial(split, subsets=TaskSampling(each_size="all")), Blobs, ()),
    "GaussianGradients": (partial(split, downlink=GaussianGradients(clip=0.1, sigma=0.5, draws="seeded")), Blobs, ()),
    "RandomizedResponse": (partial(split, downlink=RandomizedResponse(epsilon=1.0, draws="seeded")), Blobs, ()),
    "LaplaceLabels": (partial(split, downlink=LaplaceLabels(epsilon=1.0, draws="seeded")), Blobs, ()),
    "MaxNorm": (partial(split, downlink=MaxNorm(draws="seeded")), YesNo, ()),
    "balanced classes": (partial(split, objective=Binary(class_weights="balanced")), YesNo, ()),
    "weighted classes": (partial(split, objective=MultiClass(class_weights=[1.0, 2.0, 3.0])), Blobs, ()),
    "regression": (split, Values, ()),
    "PadAfterNorm": (
        partial(split, seeded(layout="segments"), norm=torch.nn.BatchNorm1d, missing=PadAfterNorm(), active=0),
        Blobs,
        (),
    ),
    "LastMessage": (partial(split, missing=LastMessage(), waiting=Deadline(0.5)), Blobs, (dropout,)),
    "Stale, faults in evaluation": (
        partial(split, missing=Stale(), waiting=Deadline(0.5), faults_in_evaluation=True),
        Blobs,
        (dropout,),
    ),
    "dropout layers": (partial(split, dropout=True), Blobs, ()),
    "records that parties lack": (split, lambda: Blobs(MissingAtRandom(p=0.3), batch_size=6), ()),
    "LagrangeCoded, audited": (
        partial(split, LagrangeCoded(insecure_seeded_secrets=True), bottom=PolynomialNetwork),
        YesNo,
        (partial(Audit, "server"),),
    ),
    "AsyncVFL, audited": (partial(AsyncVFL, Concat(), **small), YesNo, (partial(Audit, "party:1"),)),
    "CascadeVFL, audited": (partial(CascadeVFL, Mean(), **small), YesNo, (partial(Audit, "party:1"),)),
    "DecoupledVFL, audited": (partial(DecoupledVFL, **small, **phases), YesNo, (partial(Audit, "server"),)),
    "LaserVFL": (partial(LaserVFL, **small), Blobs, ()),
    "OneShotVFL": (partial(OneShotVFL, Mean(), local_epochs=1, **small), Blobs, ()),
    "LocalVFL": (partial(LocalVFL, **small), Blobs, ()),
    "EnsembleVFL": (partial(EnsembleVFL, **small), Blobs, ()),
    "ConvNet": (partial(SplitVFL, Mean(), ConvNet, **small), partial(Digits, Grid(2, 2)), ()),
    "ResNet18": (partial(SplitVFL, Mean(), partial(ResNet18, norm="group"), **small), partial(Digits, Grid(2, 2)), ()),
}


def everything(folder, make, data, callbacks, elsewhere):
    """Weights, test metrics and predictions of a training that was resumed after its first epoch."""
    where = {"strategy": strategy(), "accelerator": "auto"} if elsewhere else {}
    where |= {"inference_mode": False, "limit_train_batches": 2, "limit_val_batches": 1, "limit_predict_batches": 1}
    where["limit_test_batches"] = 1
    records = data(batch_size=6) if data in (Blobs, YesNo, Values) else data()
    with another_device() if elsewhere else nullcontext():
        modules = []
        first = 3 if getattr(make, "func", None) is OneShotVFL else 2  # its phases
        for epochs, path in ((first, None), (first + 1, folder / "cut.ckpt")):
            torch.manual_seed(1)
            module = make()
            again = [
                make_callback() for make_callback in callbacks if path is None or Audit not in _parts(make_callback)
            ]
            t = trainer(folder, callbacks=again, max_epochs=epochs, **where)
            t.fit(module, datamodule=records, ckpt_path=path)
            if path is None:
                t.save_checkpoint(folder / "cut.ckpt")
            modules.append(module)
        tested = t.test(module, datamodule=records, verbose=False)
        predicted = t.predict(module, datamodule=records)
    weights = [on_the_cpu(dict(made.state_dict())) for made in modules]
    # a batch for which too few parties were there has NaN
    answers = [[on_the_cpu(x).nan_to_num(-1.0) for x in batch if isinstance(x, torch.Tensor)] for batch in predicted]
    return weights, tested, answers, module.books.meter.state_dict()


def _parts(made):
    return (made.func,) if isinstance(made, partial) else (made,)


@pytest.mark.parametrize("case", [*QUICK, *(pytest.param(name, marks=pytest.mark.slow) for name in FURTHER)])
def test_a_training_has_the_bits_of_the_cpu(tmp_path: Path, case):
    found = []
    for elsewhere in (False, True):
        folder = tmp_path / str(elsewhere)
        folder.mkdir()
        found.append(everything(folder, *(QUICK | FURTHER)[case], elsewhere))
    for here, there in zip(*found, strict=True):
        assert same(here, there)


@pytest.mark.slow
def test_all_golden_runs_have_the_committed_bits():
    done = subprocess.run([sys.executable, "-m", "tests.golden", "--elsewhere"], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr


def test_networks_are_built_on_the_cpu_whatever_trains_them():
    weights = []
    for device in ("cpu", "meta"):
        torch.manual_seed(5)
        with torch.device(device):
            module = split()
            module.build_for(Blobs())
        weights.append(module.state_dict())
        assert module.evaluation_roll().called.device.type == "cpu"
    assert same(*weights)


def test_the_other_device_refuses_what_a_gpu_refuses():
    with another_device():
        far = torch.arange(6.0, device=DEVICE).view(2, 3)
        assert far.device == (far + 1).device == torch.tensor([1.0], device=DEVICE).device == DEVICE
        assert far.cpu().tolist() == far.tolist() == [[0.0, 1.0, 2.0], [3.0, 4.0, 5.0]]
        assert torch.equal((far @ far.T).cpu(), far.cpu() @ far.cpu().T)
        assert far[:, torch.tensor([0, 2])].tolist() == far[:, [0, 2]].tolist() == [[0.0, 2.0], [3.0, 5.0]]
        for wrong in (
            lambda: far + torch.ones(3),
            lambda: torch.ones(2)[torch.tensor([0], device=DEVICE)],
            lambda: torch.cat([far, far.cpu()]),
            lambda: torch.rand(3, generator=torch.Generator(), device=DEVICE),
        ):
            with pytest.raises(RuntimeError, match=r"two devices|another device"):
                wrong()
        with pytest.raises(TypeError, match="no numpy array"):
            far.numpy()
        assert torch.rand(3, generator=torch.Generator(DEVICE).manual_seed(0), device=DEVICE).device == DEVICE
    assert torch.Generator().device.type == "cpu"


def test_a_device_without_float64_is_refused_before_training(tmp_path):
    t = trainer(tmp_path, strategy=strategy(torch.device("mps")), accelerator="auto")
    with pytest.raises(ConfigurationError, match=r"accelerator mps has no float64 numbers, .*; use accelerator: cpu"):
        t.fit(split(), datamodule=Blobs(batch_size=6))
