"""VFLModule: the base class of protocols, with the steps and hooks that Lightning calls."""

import sys
from abc import abstractmethod
from collections.abc import Callable, Collection, Mapping
from dataclasses import replace
from inspect import isfunction
from math import inf, nan
from pathlib import Path
from typing import Any, final

import torch
from lightning.pytorch import Callback
from lightning.pytorch.trainer.states import TrainerFn
from lightning.pytorch.utilities import rank_zero_warn
from torch import Tensor
from torch.optim import Optimizer

from lightning_vfl.errors import ConfigurationError, refuse_other_kind
from lightning_vfl.protocols.accounts.charging import one_loader, open_evaluation, open_privacy
from lightning_vfl.protocols.books import EpochLoss
from lightning_vfl.protocols.build import SHAPES, take_untaken
from lightning_vfl.protocols.callback_checks import (
    callbacks_of,
    check_validation,
    refuse_callbacks,
    refuse_searches,
    repeat_last_loss,
)
from lightning_vfl.protocols.checkpoint_files import use_whole_checkpoints
from lightning_vfl.protocols.checks import (
    labels_of,
    needed_data,
    note_large_labels,
    note_other_seed,
    note_rounded_features,
    one_optimizer,
    refuse_accumulation,
    refuse_bare_batches,
    refuse_other_batches,
    refuse_other_data,
    refuse_other_dtypes,
    refuse_other_loss,
    refuse_other_parts,
    refuse_other_records,
    refuse_other_shapes,
    refuse_reloading,
    refuse_scaler,
    refuse_several_loaders,
    refuse_several_processes,
    refuse_several_steps,
    refuse_trainer,
    refuse_unused_optimizer,
    repeat_batches,
    training_labels,
    warn_unused_hooks,
    warn_unused_rate,
)
from lightning_vfl.protocols.constant_output import Spread, warn_of_chance
from lightning_vfl.protocols.early_build import not_built, with_networks
from lightning_vfl.protocols.finite import refuse_nan_output
from lightning_vfl.protocols.first_rounds import (
    FEW,
    Movement,
    check_movement,
    refuse_diverged,
    refuse_unasked_faults,
    refuse_unused_parts,
    warn_no_loss,
    warn_uncounted,
)
from lightning_vfl.protocols.groups.exposed import exposure_of
from lightning_vfl.protocols.groups.invertible import refuse_readable, refuse_solvable
from lightning_vfl.protocols.hooks import toolkit_hook
from lightning_vfl.protocols.loading import BOOKS, FITTED, hand_out_again, position_in
from lightning_vfl.protocols.logs import log_standing, log_step, say_columns
from lightning_vfl.protocols.message_rounds import MessageRounds
from lightning_vfl.protocols.party_summary import with_party_rows
from lightning_vfl.protocols.scores import SPLITS, Attendance, Predictions, Scores
from lightning_vfl.protocols.step import GivenUp, Step
from lightning_vfl.support import Part, refuse_other_table, unsupported_by
from lightning_vfl.trained.fitted import Fitted
from lightning_vfl.types import RoundNames, Stage, VerticalBatch

