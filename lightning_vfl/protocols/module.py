"""VFLModule: the base class of protocols, with the steps and hooks that Lightning calls."""

from abc import abstractmethod
from collections.abc import Callable, Collection, Mapping
from dataclasses import replace
from inspect import isfunction
from math import nan
from typing import Any, final

import torch
from lightning.pytorch import Callback, Trainer
from lightning.pytorch.trainer.states import TrainerFn
from torch import Tensor
from torch.optim import Optimizer

from lightning_vfl.errors import ConfigurationError, refuse_other_kind
from lightning_vfl.protocols.accounts.charging import one_loader, open_evaluation
from lightning_vfl.protocols.before_fit import (
    check_data,
    check_settings,
    check_setup,
    check_start,
    refuse_callbacks,
)
from lightning_vfl.protocols.books import EpochLoss
from lightning_vfl.protocols.checks import (
    callbacks_of,
    needed_data,
    one_optimizer,
    refuse_accumulation,
    refuse_other_batches,
    refuse_other_loss,
    refuse_other_records,
    refuse_several_loaders,
    scales_losses,
    searches_rate,
)
from lightning_vfl.protocols.early_build import with_networks, with_party_rows
from lightning_vfl.protocols.first_rounds import Movement, check_movement, refuse_diverged
from lightning_vfl.protocols.hooks import toolkit_hook
from lightning_vfl.protocols.loading import (
    BOOKS,
    SET_UP,
    continue_loader,
    continue_loops,
    restore,
    save,
    start_again,
)
from lightning_vfl.protocols.message_rounds import MessageRounds
from lightning_vfl.protocols.scores import SPLITS, Attendance, Predictions, Spread, predictions_of, warn_of_chance
from lightning_vfl.protocols.step import GivenUp, Step
from lightning_vfl.support import refuse_other_table
from lightning_vfl.types import RoundNames, Stage, VerticalBatch


