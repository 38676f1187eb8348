"""Networks as files: a program of ``torch.export``, and the same in ONNX."""

import logging
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib.util import find_spec
from io import BytesIO
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.export import Dim, ExportedProgram

from lightning_vfl.errors import ConfigurationError, reason
from lightning_vfl.export.manifest import RECORDS, Engine, Program, hash_of

NEEDED = ("onnx", "onnxruntime", "onnxscript")  # the extra ``export``
_NOTES = "torch.onnx._internal.exporter"  # logs that operators of torchvision are not translated


def require_packages() -> None:
    """Accept an installation that can write and run ONNX.

    Raises:
        ConfigurationError: naming the packages that are missing.
    """
    if missing := [name for name in NEEDED if find_spec(name) is None]:
        raise ConfigurationError(
            f"export needs the package {' and '.join(missing)}; pip install 'lightning-vfl[export]'"
        )


def write_programs(
    network: nn.Module, inputs: Sequence[Any], ports: tuple[Sequence[str], str], stem: Path
) -> tuple[Mapping[Engine, Program], int]:
    """Write ``stem.pt2`` and ``stem.onnx``, which take any number of records.

    Args:
        network: in evaluation mode.
        inputs: tensors, or tuples of tensors, of a few records.
        ports: names of the inputs, and of the output.
        stem: path of the files, without the ending.

    Returns:
        The program of each engine, and the version of the operators of ONNX.

    Raises:
        ConfigurationError: for a network that cannot be exported.
    """
    records = Dim(RECORDS)
    sizes = tuple(tuple({0: records} for _ in one) if isinstance(one, tuple) else {0: records} for one in inputs)
    with torch.no_grad(), _quiet():
        try:
            program = torch.export.export(network, tuple(inputs), dynamic_shapes=sizes, strict=False)
            in_onnx = torch.onnx.export(
                program, input_names=ports[0], output_names=[ports[1]], dynamo=True, verbose=False
            )
        except Exception as error:  # torch's errors for what cannot be exported have no common class
            raise ConfigurationError(
                f"the {stem.name} half cannot be exported ({type(error).__name__}: {reason(error)}); use networks that "
                "torch.export takes"
            ) from error
        if in_onnx is None:
            raise ConfigurationError("torch.onnx has returned no program; install the versions of constraints.txt")
        paths = {Engine.TORCH: stem.with_suffix(".pt2"), Engine.ONNX: stem.with_suffix(".onnx")}
        _forget_sources(program)
        _copy_numbers(program)
        content = BytesIO()  # torch's own writer of files says of a full disk only where in C++ it failed
        torch.export.save(program, content)
        paths[Engine.TORCH].write_bytes(content.getbuffer())
        for node in in_onnx.model.graph.all_nodes():
            node.metadata_props.clear()
            for value in node.outputs:  # torch names the values of a layer after it, also like an output of ours
                if value.name == ports[1] and not value.is_graph_output():
                    value.name = f"{value.name}_of_{node.name or 'layer'}"
        in_onnx.save(paths[Engine.ONNX])
    written = {engine: Program(path.name, hash_of(path)) for engine, path in paths.items()}
    return written, int(in_onnx.model.opset_imports[""])


def flat(inputs: Sequence[Any]) -> list[Tensor]:
    """The tensors of the inputs, in order."""
    return [own for one in inputs for own in (one if isinstance(one, tuple) else (one,))]


def _forget_sources(program: ExportedProgram) -> None:
    """Remove the paths of this machine's files, which torch notes for every operation."""
    for layer in program.graph_module.modules():
        if isinstance(layer, torch.fx.GraphModule):
            for node in layer.graph.nodes:
                node.meta.pop("stack_trace", None)


def _copy_numbers(program: ExportedProgram) -> None:
    """Copy every tensor: a file has the whole memory of a tensor, which may be a part of all parties' scaling."""
    for tensors in (program.state_dict, program.constants):
        for name, tensor in tensors.items():
            if isinstance(tensor, nn.Parameter):
                tensors[name] = nn.Parameter(tensor.detach().clone(), tensor.requires_grad)
            elif isinstance(tensor, Tensor):
                tensors[name] = tensor.clone()


@contextmanager
def _quiet() -> Iterator[None]:
    """Without torch's notes on operators and on its own deprecated calls."""
    logger = logging.getLogger(_NOTES)
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message=r".*isinstance\(treespec, LeafSpec\)")
            yield
    finally:
        logger.setLevel(level)
