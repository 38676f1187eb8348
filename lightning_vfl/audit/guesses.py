"""The form that guesses have to have, by what is guessed; scores of other guesses would mean something else."""

from typing import Any

import torch
from torch import Tensor

from lightning_vfl.audit.attack import Attack, Guesses, Target
from lightning_vfl.audit.case import Case
from lightning_vfl.audit.success import RULES
from lightning_vfl.errors import ConfigurationError

OF_ONE_NUMBER = (Target.RANKS, Target.COINS, Target.CANARIES, Target.MEMBERS)
OF_COLUMNS = (Target.NEIGHBOURS, Target.COLUMNS)


def refuse_other_guesses(case: Case, attack: Attack, guesses: Any) -> None:
    """Accept guesses with the ids and the shape that the attack's target asks for.

    Raises:
        ConfigurationError: naming the attack, what it returns, and what it has to return.
    """
    who = type(attack).__name__
    if not isinstance(guesses, Guesses):
        raise ConfigurationError(
            f"run of {who} must return Guesses, or raise NothingSeen if it has none; got {guesses!r}"
        )
    ids = guesses.ids
    values = guesses.values
    for name, tensor in (("ids", ids), ("values", values)):
        if not isinstance(tensor, Tensor) or tensor.device.type != "cpu":
            raise ConfigurationError(f"{name} that {who} guesses must be a tensor on the CPU; got {_form(tensor)}")
    if ids.dim() != 1 or ids.dtype != torch.int64:
        raise ConfigurationError(f"ids that {who} guesses must be (n,) torch.int64; got {_form(ids)}")
    shapes = _shapes(case, attack, len(ids), values.shape[-1] if values.dim() == 2 else 0)
    if tuple(values.shape) not in shapes or values.is_complex():
        raise ConfigurationError(
            f"{who} guesses {attack.target.value}, so that values for {len(ids)} ids must be "
            f"{' or '.join(map(str, shapes))}; got {_form(values)}"
        )
    what, existing = _existing(case, attack)
    unknown = ids[~torch.isin(ids, existing)]
    if len(unknown):
        raise ConfigurationError(
            f"{who} guesses for {what} {int(unknown[0])}, which does not exist; use ids of the entries of "
            "seen.transcript, or of known"
        )
    several, times = torch.unique(ids, return_counts=True)
    if len(several) < len(ids):
        most = int(times.argmax())
        raise ConfigurationError(
            f"{who} guesses for {what} {int(several[most])} {int(times[most])} times; return one guess for each"
        )


def _existing(case: Case, attack: Attack) -> tuple[str, Tensor]:
    """What an id is the number of, and all such numbers."""
    if attack.target == Target.COUNTS:
        return "round", torch.tensor(sorted({entry.round for entry in case.transcript.entries if len(entry.ids)}))
    if attack.target == Target.MEMBERS and case.members is not None:
        return "record", torch.arange(len(case.members))
    return "record", torch.arange(case.truth.records)


def _shapes(case: Case, attack: Attack, n: int, width: int) -> list[tuple[int, ...]]:
    """The allowed shapes of values for n ids; ``width`` is that of the guesses."""
    if attack.target in OF_ONE_NUMBER:
        return [(n,)]
    if attack.target in OF_COLUMNS:  # an attack may find fewer or more directions than there are columns
        return [(n, width)]
    if attack.target == Target.CLASSES:
        classes = case.truth.classes
        return [(n, classes), (n,)] if classes == 2 else [(n, classes)]
    nothing = RULES[attack.target].truth(case, attack, torch.empty(0, dtype=torch.int64))
    return [(n, *nothing.shape[1:])]


def _form(value: Any) -> str:
    if isinstance(value, Tensor):
        return f"{(*value.shape,)} {value.dtype}" + ("" if value.device.type == "cpu" else f" on {value.device}")
    return repr(value)
