"""The callback that adds a fault model to a training, and the callbacks made from the toolkit's fault models."""

import inspect
from collections.abc import Callable
from typing import ParamSpec

from lightning.pytorch import Callback, LightningModule, Trainer

from lightning_vfl import simulation
from lightning_vfl.errors import ConfigurationError, refuse_other_kind
from lightning_vfl.protocols import VFLModule
from lightning_vfl.simulation import DataFault, FaultModel

P = ParamSpec("P")


class FaultInjector(Callback):
    """Adds a fault model to the trained protocol; use it directly for a model of your own.

    The callback adds the model before any loader exists and removes it at the end. It has no hook of a batch. The
    faults of several injectors are combined.

    Args:
        model: the fault model, or a fault in the records of a party.

    Raises:
        ConfigurationError: before training, for a module that is not a protocol of this toolkit, and for records that a
            fault cannot change.
    """

    def __init__(self, model: FaultModel | DataFault) -> None:
        if not isinstance(model, DataFault):
            refuse_other_kind("model", model, FaultModel, "PartyDropout(0.3)")
        self.model = model

    @classmethod
    def of(cls, model: Callable[P, FaultModel | DataFault]) -> Callable[P, "FaultInjector"]:
        """The callback for a class of models, with the same name, arguments and documentation.

        Examples:
            >>> FaultInjector.of(simulation.PartyDropout)(probability=0.3, proportion=0.1).model
            PartyDropout(probability=0.3, proportion=0.1, announced=True)
        """

        def __init__(self: FaultInjector, *args: P.args, **settings: P.kwargs) -> None:
            FaultInjector.__init__(self, model(*args, **settings))

        made = inspect.unwrap(model.__init__)
        __init__.__signature__ = inspect.signature(made)  # type: ignore[attr-defined]  # the command line reads it
        __init__.__annotations__ = made.__annotations__
        about, *_ = inspect.cleandoc(model.__doc__ or "").partition("\nExamples:")  # which show the model
        body = {"__init__": __init__, "__doc__": about, "__module__": cls.__module__}
        return type(model.__name__, (cls,), body)

    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        module = protocol(self, pl_module)
        if isinstance(self.model, FaultModel):
            module.faults.add(self.model)
            return
        data = module.datamodule
        if data is None:
            raise ConfigurationError(f"{type(self).__name__} changes records of a datamodule; give fit datamodule=")
        data.add_fault(self.model)

    def teardown(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        module = protocol(self, pl_module)
        if isinstance(self.model, FaultModel):
            module.faults.remove(self.model)
        elif module.datamodule is not None:
            module.datamodule.remove_fault(self.model)


def protocol(callback: Callback, module: LightningModule) -> VFLModule:
    """The module as a protocol of this toolkit.

    Raises:
        ConfigurationError: if the module is not a protocol.
    """
    if not isinstance(module, VFLModule):
        raise ConfigurationError(
            f"{type(callback).__name__} works only with a VFLModule; got {type(module).__name__}; "
            "train a protocol of lightning_vfl, or leave the callback out"
        )
    return module


Stragglers = FaultInjector.of(simulation.Stragglers)
PartyDropout = FaultInjector.of(simulation.PartyDropout)
Crashes = FaultInjector.of(simulation.Crashes)
TraceReplay = FaultInjector.of(simulation.TraceReplay)
Noise = FaultInjector.of(simulation.Noise)
Blur = FaultInjector.of(simulation.Blur)
DroppedColumns = FaultInjector.of(simulation.DroppedColumns)
ShiftedUnits = FaultInjector.of(simulation.ShiftedUnits)
StaleTable = FaultInjector.of(simulation.StaleTable)
Misaligned = FaultInjector.of(simulation.Misaligned)
