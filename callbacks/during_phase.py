"""A callback of any kind, in one phase of the training alone."""

from collections.abc import Callable
from functools import wraps
from typing import Any

from lightning.pytorch import Callback, LightningModule, Trainer
from lightning.pytorch.utilities.model_helpers import is_overridden

from lightning_vfl.errors import ConfigurationError

# all that Lightning calls of a callback: what a run does once belongs to no phase, all else does
_HOOKS = [name for name, member in vars(Callback).items() if callable(member) and not name.startswith("_")]
_ONCE_A_RUN = {
    *("setup", "on_fit_start", "on_train_start", "on_train_end", "on_fit_end", "teardown", "on_exception"),
    *("state_dict", "load_state_dict", "on_save_checkpoint", "on_load_checkpoint"),
}


class DuringPhase(Callback):
    """Lets a callback see one phase of a protocol that trains in several, and nothing of the others.

    ``EarlyStopping`` in the owner's phase then neither counts nor needs the validations of earlier ones. The phase is
    asked for at every hook, and Lightning counts an epoch as over only after all hooks of its end: the last validation
    of a phase belongs to that phase, and so does everything else of its last epoch.

    Guarantee: the hooks of a batch, an epoch, a validation and a test reach the callback if and only if the module's
        ``phase`` is this one. What happens once a run does always: set-up and teardown, start and end of fit and of
        training, exceptions, and its state, which checkpoints keep apart by phase and callback.
    Not guaranteed: what Lightning does for a callback of its type, because it sees this one. A ``ModelCheckpoint`` in
        here saves in this phase alone, but is not the trainer's ``checkpoint_callback``: ``--ckpt_path best`` does not
        find its files, and the trainer adds another one unless ``enable_checkpointing`` is False. Such a callback, and
        ``EarlyStopping``, comes at its place in the list and not after all others: let it monitor what validation or a
        training step logs, not what is logged at the end of an epoch. A progress bar has to stay outside.

    Args:
        phase: the phase, by the name that the protocol gives it.
        callback: what acts in it.

    Raises:
        ConfigurationError: for a callback that no phase would reach; before training, for a module without phases or
            without this one.

    Examples:
        >>> from lightning.pytorch.callbacks import EarlyStopping
        >>> print(DuringPhase("owner", EarlyStopping("val/accuracy", mode="max")).state_key)
        DuringPhase{'phase': 'owner', 'callback': "EarlyStopping{'monitor': 'val/accuracy', 'mode': 'max'}"}
    """

    def __init__(self, phase: str, callback: Callback) -> None:
        if not any(is_overridden(hook, callback) for hook in _HOOKS if hook not in _ONCE_A_RUN):
            raise ConfigurationError(
                f"{type(callback).__name__} acts once a run, in no phase; list it without DuringPhase"
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
    """The method of DuringPhase that hands this hook on."""

    def always(self: DuringPhase, *args: Any, **kwargs: Any) -> Any:
        return getattr(self.callback, hook)(*args, **kwargs)

    def in_phase(self: DuringPhase, trainer: Trainer, pl_module: LightningModule, *args: Any, **kwargs: Any) -> None:
        if pl_module.phase == self.phase:
            getattr(self.callback, hook)(trainer, pl_module, *args, **kwargs)

    return wraps(getattr(Callback, hook))(always if hook in _ONCE_A_RUN else in_phase)


for _hook in _HOOKS:
    if _hook not in vars(DuringPhase):
        setattr(DuringPhase, _hook, _forwarding(_hook))
