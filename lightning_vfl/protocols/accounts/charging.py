"""Charging records: open the ledger before a fit or an evaluation, and charge every round before it is uploaded."""

from collections.abc import Iterable, Sequence
from contextlib import suppress
from copy import deepcopy
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import torch
from lightning.pytorch.utilities import rank_zero_info
from torch import Tensor, nn

from lightning_vfl.errors import ConfigurationError
from lightning_vfl.networks.flops import takes_whole_numbers
from lightning_vfl.privacy.events import PrivacyEvent
from lightning_vfl.protocols.accounts.books import PrivacyBooks
from lightning_vfl.protocols.build import party_names_of
from lightning_vfl.protocols.checks import refuse_unaccounted
from lightning_vfl.protocols.model import SplitModel
from lightning_vfl.protocols.place import Elsewhere
from lightning_vfl.protocols.run_folder import run_folder
from lightning_vfl.types import NO_RECORDS, Roll, Stage, VerticalBatch, numbers_in, stage_of


def open_privacy(module: SplitModel, data: Any) -> None:
    """Open the privacy account of a fit, if a part of the protocol accounts; one process writes the ledger.

    Raises:
        ConfigurationError: without a datamodule; for bottoms and data in which one record depends on others; for a
            ledger that is missing or does not fit; for a budget, and records that were sent in the clear.
    """
    if module.aggregator.accounting is None:
        return
    if data is not None:
        refuse_what_links_records(module, data)
    open_account(module, module.privacy, data, type(module.aggregator).__name__)
    module.privacy.refuse_disclosed(names_of(data.records("train")))


def open_account(module: SplitModel, privacy: PrivacyBooks, data: Any, who: str) -> None:
    """Open an account of the training records for ``who``; one process writes its ledger.

    Raises:
        ConfigurationError: without a datamodule; for a ledger that is missing or does not fit.
    """
    if data is None:
        raise ConfigurationError(
            f"{who} accounts for the privacy of each record and must know the records; give the trainer a "
            "VerticalDataModule instead of a loader"
        )
    _open_for(module, privacy, data.records("train"), Stage.FIT)


def open_evaluation(module: SplitModel, loader: Any, batches: Any, possible: Sequence[PrivacyEvent]) -> None:
    """Open the account of an evaluation, before its first batch: nothing is sent before its budget is known.

    Records that are evaluated through the protocol are charged as training charges them, also records that were never
    trained. Records that are evaluated in the clear are noted, and no ε is claimed for them.

    Args:
        module: the protocol.
        loader: of the evaluation, with the records.
        batches: how many of its batches are evaluated, as the trainer says.
        possible: the releases that a round of it may make.

    Raises:
        ConfigurationError: for a loader whose records have no ids, for a ledger that is missing or does not fit, and
            for a budget without room for the evaluation.
    """
    stage = stage_of(module.stage)
    privacy = module.privacy
    if module.protected_evaluation:
        refuse_unaccounted(type(module.aggregator).__name__, loader)
    records = getattr(loader, "records", None)
    if records is None:
        return
    evaluated = _evaluated(loader, batches)
    what = f"the {stage} of {len(evaluated):,} records"
    if module.protected_evaluation:
        _open_for(module, privacy, records, stage)
        privacy.refuse_above(possible, privacy.places[stage][evaluated], what)
        return
    names = names_of(records)
    if privacy.seat is not None and privacy.ledger is None:
        _open(module, privacy, names, trains=False, names_them=False)
    if module.trainer.is_global_zero and len(evaluated):
        privacy.send_in_the_clear([names[i] for i in evaluated.tolist()], what)


def next_evaluation(module: SplitModel) -> Tensor:
    """Positions in the account of the records that the next validation of a fit releases through the protocol."""
    trainer = module.trainer
    privacy = module.privacy
    loader = one_loader(trainer.val_dataloaders)
    if not module.protected_evaluation or not hasattr(loader, "records"):
        return NO_RECORDS
    if Stage.VALIDATION not in privacy.places:
        _open_for(module, privacy, loader.records, Stage.VALIDATION)
    return privacy.places[Stage.VALIDATION][_evaluated(loader, trainer.num_val_batches)]


def one_loader(loaders: Any) -> Any:
    """The loader of a stage, which the trainer may keep in a list."""
    return loaders[0] if isinstance(loaders, list | tuple) and len(loaders) == 1 else loaders