class VFLModule(MessageRounds):
    """A vertical federated learning protocol: M bottoms, an aggregator and a top; the traffic is counted exactly.

    A protocol of your own implements ``step``. ``round`` runs the messages of a training round in it: under the waiting
    rule, the policy and the faults, through the aggregator's wire, with bytes, virtual seconds and privacy charged.
    ``output`` predicts, by default through the aggregator and ``head``. ``docs/extending.md`` has two protocols.

    Its settings are those of ``SplitModel``.

    Faults are added to ``faults``, usually by a callback; the protocol reads the outcome of every request from it.

    Guarantee: a party that takes no part in a round has bit-identical parameters and optimiser state afterwards. A run
        resumed from a checkpoint has the same bits as the uninterrupted run. Gradients are clipped separately for each
        party and for the server, because no party sees the gradient norm of another party.
    Not guaranteed: gradient accumulation and strategies other than one device and DDP; both are refused.

    Raises:
        ConfigurationError: before training, if the waiting rule and the policy cannot be combined, or do not suit the
            faults or the aggregator; if hidden sums of a record may be over different parties; for groups whose records
            the server could compute.
    """

    position: Mapping[str, Any] = {}
    """Where the training loader of a checkpoint stood, until the training of a resumed fit has started."""
    resumed_start: Mapping[str, Any] | None = None  # of a checkpoint, as long as its position
    end_before_round: bool = False  # a callback sets it when a round would cost too much
    predictor: Callable[[VerticalBatch], Predictions] | None = None  # takes the place of the rounds of predictions
    attendance: Attendance | None = None  # of the last evaluation round; None: nobody who was asked was absent
    _compared: bool = False  # whether several processes have compared their weights in this fit
    _movement: Movement | None = None  # until the first rounds of a fit are over
    _within_round: bool = False  # a round has begun, and its optimiser step is not over
    _pending: Step | None = None  # the rest of the current step, without its loss and with it the graph
    _predicted: Spread = Spread()  # of the last prediction; a new one when one begins
    _remembered: int | None = None  # the number of records that the memory has room for

    def __init_subclass__(cls, **settings: Any) -> None:
        super().__init_subclass__(**settings)
        refuse_other_table(cls)
        finished = [base for base in cls.__mro__[1:] if getattr(vars(base).get("step"), "__final__", False)]
        if "step" in vars(cls) and finished:
            base = next(base for base in cls.__bases__ if issubclass(base, finished[0]))
            raise TypeError(
                f"{cls.__name__} overrides step of {base.__name__}, whose downlink, policy and accounts are "
                "applied there; derive from VFLModule and write step of your own"
            )
        if "configure_optimizers" in vars(cls):
            cls.configure_optimizers = one_optimizer(cls.configure_optimizers)  # type: ignore[method-assign,assignment]
        for name, value in vars(cls).items():
            methods = [vars(base)[name] for base in cls.__mro__[1:] if isfunction(vars(base).get(name))]
            if methods and isinstance(value, str | int | float | list | tuple | dict):
                raise TypeError(
                    f"{cls.__name__} sets {name} to {value!r}, but {name} is a method: write def {name}(self, ...), or "
                    "use another name"
                )
        if "training_step" in vars(cls) and cls.__module__ != __name__:
            raise TypeError(
                f"{cls.__name__} overrides training_step, which calls step; implement step(batch, names) -> Step"
            )

    def __getstate__(self) -> dict[str, Any]:
        """Without the rest of a step, its graph and its listener: a copy has no messages of a round."""
        return {**super().__getstate__(), "_pending": None, "_movement": None, "tap": None}

    @abstractmethod
    def step(self, batch: VerticalBatch, names: RoundNames) -> Step:
        """One training round or event; in a federation, ``Place.step`` runs in its place.

        Args:
            batch: this process's part of the joint batch.
            names: the names of the round's random streams; torch's global generator is seeded from them.
        """

    # ---- a training step

    @final
    def training_step(self, batch: VerticalBatch, batch_idx: int) -> Tensor:
        """Run, count and log one ``step``. A step without a loss changes no parameter."""
        if type(batch) is not VerticalBatch:
            refuse_other_batches(batch)
        if self._movement is not None and self._movement.is_over:
            self._end_first_rounds()
        self._within_round = True
        self._entered = None
        self._pending = None  # of the round before, if its step of the optimiser was made by hand
        names = self.next_round(seed_global=self.seeds_networks)
        if self.names_draws:
            self.name_draws(names)
        try:
            step = self.step(batch, names) if self.place is None else self.place.step(self, batch, names)
        except GivenUp:
            step = Step(None)
        if type(step) is not Step:
            refuse_other_kind("what step returns", step, Step, "Step(loss)")
        if self._movement is not None:
            self._movement.note(self, step)
        loss = step.loss
        if loss is None:
            self.books.given_up += 1
            self._pending = replace(step, withheld=(self,), learners=None, before_optimizer=None)
        else:
            if not (isinstance(loss, Tensor) and loss.requires_grad and loss.dim() == 0):
                refuse_other_loss(loss)
            self._pending = replace(step, loss=None, logged=None, notes={})  # without the graph
        self._log_step(step, batch, batch_idx)
        return self._nothing() if loss is None else loss

    def _end_first_rounds(self) -> None:
        """Check once whose weights the first rounds have changed."""
        movement = self._movement
        self._movement = None
        if movement is not None:
            check_movement(self, movement)

    def _nothing(self) -> Tensor:
        """A loss that is not known (nan), whose gradients are zero, for an optimiser step that changes no parameter."""
        joint = self.trainer.world_size > 1  # DDP waits for the gradients of all parameters
        parameters = list(self.parameters()) if joint else [next(self.parameters())]
        return torch.stack([parameter.sum() for parameter in parameters]).sum() * 0.0 + nan

    @toolkit_hook
    def on_before_optimizer_step(self, optimizer: Optimizer) -> None:
        """Delete the gradients of networks that do not learn: their parameters and optimiser state do not change."""
        step = self._pending
        if step is not None:
            self._pending = Step(None, after_optimizer=step.after_optimizer)
            if step.withheld or step.learners != tuple(range(self.roster.parties)):
                self._withhold(step)
            if step.before_optimizer is not None:
                step.before_optimizer(optimizer)
        if self._movement is not None and (step is None or self not in step.withheld):
            self._movement.note_gradients(optimizer)

    def _withhold(self, step: Step) -> None:
        """Delete the gradients of networks that do not learn from a step."""
        for network in step.withheld:
            for parameter in network.parameters():
                parameter.grad = None
        if step.learners is None:
            return
        everyone = set(range(self.roster.parties))
        if strangers := set(step.learners) - everyone:
            raise ConfigurationError(
                f"the learners of a Step must be parties from 0 to {self.roster.parties - 1}; got {min(strangers)}"
            )
        if idle := everyone.difference(step.learners):
            self.bottoms.withhold(idle)

    def _after_optimizer(self, *_: Any) -> None:
        """Restore equal copies of shared bottoms; let the protocol use the parameters of after the step."""
        if self.learns_locally:
            return
        step = self._pending
        self._pending = None
        if self.roster.shared:
            self.bottoms.follow()
        if step is not None and step.after_optimizer is not None:
            step.after_optimizer()
        self._within_round = False

    @property
    def learners(self) -> Collection[int] | None:
        """Between the backward pass and the optimiser's step: the parties that learn from the step; None: all."""
        step = self._pending
        return () if step is None or self in step.withheld else step.learners

    # ---- before a fit

    @toolkit_hook
    def configure_callbacks(self) -> list[Callback]:
        """Give Lightning's default summary a row for each party; build networks in time for weight averages."""
        callbacks = callbacks_of(self.trainer)
        callbacks[:] = map(with_party_rows, with_networks(callbacks))
        return []

    @toolkit_hook
    def configure_model(self) -> None:
        """Build the networks once, for the shapes in hparams or in the trainer's datamodule.

        Lightning calls this function with the trainer's device as torch's default device, and moves the networks
        afterwards. They are built on the CPU, so that their initial weights do not depend on the device, and masks of
        parties, counts and seconds stay on the CPU.
        """
        if not self._built:
            self._build_once()
        if self._trainer is not None and self.trainer.state.fn == TrainerFn.FITTING:
            refuse_callbacks(self)

    @toolkit_hook
    def setup(self, stage: str) -> None:
        """Refuse unsuitable data and trainer settings before anything runs."""
        self._pending = None
        self._within_round = False
        self.forget(*SET_UP)  # an interrupted run may have left shares and keys
        check_setup(self, stage)

    @toolkit_hook
    def on_fit_start(self) -> None:
        """Refuse unsuitable settings; set up the parties; allocate the memory between rounds."""
        self._possible = None
        self._faultless.clear()
        self.faults.asked = False
        check_settings(self)
        self.prepare(Stage.FIT, "train")
        check_data(self)
        if self.memory is None:
            return
        who = f"{type(self).__name__} stores embeddings by record and must know the records"
        records = len(needed_data(self.datamodule, who).records("train"))
        if self._remembered == records:  # a second fit continues with the memory of the first
            self.memory.move(self.device)
        else:
            self.memory.prepare(records, self.embedding_widths, self.device)
            self._remembered = records
        if self._resumed:
            self.memory.load(self._resumed)
        self._resumed = {}

    @toolkit_hook
    def on_train_start(self) -> None:
        """Refuse unsuitable optimisers and loaders; store the number of mini-batches of a pass."""
        if self.resumed_start is not None and self.trainer.ckpt_path is not None:
            start_again(self, self.resumed_start)  # after all callbacks have frozen what they freeze, and have drawn
            continue_loops(self.trainer)
        if self.trainer.ckpt_path is not None:  # not a new fit of a loaded module
            continue_loader(self.trainer, self.position)
        self.resumed_start = None
        self.position = {}
        for optimizer in self.trainer.optimizers:  # also those that a subclass has made
            optimizer.register_step_post_hook(self._after_optimizer)
        self._movement = None if self.place is not None else Movement(self)
        self._compared = False
        check_start(self)

    # ---- the hooks of a fit

    @toolkit_hook
    def on_train_batch_start(self, batch: VerticalBatch, batch_idx: int) -> int | None:
        """End the epoch (-1) if a callback has set ``end_before_round``."""
        if not self.end_before_round:
            return None
        self.trainer.should_stop = True
        return -1

    @toolkit_hook
    def on_train_epoch_start(self) -> None:
        """Look again at what a callback may have changed, accumulation and frozen networks; refuse idle epochs."""
        refuse_accumulation(self.trainer)
        if self.place is None and self.costs.count_thawed():
            self._faultless.clear()
        if self._movement is not None and self._movement.rounds and not self._movement.steps:
            self._end_first_rounds()

    @toolkit_hook
    def on_train_epoch_end(self) -> None:
        """Log the progress of the training; after the first epoch, compare the weights of several processes."""
        if self.joint and not self._compared:
            self._compared = True
            refuse_diverged(self)
        self._log_standing()

    @toolkit_hook
    def on_train_end(self) -> None:
        """Reset the epoch's loss: a later fit starts its first epoch from zero."""
        self._end_first_rounds()
        self.books.epoch_loss = EpochLoss()

    @toolkit_hook
    def on_fit_end(self) -> None:
        """Warn of a model that predicts the same for every record; free the memory of the shares."""
        self._warn_of_chance(self.val.spread, "val")
        self.forget(Stage.FIT, Stage.VALIDATION)

    # ---- evaluation

    @toolkit_hook
    def on_validation_start(self) -> None:
        """Reset the scores; set up the validation records, once a fit."""
        trainer = self.trainer
        batches = trainer.num_sanity_val_batches if trainer.sanity_checking else trainer.num_val_batches
        self._refuse_several("validation", batches)
        self.val.reset()
        self._set_up(Stage.VALIDATION, trainer.val_dataloaders, batches)

    @toolkit_hook
    def on_test_start(self) -> None:
        """Reset the scores; set up the test records."""
        self._refuse_several("test", self.trainer.num_test_batches)
        self.test.reset()
        self._set_up(Stage.TEST, self.trainer.test_dataloaders, self.trainer.num_test_batches)

    @toolkit_hook
    def on_predict_start(self) -> None:
        """Set up the records to predict."""
        self._predicted = Spread()
        self._set_up(Stage.PREDICT, self.trainer.predict_dataloaders, self.trainer.num_predict_batches)

    def validation_step(self, batch: VerticalBatch, batch_idx: int, dataloader_idx: int = 0) -> Tensor:
        """Update and log loss and metrics of a batch; callbacks get its predictions."""
        return self.val.score(self, batch)

    def test_step(self, batch: VerticalBatch, batch_idx: int, dataloader_idx: int = 0) -> Tensor:
        """Update and log loss and metrics of a batch; callbacks get its predictions."""
        return self.test.score(self, batch)

    def predict_step(self, batch: VerticalBatch, batch_idx: int, dataloader_idx: int = 0) -> Predictions:
        """Predictions of a batch, with the positions of its records."""
        refuse_other_batches(batch)
        if self.predictor is not None:
            return self.predictor(batch)
        return predictions_of(self, batch, self._predicted)

    def _refuse_several(self, stage: str, batches: Any) -> None:
        """Refuse several loaders, unless the author has written the step that scores them."""
        step = f"{stage}_step"
        if getattr(type(self), step) is getattr(VFLModule, step):
            refuse_several_loaders(stage, batches)

    @toolkit_hook
    def on_validation_epoch_end(self) -> None:
        """Log the progress of the training beside the validation's values."""
        self._share_metrics("val", at_parties=True)
        if self.stage == Stage.VALIDATION:
            self._log_standing()

    @toolkit_hook
    def on_validation_end(self) -> None:
        """Free the memory of the shares; a fit keeps them for its next validation."""
        self._share_metrics("val", at_parties=False)
        if self.trainer.state.fn == TrainerFn.VALIDATING:
            self._warn_of_chance(self.val.spread, "val")
            self.forget(Stage.VALIDATION)

    @toolkit_hook
    def on_test_epoch_end(self) -> None:
        """In a party's process, log the metrics that the server has found."""
        self._share_metrics("test", at_parties=True)

    @toolkit_hook
    def on_test_end(self) -> None:
        """Free the memory of the shares."""
        self._share_metrics("test", at_parties=False)
        self._warn_of_chance(self.test.spread, "test")
        self.forget(Stage.TEST)

    @toolkit_hook
    def on_predict_end(self) -> None:
        """Warn of predictions that are all alike; free the memory of the shares."""
        self._warn_of_chance(self._predicted, "predict")
        self.forget(Stage.PREDICT)

    def _warn_of_chance(self, spread: Spread, split: str) -> None:
        noise = self.aggregator.accounting is not None
        warn_of_chance(spread, split, self.trainer, self.objective, self.hparams["num_classes"], noise)

    def _share_metrics(self, split: str, at_parties: bool) -> None:
        if self.place is not None and self.scores_here != at_parties:
            self.place.share_metrics(self, split)

    def _set_up(self, stage: Stage, loaders: Any, batches: Any) -> None:
        """Open the account of an evaluation; let the parties set up its records, once a fit, if it is protected."""
        if self.aggregator.accounting is not None:
            open_evaluation(self, one_loader(loaders), batches, self.possible_events())
        if not self.protected_evaluation:
            return
        if stage not in self.preparation.memory:
            self.prepare(stage, SPLITS[stage])
        refuse_other_records(self.preparation.sources.get(stage), loaders, type(self.aggregator).__name__)

    # ---- checkpoints

    @toolkit_hook
    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Save the counts and the texts that identify the model's parts.

        Raises:
            NotBuilt: before the networks are built; if an error is the reason to save, this error.
        """
        save(self, checkpoint, self._within_round)

    @toolkit_hook
    def on_load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Restore the counts, if the checkpoint is of a model with the same parts."""
        if BOOKS in checkpoint:
            restore(self, checkpoint)

    # ---- logs of steps and epochs

    def _log_step(self, step: Step, batch: VerticalBatch, batch_idx: int) -> None:
        """Log ``train/loss`` and the progress at logging steps; after an epoch's last round, its mean loss and ε too.

        Logging takes 0.2 ms a value, so values that no logger would write are not logged.

        Args:
            step: without a loss, it does not count in the epoch's mean.
            batch: this process's part of the joint batch.
            batch_idx: its number in the epoch.
        """
        loss = step.loss if step.logged is None else step.logged
        trainer = self.trainer
        books = self.books
        total = len(batch.record_ids) if batch.joint is None else batch.joint.total
        if books.epoch_loss.number != self.current_epoch:
            books.epoch_loss = EpochLoss(self.current_epoch)
        if loss is not None and self.scores_here:
            books.epoch_loss.add(loss.detach(), total)
        show_loss(trainer, books.epoch_loss, batch_idx)
        every = trainer.log_every_n_steps  # type: ignore[attr-defined]  # set in Trainer.__init__
        seen = batch_idx == 0 or (every > 0 and (self.global_step + 1) % every == 0)
        if not (seen or trainer.is_last_batch):
            return
        refuse_nan_loss(books.epoch_loss, trainer)
        joint = trainer.world_size > 1
        self.log_dict(self._progress())
        if seen and loss is not None:
            if self.scores_here:
                self.log("train/loss", loss.detach(), sync_dist=joint, batch_size=total)
            for name, value in step.notes.items():
                self.log(name, value, sync_dist=joint, batch_size=total)
        if not trainer.is_last_batch:
            return
        if books.epoch_loss.rows:
            mean = books.epoch_loss.mean()
            self.log("train/loss_epoch", mean, on_step=False, on_epoch=True, sync_dist=joint, batch_size=1)
        for name, account in (("label_epsilon", self.label_privacy), ("epsilon", self.privacy)):
            if account.accountant is not None:
                spent = torch.tensor(account.epsilon(), dtype=torch.float64)
                self.log(f"privacy/{name}", spent, on_step=False, on_epoch=True, reduce_fx="max", sync_dist=joint)

    def _log_standing(self) -> None:
        """Log the progress beside an epoch's values: a logger can then plot them against time, bytes and passes."""
        joint = self.trainer.world_size > 1
        self.log_dict(self._progress(), on_step=False, on_epoch=True, reduce_fx="max", sync_dist=joint)

    def _progress(self) -> dict[str, Tensor]:
        """The progress as float64 tensors: Lightning would convert numbers to float32."""
        return {name: torch.tensor(value, dtype=torch.float64) for name, value in self.standing().items()}


