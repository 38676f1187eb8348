"""Repeat in a simulation what has happened in a federation."""

from collections.abc import Mapping, Sequence
from copy import deepcopy
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import torch
from lightning.pytorch import Callback, LightningModule, Trainer
from lightning.pytorch.utilities import rank_zero_warn

from lightning_vfl.aggregators.base import Aggregator
from lightning_vfl.aggregators.clear import ClearParty
from lightning_vfl.compressors import Sender
from lightning_vfl.errors import ConfigurationError
from lightning_vfl.federation.arrivals import RealEvents
from lightning_vfl.federation.record import Replayed
from lightning_vfl.protocols.asynchronous import AsyncVFL
from lightning_vfl.protocols.cascade import CascadeVFL
from lightning_vfl.protocols.one_shot import OneShotVFL
from lightning_vfl.protocols.owner_keys import FILE, read_key
from lightning_vfl.types import Event


class Replay(Callback):
    """Puts a party back to the state from which it has come back in the federation.

    ``SplitVFL.replayed`` repeats the rounds themselves, and ``AsyncVFL.replayed_events`` the events.

    Args:
        record: of the federation.
        secrets: by owner (None: the server) its secrets, in the order in which it drew them; empty: the weights of the
            federation follow from the seed.

    Raises:
        ConfigurationError: if a party has more or fewer secrets than times at which it has begun anew.
    """

    def __init__(self, record: Replayed, secrets: Mapping[int | None, Sequence[bytes]]) -> None:
        self.record = record
        self._later = {owner: list(keys[1:]) for owner, keys in secrets.items()}
        for party in range(record.parties) if secrets else ():
            anew = sum(back.get(party) == 0 for back in record.restored.values())
            if anew != len(self._later[party]):
                raise ConfigurationError(
                    f"party {record.names[party]} has come back {anew} times without a checkpoint, and has "
                    f"{len(self._later[party]) + 1} different secrets; name those of this training with --secrets"
                )
        self._wanted: dict[int, set[int]] = {}  # round -> parties whose state at its beginning is put back later
        for back in record.restored.values():
            for party, since in back.items():
                self._wanted.setdefault(since, set()).add(party)
        self._kept: dict[tuple[int, int], _State] = {}

    def on_fit_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Let every party run its bottom alone, as its process did.

        Raises:
            ConfigurationError: for a recipe with another number of parties.
        """
        module: Any = pl_module
        if module.roster.parties != self.record.parties:
            raise ConfigurationError(
                f"{self.record.path} is of {self.record.parties} parties, the recipe has {module.roster.parties}"
            )
        if isinstance(module, AsyncVFL):
            module.replayed_events = lambda planned: RealEvents(planned, module, partial(self._served, module))
        else:
            module.replayed = self.record
        module.bottoms.groups = ()
        for bottom in module.bottoms.parties:
            bottom.register_forward_pre_hook(_contiguous)

    def _served(self, module: AsyncVFL, number: int) -> Event:
        """An event of the record."""
        served = self.record.event(number)
        now = module.clock.seconds
        return Event(number, served.party, served.request, now, now + served.seconds, (served.party,))

    def on_train_batch_start(self, trainer: Trainer, pl_module: LightningModule, batch: Any, batch_idx: int) -> None:
        """Keep states that are needed later."""
        module: Any = pl_module
        round = module.books.training_rounds
        (optimizer,) = trainer.optimizers
        for party in self._wanted.get(round, ()):
            networks = list(module.owners())[party]
            moments = [deepcopy(optimizer.state.get(p)) for p in networks.parameters()]
            sender = _sender_of(module)
            residue = None if sender is None else sender.residue_of(party)
            gradients = None
            if isinstance(module, OneShotVFL):
                gradients = module.memory.table.read(_all_records(module))[party].clone()
            self._kept[round, party] = _State(deepcopy(networks.state_dict()), moments, residue, gradients)

    def on_train_batch_end(self, trainer: Trainer, pl_module: LightningModule, *_: Any) -> None:
        """Put the states back of parties that have come back before the next round."""
        module: Any = pl_module
        round = module.books.training_rounds
        for party, since in self.record.restored.get(round, {}).items():
            if since < round:
                self._put_back(trainer, module, party, since)

    def on_train_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """After the exchange of ``OneShotVFL``, a party that comes back misses nothing: it learns alone.

        It goes on from its checkpoint, and from the end of the exchange if that is older.
        """
        module: Any = pl_module
        if not isinstance(module, OneShotVFL) or trainer.current_epoch > 0:
            return
        exchanged = module.books.training_rounds
        for round in sorted(number for number in self.record.restored if number > exchanged):
            for party, since in self.record.restored.pop(round).items():
                if since < exchanged:
                    self._put_back(trainer, module, party, since)

    def on_fit_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Warn if the federation went on for longer than this replay."""
        module: Any = pl_module
        replayed = module.books.training_rounds
        if replayed < self.record.rounds:
            rank_zero_warn(
                f"{replayed} of the {self.record.rounds} rounds in {self.record.path} were replayed, so these are not "
                "the last weights of the federation; give the recipe of the federation, with its max_epochs"
            )

    def _put_back(self, trainer: Trainer, module: Any, party: int, since: int) -> None:
        """Put a party back to its state before round ``since``."""
        (optimizer,) = trainer.optimizers
        weights, moments, residue, gradients = self._kept[since, party]
        if (sender := _sender_of(module)) is not None:
            sender.put_back(party, residue)
        if gradients is not None:
            module.memory.write(_all_records(module), party, gradients)
        networks = list(module.owners())[party]
        if since == 0 and module.keys:  # it has begun anew, with another secret
            module.keys[party] = self._later[party].pop(0)
            weights = module.initial_networks(party).state_dict()
        networks.load_state_dict(weights)
        if isinstance(module, CascadeVFL):  # what others have of its embeddings is of the bottom that is lost
            for replica in module.memory.replicas.of.values():
                replica.bottoms.parties[party].load_state_dict(weights)
        for parameter, moment in zip(networks.parameters(), moments, strict=True):
            if moment is None:
                optimizer.state.pop(parameter, None)
            else:
                optimizer.state[parameter] = deepcopy(moment)


