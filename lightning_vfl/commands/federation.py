"""``lightning-vfl serve``, ``party`` and ``federate``: a recipe whose parties are processes of their own."""

import json
import os
import shlex
import time
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from pkgutil import resolve_name
from typing import TYPE_CHECKING, Literal

import torch
from jsonargparse import ArgumentParser

from lightning_vfl.callbacks import PredictionWriter, PrivacyBudget
from lightning_vfl.callbacks.injector import FaultInjector
from lightning_vfl.commands.alone import add_seat
from lightning_vfl.commands.command import CLI, Command, with_both_spellings
from lightning_vfl.commands.one_line import one_line
from lightning_vfl.commands.run_config import RUNS
from lightning_vfl.errors import ConfigurationError
from lightning_vfl.federation.charter import Charter, Consent, SeatFile, Weights
from lightning_vfl.federation.identity import Identity, load, paths
from lightning_vfl.federation.local import found, how_it_ended, start, wait_for
from lightning_vfl.federation.recipe import recipe_digest
from lightning_vfl.federation.refusals import refuse_protocol
from lightning_vfl.simulation import DataFault
from lightning_vfl.whole_files import refuse_unwritable

if TYPE_CHECKING:
    from lightning_vfl.federation.link import Way
    from lightning_vfl.federation.run import Run

METHODS = ("fit", "validate", "test", "predict")
SHARED = ("model", "data", "trainer", "seed_everything")  # what all processes have alike in their recipes


class ServeCommand(Command):
    """The process of the server, which has the labels and the top, and which listens."""

    about = "Run the server of a federation: it has the labels and the top, and waits for the parties."

    def add_options(self, parser: ArgumentParser) -> None:
        _add_method(parser)
        _add_federation(parser)
        parser.add_argument("--events", type=str, default=None, help="a file that keeps what happened in every round")

    def run(self, cli: CLI) -> int:
        host = _Host.of(cli)
        from lightning_vfl.federation.session import serve

        identity = load(host.seat.key, host.charter.server.certificate)
        events = cli.given.events
        serve(host.run(cli, identity, "server"), None if events is None else Path(events))
        return 0


class PartyCommand(Command):
    """The process of one party, which has its columns and its bottom, and which calls the server."""

    about = "Run one party of a federation: it has its own columns and its bottom, and calls the server."

    def add_options(self, parser: ArgumentParser) -> None:
        _add_method(parser)
        _add_federation(parser)
        parser.add_argument("--name", type=str, required=True, help="the party, as federation.yaml names it")
        parser.add_argument(
            "--new_ledger_after",
            type=str,
            default="",
            metavar="RUN",
            help="end the privacy ledger of this run, and begin a new one; given again, it changes nothing",
        )

    def run(self, cli: CLI) -> int:
        host = _Host.of(cli)
        from lightning_vfl.federation.session import take_part

        given = cli.given
        number = host.charter.number(given.name)
        identity = load(host.seat.key, host.charter.parties[number].certificate)
        take_part(host.run(cli, identity, "parties"), given.name, given.new_ledger_after)
        return 0


