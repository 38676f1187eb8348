"""SHA-256 of what a training leaves behind: weights, optimiser state, traffic, time, privacy, logged values."""

import struct
from hashlib import sha256
from typing import Any

import numpy as np
import torch
from torch import Tensor


def digest(value: Any) -> str:
    """The first 16 hexadecimal digits of the SHA-256 of a nest of tensors and plain values."""
    made = sha256()
    for part in _encoded(value):
        made.update(part)
    return made.hexdigest()[:16]


def everything(module: Any, trainer: Any, logged: list[tuple[int, dict[str, float]]]) -> dict[str, Any]:
    """The digests of a finished run, and a few numbers that say by how much another run differs."""
    return {
        "weights": digest(dict(module.state_dict())),
        "optimizer": digest([optimizer.state_dict() for optimizer in trainer.optimizers]),
        "books": digest(books_of(module)),
        "logged": digest([list(line) for line in logged]),
        "numbers": numbers_of(module, trainer, logged),
    }


def numbers_of(module: Any, trainer: Any, logged: list[tuple[int, dict[str, float]]]) -> dict[str, float]:
    """Sums of magnitudes: of the weights, of the optimisers' states, of the books' parts and of every logged name."""
    numbers = {
        "weights": _magnitude(dict(module.state_dict())),
        "optimizer": _magnitude([optimizer.state_dict()["state"] for optimizer in trainer.optimizers]),
    }
    numbers |= {f"books: {name}": _magnitude(part) for name, part in books_of(module).items()}
    for name in sorted({name for _, line in logged for name in line}):
        numbers[f"logged: {name}"] = _magnitude([line[name] for _, line in logged if name in line])
    return {name: value for name, value in numbers.items() if value}


def largest_difference(made: dict[str, float], committed: dict[str, float]) -> str:
    """The number that differs most, relative to its committed value, as a text."""
    apart = {
        name: abs(made.get(name, 0.0) - committed.get(name, 0.0)) / (abs(committed.get(name, 0.0)) or 1.0)
        for name in (*committed, *made)
    }
    name = max(apart, key=lambda name: apart[name])
    if not apart[name]:
        return "no number differs"
    return f"at most by {apart[name]:.1e}, in {name}: {made.get(name)} instead of {committed.get(name)}"


def _magnitude(value: Any) -> float:
    if isinstance(value, Tensor):
        value = value.numpy(force=True)  # it may be on another device
    if isinstance(value, np.ndarray):
        return float(np.abs(np.nan_to_num(np.asarray(value, np.float64))).sum())
    if isinstance(value, dict):
        value = list(value.values())
    if isinstance(value, list | tuple):
        return float(sum(map(_magnitude, value)))
    return float(abs(value)) if isinstance(value, int | float) and value == value else 0.0


def books_of(module: Any) -> dict[str, Any]:
    """What the run has counted, by names of this file: a module may keep it where it likes."""
    privacy, books = module.privacy.accountant, module.books
    hosts = getattr(books.own, "host_meter", None)
    return {
        "rounds": dict(books.rounds),
        "traffic": books.meter.state_dict(),
        "hosts": hosts.state_dict() if hosts is not None else None,
        "seconds": module.clock.seconds,
        "mini-batches": books.mini_batches,
        "given up": books.given_up,
        "corrected": dict(books.corrected),
        "privacy": privacy.state_dict() if privacy is not None else None,
        "memory": module.memory.state() if module.memory is not None else {},
    }


def _encoded(value: Any) -> "Any":
    """An injective encoding, piece by piece."""
    if isinstance(value, Tensor):
        array = value.detach().cpu()
        yield f"T{array.dtype}{tuple(array.shape)}".encode()
        yield (array.view(torch.uint8) if array.dim() and array.numel() else array.flatten()).numpy().tobytes()
    elif isinstance(value, np.ndarray):
        yield f"A{value.dtype}{value.shape}".encode()
        yield np.ascontiguousarray(value).tobytes()
    elif isinstance(value, dict):
        yield f"D{len(value)}".encode()
        for key in sorted(value, key=repr):
            yield from _encoded(key)
            yield from _encoded(value[key])
    elif isinstance(value, list | tuple):
        yield f"L{len(value)}".encode()
        for part in value:
            yield from _encoded(part)
    elif isinstance(value, float):
        yield b"F" + struct.pack("<d", value)
    elif value is None or isinstance(value, bool | int | str | bytes):
        yield f"{type(value).__name__}{value!r};".encode()
    else:
        raise TypeError(f"{type(value).__name__} has no digest")
