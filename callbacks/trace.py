"""Records the faults of a training in a file."""

from lightning.pytorch import Callback, LightningModule, Trainer

from lightning_vfl.simulation.trace import file_of, record, write

from .injector import protocol


class TraceRecorder(Callback):
    """Writes the faults of a training to a file when fit ends, one row for each party and request.

    Guarantee: ``TraceReplay`` of the file gives a training the same faults, bit for bit. The file of a resumed training
        holds the requests before the interruption too.
    Not guaranteed: known stragglers. ``Ignore`` leaves out no party in a replay.

    Args:
        path: the file to write, ``.csv`` or ``.parquet``.

    Raises:
        ConfigurationError: for another ending; before training, for a module that is not a protocol of this toolkit.
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
            for fault in getattr(module.datamodule, "faults", ()):
                print(f"the trace is without {fault!r}, which changes records; keep its callback in the recipe")