SET_UP = (Stage.FIT, Stage.VALIDATION, Stage.TEST, Stage.PREDICT)  # the sanity check runs on validation records


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
    """Where the training loader of a checkpoint stood; the datamodule takes it when the fit is resumed."""
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
            raise TypeError(
                f"{cls.__name__} overrides step of {finished[0].__name__}, whose downlink, policy and accounts are "
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
        """One training round or event.

        Args:
            batch: this process's part of the joint batch.
            names: the names of the round's random streams; torch's global generator is seeded from them.
        """

    # ---- a training step

    @final
    def training_step(self, batch: VerticalBatch, batch_idx: int) -> Tensor:
        """Run, count and log one ``step``. A step without a loss changes no parameter."""
        refuse_other_batches(batch)
        if self._movement is not None and self._movement.is_over(FEW):
            self._check_movement()
        self._within_round, self._entered = True, None
        self._pending = None  # of the round before, if its step of the optimiser was made by hand
        names = self.next_round(seed_global=self.seeds_networks)
        try:
            step = self.step(batch, names)
        except GivenUp:
            step = Step(None)
        refuse_other_kind("what step returns", step, Step, "Step(loss)")
        if self._movement is not None:
            self._check_first(step)
        if step.loss is None:
            self.books.given_up += 1
            self._pending = replace(step, withheld=(self,), learners=None, before_optimizer=None)
        else:
            refuse_other_loss(step.loss)
            self._pending = step.rest()
        log_step(self, step.loss if step.logged is None else step.logged, step.notes, batch, batch_idx)
        return self._nothing() if step.loss is None else step.loss

    def _check_first(self, step: Step) -> None:
        """Refuse faults and parts that the first round has not used; note who is to learn in the first rounds."""
        refuse_unasked_faults(self)
        if self._movement is None:
            return
        if step.loss is None:
            self._movement.pass_by(self)
            return
        if self._movement.rounds == 0:
            refuse_unused_parts(self)
        self._movement.note(self, step)

    def _check_movement(self) -> None:
        """Check once whose weights have changed."""
        movement, self._movement = self._movement, None
        if movement is None:
            return
        if movement.rounds:
            check_movement(self, movement)
            warn_uncounted(self, movement.rounds)
        else:
            warn_no_loss(self, movement)

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
        if self._learns_locally:
            return
        step, self._pending = self._pending, None
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
        self._pending, self._within_round = None, False
        self.forget(*SET_UP)  # an interrupted run may have left shares and keys
        if self.datamodule is not None and self.hparams["party_shapes"] is not None:
            refuse_other_data(self.hparams, self.datamodule)
        refuse_trainer(self.trainer, self._compiler_ctx is not None)
        use_whole_checkpoints(self.trainer)
        refuse_bare_batches(self.trainer, stage)
        if stage == "fit":
            refuse_accumulation(self.trainer)
            repeat_batches(self.trainer)
        refuse_searches(self)

    @toolkit_hook
    def on_fit_start(self) -> None:
        """Refuse unsuitable settings; set up the parties; allocate the memory between rounds."""
        self._refuse_settings_of_fit()
        self._possible = None
        self._faultless.clear()
        self.clock.speeds(self.roster.parties)
        self.faults.check(self.roster)
        self.faults.asked = False
        if self.faults.models:
            refuse_scaler(self.trainer, "a gradient scaler fails in a round that is given up, which has no gradients")
        if self.labels_here:
            if (who := self.objective.needs_labels) is not None:
                self.objective.take_labels(training_labels(self.datamodule, who))
            elif self.objective.may_use_labels and self.datamodule is not None:
                self.objective.take_labels(training_labels(self.datamodule, "the objective"))
            note_large_labels(self.objective, self.datamodule)
        elif self.scores_here and self.objective.may_use_labels:
            raise ConfigurationError(
                f"{self.objective.identity} uses the labels of all training records, which between processes party "
                f"{self.roster.active} alone has; use standardise: false, or numbers as class_weights"
            )
        note_rounded_features(self.trainer, self.datamodule, self.bottoms)
        refuse_other_dtypes(self.bottoms, self.datamodule)
        self.prepare(Stage.FIT, "train")
        if self.scores_here:
            check_validation(self)
        open_privacy(self, self.datamodule)
        say_columns(self)
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

    def _refuse_settings_of_fit(self) -> None:
        self._refuse_unsupported({Part.FAULTS: bool(self.faults.models), Part.PROCESSES: self.joint})
        if Part.WAITING not in unsupported_by(type(self)):
            self._check_calls()
        if self.roster.shared:
            refuse_scaler(self.trainer, "updates of groups cannot be summed while their gradients are scaled")
            refuse_readable(self.aggregator, self.roster, self.allow_invertible_updates)
        if self.local_update is not None:
            refuse_scaler(self.trainer, "local steps cannot be made while gradients are scaled")
            refuse_several_processes(self.joint, "local updates are not averaged over processes; use devices: 1")
        refuse_several_processes(
            self.joint and self.compresses, "what compressors leave out is kept in one process; use devices: 1"
        )

    @toolkit_hook
    def on_train_start(self) -> None:
        """Store the number of mini-batches of a pass, which is known from here on."""
        for optimizer in self.trainer.optimizers:  # also those that a subclass has made
            optimizer.register_step_post_hook(self._after_optimizer)
            refuse_several_steps(optimizer)
        warn_unused_rate(self.trainer, self._rate, "optimizer" in self.used)
        refuse_unused_optimizer(
            type(self).__name__,
            {
                "optimizer": self._optimizer,
                "optimizer_of": self._optimizer_of or None,
                "lr_scheduler": self._lr_scheduler,
            },
            "optimizer" in self.used,
        )
        if not self.joint:  # DDP calls forward
            warn_unused_hooks(self)
        self._movement, self._compared = None if self.place is not None else Movement(self), False
        repeat_last_loss(self.trainer)
        loader = self.trainer.train_dataloader
        refuse_other_records(self.preparation.sources.get(Stage.FIT), loader, type(self.aggregator).__name__)
        refuse_reloading(self.trainer, loader)
        schedule, steps = getattr(loader, "schedule", None), self.trainer.num_training_batches
        self.books.pass_batches = steps if schedule is None else schedule.pass_batches
        known = int(steps) if steps < inf else 1  # of a loader without length, each round may have the same records
        self.books.epoch_batches = known if schedule is None else schedule.steps
        if self.roster.shared and not self.allow_invertible_updates:
            schedule = getattr(self.trainer.train_dataloader, "schedule", None)
            for group in self.roster.shared:
                refuse_solvable(exposure_of(self, group, schedule))
        steps = self.trainer.max_steps
        if steps < 0 or steps >= self.trainer.num_training_batches:
            self.refuse_unit(self.privacy.unit)

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
        """Refuse gradient accumulation again, which a callback may have changed, and an epoch without a step."""
        refuse_accumulation(self.trainer)
        if self._movement is not None and self._movement.rounds and not self._movement.steps:
            self._check_movement()

    @toolkit_hook
    def on_train_epoch_end(self) -> None:
        """Log the progress of the training; after the first epoch, compare the weights of several processes."""
        if self.joint and not self._compared:
            self._compared = True
            refuse_diverged(self)
        log_standing(self)

    @toolkit_hook
    def on_train_end(self) -> None:
        """Reset the epoch's loss: a later fit starts its first epoch from zero."""
        self._check_movement()
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
        self._refuse_several("validation", self.trainer.num_val_batches)
        self.val.reset()
        self._set_up(Stage.VALIDATION, self.trainer.val_dataloaders)

    @toolkit_hook
    def on_test_start(self) -> None:
        """Reset the scores; set up the test records."""
        self._refuse_several("test", self.trainer.num_test_batches)
        self.test.reset()
        self._set_up(Stage.TEST, self.trainer.test_dataloaders)

    @toolkit_hook
    def on_predict_start(self) -> None:
        """Set up the records to predict."""
        self._predicted = Spread()
        self._set_up(Stage.PREDICT, self.trainer.predict_dataloaders)

    def validation_step(self, batch: VerticalBatch, batch_idx: int, dataloader_idx: int = 0) -> Tensor:
        """Update and log loss and metrics of a batch; callbacks get its predictions."""
        refuse_other_batches(batch)
        return self._scored(self.val, self.evaluated(batch, self.next_round()), batch)

    def test_step(self, batch: VerticalBatch, batch_idx: int, dataloader_idx: int = 0) -> Tensor:
        """Update and log loss and metrics of a batch; callbacks get its predictions."""
        refuse_other_batches(batch)
        return self._scored(self.test, self.evaluated(batch, self.next_round()), batch)

    def predict_step(self, batch: VerticalBatch, batch_idx: int, dataloader_idx: int = 0) -> Predictions:
        """Predictions of a batch, with the positions of its records."""
        refuse_other_batches(batch)
        if self.predictor is not None:
            return self.predictor(batch)
        output = self.evaluated(batch, self.next_round())
        attendance = self.attendance
        if self.scores_here and attendance is None and batch.present is not None:
            attendance = Attendance(batch.present, self.answers(batch.present))
        answered = torch.ones(len(output), dtype=torch.bool, device=output.device)
        parties = None
        if attendance is not None and len(output):
            answered, parties = attendance.answered, attendance.parties
        values = output  # at a party, what the server has told: of all records, or of none
        if self.scores_here:
            refuse_nan_output(output[answered], batch.record_ids[answered], self.trainer)
            values = self.objective.predict(output).float()
        nothing = values.new_full((), torch.nan)
        values = torch.where(answered.view(-1, *(1,) * (values.dim() - 1)), values, nothing)
        if self.scores_here:
            self._predicted.add(values)
        return Predictions(batch.record_ids[: len(values)], values, parties)

    def _refuse_several(self, stage: str, batches: Any) -> None:
        """Refuse several loaders, unless the author has written the step that scores them."""
        step = f"{stage}_step"
        if getattr(type(self), step) is getattr(VFLModule, step):
            refuse_several_loaders(stage, batches)

    def _scored(self, scores: Scores, output: Tensor, batch: VerticalBatch) -> Tensor:
        missed = self.place is not None and not len(output)  # by a party that has come back
        if missed or not self.scores_here:
            return output
        if self.place is not None and self.place.labels is not None:
            batch = batch._replace(labels=self.place.labels)
        if self.attendance is not None:
            answered = self.attendance.answered
            left_out = float((~answered).sum())
            self.log(f"{scores.split}/unanswered", left_out, reduce_fx="sum", on_epoch=True, on_step=False)
            labels = labels_of(batch)[answered]
            batch = batch._replace(labels=labels, record_ids=batch.record_ids[answered])
            return scores.log(self, self.objective, output[answered], batch)
        return scores.log(self, self.objective, output, batch)

    @toolkit_hook
    def on_validation_epoch_end(self) -> None:
        """Log the progress of the training beside the validation's values."""
        self._share_metrics("val", at_parties=True)
        if self.stage == Stage.VALIDATION:
            log_standing(self)

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

    def _set_up(self, stage: Stage, loaders: Any) -> None:
        """Open the account of an evaluation; let the parties set up its records, once a fit, if it is protected."""
        if self.aggregator.accounting is not None:
            trainer = self.trainer
            batches = {
                Stage.SANITY_CHECK: trainer.num_sanity_val_batches,
                Stage.VALIDATION: trainer.num_val_batches,
                Stage.TEST: trainer.num_test_batches,
                Stage.PREDICT: trainer.num_predict_batches,
            }
            open_evaluation(self, one_loader(loaders), batches[self.stage], self.possible_events())
        if not self.protected_evaluation:
            return
        name = type(self.aggregator).__name__
        if stage not in self.preparation.memory:
            self.prepare(stage, SPLITS[stage])
        refuse_other_records(self.preparation.sources.get(stage), loaders, name)

    # ---- checkpoints

    @toolkit_hook
    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Save the counts and the texts that identify the model's parts.

        Raises:
            NotBuilt: before the networks are built; if an error is the reason to save, this error.
        """
        if not self._built:
            raise sys.exception() or not_built(self, "weights to save")
        hand_out_again(checkpoint)
        if self._within_round:
            rank_zero_warn(
                f"the checkpoint is saved within round {self.books.rounds[Stage.FIT]}, whose messages and charges are "
                "counted: a fit that resumes it repeats the batch as another round, so it has other bits than a fit "
                "without the interruption"
            )
        books = self.books.state()
        loss = books["epoch_loss"]
        if self.joint and isinstance(loss["total"], Tensor):  # each process scales its sum: the mean is the joint sum
            loss["total"] = self.trainer.strategy.reduce(loss["total"].to(self.device), reduce_op="mean").cpu()
        told = take_untaken(checkpoint.get(self.CHECKPOINT_HYPER_PARAMS_KEY, {}), type(self))
        more = {"preparation": self.preparation.state(), "privacy": self.privacy.state(), "lost": self._lost}
        more |= {"told": told} if told else {}
        checkpoint[BOOKS] = {**books, "seed": self.seed, "parts": self.parts(), **more}
        checkpoint[FITTED] = None if self.fitted is None else self.fitted.state()
        if "optimizer_states" in checkpoint:  # as large as the data: only in checkpoints for resuming
            kept = {} if self.memory is None else self.memory.state()
            checkpoint[BOOKS]["memory"] = self._resumed or kept
            if self.place is not None and self.keys:
                checkpoint[BOOKS]["secret key"] = self.keys[self.owner].hex()
        if self.wire.traits.subtractable:
            whole = "optimizer_states" in checkpoint  # the sums themselves are only in checkpoints for resuming
            checkpoint[BOOKS]["summed"] = self.summed.state() if whole else self.summed.named()

    @toolkit_hook
    def on_load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Restore the counts, if the checkpoint is of a model with the same parts."""
        books = checkpoint.get(BOOKS)
        if books is None:
            return
        self.fitted = Fitted.of(checkpoint[FITTED]) if checkpoint.get(FITTED) else self.fitted
        kept = {**checkpoint.get(self.CHECKPOINT_HYPER_PARAMS_KEY, {}), **books.get("told", {})}
        if self.hparams["party_shapes"] is None:  # the constructor of a subclass does not take them
            self.hparams.update({name: kept.get(name) for name in SHAPES})
        self.configure_model()
        if self.fitted is not None:
            refuse_other_shapes(self.fitted, self.hparams["party_shapes"])
        refuse_other_parts(books["parts"], self.parts(), kept, self.hparams)
        note_other_seed(self._trainer, self.seed, books["seed"])
        self.seed = books["seed"]
        self.faults.reseed(self.seed)
        self.books.load(books)
        self.preparation.forget(*SET_UP)  # the round numbers of the checkpoint may be smaller
        self.preparation.load(books.get("preparation", {}))
        path = None if self._trainer is None else self.trainer.ckpt_path
        self.summed.load(books.get("summed", {}))
        self.privacy.load(books.get("privacy", {}), None if path is None else Path(path))
        self._resumed, self.position = books.get("memory", {}), position_in(checkpoint)
        if self.place is not None and self.keys and "secret key" in books:  # a resumed process draws as it would have
            self.keys[self.owner] = bytes.fromhex(books["secret key"])
