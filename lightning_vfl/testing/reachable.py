"""The mutable objects that can be reached from an object."""

from dataclasses import is_dataclass
from enum import Enum
from functools import partial
from types import FunctionType, MethodType
from typing import Any

import torch

from lightning_vfl.field import PrimeField
from lightning_vfl.privacy.calibration import Noise

IMMUTABLE = (bool, int, float, complex, str, bytes, range, frozenset, type(None), Enum, torch.dtype, torch.device, type)
SETTINGS = (PrimeField, Noise)  # set by their constructors and by nothing else


def mutable_objects(start: Any) -> list[Any]:
    """All objects that can be reached by attributes, items and closures, but for immutable ones.

    Immutable are plain values, tuples and frozen data classes themselves (their fields are walked), functions, and the
    classes of settings. An aggregator in the clear is shared with the server as configuration: it is walked too, and
    must hold nothing mutable.
    """
    objects: list[Any] = []
    queue, seen = [start], set()
    while queue:
        one = queue.pop()
        if isinstance(one, IMMUTABLE) or id(one) in seen:
            continue
        seen.add(id(one))
        if isinstance(one, tuple):
            queue += list(one)
        elif isinstance(one, FunctionType | MethodType | partial):
            queue += [cell.cell_contents for cell in getattr(one, "__closure__", None) or ()]
            queue += [getattr(one, "__self__", None), *getattr(one, "args", ()), *getattr(one, "keywords", {}).values()]
        elif isinstance(one, SETTINGS) or (is_dataclass(one) and _frozen(one)):
            queue += list(vars(one).values())
        else:
            objects.append(one)
            queue += list(one.values()) if isinstance(one, dict) else []
            queue += list(one) if isinstance(one, list | set) else []
            queue += list(vars(one).values()) if hasattr(one, "__dict__") else []
    return objects


def _frozen(one: Any) -> bool:
    return bool(type(one).__dataclass_params__.frozen)
