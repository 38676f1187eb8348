"""DecoupledVFL: guests, hosts and the owner learn one after the other, and no gradient leaves anybody (DVFL)."""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any, Literal

import torch
from lightning.pytorch.utilities import rank_zero_info, rank_zero_warn
from torch import Tensor, nn

from lightning_vfl.aggregators.plain import Concat
from lightning_vfl.errors import ConfigurationError
from lightning_vfl.local_objectives import LocalObjective, Reconstruction
from lightning_vfl.networks.flops import work_of
from lightning_vfl.networks.mlp import MLP, Linear
from lightning_vfl.networks.record_table import LIMIT_BYTES, TableDtype
from lightning_vfl.protocols.base import VFLModule
from lightning_vfl.protocols.build import BottomFactory, TopFactory, build_hosts
from lightning_vfl.protocols.checks import refuse_several_processes
from lightning_vfl.protocols.decoupled.checks import (
    refuse_early_stopping,
    refuse_other_settings,
    refuse_settings,
    refuse_short,
)
from lightning_vfl.protocols.decoupled.collection import collect, embeddings_leg, enter_collection, mean_and_scale
from lightning_vfl.protocols.decoupled.counts import DecoupledCounts
from lightning_vfl.protocols.decoupled.learners import Learners, guest_losses, host_losses
from lightning_vfl.protocols.decoupled.replay import HostMemory, Register, ReplayBuffers
from lightning_vfl.protocols.step import Step
from lightning_vfl.schedules.batches import Phases
from lightning_vfl.simulation.meter import CommunicationMeter
from lightning_vfl.types import RecordSource, Roll, RoundNames, VerticalBatch

Phase = Literal["representation", "replay", "owner"]
_KEPT_SETTINGS = ("guest_epochs", "replay_epochs", "communicate_every", "host_every", "table_dtype")  # in one training