def names_of(records: Any) -> Any:
    """(N,) the ids by which the account knows records again; a place in a file is named with its file."""
    scope = getattr(records, "scope", None)
    return records.ids if scope is None else [f"{scope} {place}" for place in records.ids.tolist()]


def _evaluated(loader: Any, batches: Any) -> Tensor:
    """The positions of the records in the first batches of a loader, once for each time that they are in one."""
    count = batches[0] if isinstance(batches, list) else batches
    count = None if count == float("inf") else int(count)
    order = [positions for positions, _ in islice(loader.schedule.epoch(0), count)]
    return torch.from_numpy(np.concatenate(order)) if order else NO_RECORDS


def _open_for(module: SplitModel, privacy: PrivacyBooks, records: Any, stage: Stage) -> None:
    """Open an account that charges the records of a stage; note their places in it."""
    names = names_of(records)
    _open(module, privacy, names, trains=stage == Stage.FIT, names_them=True)
    privacy.places[stage] = privacy.rows(names)


def _open(module: SplitModel, privacy: PrivacyBooks, names: Any, trains: bool, names_them: bool) -> None:
    """Open an account in the process that writes, and let the others follow."""
    trainer = module.trainer
    failure = None
    if trainer.is_global_zero:
        try:
            words = privacy.open(names, _ledger_folder(trainer), module.privacy_ledger, trains, names_them)
            if words is not None:
                rank_zero_info(words)
        except ConfigurationError as error:
            failure = error
    if trainer.world_size > 1:  # the other processes may have no access to the file
        failure, state = trainer.strategy.broadcast((failure, privacy.state()))
        if not (trainer.is_global_zero or failure):
            privacy.follow(state)
    if failure is not None:
        raise failure


def refuse_what_links_records(module: SplitModel, data: Any) -> None:
    """Refuse bottoms and data in which one record depends on others, which the figure of a record does not count.

    Raises:
        ConfigurationError: naming the layer or the statistics, and what to use instead.
    """
    name = type(module.aggregator).__name__
    refuse_shared_statistics(name, module.bottoms.parties, module.hparams["party_shapes"], data)


def charge(module: SplitModel, roll: Roll, sent: Tensor, batch: VerticalBatch, joiner: int | None = None) -> None:
    """Charge the records of the joint batch with everything that can be read of a round, of training or evaluation.

    A round that is given up is charged too. The charge is on the disk when this function returns, before any party
    uploads.

    Args:
        module: the protocol.
        roll: of the round.
        sent: (M,) bool, the parties that put their first upload on the wire.
        batch: this process's part of the joint batch.
        joiner: the party that joins the embeddings instead of a server. Its own noise hides nothing from it.

    Raises:
        ConfigurationError: if a round of evaluation would exceed the budget; nothing is charged then, and nothing is
            released.
    """
    accounting = module.aggregator.accounting
    if module.privacy.accountant is None or accounting is None:
        return
    stage = stage_of(module.stage)
    roster = module.roster.joined_by(joiner)
    released = accounting.released(roll, sent, roster)
    parties = tuple(m for m in numbers_in(released) if m != joiner)
    event = accounting.event(parties, module.embedding_widths, roster)
    if event is None:
        return
    rows = module.privacy.places[stage][joint_ids(batch)]
    training = stage == Stage.FIT
    if not training:  # before a round of training, ``PrivacyBudget`` has reserved the worst one
        module.privacy.refuse_above((event,), rows, f"a batch of the {stage}")
    number = module.books.rounds[str(module.stage)] - 1
    module.privacy.spend(number, event, rows, "" if training else str(stage))
    if module.trainer.world_size > 1:
        module.trainer.strategy.barrier("privacy ledger")


def joint_ids(batch: VerticalBatch) -> Tensor:
    """Positions of the records of the joint batch, on the CPU."""
    ids = None if batch.joint is None else batch.joint.ids
    return batch.record_ids.cpu() if ids is None else torch.from_numpy(ids)


def _ledger_folder(trainer: Any) -> Path | None:
    """The folder that contains the folder of checkpoints; None if Lightning keeps no files."""
    if trainer.fast_dev_run:
        return None
    folder = run_folder(trainer)
    if "://" in folder:
        raise ConfigurationError(
            f"the privacy ledger must be in a local folder; got {folder}; give the trainer a local default_root_dir "
            "and a logger with a local save_dir"
        )
    return Path(folder)


# ---- does a message about one record depend on other records?