class FederateCommand(Command):
    """A federation on this machine, to try a recipe: a process for the server and for each party."""

    about = (
        "Run a whole federation on this machine: one process for the server and one for each party, with mutual TLS "
        "between them. Each process loads the data set and keeps only its own columns: this is a trial, not a "
        "protection."
    )

    def add_options(self, parser: ArgumentParser) -> None:
        _add_method(parser)
        parser.add_argument("--local", action="store_true", help="all processes on this machine (needed)")
        parser.add_argument("--inject", action="store_true", help="play the faults of the recipe")
        parser.add_argument("--events", type=str, default=None, help="a file that keeps what happened in every round")
        parser.add_argument(
            "--weights",
            type=str,
            choices=[str(one) for one in Weights],
            default=str(Weights.SECRET),
            help="seeded: initial weights and noise follow from the seed, so that the server can compute every column",
        )

    def run(self, cli: CLI) -> int:
        given = cli.given
        if not given.local:
            raise ConfigurationError(
                "federate runs all processes on this machine; add --local, or use serve and party on hosts of their own"
            )
        if given.inject and given.events is not None:
            raise ConfigurationError(
                "--events records what happens, and with --inject the recipe says what happens: leave out one of them"
            )
        _refuse_early(cli)
        torch.set_num_threads(1)  # the processes share the cores; threads do not survive a fork
        os.environ["OMP_NUM_THREADS"] = "1"
        parties = _find_parties(cli)
        folder = _new_folder(Path(given.trainer.default_root_dir or RUNS))
        charter = found("local", parties, folder, Weights(given.weights))
        events = None if given.inject else Path(given.events or folder / "events.csv")
        logs = {party.name: folder / party.name / "output.txt" for party in charter.parties}

        def server() -> None:
            from lightning_vfl.federation.session import serve

            _move(cli, folder / "server", quiet=False)
            with one_line():
                host = _Host(charter, SeatFile(folder / "keys" / "server.key"), given.inject, local=True)
                serve(host.run(cli, _made("server", folder), "server"), events)

        def party(name: str) -> None:
            from lightning_vfl.federation.session import take_part

            _move(cli, folder / name, quiet=True)
            seat = SeatFile(folder / "keys" / f"{name}.key", evaluate=Consent.PLAIN)
            with one_line():
                host = _Host(charter, seat, given.inject, local=True)
                take_part(host.run(cli, _made(name, folder), "parties"), name)

        processes = {"server": start(server, None)}
        for one in logs:
            processes[one] = start(lambda one=one: party(one), logs[one])  # type: ignore[misc]  # bound now
        wait_for(processes, logs)
        print(f"federation: {folder} has a folder for each process")
        if events is not None and given.do == "fit" and given.get("ckpt_path") is None:
            secrets = [] if events.parent == folder else [f"--secrets={folder}"]
            recipe = _words_of_the_recipe(cli.arguments[1:])
            print(f"replay it: {shlex.join(['lightning-vfl', 'replay', str(events), *secrets, *recipe])}")
        return 0


def _words_of_the_recipe(words: Sequence[str]) -> list[str]:
    """The words of a ``federate`` command that are of its recipe: those that ``replay`` takes too."""
    of_federate = ArgumentParser(allow_abbrev=False)
    FederateCommand("federate").add_options(of_federate)
    with_both_spellings(of_federate)
    options = of_federate._option_string_actions
    kept: list[str] = []
    left = iter(words)
    for word in left:
        option, equals, _ = word.partition("=")
        if option not in options:
            kept.append(word)
        elif not equals and options[option].nargs != 0:
            next(left, None)  # its value
    return kept


def _add_method(parser: ArgumentParser) -> None:
    parser.add_argument("--do", type=str, choices=METHODS, default="fit", help="what all processes do together")


def _add_federation(parser: ArgumentParser) -> None:
    parser.add_argument("federation", type=str, metavar="FEDERATION", help="federation.yaml, the same on all hosts")
    add_seat(parser)
    parser.add_argument("--relay", type=str, default=None, help="socket at which a relay calls, such as a Flower app")


def _refuse_early(cli: CLI) -> None:
    """Refuse, before a process starts, protocols that are not divided, and processes that cannot connect.

    Raises:
        ConfigurationError: for such a protocol, and if gRPC is not installed.
    """
    model = resolve_name(cli.given.model.class_path)
    if isinstance(model, type):
        refuse_protocol(model)
    # importing it here would keep its threads from surviving a fork
    if find_spec("grpc") is None and cli.given.get("relay") is None:
        raise ConfigurationError(
            f"{cli.command.name} needs the package grpcio; pip install 'lightning-vfl[federation]'"
        )


@dataclass(frozen=True)
class _Host:
    """What is known of a process of a federation before its recipe is built.

    Args:
        charter: of the federation.
        seat: the settings of this process alone.
        injected: the faults of the recipe are played.
        local: all processes are on this machine.
        relay: socket at which a relay calls; None: calls go over gRPC.
    """

    charter: Charter
    seat: SeatFile
    injected: bool = False
    local: bool = False
    relay: str | None = None

    @classmethod
    def of(cls, cli: CLI) -> "_Host":
        """The process of this host."""
        _refuse_early(cli)
        given = cli.given
        return cls(Charter.read(given.federation), SeatFile.read(given.seat), relay=given.relay)

    def run(self, cli: CLI, identity: Identity, writer: Literal["server", "parties"]) -> "Run":
        """Build the recipe for this process; ``writer``: who it is among those that may write predictions."""
        from lightning_vfl.federation.run import Run

        cli.build()
        _refuse_faults(cli, self.injected)
        _refuse_unwritable(cli, writer)
        budget = self.seat.budget if writer == "parties" else None
        if budget is not None:
            cli.trainer.callbacks.append(PrivacyBudget(budget.epsilon, budget.delta))
        cli.take_folder()
        way = _way(self.charter, identity, self.relay, self.seat.proxy if writer == "parties" else None)
        given = cli.given
        shared = {key: value for key, value in cli.config_dump.items() if key in SHARED}
        return Run(
            self.charter,
            identity,
            self.seat,
            way,
            cli.trainer,
            cli.model,
            cli.datamodule,
            given.do,
            dict(recipe_digest(shared)),
            self.injected,
            given.get("ckpt_path"),
            self.local,
        )