def show_loss(trainer: Trainer, loss: EpochLoss, batch_idx: int) -> None:
    """Show the epoch's mean loss so far in the progress bar as ``train/loss``, in the rounds that update the bar.

    Lightning would show the loss that was logged last: at a small number of rounds, the first one's. With several
    processes, the bar shows the loss of the first process.
    """
    bar = trainer.progress_bar_callback
    if bar is None or not loss.rows:
        return
    every = getattr(bar, "every", getattr(bar, "refresh_rate", 1))
    if trainer.is_last_batch or (every > 0 and (batch_idx + 1) % every == 0):
        trainer.progress_bar_metrics["train/loss"] = loss.mean().item()


def refuse_nan_loss(loss: EpochLoss, trainer: Trainer) -> None:
    """End a training with a loss of NaN: the gradients of that round, and the parameters after it, are NaN too.

    A gradient scaler leaves out the steps of such rounds, and a search of a learning rate runs into them: both go on.
    ``detect_anomaly`` ends the backward pass of such a round itself, and names the operation.

    Args:
        loss: the losses of the epoch so far; the sum is NaN from the first such round on.
        trainer: of the training.

    Raises:
        ConfigurationError: naming the epoch.
    """
    goes_on = scales_losses(trainer) or searches_rate(trainer) or torch.is_anomaly_enabled()
    if torch.as_tensor(loss.total).isnan() and not goes_on:
        raise ConfigurationError(
            f"the training loss is NaN in epoch {loss.number}, and parameters that are NaN learn nothing more; use a "
            "lower learning rate, trainer.gradient_clip_val, or a loss that is finite for these labels"
        )
