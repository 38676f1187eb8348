"""A recipe twice on this machine, with the faults of the recipe: simulated in one process, and federated."""

import os
import signal
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from lightning.pytorch import Callback

from lightning_vfl.commands.program import run_or_exit
from lightning_vfl.commands.vfl_cli import VFLCLI
from lightning_vfl.federation.local import start
from tests.integration.federations import BASE, prepare

DIGITS = ("--config", "data/digits")


@dataclass(frozen=True)
class Outcome:
    """What a run has left in its checkpoints.

    Args:
        weights: by name.
        moments: the states of the optimiser, by the name of the parameter.
        metrics: by name, every value of the server.
        books: bytes by kind and party, virtual seconds, and counts of rounds.
        schedules: states of the learning-rate schedules, without those of the parties.
    """

    weights: dict[str, torch.Tensor]
    moments: dict[str, dict[str, torch.Tensor]]
    metrics: dict[str, Any]
    books: dict[str, Any]
    schedules: list[Any]

    def differences(self, other: "Outcome") -> list[str]:
        """What is not the same in another run, to the last bit."""
        found = sorted(self.weights.keys() ^ other.weights.keys())
        found += [name for name, x in self.weights.items() if name not in found and _differ(x, other.weights[name])]
        names = sorted(self.moments.keys() | other.moments.keys())
        found += [f"optimiser state of {n}" for n in names if _differ(self.moments.get(n), other.moments.get(n))]
        for part in ("metrics", "books", "schedules"):
            if _differ(getattr(self, part), getattr(other, part)):
                found.append(f"{part}: {getattr(self, part)} and {getattr(other, part)}")
        return found


def _differ(one: Any, two: Any) -> bool:
    if isinstance(one, torch.Tensor) or isinstance(two, torch.Tensor):
        return not (isinstance(one, torch.Tensor) and isinstance(two, torch.Tensor) and torch.equal(one, two))
    if isinstance(one, dict) and isinstance(two, dict):
        return one.keys() != two.keys() or any(_differ(one[key], two[key]) for key in one)
    if isinstance(one, list) and isinstance(two, list):
        return len(one) != len(two) or any(_differ(x, y) for x, y in zip(one, two, strict=True))
    return bool(one != two)


class _Alone(Callback):
    """Lets every party run its bottom alone, as its process does."""

    def on_fit_start(self, trainer: Any, pl_module: Any) -> None:
        pl_module.bottoms.groups = ()


def simulated(folder: Path, *recipe: str) -> Outcome:
    """The simulation of a recipe."""

    def role() -> None:
        prepare()
        cli = VFLCLI(["fit", *recipe, *BASE, "--trainer.default_root_dir", str(folder / "sim")]).build()
        cli.trainer.callbacks.append(_Alone())  # type: ignore[attr-defined]  # set in Trainer.__init__
        cli.take_folder()
        cli.trainer.fit(cli.model, datamodule=cli.datamodule)

    _finish(role, folder / "sim.txt")
    return _outcome([folder / "sim"])


def federated(folder: Path, *recipe: str, parties: int | tuple[str, ...] = 4, seconds: float = 120.0) -> Outcome:
    """The federation of a recipe, whose processes play its faults; ``parties``: how many, or their names."""

    def role() -> None:
        prepare()
        run_or_exit(
            [
                "federate",
                "--local",
                "--inject",
                "--weights",
                "seeded",
                *recipe,
                *BASE,
                "--trainer.default_root_dir",
                str(folder / "fed"),
            ]
        )

    _finish(role, folder / "fed.txt", seconds)
    (own,) = (folder / "fed").glob("federation-*")
    names = parties if isinstance(parties, tuple) else [f"party{number}" for number in range(parties)]
    return _outcome([*(own / name for name in names), own / "server"])


def _finish(role: Any, log: Path, seconds: float = 120.0) -> None:
    """Run a role and all that it starts; all of them end when the time is up."""

    def alone() -> None:
        os.setpgid(0, 0)
        role()

    process, end = start(alone, log), time.monotonic() + seconds
    while True:
        ended, status = os.waitpid(process, os.WNOHANG)
        if ended:
            break
        if time.monotonic() > end:
            os.killpg(process, signal.SIGKILL)
            os.waitpid(process, 0)
            raise TimeoutError(f"{log} has not ended within {seconds:g} s: {_last_lines(log)}")
        time.sleep(0.01)
    if os.waitstatus_to_exitcode(status):
        raise RuntimeError(_last_lines(log))


def _last_lines(log: Path) -> str:
    return "\n".join(log.read_text().strip().splitlines()[-5:])


def _trained(weights: dict[str, torch.Tensor]) -> list[str]:
    """The names of the parameters in the order of the optimiser: bottoms come first."""
    buffers = ("running_mean", "running_var", "num_batches_tracked", "encoding_mean", "encoding_scale")
    names = [name for name in weights if not name.endswith(buffers)]
    return sorted(names, key=lambda name: not name.startswith("bottoms."))


def _outcome(folders: list[Path]) -> Outcome:
    """The union of what the processes have left; the last one has the metrics of all."""
    weights: dict[str, torch.Tensor] = {}
    moments: dict[str, dict[str, torch.Tensor]] = {}
    for folder in folders:
        newest = max(folder.rglob("*.ckpt"), key=lambda path: path.stat().st_mtime)
        kept = torch.load(newest, weights_only=True)
        weights |= kept["state_dict"]
        names = _trained(kept["state_dict"])
        (optimizer,) = kept["optimizer_states"]
        moments |= {names[number]: state for number, state in optimizer["state"].items()}
    own = kept["lightning_vfl"]
    books = {name: own[name] for name in ("clock", "meter", "rounds", "given_up")}
    return Outcome(weights, moments, kept["callbacks"]["ExperimentRecord"]["points"], books, kept["lr_schedulers"])