_REMEDY = "use norm: group (ResNet18, VGG13), torch.nn.GroupNorm or torch.nn.LayerNorm"


def refuse_shared_statistics(
    aggregator: str, bottoms: Iterable[nn.Module], shapes: Sequence[Sequence[int]], data: Any
) -> None:
    """Refuse data and bottoms that make messages about one record depend on other records.

    Guarantee: every ``torch.nn`` batch norm and every instance norm with running statistics is found. Other layers are
        run on two batches of two records that differ in the second record. A layer is refused if the first embedding
        or a buffer differs.
    Not guaranteed: a layer that depends on other records only for some inputs may not be found. A datamodule is not
        found that prepares records with statistics of its own and does not name these in ``private_statistics``.

    Args:
        aggregator: the name of the aggregator, for errors.
        bottoms: the parties' networks, in order of party numbers.
        shapes: per-record shape of each party's features.
        data: the datamodule of the training.

    Raises:
        ConfigurationError: naming the refused layer or statistics, and what to use instead.
    """
    for found in getattr(data, "private_statistics", tuple)():
        raise ConfigurationError(
            f"{aggregator} accounts for the privacy of single records, but in {type(data).__name__} the data of one "
            f"record depend on others: {found}"
        )
    for name, bottom, shape in zip(party_names_of(data, len(shapes)), bottoms, shapes, strict=True):
        if not isinstance(bottom, Elsewhere) and (what := batch_statistics(bottom, shape)):
            raise ConfigurationError(
                f"{aggregator} accounts for the privacy of single records, but {what} in the bottom of party {name} "
                f"lets the embedding of one record depend on others; {_REMEDY}"
            )


def batch_statistics(bottom: nn.Module, shape: Sequence[int]) -> str:
    """The name of a layer in a bottom that uses statistics of several records; "" if there is none.

    Examples:
        >>> batch_statistics(nn.Sequential(nn.Linear(3, 2), nn.BatchNorm1d(2)), (3,))
        '1 (BatchNorm1d)'
        >>> batch_statistics(nn.Sequential(nn.Linear(3, 2), nn.GroupNorm(1, 2)), (3,))
        ''
    """
    for name, layer in bottom.named_modules():
        if isinstance(layer, nn.modules.batchnorm._NormBase) and not (
            isinstance(layer, nn.modules.instancenorm._InstanceNorm) and not layer.track_running_stats
        ):
            return f"{name or 'the network'} ({type(layer).__name__})"
    return f"a layer of {type(bottom).__name__}" if _mixes_records(bottom, shape) else ""


def _mixes_records(bottom: nn.Module, shape: Sequence[int]) -> bool:
    """Whether the second record of a batch changes the embedding of the first, or a buffer, in training mode."""
    some = next(bottom.parameters(), torch.empty(0))
    batch = torch.randn(2, *shape, generator=torch.Generator().manual_seed(0)).to(some.device, some.dtype)
    other = torch.stack([batch[0], 5 - 3 * batch[1]])
    zeros = torch.zeros_like(batch)
    if takes_whole_numbers(deepcopy(bottom).eval(), zeros):
        zeros = zeros.long()
    else:
        with suppress(RuntimeError, ValueError, IndexError):  # it makes whole numbers of real ones, for an embedding
            return _differ(bottom, batch, other)
    return _differ(bottom, zeros, torch.stack([zeros[0], zeros[1] + 1]))


def _differ(bottom: nn.Module, batch: Tensor, other: Tensor) -> bool:
    """Whether the first embedding or a buffer of a copy of the bottom differs between the two batches."""
    tried = deepcopy(bottom).train()
    buffers = {name: buffer.clone() for name, buffer in tried.named_buffers()}
    first = _after(tried, batch)
    with torch.no_grad():
        for name, buffer in tried.named_buffers():
            buffer.copy_(buffers[name])
    second = _after(tried, other)
    return any(
        not torch.allclose(one, other, 1e-4, 1e-6, equal_nan=True) for one, other in zip(first, second, strict=True)
    )


def _after(network: nn.Module, batch: Tensor) -> list[Tensor]:
    """The first embedding and all buffers after a forward pass, as float64; the random layers are seeded equally."""
    cuda = [batch.device] if batch.device.type == "cuda" else []
    with torch.random.fork_rng(cuda), torch.no_grad():
        torch.manual_seed(0)
        embedding: Tensor = network(batch)
    return [embedding[0].double(), *(buffer.double() for buffer in network.buffers())]
