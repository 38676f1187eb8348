"""Names for numpy's kernels of single processors, and an environment without them."""

import os
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

# Kernels that are the same on every x86-64 processor: without them the last bits depend on its vector units.
OTHERS = {
    "ATEN_CPU_CAPABILITY": "default",
    "MKL_CBWR": "COMPATIBLE",
    "ONEDNN_MAX_CPU_ISA": "SSE41",
    "OPENBLAS_CORETYPE": "Nehalem",
    "OMP_NUM_THREADS": "1",
    "MKL_NUM_THREADS": "1",
}


REFUSE = ("-W", "error::ImportWarning")  # numpy warns at import of a name that it does not know


def dispatched() -> tuple[str, ...]:
    """The sets of vector instructions for which the installed numpy has kernels, the most common ones first."""
    return (*_kernels()["found"], *_kernels()["not found"])


def in_use() -> tuple[str, ...]:
    """Those of ``dispatched`` whose kernels this process uses."""
    return tuple(_kernels()["found"])


def without(names: Sequence[str]) -> dict[str, str]:
    """The environment in which numpy uses no kernels of these names, and fails at import for a name unknown to it."""
    return {
        **{name: value for name, value in os.environ.items() if name != "NPY_DISABLE_CPU_FEATURES"},
        **({"NPY_DISABLE_CPU_FEATURES": " ".join(names)} if names else {}),
    }


def _kernels() -> Mapping[str, list[str]]:
    extensions: Any = np.show_config(mode="dicts")["SIMD Extensions"]
    return {kind: extensions.get(kind, []) for kind in ("found", "not found")}
