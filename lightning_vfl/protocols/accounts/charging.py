"""Charging the records of a training: open the ledger before the fit, and charge every round."""

from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from lightning_vfl.errors import ConfigurationError
from lightning_vfl.protocols.accounts.books import PrivacyBooks
from lightning_vfl.protocols.accounts.single_records import refuse_shared_statistics
from lightning_vfl.protocols.run_folder import run_folder
from lightning_vfl.rounds.plan import RoundPlan
from lightning_vfl.types import Stage, VerticalBatch

if TYPE_CHECKING:
    from lightning_vfl.protocols.training import TrainedModule


def open_privacy(module: "TrainedModule", data: Any) -> None:
    """Open the privacy account of a fit, if a part of the protocol accounts; one process writes the ledger.

    Raises:
        ConfigurationError: without a datamodule; for bottoms and data in which one record depends on others; for a
            ledger that is missing or does not fit.
    """
    if module.aggregator.accounting is None and not module.accounts_updates:
        return
    if data is not None:
        refuse_what_links_records(module, data)
    open_account(module, module.privacy, data, accounting_part(module))


def open_account(module: "TrainedModule", privacy: PrivacyBooks, data: Any, who: str) -> None:
    """Open an account of the training records for ``who``; one process writes its ledger.

    Raises:
        ConfigurationError: without a datamodule; for a ledger that is missing or does not fit.
    """
    if data is None:
        raise ConfigurationError(
            f"{who} accounts for the privacy of each record and must know the records; give the trainer a "
            "VerticalDataModule instead of a loader"
        )
    trainer, failure = module.trainer, None
    if trainer.is_global_zero:
        try:
            privacy.open(len(data.records("train")), _ledger_folder(trainer), module.privacy_ledger)
        except ConfigurationError as error:
            failure = error
    if trainer.world_size > 1:  # the other processes may have no access to the file
        failure, state = trainer.strategy.broadcast((failure, privacy.state()))
        if not (trainer.is_global_zero or failure):
            privacy.follow(state)
    if failure is not None:
        raise failure


def refuse_what_links_records(module: "TrainedModule", data: Any) -> None:
    """Refuse bottoms and data in which one record depends on others, which the figure of a record does not count.

    Raises:
        ConfigurationError: naming the layer or the statistics, and what to use instead.
    """
    refuse_shared_statistics(accounting_part(module), module.bottoms.parties, module.hparams["party_shapes"], data)


def accounting_part(module: "TrainedModule") -> str:
    """The name of the part that accounts for privacy, for errors."""
    return "update_noise" if module.aggregator.accounting is None else type(module.aggregator).__name__


def charge_round(module: "TrainedModule", plan: RoundPlan, batch: VerticalBatch, joiner: int | None = None) -> None:
    """Charge the records of the joint batch with everything that the server can read of a round.

    A round that is given up is charged too. The charge is on the disk when this function returns, before any party
    uploads.

    Args:
        module: the protocol.
        plan: the plan of the round.
        batch: this process's part of the joint batch.
        joiner: the party that joins the embeddings instead of a server. Its own noise hides nothing from it.
    """
    accounting = module.aggregator.accounting
    if module.privacy.accountant is None or accounting is None:
        return
    roster = module.roster.joined_by(joiner)
    released = accounting.released(plan.roll, plan.sent[0], roster)
    parties = tuple(m for m in released.nonzero().flatten().tolist() if m != joiner)
    event = accounting.event(parties, module.embedding_widths, roster)
    if event is not None:
        module.privacy.spend(module.books.rounds[Stage.FIT] - 1, event, joint_ids(batch))
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