class DecoupledVFL(VFLModule):
    r"""Decoupled vertical federated learning: DVFL.

    In the phase ``representation`` every **guest** (a party with features) trains an encoder by a local objective on
    its own columns, and each of H redundant **hosts** trains an encoder on the guests' latest embeddings side by side.
    In the phase ``owner`` a classifier is trained on the hosts' encodings, which are collected once. Nobody is sent a
    gradient, so nobody is held up by anybody: who crashes only misses its own updates.

    Guests send in every k-th epoch only. A host keeps the latest embedding of every record from every guest in a
    replay buffer, zeros before the first has arrived, and learns from that: in every iteration of its own
    (``host_every``), also where guests do not send, and in ``replay_epochs`` of further epochs without the guests.

    The phase is a function of the epoch: ``guest_epochs`` of representation, ``replay_epochs``, and the owner from then
    to the end of the fit. All have the same number of steps. The loss of a step is the sum of the local losses, whose
    parameters are disjoint; ``train/guest_loss``, ``train/host_loss`` and ``train/owner_loss`` are means over those who
    learn. Records that only some guests hold are learnt from by these and the hosts; the owner learns from the
    records that everybody holds.

    Faults: an iteration is one request to every guest and host, a communication round one to every connection. A guest
    that is down neither learns nor sends; a connection that is down loses the message; a host that is down does not
    learn, and nothing of that round enters its buffer. The owner's phase knows no faults.

    Shapes: an embedding (B, D_m); the hosts' input (B, Σ D_m); an encoding (B, W_h); the owner's input (B, H W_h).
    Units: embeddings and encodings in float32 on the wire. Virtual time: everybody has a clock of their own, a delay
        falls on the guest's message, and the phase has taken as long as the slowest participant.
    Guarantee: no gradient crosses a boundary between participants; a guest's update is the same to the bit whatever
        hosts, labels and other guests are. Who does not learn in an iteration keeps parameters and optimiser state.
    Not guaranteed: staleness by delay: a late message is written in its own iteration, and only its time is charged.
        Privacy of embeddings, which hosts see in the clear. Several processes (refused).

    Args:
        bottom: makes a guest's encoder from (per-record shape, D).
        host: makes a host's encoder from (Σ D_m, W_h).
        top: makes the owner's network from H W_h.
        width: D, the embedding width of a guest.
        widths: D_m of every guest, where they differ; None: ``width`` for all.
        host_width: W_h, the encoding width of a host.
        hosts: H.
        guest_epochs: epochs of the phase ``representation``.
        replay_epochs: epochs in which hosts go on learning from their buffers.
        communicate_every: k; guests send in the last of every k of their epochs. ``guest_epochs``: only once.
        host_every: a host learns in every so many iterations.
        guest_objective: what guests learn by themselves; None: ``Reconstruction()``.
        host_objective: what hosts learn by themselves; None: ``Reconstruction()``.
        standardise: the owner's network sees encodings with mean 0 and deviation 1, as of those it has collected. The
            paper has none of it; encodings are of any scale, and a classifier learns from these in a third of the time.
        register: what stands in for a lost message: the latest of that ``record``, or, as the paper's register has it,
            the guest's last ``message``, whatever records it was of.
        table_dtype: ``float16`` halves the memory of the buffers.
        limit_bytes: the largest buffers that are built, in all; the owner's N × H W_h encodings come on top.
        settings: those of ``VFLModule``.

    Raises:
        ConfigurationError: before training, for phases that leave somebody out, buffers above the limit, groups,
            several processes and protected evaluation.

    References:
        Amalanshu, Sirvi, Inouye, "Decoupled Vertical Federated Learning for Practical Training on Vertically
        Partitioned Data" (DVFL), section 4, appendices C (communication, replay) and D (networks, faults).
    """

    phases: tuple[Phase, ...] = ("representation", "replay", "owner")

    def __init__(
        self,
        bottom: BottomFactory = MLP,
        host: BottomFactory = MLP,
        top: TopFactory = Linear,
        width: int = 64,
        widths: Sequence[int] | None = None,
        host_width: int = 64,
        hosts: int = 1,
        guest_epochs: int = 10,
        replay_epochs: int = 0,
        communicate_every: int = 1,
        host_every: int = 1,
        guest_objective: LocalObjective | None = None,
        host_objective: LocalObjective | None = None,
        standardise: bool = False,
        register: Register = "record",
        table_dtype: TableDtype = "float32",
        limit_bytes: float = LIMIT_BYTES,
        **settings: Any,
    ) -> None:
        super().__init__(Concat(widths), bottom, top, width, **settings)
        sizes = {"host_width": host_width, "hosts": hosts, "host_every": host_every}
        refuse_settings(sizes, guest_epochs, replay_epochs, communicate_every, register, table_dtype)
        if self.protected_evaluation:
            raise ConfigurationError("DecoupledVFL has no protected evaluation; use evaluate: plain")
        self._host = host
        self.host_width = host_width
        self.host_count = hosts
        self.guest_epochs = guest_epochs
        self.replay_epochs = replay_epochs
        self.communicate_every = communicate_every
        self.host_every = host_every
        self.guest_objective = guest_objective or Reconstruction()
        self.host_objective = host_objective or Reconstruction()
        self.standardise = standardise
        self.register_kind = register
        self.table_dtype = table_dtype
        self.limit_bytes = limit_bytes
        self._host_memory = HostMemory(hosts, register, table_dtype, limit_bytes)
        self._encodings: tuple[Tensor, Tensor] | None = None  # of the owner's records, and where each stands

    def own_books(self) -> DecoupledCounts:
        return DecoupledCounts()

    @property
    def counts(self) -> DecoupledCounts:
        """What is counted of guests and hosts."""
        counts: DecoupledCounts = self.books.own
        return counts

    # ---- phases

    def phase_of(self, epoch: int) -> Phase:
        """Who learns in this epoch."""
        if epoch < self.guest_epochs:
            return "representation"
        return "replay" if epoch < self.guest_epochs + self.replay_epochs else "owner"

    def communicates(self, epoch: int) -> bool:
        """Whether guests send in this epoch: the last of every k."""
        return epoch < self.guest_epochs and (epoch + 1) % self.communicate_every == 0

    @property
    def phase(self) -> Phase:
        """The phase of the current epoch."""
        return self.phase_of(self.current_epoch)

    def schedule(self, records: RecordSource, batch_size: int, seed: int, drop_last: bool = False) -> Phases:
        """Every guest's own order of its own records; the owner's of those that all hold."""
        present = None if records.present is None else records.present.cpu().numpy()
        return Phases(
            len(records),
            present,
            batch_size,
            seed,
            self.roster.parties,
            self.phase_of,
            self.communicates,
            drop_last,
        )

    # ---- before training

    def configure_model(self) -> None:
        if hasattr(self, "bottoms"):
            return
        super().configure_model()
        if self.roster.shared:
            raise ConfigurationError(
                f"DecoupledVFL has no rule for the bottom that parties {list(self.roster.shared[0])} share; use "
                "SplitVFL"
            )
        self.roster = replace(self.roster, hosts=self.host_count)
        shapes = [tuple(shape) for shape in self.hparams["party_shapes"]]
        joined = sum(self.embedding_widths)
        guests, inputs = list(self.bottoms.parties), [(joined,)] * self.host_count
        hosts = build_hosts(self._host, joined, self.host_width, self.host_count)
        self._guests = Learners("guests", guests, self.guest_objective, shapes, self.embedding_widths)
        self.bottoms = self._guests.bank
        self._hosts = Learners("hosts", hosts, self.host_objective, inputs, [self.host_width] * self.host_count)
        self.hosts = self._hosts.bank
        self.guest_partners, self.host_partners = self._guests.partners, self._hosts.partners
        self.encoding_mean: Tensor
        self.encoding_scale: Tensor
        self.register_buffer("encoding_mean", torch.zeros(self.top_width()))
        self.register_buffer("encoding_scale", torch.ones(self.top_width()))
        self.counts.host_meter = CommunicationMeter(self.host_count)
        self.counts.own_seconds = torch.zeros(len(shapes) + self.host_count, dtype=torch.float64)

    def top_width(self) -> int:
        return self.host_count * self.host_width

    def on_fit_start(self) -> None:
        """Refuse what cannot train, then make room for the buffers."""
        refuse_several_processes(
            self.joint,
            "DecoupledVFL keeps the hosts' buffers in one process; use devices: 1, or SplitVFL for several",
        )
        refuse_short(self.trainer, self.guest_epochs + self.replay_epochs)
        self._encodings = None
        settings = {name: getattr(self, name) for name in _KEPT_SETTINGS}
        if self.trainer.ckpt_path is not None:
            refuse_other_settings(self.counts.settings, settings)
        self.counts.settings = settings
        super().on_fit_start()
        if self.register_kind == "message" and self.datamodule.records("train").present is not None:
            raise ConfigurationError(
                "register: message puts rows of one guest's records in the place of another's, which means nothing "
                "where guests have records of their own; use register: record"
            )
        self._guest_seconds = self._guests.flops() / self.clock.speeds(self.roster.parties)
        self._host_seconds = float(self._hosts.flops()[0]) / self.clock.server_speed
        self._owner_seconds = (
            sum(work_of(self.top, (self.top_width(),), input_gradient=False)) / self.clock.server_speed
        )
        tables = self.host_count if self.faults.tell_hosts_apart else 1
        self.replay.refuse_above_limit(tables)
        buffers, encodings = tables * self.replay.table_bytes, self.replay.records * self.top_width() * 4
        rank_zero_info(
            f"the hosts' buffers of {self.replay.records:,} records take {buffers / 1e6:,.1f} MB, the owner's "
            f"encodings up to {encodings / 1e6:,.1f} MB"
        )

    def lr_scheduler_step(self, scheduler: Any, metric: Any) -> None:
        """A schedule that watches ``val/loss`` watches the owner's; before its phase that is of an untrained one."""
        if metric is None or self.phase == "owner":
            super().lr_scheduler_step(scheduler, metric)

    def on_train_epoch_start(self) -> None:
        """Losses of a phase that is over are no values of this epoch."""
        super().on_train_epoch_start()
        over = {"owner": ("guest", "host"), "replay": ("guest",), "representation": ("owner",)}[self.phase]
        for who in over:
            self.trainer.callback_metrics.pop(f"train/{who}_loss", None)

    def on_train_end(self) -> None:
        """A fit that was ended early may have left the owner without a single step."""
        super().on_train_end()
        if not self.counts.collected and not self.trainer.fast_dev_run:  # type: ignore[attr-defined]  # set in Trainer.__init__
            rank_zero_warn(
                "the training ended before the owner's phase: its classifier has learnt nothing; go on from the "
                "checkpoint, or let it end later"
            )

    def setup(self, stage: str) -> None:
        super().setup(stage)
        if stage == "fit":
            refuse_early_stopping(self.trainer)

    @property
    def memory(self) -> HostMemory:
        return self._host_memory

    @property
    def replay(self) -> ReplayBuffers:
        """The hosts' buffers, from the first fit on."""
        return self._host_memory.buffers

    # ---- training

    def step(self, batch: VerticalBatch, names: RoundNames) -> Step:
        """One iteration of everybody whose phase it is."""
        if self.phase == "owner":
            loss = self._owner_step(batch)
            return Step(loss, notes={"train/owner_loss": loss.detach()})
        counts = self.counts
        if counts.collected:  # a second fit: what was collected is out of date, and its time is over
            counts.collected, counts.begun = False, self.clock.seconds
            counts.own_seconds.zero_()
        number, counts.iterations = counts.iterations, counts.iterations + 1
        outcome = self.faults.at(number, self.roster)
        alive = outcome.announced & outcome.sends
        spent = torch.zeros_like(counts.own_seconds)
        ids, losses, notes = batch.record_ids, [], {}
        withheld: list[nn.Module] = []
        if self.phase == "representation":
            learning, embeddings = guest_losses(self._guests, batch.features, alive, names, self.seed)
            rows = len(ids)
            spent[: self.roster.parties] = rows * self._guest_seconds * outcome.slowdown * alive
            self.books.mini_batches += int(alive.sum())
            if self.communicates(self.current_epoch):
                spent[: self.roster.parties] += self._communicate(ids, embeddings, alive, outcome.hosts, outcome.delay)
            if alive.any():
                losses.append(learning if alive.all() else learning[alive.to(learning.device)])
                notes["train/guest_loss"] = losses[-1].detach().mean()
            withheld += self._guests.networks_of(~alive)
        if number % self.host_every == 0:
            joined = ids if ids.dim() == 1 else ids[:, -1]
            learn = outcome.hosts & self.replay.known(joined)[0].any(1).cpu()
            if learn.any():
                losses.append(host_losses(self._hosts, self.replay, joined, learn, names, self.seed))
                notes["train/host_loss"] = losses[-1].detach().mean()
                spent[self.roster.parties :] = len(ids) * self._host_seconds * learn
                withheld += self._hosts.networks_of(~learn)
        counts.own_seconds += spent
        self.clock.advance_to(counts.begun + float(counts.own_seconds.max()))
        return Step(torch.cat(losses).sum() if losses else None, notes=notes, withheld=withheld)

    def _communicate(
        self, ids: Tensor, embeddings: list[Tensor], alive: Tensor, hosts: Tensor, delay: Tensor
    ) -> Tensor:
        """Guests send, hosts write; returns the seconds (M,) that it takes each guest."""
        links = self.faults.at(self.counts.communications, self.roster).links
        self.counts.communications += 1
        self.replay.write(ids, embeddings, alive.unsqueeze(1) & links, hosts)
        leg = embeddings_leg("embeddings", len(ids), self.host_count, self.embedding_widths)
        self.books.meter.add(leg, alive)
        return (self.clock.transfer(leg) + delay) * alive

    def _owner_step(self, batch: VerticalBatch) -> Tensor:
        """The owner's loss on encodings that were collected."""
        encodings, place = self._encodings or self._collect_encodings()
        self.clock.advance(len(batch.record_ids) * self._owner_seconds)
        return self.rank_loss(self.head(encodings.index_select(0, place[batch.record_ids])), batch)

    # ---- the owner's records

    def _collect_encodings(self) -> tuple[Tensor, Tensor]:
        """The owner's encodings, entered in the books once; with ``standardise``, their mean and scale are kept."""
        encodings, place = self._encodings = collect(self, self.datamodule.records("train"))
        if self.standardise:
            mean, scale = mean_and_scale(encodings)
            self.encoding_mean.copy_(mean)
            self.encoding_scale.copy_(scale)
        if not self.counts.collected:
            enter_collection(self, len(encodings))
        return encodings, place

    def encode(self, features: tuple[Tensor, ...], present: Tensor | None = None) -> Tensor:
        """(B, H W_h), the hosts' encodings; zeros stand for what a guest does not hold."""
        joined = self.aggregator.plain(self.bottoms(features), Roll.everyone(self.roster.parties), present)
        return torch.cat(self.hosts((joined,) * self.host_count), dim=1)

    def output(self, batch: VerticalBatch, names: RoundNames) -> Tensor:
        return self.head(self.encode(batch.features, batch.present))

    def head(self, value: Tensor, columns: Tensor | None = None) -> Tensor:
        """The owner's output for encodings (B, H W_h)."""
        if self.standardise:
            value = (value - self.encoding_mean) / self.encoding_scale
        return super().head(value)

    # ---- books

    def standing(self) -> dict[str, float]:
        standing = super().standing()
        standing["comm/up_bytes"] += float(self.counts.host_meter.total("up").sum())
        return standing

    def requests_made(self) -> int:
        """One a guest, host or connection and iteration."""
        return self.counts.iterations

    def owners(self) -> Iterator[nn.Module]:
        """Each guest's networks, each host's, and the owner's."""
        for bank, beside in ((self.bottoms, self.guest_partners), (self.hosts, self.host_partners)):
            for pair in zip(bank.parties, beside.parties, strict=True):
                yield nn.ModuleList(pair)
        yield self.top

    def parts(self) -> dict[str, str]:
        return (
            {"hosts": str(self.host_count), "host": str(self.hosts.parties[0])}
            | super().parts()
            | {
                "guest_objective": repr(self.guest_objective),
                "host_objective": repr(self.host_objective),
                "register": self.register_kind,
                "standardise": str(self.standardise),
            }
        )
