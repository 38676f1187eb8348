"""What a user may have meant by a word that the command line does not know."""

from importlib import import_module

from lightning_vfl.commands.known_classes import NO_PLACE, own_classes, settings_of
from lightning_vfl.errors import nearest

_KNOWN = {  # setting -> modules with the classes that it can have; other settings have classes of the toolkit
    "optimizer": ("torch.optim",),
    "lr_scheduler": ("torch.optim.lr_scheduler",),
    "logger": ("lightning.pytorch.loggers",),
    "callbacks": ("lightning.pytorch.callbacks", "lightning_vfl.callbacks"),
    "profiler": ("lightning.pytorch.profilers",),
    "strategy": ("lightning.pytorch.strategies",),
    "plugins": ("lightning.pytorch.plugins",),
}


def unknown_class(name: str, setting: str = "") -> str:
    """The error for a class that is not found, as the value of a setting."""
    if name in own_classes():
        return f"{own_classes()[name]} is no class for this setting; name one of the right kind"
    known = [name for module in _KNOWN.get(setting, ()) for name in _classes_in(module)] or [*own_classes()]
    hint = nearest(name.rsplit(".", 1)[-1], known, "give one of the toolkit's classes or a full import path")
    return f"'{name}' is not a known class; {hint}"


def _classes_in(module: str) -> list[str]:
    """The names of the public classes in a module."""
    known = vars(import_module(module))
    return [name for name, value in known.items() if isinstance(value, type) and not name.startswith("_")]


def unknown_setting(setting: str, class_path: str | None) -> str:
    """The error for a setting that a class does not have."""
    if class_path is None:
        return f"'{setting}' is not a setting; see --help"
    module, _, name = class_path.rpartition(".")
    settings = settings_of(getattr(import_module(module), name))
    part, _, inner = setting.partition(".")
    if inner and part not in settings and nearest(part, ["init_args"], " ").strip():
        return beside_class_path(part)
    foreign, reason = NO_PLACE.get(name, ((), ""))
    if setting in ("lr", "learning_rate") and "optimizer" in settings:
        hint = "the optimiser has it; write --model.optimizer.lr"
    elif setting.split(".")[0] in foreign:
        hint = reason
    else:
        hint = nearest(setting, settings) if settings else "it has no settings"
    return f"'{setting}' is not a setting of {name}; {hint}"


def beside_class_path(key: str) -> str:
    """The error for a key beside ``class_path`` that is not ``init_args``."""
    return f"'{key}' beside class_path is not known; {nearest(key, ['init_args'], 'use init_args')}"
