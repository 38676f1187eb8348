"""A wrapper that runs a callback only in one phase of the training."""

from collections.abc import Callable
from functools import wraps
from typing import Any

from lightning.pytorch import Callback, LightningModule, Trainer
from lightning.pytorch.utilities.model_helpers import is_overridden

from lightning_vfl.errors import ConfigurationError

# all hooks that Lightning calls; a hook that runs once in a run belongs to no phase, every other hook to a phase
_HOOKS = [name for name, member in vars(Callback).items() if callable(member) and not name.startswith("_")]
_ONCE_A_RUN = {
    *("setup", "on_fit_start", "on_train_start", "on_train_end", "on_fit_end", "teardown", "on_exception"),
    *("state_dict", "load_state_dict", "on_save_checkpoint", "on_load_checkpoint"),
}


class DuringPhase(Callback):
    """Runs a callback only in one phase of a protocol with several phases.

    For example, ``EarlyStopping`` in the owner's phase ignores the validations of earlier phases. Every hook reads the
    module's current phase. Lightning ends an epoch only after all hooks of the epoch's end, so the last validation of a
    phase, and all other hooks of the phase's last epoch, belong to that phase.

    Guarantee: the hooks of a batch, an epoch, a validation and a test reach the callback if and only if the module's
        ``phase`` is ``phase``. Hooks that run once in a run always reach it: set-up and teardown, start and end of fit
        and of training, and exceptions. Its state is always saved; checkpoints separate it by phase and callback.
    Not guaranteed: Lightning's special treatment of the callback's type, because Lightning sees this wrapper. A
        ``ModelCheckpoint`` in the wrapper saves only in this phase, but is not the trainer's ``checkpoint_callback``:
        ``--ckpt_path best`` does not find its files, and the trainer adds another one unless ``enable_checkpointing``
        is False. A ``ModelCheckpoint`` or an ``EarlyStopping`` in the wrapper runs at its place in the list and not
        after all other callbacks: let it monitor a value that validation or a training step logs, not a value that is
        logged at the end of an epoch. A progress bar cannot be wrapped.

    Args:
        phase: the name of the phase in the protocol.
        callback: the callback to run in this phase.

    Raises:
        ConfigurationError: for a callback that has no hook of a phase; before training, for a module without phases or
            without this phase.

    Examples:
        >>> from lightning.pytorch.callbacks import EarlyStopping
        >>> print(DuringPhase("owner", EarlyStopping("val/accuracy", mode="max")).state_key)
        DuringPhase{'phase': 'owner', 'callback': "EarlyStopping{'monitor': 'val/accuracy', 'mode': 'max'}"}
    """

    def __init__(self, phase: str, callback: Callback) -> None:
        if not any(is_overridden(hook, callback) for hook in _HOOKS if hook not in _ONCE_A_RUN):
            raise ConfigurationError(
                f"{type(callback).__name__} runs once in a run and not in a phase; list it without DuringPhase"
            )
        self.phase = phase
        self.callback = callback

    @property
    def state_key(self) -> str:
        return self._generate_state_key(phase=self.phase, callback=self.callback.state_key)

    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        protocol = type(pl_module).__name__
        if not hasattr(pl_module, "phase"):
            raise ConfigurationError(
                f"{protocol} does not train in phases; list {type(self.callback).__name__} without DuringPhase"
            )
        phases = getattr(pl_module, "phases", None)
        if phases is not None and self.phase not in phases:
            raise ConfigurationError(f"{protocol} has no phase {self.phase!r}; choose one of {', '.join(phases)}")
        self.callback.setup(trainer, pl_module, stage)


def _forwarding(hook: str) -> Callable[..., Any]:
    """The method of DuringPhase that forwards this hook."""

    def always(self: DuringPhase, *args: Any, **kwargs: Any) -> Any:
        return getattr(self.callback, hook)(*args, **kwargs)

    def in_phase(self: DuringPhase, trainer: Trainer, pl_module: LightningModule, *args: Any, **kwargs: Any) -> None:
        if pl_module.phase == self.phase:
            getattr(self.callback, hook)(trainer, pl_module, *args, **kwargs)

    return wraps(getattr(Callback, hook))(always if hook in _ONCE_A_RUN else in_phase)


for _hook in _HOOKS:
    if _hook not in vars(DuringPhase):
        setattr(DuringPhase, _hook, _forwarding(_hook))
