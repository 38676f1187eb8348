"""Write halves of a trained model into folders, and check what has been written."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from hashlib import sha256
from importlib.metadata import version
from pathlib import Path
from typing import Any, cast

import torch
from torch import Tensor

from lightning_vfl import __version__
from lightning_vfl.errors import ConfigurationError, nearest
from lightning_vfl.export.engines import open_program
from lightning_vfl.export.manifest import SERVER, Engine, Manifest, Moments, ServerHalf
from lightning_vfl.export.moments import calibrations, training_moments
from lightning_vfl.export.programs import flat, require_packages, write_programs
from lightning_vfl.export.split_model import (
    Part,
    example_holders,
    in_the_clear,
    party_names,
    party_part,
    refuse_hosts,
    roll_of,
    server_part,
)
from lightning_vfl.export.trained import Trained
from lightning_vfl.protocols import VFLModule
from lightning_vfl.types import VerticalBatch
from lightning_vfl.whole_files import named

_RTOL, _ATOL = 1e-4, 1e-5  # between torch and an exported program, in float32


def export_model(
    module: VFLModule,
    folder: str | Path,
    party: str | None = None,
    *,
    overlap: str = "inner",
    training: Iterable[VerticalBatch] = (),
    validation: Iterable[VerticalBatch] | None = None,
) -> list[Path]:
    """Export a trained module that is in memory; ``lightning-vfl export`` does the same from a checkpoint.

    Args:
        module: trained, or loaded from a checkpoint. It is in evaluation mode afterwards.
        folder: of the half; without ``party``, every half is written into a sub-folder with its name.
        party: the name or number of a party, or ``server``; None: all halves.
        overlap: ``keep`` if parties may lack records.
        training: batches of the records of training; their moments are in the manifests. Empty: there are none.
        validation: batches of records with labels, on which the server's confidence is calibrated; None: it has none.

    Returns:
        The folders that were written.

    Raises:
        ConfigurationError: for a model that cannot be exported, and an unknown party.
    """
    return write_halves(Trained(module, _hash_of_weights(module), overlap), Path(folder), party, training, validation)


def write_halves(
    trained: Trained,
    folder: Path,
    party: str | None = None,
    training: Iterable[VerticalBatch] = (),
    validation: Iterable[VerticalBatch] | None = None,
) -> list[Path]:
    """Write one half into the folder, or every half into a sub-folder; see ``export_model``."""
    require_packages()
    module = trained.module.eval()
    module.configure_model()
    names = party_names(module)
    if party is not None and party != SERVER:
        number = _place_of(party, names)
        alone = party_part(module, number)
        return _write_all({folder: alone}, trained.hash, training_moments({number: alone}, None, training))
    refuse_hosts(module)
    of_parties = {m: party_part(module, m) for m in roll_of(module).included_parties}
    parts = [*of_parties.values()]
    server = server_part(trained)
    _check_together(module, parts, server)
    moments = training_moments(of_parties, server, training)
    if validation is not None:
        half = replace(cast(ServerHalf, server.half), calibration=calibrations(of_parties, server, validation))
        server = replace(server, half=half)
    if party is not None:
        return _write_all({folder: server}, trained.hash, moments)
    if unusable := [part.name for part in parts if not _names_a_folder(part.name)]:
        raise ConfigurationError(
            f"the name of party '{unusable[0]}' cannot be the name of a folder beside server; export one half after "
            "the other with --party and --out"
        )
    return _write_all({folder / part.name: part for part in (*parts, server)}, trained.hash, moments)


def _write_all(parts: Mapping[Path, Part], model: str, moments: Mapping[str, Moments]) -> list[Path]:
    """Write each half into its folder."""
    for folder in parts:
        if folder.exists() and not (folder.is_dir() and not any(folder.iterdir())):
            raise ConfigurationError(f"{folder} is not an empty folder; give another --out, or remove it")
    for folder, part in parts.items():
        with named(folder):
            _write(part, folder, model, moments.get(part.name))
    return list(parts)


def _write(part: Part, folder: Path, model: str, moments: Moments | None) -> None:
    """Write one half, and run what was written on its example."""
    folder.mkdir(parents=True, exist_ok=True)
    stem = SERVER if part.name == SERVER else "party"
    names = [port.name for port in part.inputs], part.outputs[0].name
    programs, operators = write_programs(part.network, part.example, names, folder / stem)
    versions = {"lightning_vfl": __version__, "torch": torch.__version__, "onnx": version("onnx")}
    versions |= {"onnx_operators": str(operators)}
    manifest = Manifest(part.name, model, part.half, part.inputs, part.outputs, programs, versions, moments)
    with torch.no_grad():
        expected = part.network(*part.example)
    arrays = [one.numpy() for one in flat(part.example)]
    for engine in Engine:
        found = torch.from_numpy(open_program(folder, manifest, engine).run(arrays))
        if not torch.allclose(found, expected, _RTOL, _ATOL):
            raise ConfigurationError(
                f"the {part.name} half gives other numbers in {engine} than in training; use networks that "
                f"{engine} computes as torch does"
            )
    manifest.write(folder)


def _check_together(module: VFLModule, parties: Sequence[Part], server: Part) -> None:
    """Refuse a module that predicts otherwise than its halves together: a protocol with an ``output`` of its own."""
    with torch.no_grad():
        embeddings: list[Any] = [part.network(*part.example) for part in parties]
        held = example_holders(module)[:, list(roll_of(module).included_parties)]
        found = server.network(tuple(embeddings), held)
        scaled = {part.name: _scaled(part) for part in parties}
        shapes = zip(party_names(module), module.hparams["party_shapes"], strict=True)
        features = [scaled.get(name, torch.zeros(len(found), *shape)) for name, shape in shapes]
        expected = in_the_clear(module, features)
    if not torch.allclose(found, expected, _RTOL, _ATOL):
        raise ConfigurationError(
            f"{type(module).__name__} predicts otherwise than by bottoms, aggregate and top, which is what export "
            "writes; use lightning-vfl predict"
        )


def _scaled(part: Part) -> Tensor:
    network: Any = part.network
    scaled: Tensor = network.scaled(part.example[0])
    return scaled


def _place_of(party: str, names: Sequence[str]) -> int:
    """The number of the party of this name or number."""
    if party in names:
        return names.index(party)
    if party.isdecimal() and int(party) < len(names):
        return int(party)
    raise ConfigurationError(f"--party {party}: the model has no such party; {nearest(party, (*names, SERVER))}")


def _names_a_folder(name: str) -> bool:
    return Path(name).name == name and name not in (SERVER, "..")


def _hash_of_weights(module: VFLModule) -> str:
    hashed = sha256()
    for name, weight in module.state_dict().items():
        hashed.update(name.encode())
        hashed.update(weight.detach().cpu().contiguous().flatten().view(torch.uint8).numpy().tobytes())
    return hashed.hexdigest()