class _State(NamedTuple):
    """A party's state before a round: weights, the optimiser's state, a compressor's residue, kept gradients."""

    weights: Any
    moments: list[Any]
    residue: torch.Tensor | None
    gradients: torch.Tensor | None


def _all_records(module: Any) -> torch.Tensor:
    return torch.arange(len(module.datamodule.records("train")))


def _contiguous(bottom: torch.nn.Module, inputs: tuple[Any, ...]) -> tuple[Any, ...]:
    """A bottom's inputs as its party has them; a product with a view of a wider table has other last bits."""
    return tuple(x.contiguous() for x in inputs)


def _sender_of(module: Any) -> Sender | None:
    """What compresses the embeddings of the parties; None: nothing does."""
    side = module.sides.party
    return side.sender if isinstance(side, ClearParty) else None


def secrets_of(record: Replayed, given: str | Mapping[str, str] | None) -> dict[int | None, list[bytes]]:
    """By party, and None for the server, the secrets of the processes of a federation, in the order of their files.

    Args:
        record: of the federation.
        given: by name of the process, a file or a folder in which to look; or a folder that has a folder for each
            process, as ``federate --local`` makes it. None: the folder of the record.

    Returns:
        Empty, if nothing is given and there are no secrets in the folder of the record: weights follow from the seed.

    Raises:
        ConfigurationError: naming processes whose secret is missing.
    """
    folder = Path(given) if isinstance(given, str) else record.path.parent
    if isinstance(given, Mapping):
        places = {name: Path(path) for name, path in given.items()}
    else:
        places = {one.name: one for one in folder.iterdir() if one.is_dir()} if folder.is_dir() else {}
    files = {name: _files(path) for name, path in places.items()}
    owners = {name: found for name, found in files.items() if found or isinstance(given, Mapping)}
    if given is None and not owners:
        return {}
    servers = sorted(owners.keys() - set(record.names))
    missing = [name for name in record.names if not owners.get(name)]
    missing += [] if len(servers) == 1 and owners[servers[0]] else ["the server"]
    if missing:
        raise ConfigurationError(
            f"the {FILE} of {', '.join(missing)} is missing; give --secrets a file or folder of each process: "
            "{NAME: PATH, ...}, the server too"
        )
    named: list[tuple[int | None, str]] = [*enumerate(record.names), (None, servers[0])]
    return {owner: list(dict.fromkeys(map(read_key, owners[name]))) for owner, name in named}


def _files(path: Path) -> list[Path]:
    """The files of secrets, the oldest first."""
    return sorted(path.rglob(FILE), key=lambda one: one.stat().st_mtime_ns) if path.is_dir() else [path]


def drawn_anew(aggregator: Aggregator) -> bool:
    """Whether uploads have noise of the operating system that is kept nowhere, so that a replay has other bits."""
    accounting = aggregator.accounting
    return accounting is not None and accounting.simulated is None
