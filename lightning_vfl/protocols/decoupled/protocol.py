"""DecoupledVFL: guests and hosts learn by local objectives, the owner learns after them; no gradient is sent (DVFL)."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, NamedTuple, final, get_args

import torch
from lightning.pytorch.utilities import rank_zero_info
from torch import Tensor, nn

from lightning_vfl.aggregators.base import FLOAT_BITS
from lightning_vfl.aggregators.plain import Concat
from lightning_vfl.checks import one_of, positive, within
from lightning_vfl.errors import ConfigurationError
from lightning_vfl.local_objectives import LocalObjective, Reconstruction
from lightning_vfl.networks.flops import work_of
from lightning_vfl.networks.mlp import MLP
from lightning_vfl.networks.modes import evaluating
from lightning_vfl.networks.record_table import LIMIT_BYTES, TableDtype
from lightning_vfl.protocols.build import BottomFactory, build_hosts, build_top, refuse_made
from lightning_vfl.protocols.decoupled.learners import Learners, guest_losses, host_losses
from lightning_vfl.protocols.decoupled.replay import Register, ReplayBuffers
from lightning_vfl.protocols.hooks import toolkit_hook
from lightning_vfl.protocols.phases import ROWS, PhasedVFL, in_parts
from lightning_vfl.protocols.place import Elsewhere
from lightning_vfl.protocols.step import Step
from lightning_vfl.schedules.batches import Phases
from lightning_vfl.simulation.faults import RoundOutcome
from lightning_vfl.simulation.meter import CommunicationMeter
from lightning_vfl.streams import seed_torch
from lightning_vfl.support import Part, Unsupported
from lightning_vfl.types import RecordSource, Roll, RoundNames, Seat, Stage, Tensors, VerticalBatch, numbers_in, places
from lightning_vfl.wire import Leg, Message, Tap

_KEPT_SETTINGS = ("guest_epochs", "replay_epochs", "communicate_every", "host_every", "table_dtype")  # as resumed


@dataclass
class DecoupledCounts:
    """The counts of DecoupledVFL.

    Args:
        settings: the settings that a resumed fit must share with the checkpoint.
        iterations: iterations of guests and hosts.
        communications: communication rounds, in which guests should send.
        collected: whether the hosts' encodings have been collected.
        host_meter: bytes that the hosts send.
        own_seconds: (M + H,), the seconds in which each guest and host has computed and sent.
        begun: the virtual time at which the training began.
    """

    settings: dict[str, int | str] = field(default_factory=dict)
    iterations: int = 0
    communications: int = 0
    collected: bool = False
    host_meter: CommunicationMeter = field(default_factory=lambda: CommunicationMeter(0))
    own_seconds: Tensor = field(default_factory=lambda: torch.zeros(0, dtype=torch.float64))
    begun: float = 0.0


class Iteration(NamedTuple):
    """An iteration of guests and hosts.

    Args:
        number: of the iteration.
        outcome: of its request to every guest and host.
        alive: (M,) bool, the guests that learn.
    """

    number: int
    outcome: RoundOutcome
    alive: Tensor


class DecoupledVFL(PhasedVFL):
    r"""Decoupled vertical federated learning: DVFL.

    In the phase ``representation``, every **guest** (a party with features) trains an encoder by a local objective on
    its own columns, and each of H redundant **hosts** trains an encoder on the guests' concatenated latest embeddings.
    In the phase ``owner``, a classifier is trained on the hosts' encodings, which are collected once. No participant
    receives a gradient, so no participant waits for another: a participant that crashes misses only its own updates.

    Guests send only in every k-th epoch. A host stores the latest embedding of every record from every guest in a
    replay buffer (zeros before the first message) and trains on the buffer: in its own iterations (``host_every``),
    also when guests do not send, and in ``replay_epochs`` further epochs without the guests.

    The phase depends on the epoch: first ``guest_epochs`` of representation, then ``replay_epochs``, then the owner
    until the end of the fit. All epochs have the same number of steps. The loss of a step is the sum of the local
    losses, whose parameters are disjoint; ``train/guest_loss``, ``train/host_loss`` and ``train/owner_loss`` are means
    over the participants that learn. Guests and hosts also learn from records that only some guests hold; the owner
    learns from the records that all guests hold.

    Faults: an iteration is one request to every guest and host; a communication round is one request to every
    connection. A guest that is down does not learn and does not send. A connection that is down loses the message. A
    host that is down does not learn, and no message of that round is written to its buffer. The owner's phase has no
    faults.

    Shapes: an embedding (B, D_m); the hosts' input (B, Σ D_m); an encoding (B, W_h); the owner's input (B, H W_h).
    Units: embeddings and encodings in float32 on the wire. Virtual time: every participant has its own clock, a delay
        is added to the guest's message, and the phase takes as long as its slowest participant.
    Guarantee: no gradient is sent between participants. A guest's update does not depend, bit for bit, on hosts, labels
        or other guests. Participants that do not learn in an iteration keep their parameters and optimiser state.
    Not guaranteed: staleness by delay: a late message is written in its own iteration, and only its time is counted.
        Privacy of embeddings, which hosts receive in the clear. Several processes (refused).

    In a federation of processes, that of the server has all hosts; the owner is there too, or is the party with the
    labels (``active``), whose labels then never leave it. An iteration of ``representation`` is
    over when every guest that is connected has sent its embeddings, or has said that it has learnt; the owner's phase
    waits for the final embeddings of all guests. An embedding that is sent once counts for each of the H hosts.

    Args:
        host: makes a host's encoder from (Σ D_m, W_h).
        widths: D_m of every guest, if they differ; None: ``width`` for all.
        host_width: W_h, the encoding width of a host.
        hosts: H.
        guest_epochs: epochs of the phase ``representation``.
        replay_epochs: epochs in which only hosts learn, from their buffers.
        communicate_every: k; guests send in the last of every k of their epochs. ``guest_epochs``: only once.
        host_every: a host learns in every ``host_every``-th iteration.
        guest_objective: the local objective of guests; None: ``Reconstruction()``.
        host_objective: the local objective of hosts; None: ``Reconstruction()``.
        standardise: scale the owner's input to mean 0 and standard deviation 1 over the collected encodings. The paper
            does not do this; encodings can have any scale, and with it a classifier learns in a third of the time.
        register: the replacement for a lost message: ``record``: the latest embedding of the same record; ``message``,
            as in the paper: the guest's last message, of any records.
        table_dtype: ``float16`` halves the memory of the buffers.
        limit_bytes: the largest allowed size of all buffers; the owner's N × H W_h encodings need more memory.
        settings: settings of ``VFLModule``: ``bottom`` makes a guest's encoder from (per-record shape, D), ``top`` the
            owner's network from H W_h, and ``width`` is D, the embedding width of a guest.

    Raises:
        ConfigurationError: before training, for phases in which a participant never learns, buffers above the limit,
            groups, several processes and protected evaluation.

    References:
        Amalanshu, Sirvi, Inouye, "Decoupling Vertical Federated Learning using Local Self-Supervision" (DVFL),
        section 4, appendices C (communication, replay) and D (networks, faults).
    """

    unsupported: ClassVar[Unsupported] = {
        Part.WAITING: "nobody waits: hosts train on what has arrived; leave out waiting (a policy recipe sets it)",
        Part.MISSING: "hosts train on the latest embeddings; leave out missing",
        Part.HIDDEN: "hosts train on single embeddings; use SplitVFL",
        Part.PROTECTED_EVALUATION: "use evaluate: plain",
        Part.GROUPS: "every guest trains an encoder of its own; use SplitVFL",
        Part.COMPRESSOR: "guests and hosts exchange whole embeddings; use SplitVFL or AsyncVFL",
        Part.LOCAL_UPDATE: "guests learn from objectives of their own; use SplitVFL or AsyncVFL",
        Part.HALVES: "hosts stand between the guests and the owner of the labels already; use SplitVFL",
        Part.PROCESSES: "the hosts' buffers are in one process; use devices: 1, or SplitVFL for several",
        Part.FEDERATION: None,
    }
    phases = ("representation", "replay", "owner")
    parties_learn_from_joiner = False

    def __init__(
        self,
        *,
        host: BottomFactory = MLP,
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
        super().__init__(Concat(widths), **settings)
        refuse_made(host=host)
        self._host = host
        self.host_width = positive("host_width", host_width, whole=True)
        self.host_count = positive("hosts", hosts, whole=True)
        self.guest_epochs = positive("guest_epochs", guest_epochs, whole=True)
        self.replay_epochs = within("replay_epochs", replay_epochs, 0, whole=True)
        never = "guests send in the last of so many of their epochs (guest_epochs)"
        self.communicate_every = within(
            "communicate_every", communicate_every, 1, guest_epochs, whole=True, advice=never
        )
        self.host_every = positive("host_every", host_every, whole=True)
        self.guest_objective = guest_objective or Reconstruction()
        self.host_objective = host_objective or Reconstruction()
        self.standardise = standardise
        self.register_kind = one_of("register", register, get_args(Register))
        self.table_dtype = one_of("table_dtype", table_dtype, get_args(TableDtype))
        self.replay = ReplayBuffers(hosts, register, table_dtype, limit_bytes)  # empty before a fit
        self._encodings: tuple[Tensor, Tensor] | None = None  # the owner's encodings, and the row of each record

    def own_books(self) -> DecoupledCounts:
        return DecoupledCounts()

    @property
    def counts(self) -> DecoupledCounts:
        """The counts of guests and hosts."""
        counts: DecoupledCounts = self.books.own
        return counts

    seeds_networks = False  # guests, hosts and the owner are seeded one by one, each by its own secret if it has one
    names_draws = False
    sends_labels = False

    # ---- where it runs

    @property
    def hosts_here(self) -> bool:
        """Whether this process has the hosts: the server's, and that of a simulation."""
        return self.owner is None

    @property
    def labels_stay(self) -> bool:
        """The owner is the party with the labels, if there is one; hosts send it their encodings."""
        return self.active is not None

    @property
    def cut_width(self) -> int:
        return self.top_width()

    # ---- phases

    @property
    def before_owner(self) -> tuple[int, str]:
        return self.guest_epochs + self.replay_epochs, "guest_epochs + replay_epochs"

    def phase_of(self, epoch: int) -> str:
        if epoch < self.guest_epochs:
            return "representation"
        return "replay" if epoch < self.before_owner[0] else "owner"

    def communicates(self, epoch: int) -> bool:
        """Whether guests send in this epoch, the last of every k."""
        return epoch < self.guest_epochs and (epoch + 1) % self.communicate_every == 0

    def schedule(self, records: RecordSource, batch_size: int, seed: int, drop_last: bool = False) -> Phases:
        """Every guest's own order of its own records, and the owner's order of the records that all guests hold."""
        present = None if records.present is None else records.present.cpu().numpy()
        when = self.phase_of, self.communicates
        return Phases(len(records), present, batch_size, seed, self.roster.parties, *when, drop_last)

    # ---- before training

    def build(self) -> None:
        super().build()
        self.roster = replace(self.roster, hosts=self.host_count)
        shapes = [tuple(shape) for shape in self.hparams["party_shapes"]]
        joined = sum(self.embedding_widths)
        guests = list(self.bottoms.parties)
        hosts = build_hosts(self._host, joined, self.host_width, self.host_count, self.keys)
        self._guests = Learners(
            "guests",
            guests,
            self.guest_objective,
            shapes,
            self.embedding_widths,
            range(self.roster.parties),
            self.keys,
        )
        self._hosts = Learners(
            "hosts",
            hosts,
            self.host_objective,
            [(joined,)] * self.host_count,
            [self.host_width] * self.host_count,
            [None] * self.host_count,
            self.keys,
        )
        self.bottoms = self._guests.bank
        self.hosts = self._hosts.bank
        self.guest_partners = self._guests.partners
        self.host_partners = self._hosts.partners
        self._guest_flops = self._guests.flops()
        self._host_flops = float(self._hosts.flops()[0])
        self._owner_flops = sum(work_of(self.top, (self.top_width(),), input_gradient=False))
        self.encoding_mean: Tensor
        self.encoding_scale: Tensor
        self.register_buffer("encoding_mean", torch.zeros(self.top_width()) if self.scores_here else None)
        self.register_buffer("encoding_scale", torch.ones(self.top_width()) if self.scores_here else None)
        self.counts.host_meter = CommunicationMeter(self.host_count)
        self.counts.own_seconds = torch.zeros(len(shapes) + self.host_count, dtype=torch.float64)

    def networks_by_party(self) -> list[nn.ModuleList]:
        return [*super().networks_by_party(), self.guest_partners.parties]

    def keep_own(self, seat: Seat) -> None:
        super().keep_own(seat)
        for bank in (self.hosts, self.host_partners) if seat.party is not None else ():
            bank.groups = ()
            for host in range(self.host_count):
                bank.parties[host] = Elsewhere("the server")

    def initial_networks(self, party: int) -> nn.Module:
        bottom = super().initial_networks(party)
        networks = [bottom, self._guests.partner_of(party, bottom)]
        if party == self.active:
            top: Any = self._top  # not in halves, which are refused
            networks.append(build_top(top, self.top_width(), self._outputs, self.keys, self.embedding_widths, party))
        return nn.ModuleList(networks)

    def top_width(self) -> int:
        return self.host_count * self.host_width

    @toolkit_hook
    def on_fit_start(self) -> None:
        """Refuse unsuitable settings, then allocate the buffers."""
        self._encodings = None
        settings = {name: getattr(self, name) for name in _KEPT_SETTINGS}
        for name, there in self.counts.settings.items() if self.trainer.ckpt_path is not None else ():
            if there != settings[name]:
                raise ConfigurationError(
                    f"the checkpoint was trained with {name} {there}, but this model has {settings[name]}; resume with "
                    f"{there}"
                )
        self.counts.settings = settings
        super().on_fit_start()
        if self.register_kind == "message" and self.datamodule.records("train").present is not None:
            raise ConfigurationError(
                "register: message replaces rows by position, which is wrong if guests hold different records; use "
                "register: record"
            )
        if not self.hosts_here:
            return
        self._guest_seconds = self._guest_flops / self.clock.speeds(self.roster.parties)
        self._host_seconds = self._host_flops / self.clock.server_speed
        tables = self.host_count if self.faults.tell_hosts_apart else 1
        self.replay.refuse_above_limit(tables)
        buffers = tables * self.replay.table_bytes
        encodings = self.replay.records * self.top_width() * 4
        rank_zero_info(
            f"the hosts' buffers of {self.replay.records:,} records take {buffers / 1e6:,.1f} MB, the owner's "
            f"encodings up to {encodings / 1e6:,.1f} MB"
        )

    @toolkit_hook
    def on_train_epoch_start(self) -> None:
        """Delete the losses of earlier phases."""
        super().on_train_epoch_start()
        over = {"owner": ("guest", "host"), "replay": ("guest",), "representation": ("owner",)}[self.phase]
        for who in over:
            self.trainer.callback_metrics.pop(f"train/{who}_loss", None)

    @property
    def memory(self) -> ReplayBuffers | None:
        return self.replay if self.hosts_here else None

    # ---- training

    @final
    def step(self, batch: VerticalBatch, names: RoundNames) -> Step:
        """Run one iteration of the current phase."""
        if self.phase == "owner":
            if self.repeats_given_up(names):
                return Step(None)
            if self._encodings is None:
                self._collect()
            self.enter_owner_step(len(batch.record_ids))
            return self.owner_step(batch, names)
        iteration = self.begin_iteration()
        if self.replayed is not None:
            iteration = iteration._replace(alive=self.replayed.plan(names.round, 1).roll.included)
        if self.phase == "replay":
            return self.finish_iteration(batch, names, iteration)
        learning, embeddings = guest_losses(self._guests, batch.features, iteration.alive, names, self.seed)
        return self.finish_iteration(batch, names, iteration, learning, embeddings)

    def begin_iteration(self) -> Iteration:
        """Count an iteration of guests and hosts; who learns in it under the faults."""
        counts = self.counts
        if counts.collected:  # a second fit: collect again later, and measure seconds from now
            counts.collected = False
            counts.begun = self.clock.seconds
            counts.own_seconds.zero_()
        number = counts.iterations
        counts.iterations += 1
        outcome = self.faults.at(number, self.roster)
        return Iteration(number, outcome, outcome.announced & outcome.sends)

    def guest_step(self, party: int, batch: VerticalBatch, names: RoundNames) -> tuple[Tensor, Tensor]:
        """The loss of one guest, alone, and its embeddings (B, D_m) without a graph."""
        alone = torch.arange(self.roster.parties) == party
        losses, embeddings = guest_losses(self._guests, batch.features, alone, names, self.seed)
        return losses[party], embeddings[party]

    def finish_iteration(
        self,
        batch: VerticalBatch,
        names: RoundNames,
        iteration: Iteration,
        learning: Tensor | None = None,
        embeddings: Sequence[Tensor] | None = None,
        seconds: float | None = None,
    ) -> Step:
        """Send the guests' embeddings, and let hosts learn.

        Args:
            batch: of the iteration.
            names: of the round.
            iteration: as ``begin_iteration`` gives it.
            learning: the losses (M,) of the guests; None: they do not learn here.
            embeddings: of every guest, (B, D_m); None: the guests do nothing.
            seconds: that the guests have really taken; None: time is simulated.
        """
        counts = self.counts
        number, outcome, alive = iteration
        spent = torch.zeros_like(counts.own_seconds)
        ids = batch.record_ids
        losses: list[Tensor] = []
        notes: dict[str, float | Tensor] = {}
        withheld: list[nn.Module] = []
        if embeddings is not None:
            rows = len(ids)
            spent[: self.roster.parties] = rows * self._guest_seconds * outcome.slowdown * alive
            self.books.mini_batches += int(alive.sum())
            if self.communicates(self.current_epoch):
                spent[: self.roster.parties] += self._communicate(ids, embeddings, alive, outcome.hosts, outcome.delay)
            if learning is not None and alive.any():
                losses.append(learning if alive.all() else learning[alive.to(learning.device)])
                notes["train/guest_loss"] = losses[-1].detach().mean()
            withheld += self._guests.networks_of(~alive)
        if number % self.host_every == 0:
            joined = ids if ids.dim() == 1 else ids[:, -1]
            known, everything = self.replay.known(joined)
            learn = outcome.hosts & known.any(1).cpu()
            if learn.any():
                losses.append(
                    host_losses(
                        self._hosts, self.replay.read(joined), None if everything else known, learn, names, self.seed
                    )
                )
                notes["train/host_loss"] = losses[-1].detach().mean()
                spent[self.roster.parties :] = len(ids) * self._host_seconds * learn
                withheld += self._hosts.networks_of(~learn)
        if seconds is None:
            counts.own_seconds += spent
            self.clock.advance_to(counts.begun + float(counts.own_seconds.max()))
        else:
            self.clock.advance(seconds)
        return Step(torch.cat(losses).sum() if losses else None, notes=notes, withheld=withheld)

    def _communicate(
        self, ids: Tensor, embeddings: Sequence[Tensor], alive: Tensor, hosts: Tensor, delay: Tensor
    ) -> Tensor:
        """Send the guests' embeddings and write the hosts' buffers; returns the seconds (M,) of each guest."""
        links = self.faults.at(self.counts.communications, self.roster).links
        self.replay.write(ids, embeddings, alive.unsqueeze(1) & links, hosts)
        self._tell_of_embeddings("embeddings", ids, embeddings, alive)
        return (self.clock.transfer(self.enter_communication(len(ids), alive)) + delay) * alive

    def enter_communication(self, rows: int, alive: Tensor) -> Leg:
        """Count the embeddings of ``rows`` records that the guests who are alive send to every host; their leg."""
        self.counts.communications += 1
        leg = self._embeddings_leg("embeddings", rows)
        self.books.meter.add(leg, alive)
        return leg

    def _embeddings_leg(self, kind: str, rows: int) -> Leg:
        """The leg of the embeddings of ``rows`` records, from every guest to every host."""
        return Leg(kind, "server", rows * self.host_count * torch.tensor(self.embedding_widths), FLOAT_BITS)

    def _tell_of_embeddings(self, kind: str, ids: Tensor, embeddings: Sequence[Tensor], alive: Tensor) -> None:
        """Let an audit hear the embeddings (B, D_m) that the guests who are ``alive``, (M,) bool, send to every host.

        ``ids``: the records, (B,), or (B, M or more) with the records of guest m in column m.
        """
        if self.tap is None:
            return
        for guest in numbers_in(alive):
            own = ids if ids.dim() == 1 else ids[:, guest]
            message = Message(kind, "server", (guest,), (embeddings[guest].detach(),))
            for _ in range(self.host_count):
                self.tap.sent(message, own)

    def owner_step(self, batch: VerticalBatch, names: RoundNames) -> Step:
        """The owner's step on the collected encodings."""
        if self._encodings is None:
            raise RuntimeError("the owner has no encodings yet; collect them first")
        encodings, place = self._encodings
        key = self.keys.get(self.active if self.labels_stay else None, self.seed)
        seed_torch(self.device, key, "networks", names.stage, names.round, self.global_rank)
        loss = self.rank_loss(self.head(encodings.index_select(0, place[batch.record_ids])), batch)
        return Step(loss, notes={"train/owner_loss": loss.detach()})

    def enter_owner_step(self, rows: int) -> None:
        """Count the simulated time of the owner's step on so many records."""
        self.clock.advance(rows * (self._owner_flops / self.clock.server_speed))

    # ---- the owner's records

    def _collect(self) -> None:
        """Collect the hosts' encodings of the owner's records, in one process."""
        encodings = []
        for ids, h in self.final_embeddings(in_parts(self.datamodule.records("train"))):
            encodings.append(self.encodings_of(h))
            if self.tap is not None and not self.counts.collected:
                self._tell_of_collection(self.tap, ids, h, encodings[-1])
        self.take_encodings(encodings)

    def _tell_of_collection(self, tap: Tap, ids: Tensor, embeddings: Tensors, encodings: Tensor) -> None:
        """Let an audit hear the final embeddings of records ``ids`` (B,), and their encodings (B, H W_h)."""
        self._tell_of_embeddings("final embeddings", ids, embeddings, self.roster.everybody)
        pieces = encodings.tensor_split(self.host_count, 1)
        tap.sent(Message("final encodings", "server", tuple(range(self.host_count)), pieces), ids)
        tap.joined(encodings, RoundNames(self.seed, Stage.FIT, self.counts.iterations), ids)

    def encodings_of(self, h: Tensors) -> Tensor:
        """(B, H W_h), the hosts' encodings of the guests' embeddings of some of the owner's records."""
        with torch.no_grad(), evaluating(self):
            return self._encode(h, Roll.everyone(self.roster.parties), None)

    def take_encodings(self, parts: Sequence[Tensor], seconds: float | None = None) -> None:
        """Keep the encodings of the owner's records, which come in parts; ``standardise`` stores mean and scale.

        ``seconds``: that their collection has really taken; None: time is simulated.
        """
        records = self.datamodule.records("train")
        encodings = torch.cat(list(parts))
        self._encodings = encodings, places(torch.cat(in_parts(records)), len(records)).to(self.device)
        if self.standardise:
            mean, scale = mean_and_scale(encodings)
            self.encoding_mean.copy_(mean)
            self.encoding_scale.copy_(scale)
        self.enter_collected(len(encodings), seconds)

    def enter_collected(self, records: int, seconds: float | None) -> None:
        """Count once the traffic of the final embeddings and encodings of so many records; ``seconds`` as above."""
        if self.counts.collected:
            return
        self.counts.collected = True
        up = self._embeddings_leg("final embeddings", records)
        encodings = torch.full((self.host_count,), records * self.host_width)
        on = Leg("final encodings", "server", encodings, FLOAT_BITS)
        self.books.meter.add(up)
        self.counts.host_meter.add(on)
        simulated = float(self.clock.transfer(up).max()) + float(self.clock.transfer(on).max())
        self.clock.advance(simulated if seconds is None else seconds)

    def _encode(self, h: Tensors, roll: Roll, present: Tensor | None) -> Tensor:
        """(B, H W_h), the hosts' encodings; the embedding of a record that a guest does not hold is zero."""
        return torch.cat(self.hosts((self.joined(h, roll, present),) * self.host_count), dim=1)

    def output_of(self, h: Any, roll: Roll, present: Tensor | None, columns: Tensor | None = None) -> Tensor:
        """The owner's output; at hosts without the owner, their encodings."""
        encodings = self._encode(h, roll, present)
        return self.head(encodings) if self.scores_here else encodings

    def behind_cut(self, crossing: Tensor, batch: VerticalBatch, names: RoundNames) -> Tensor:
        """The owner's output for encodings of hosts in another process."""
        return self.head(crossing)

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
        """One request for each iteration, to every guest, host or connection."""
        return self.counts.iterations

    def owners(self) -> Iterator[nn.Module]:
        """Each guest's networks, each host's, and the owner's, which may be a guest too."""
        for guest, pair in enumerate(zip(self.bottoms.parties, self.guest_partners.parties, strict=True)):
            yield nn.ModuleList([*pair, self.top] if guest == self.active else pair)
        for pair in zip(self.hosts.parties, self.host_partners.parties, strict=True):
            yield nn.ModuleList(pair)
        yield self.top if self.active is None else nn.ModuleList()

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


def mean_and_scale(encodings: Tensor) -> tuple[Tensor, Tensor]:
    """The mean and the standard deviation (H W_h,) of encodings, in float64; 1 for constant columns."""
    mean = encodings.mean(0, dtype=torch.float64)
    squares = sum(((part - mean) ** 2).sum(0) for part in torch.split(encodings, ROWS))  # float64, one part at a time
    deviation = (torch.as_tensor(squares) / len(encodings)).sqrt()
    return mean, torch.where(deviation > 1e-6, deviation, 1.0)