def _way(charter: Charter, identity: Identity, relay: str | None, proxy: str | None) -> "Way":
    """How this process reaches the others.

    Raises:
        ConfigurationError: for a proxy that would not be used.
    """
    if relay is None:
        from lightning_vfl.federation.over_grpc import OverGRPC  # grpc, after the processes of federate have parted

        return OverGRPC(charter, identity, proxy)
    if proxy is not None:
        raise ConfigurationError("proxy: of seat.yaml is for calls over gRPC; leave it out with --relay")
    from lightning_vfl.federation.relay import ThroughRelay

    return ThroughRelay(Path(relay), charter, identity)


def _refuse_faults(cli: CLI, injected: bool) -> None:
    """Refuse a recipe of faults in a federation in which faults happen.

    Raises:
        ConfigurationError: naming the callback.
    """
    faults = [callback for callback in cli.trainer.callbacks if isinstance(callback, FaultInjector)]
    for callback in faults:
        if isinstance(callback.model, DataFault):
            raise ConfigurationError(
                f"{type(callback).__name__} changes records in simulations only; leave it out of a federation"
            )
    if faults and not injected:
        raise ConfigurationError(
            f"{type(faults[0]).__name__} injects faults in simulations and with federate --inject; here faults happen; "
            "leave the recipe of faults out"
        )


def _refuse_unwritable(cli: CLI, writer: str) -> None:
    """Refuse a file of predictions that cannot be written, before anybody waits for this process.

    Raises:
        ConfigurationError: naming the path.
    """
    for callback in cli.trainer.callbacks:
        predicts = isinstance(callback, PredictionWriter) and cli.given.do == "predict"
        if predicts and callback.writes and callback.at == writer:
            refuse_unwritable(callback.path)


def _made(name: str, folder: Path) -> Identity:
    """The identity of a local process; each process opens its own key."""
    return load(*paths(name, folder / "keys"))


def _move(cli: CLI, folder: Path, quiet: bool) -> None:
    """Let a process write into a folder of its own."""
    cli.given.trainer.default_root_dir = str(folder)
    if quiet:
        cli.given.trainer.enable_progress_bar = False


def _find_parties(cli: CLI) -> int | list[str]:
    """The names of the parties' tables, if every party has a file of its own; else the number of parties.

    It is found out in a process of its own, so that no thread of the data set's libraries is left here.
    """
    read, write = os.pipe()

    def find() -> None:
        try:
            with one_line():
                cli.build()
                cli.datamodule.prepare_data()
                cli.datamodule.setup("fit")
        except ConfigurationError as error:
            os.write(write, json.dumps({"error": str(error)}).encode())
            return
        data = cli.datamodule
        os.write(write, json.dumps(data.party_names if data.own_files else len(data.party_shapes)).encode())

    process = start(find, None)
    os.close(write)
    with os.fdopen(read) as answer:
        told = answer.read()
    code = os.waitstatus_to_exitcode(os.waitpid(process, 0)[1])
    if code < 0:
        raise ConfigurationError(f"the process that loads the data set {how_it_ended(code)}; nothing was started")
    if not told:
        raise ConfigurationError("the data set cannot be loaded; the line above says why")
    found_there: int | list[str] | dict[str, str] = json.loads(told)
    if isinstance(found_there, dict):
        raise ConfigurationError(found_there["error"])
    return found_there


def _new_folder(root: Path) -> Path:
    """A folder of its own for this federation."""
    folder = root / f"federation-{time.strftime('%Y%m%d-%H%M%S')}"
    number = 0
    while True:
        try:
            folder.mkdir(parents=True)
        except FileExistsError:
            number += 1
            folder = root / f"federation-{time.strftime('%Y%m%d-%H%M%S')}-{number}"
        else:
            return folder
