"""One thread for small networks, which gain nothing from a second one and lose much on a machine that others use."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from math import prod

import torch
from lightning.pytorch import Callback, LightningModule, Trainer

from lightning_vfl.protocols import VFLModule

VARIABLES = ("OMP_NUM_THREADS", "MKL_NUM_THREADS")
# Weights times records of a batch; a judgement. On two cores that others used too, one thread was faster at every size
# tried (up to 2,160 million), because each of a step's hundred operations waits for both; idle cores were not measured.
SMALL = 10_000_000


class FewThreads(Callback):
    """Sets torch to one thread before a run of small networks, unless the environment says how many.

    Small are linear layers whose weights times records of a batch are at most ``SMALL``, on the CPU and in one process.
    Features of several dimensions count as several records, since layers may be applied to each of their rows.
    Aggregators that compute in a field keep their threads, because their work does not follow from this size.

    Not guaranteed: the bits of a run with several threads, whose sums torch adds in another order.
    """

    def on_fit_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        _set(trainer, pl_module)

    on_validation_start = on_test_start = on_predict_start = on_fit_start


def _set(trainer: Trainer, module: LightningModule) -> None:
    named = any(variable in os.environ for variable in VARIABLES)
    if named or trainer.world_size > 1 or trainer.strategy.root_device.type != "cpu":
        return
    if (
        isinstance(module, VFLModule)
        and module.datamodule is not None
        and is_small(module, module.datamodule.batch_size)
    ):
        torch.set_num_threads(1)


def is_small(module: VFLModule, batch: int) -> bool:
    """Whether the networks of a protocol that is built are small for batches of this size."""
    weights = list(module.parameters())
    linear = all(weight.dim() <= 2 for weight in weights)
    rows = max(prod(shape[:-1]) for shape in module.hparams["party_shapes"])  # at most: to each a layer may be applied
    return linear and module.wire.traits.visible and rows * batch * sum(w.numel() for w in weights) <= SMALL


@contextmanager
def same_threads() -> Iterator[None]:
    """Give torch its former number of threads back afterwards."""
    threads = torch.get_num_threads()
    try:
        yield
    finally:
        torch.set_num_threads(threads)
