"""What runs an exported program on arrays."""

import os
from abc import ABC, abstractmethod
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lightning_vfl.errors import ConfigurationError
from lightning_vfl.export.manifest import Engine, Manifest

if TYPE_CHECKING:
    from numpy.typing import NDArray


class Runner(ABC):
    """A loaded program."""

    @abstractmethod
    def run(self, inputs: "Sequence[NDArray[Any]]") -> "NDArray[Any]":
        """The output (B, ...) for the inputs, each (B, ...), in the order of the manifest."""


class OnnxRunner(Runner):
    """A program in ONNX, run by ONNX Runtime on the CPU.

    Args:
        path: the file.

    Guarantee: ONNX Runtime sends no usage data to Microsoft and keeps no number of this machine, unless the variable
        ORT_DISABLE_TELEMETRY of the environment is 0, or the process has imported the package before.
    """

    def __init__(self, path: Path) -> None:
        os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")  # is read when the package is imported; 1.32 sends else
        try:
            import onnxruntime
        except ImportError:
            raise ConfigurationError(
                "engine onnx needs the package onnxruntime; pip install 'lightning-vfl[export]', or use --engine torch"
            ) from None
        self._session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
        self._names = [one.name for one in self._session.get_inputs()]

    def run(self, inputs: "Sequence[NDArray[Any]]") -> "NDArray[Any]":
        output: NDArray[Any] = self._session.run(None, dict(zip(self._names, inputs, strict=True)))[0]
        return output


class TorchRunner(Runner):
    """A program of ``torch.export``.

    Args:
        path: the file.
        joined: whether the last input is alone and the others are one sequence, as of the server's program.
    """

    def __init__(self, path: Path, joined: bool) -> None:
        import torch  # 1 s, which the other engine does not need

        self._torch = torch
        self._joined = joined
        self._program = torch.export.load(path).module()

    def run(self, inputs: "Sequence[NDArray[Any]]") -> "NDArray[Any]":
        tensors = tuple(self._torch.from_numpy(one) for one in inputs)
        with self._torch.no_grad():
            output: NDArray[Any] = self._program(*((tensors[:-1], tensors[-1]) if self._joined else tensors)).numpy()
        return output


def open_program(folder: Path, manifest: Manifest, engine: Engine) -> Runner:
    """The program of a half in this folder.

    Raises:
        ConfigurationError: if the folder has no program for this engine, or the engine is not installed.
    """
    if engine not in manifest.programs:
        raise ConfigurationError(
            f"{folder} has no program for engine {engine}; use one of {', '.join(manifest.programs)}"
        )
    path = folder / manifest.programs[engine].path
    if engine is Engine.ONNX:
        return OnnxRunner(path)
    return TorchRunner(path, joined=len(manifest.inputs) > 1)
