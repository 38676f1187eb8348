"""Traces of what happened to the parties: replayed from a file, and recorded to one."""

from lightning.pytorch import Callback, LightningModule, Trainer

from lightning_vfl.simulation import RecordedTrace
from lightning_vfl.simulation.trace import file_of, record, write

from .injector import FaultInjector, protocol


class TraceReplay(FaultInjector):
    """Lets happen what a file says; see ``RecordedTrace``.

    Args:
        path: a ``.csv`` or ``.parquet`` file, measured, made by hand, or written by ``TraceRecorder``.
    """

    def __init__(self, path: str) -> None:
        super().__init__(RecordedTrace(path))


class TraceRecorder(Callback):
    """Writes what happened in a training when fit ends, one row a party and request; ``TraceReplay`` reads it.

    Guarantee: replayed, it gives a training the same faults, bit for bit. After a resumed training it is whole.
    Not guaranteed: known stragglers; ``Ignore`` would leave out nobody in a replay.

    Args:
        path: where to write, ``.csv`` or ``.parquet``.

    Raises:
        ConfigurationError: for another ending; before training, for a module that is no protocol of this toolkit.
    """

    def __init__(self, path: str = "trace.csv") -> None:
        self.path = file_of(path)

    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        protocol(self, pl_module)

    def on_fit_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        module = protocol(self, pl_module)
        requests = module.requests_made()
        if trainer.is_global_zero and requests:
            write(record(lambda request: module.faults.at(request, module.roster), requests), str(self.path))
            print(f"trace of {requests:,} requests: {self.path}")
