"""OneShotVFL: one exchange, local training on clusters of the gradients, one last upload; then the owner alone."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar, final

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from torch.optim import Optimizer

from lightning_vfl.aggregators.base import FLOAT_BITS, Aggregator
from lightning_vfl.checks import positive, within
from lightning_vfl.errors import ConfigurationError
from lightning_vfl.networks.memory import LatestEmbeddings
from lightning_vfl.networks.record_table import LIMIT_BYTES, RecordTable
from lightning_vfl.protocols.checks import refuse_scaler
from lightning_vfl.protocols.hooks import toolkit_hook
from lightning_vfl.protocols.owner_keys import build_for
from lightning_vfl.protocols.phases import ROWS, PhasedVFL
from lightning_vfl.protocols.step import Step
from lightning_vfl.support import Part, Unsupported
from lightning_vfl.types import Parties, Roll, RoundNames, Tensors, VerticalBatch, numbers_in
from lightning_vfl.wire import Contribution, Leg, Message

NONE = -1  # the label of a record that a party has got no gradient for


@dataclass
class OneShotCounts:
    """The counts of OneShotVFL.

    Args:
        collected: whether the last embeddings have been sent.
    """

    collected: bool = False


class OneShotVFL(PhasedVFL):
    r"""One-shot VFL: three messages of each record in the whole training.

    Phase ``exchange``, one epoch: the parties send embeddings by their initial bottoms, the server answers with
    gradients, and nobody learns. Phase ``local``: each party finds as many clusters of its gradients as there are
    classes (k-means), and trains its bottom and a head of its own to tell the cluster of a record. A record whose
    gradient was lost is learnt from the party's own prediction, if that is confident. Phase ``owner``: the parties send
    the embeddings of all records once more, and the server trains the top alone, until the end of the fit.

    In a federation of processes, a party sends nothing in the phase ``local``. If it is started again there, it goes on
    from its own checkpoint, and the server waits for it.

    Faults: an iteration of the first two phases is one round of requests. A party that is down does not learn. The
    last upload is waited for.

    Units: embeddings and gradients in float32 on the wire. Virtual time: a local iteration takes as long as its slowest
        party; the top's iterations take the server's work.
    Guarantee: no message in the phase ``local`` and, after its first iteration, in the phase ``owner``.
    Not guaranteed: privacy of labels: the clusters are nearly the classes (see the page on decoupled training).
        Augmentation of records in local training, which the paper has for pictures; several processes (refused).

    Args:
        aggregator: joins the embeddings, in the clear.
        local_epochs: epochs of the phase ``local``.
        confidence: the smallest probability of a prediction from which a party learns.
        limit_bytes: the largest allowed table of gradients and embeddings, N × Σ D_m numbers.
        settings: settings of ``VFLModule``.

    Raises:
        ConfigurationError: before training, for labels that are no classes, a fit that ends before the owner's phase,
            and a table above the limit.

    References:
        Sun, Xu, Yang, Nath, Li, Zhao, Xu, Chen, Roth, "Communication-Efficient Vertical Federated Learning with Limited
        Overlapping Samples", ICCV 2023, section 3.2.
        Lee, "Pseudo-Label", ICML 2013 workshop (learning from confident predictions).
    """

    unsupported: ClassVar[Unsupported] = {
        Part.MISSING: "a party without a gradient learns from its own predictions; leave out missing",
        Part.HIDDEN: "the server trains on single embeddings; use SplitVFL",
        Part.PROTECTED_EVALUATION: "use evaluate: plain",
        Part.GROUPS: "every party trains a bottom of its own; use SplitVFL",
        Part.COMPRESSOR: "embeddings are sent twice in all; leave out compressors",
        Part.LOCAL_UPDATE: "parties learn from clusters of gradients; use SplitVFL or AsyncVFL",
        Part.HALVES: "the server trains the whole top alone; use SplitVFL",
        Part.FEDERATION: None,
        Part.PROCESSES: "the table of embeddings is in one process; use devices: 1",
    }
    phases = ("exchange", "local", "owner")

    def __init__(
        self,
        aggregator: Aggregator,
        *,
        local_epochs: int = 10,
        confidence: float = 0.95,
        limit_bytes: float = LIMIT_BYTES,
        **settings: Any,
    ) -> None:
        super().__init__(aggregator, **settings)
        self.local_epochs = positive("local_epochs", local_epochs, whole=True)
        self.confidence = within("confidence", confidence, 0, 1)
        self._latest = LatestEmbeddings(limit_bytes=limit_bytes)
        self._labels: Tensor | None = None  # (N, M) int64, the cluster of each record at each party

    def own_books(self) -> OneShotCounts:
        return OneShotCounts()

    def build(self) -> None:
        super().build()
        classes = self.hparams["num_classes"]
        if classes is None:
            raise ConfigurationError(
                "OneShotVFL finds clusters for classes, and these labels are numbers; use SplitVFL"
            )
        self.heads = nn.ModuleList(map(self._new_head, range(self.roster.parties)))

    def networks_by_party(self) -> list[nn.ModuleList]:
        return [*super().networks_by_party(), self.heads]

    def _new_head(self, party: int) -> nn.Module:
        width = self.embedding_widths[party]
        return build_for(party, "head", self.keys, (width,), partial(nn.Linear, width, self.hparams["num_classes"]))

    def initial_networks(self, party: int) -> nn.Module:
        return nn.ModuleList([super().initial_networks(party), self._new_head(party)])

    @property
    def before_owner(self) -> tuple[int, str]:
        return 1 + self.local_epochs, "one exchange + local_epochs"

    def phase_of(self, epoch: int) -> str:
        if epoch == 0:
            return "exchange"
        return "local" if epoch <= self.local_epochs else "owner"

    @property
    def memory(self) -> LatestEmbeddings:
        """The gradients of all embeddings, zeros where there is none; after the last upload the embeddings."""
        return self._latest

    def promised(self) -> dict[str, str]:
        return super().promised() if self.phase == "exchange" else {}  # only it has rounds of messages

    # ---- before training

    @toolkit_hook
    def on_fit_start(self) -> None:
        """Refuse unsuitable settings, then allocate the table."""
        refuse_scaler(self.trainer, "gradients cannot be clustered while their scale changes")
        self._labels = None
        super().on_fit_start()

    # ---- training

    @final
    def step(self, batch: VerticalBatch, names: RoundNames) -> Step:
        """Run one iteration of the current phase."""
        steps = {"exchange": self._exchange, "local": self._local, "owner": self._owner}
        return steps[self.phase](batch, names)

    def contribute(self, bottoms: Any, batch: VerticalBatch, roll: Roll) -> Contribution:
        contribution = super().contribute(bottoms, batch, roll)
        self._gradients = self.gradients_of(dict(enumerate(contribution.leaves)))
        return contribution

    def begin_exchange(self, batch: VerticalBatch) -> None:
        """Forget what a fit before this one has left of the records of a batch."""
        self.books.own.collected = False
        self.memory.table.rows[batch.record_ids] = 0.0

    def _exchange(self, batch: VerticalBatch, names: RoundNames) -> Step:
        """A round of messages after which nobody learns, and those whom it has reached keep their gradients."""
        self.begin_exchange(batch)
        outcome = self.round(batch, names)
        loss = self.rank_loss(outcome.output, outcome.batch)

        def keep(_: Optimizer) -> None:
            self.keep_gradients(
                batch, {party: own for party, own in self._gradients.items() if party in outcome.learners}
            )

        return Step(loss, (), outcome.step.notes, withheld=[self.top, self.heads], before_optimizer=keep)

    def keep_gradients(self, batch: VerticalBatch, gradients: Mapping[int, Tensor]) -> None:
        """Keep the gradients of the embeddings (B, D_m) of some parties."""
        for party, gradient in gradients.items():
            of_records = gradient * len(batch.record_ids)  # of a record's loss, not of the batch's mean
            self.memory.write(batch.record_ids, party, of_records)

    def _local(self, batch: VerticalBatch, names: RoundNames) -> Step:
        learners = self.begin_local(batch, names)
        return self.learn_alone(batch, learners) if learners else Step(None)

    def begin_local(self, batch: VerticalBatch, names: RoundNames, simulated: bool = True) -> Parties:
        """Count an iteration in which parties learn alone; those that learn. ``simulated``: so is its time."""
        outcome = self.faults.at(2 * names.round, self.roster)
        alive = outcome.announced & outcome.sends
        if simulated:
            costs = self.costs.of_round(len(batch.record_ids))
            self.clock.advance(float(((costs.forward + costs.backward) * outcome.slowdown * alive).max()))
        self.books.mini_batches += int(alive.sum())
        return tuple(numbers_in(alive))

    def learn_alone(self, batch: VerticalBatch, learners: Parties) -> Step:
        """One step of these parties, each on the clusters of its gradients."""
        if self._labels is None:
            self._labels = clusters_of(self.memory.table, self.hparams["num_classes"])
        labels = self._labels[batch.record_ids]
        there = Roll.everyone(self.roster.parties).holders(batch.record_ids, batch.present)
        losses = []
        for party in learners:
            logits = self.heads[party](self.bottoms.one(party, batch.features[party]))
            losses.append(local_loss(logits, labels[:, party], there[:, party], self.confidence))
        down = [self.heads[party] for party in range(self.roster.parties) if party not in learners]
        return Step(torch.stack(losses).sum(), learners, withheld=[self.top, *down])

    def _owner(self, batch: VerticalBatch, names: RoundNames) -> Step:
        if not self.books.own.collected:
            if self.repeats_given_up(names):
                return Step(None)
            self._collect()
        return self.train_top(batch)

    def train_top(self, batch: VerticalBatch, simulated: bool = True) -> Step:
        """One step of the top on the embeddings of the last upload; ``simulated``: so is its time."""
        if simulated:
            self.enter_owner_step(len(batch.record_ids))
        h = self.memory.table.read(batch.record_ids)
        output = self.output_of(h, Roll.everyone(self.roster.parties), batch.present)
        return Step(self.rank_loss(output, batch), (), withheld=[self.heads])

    def enter_owner_step(self, rows: int) -> None:
        """Count the simulated time of the owner's step on so many records."""
        self.clock.advance(self.costs.of_round(rows).server)

    def _collect(self) -> None:
        """Let all parties send the embeddings of all records that they hold, and count them."""
        records = self.datamodule.records("train")
        for ids, h in self.final_embeddings(torch.split(torch.arange(len(records)), ROWS)):
            self.keep_embeddings(ids, h)
            self._tell(ids, h, records.present)
        self.enter_collected(None)

    def keep_embeddings(self, ids: Tensor, h: Tensors) -> None:
        """Keep the last embeddings (B, D_m) of records ``ids``, of all parties."""
        self.memory.table.write_all(ids.to(self.device), h)

    def enter_collected(self, seconds: float | None) -> None:
        """Count the last upload; ``seconds``: that it has really taken; None: time is simulated."""
        self.books.own.collected = True
        data = self.datamodule.records("train")
        records = len(data) if data.present is None else data.present.sum(0).cpu()  # of each party
        leg = Leg("final embeddings", "server", records * torch.tensor(self.embedding_widths), FLOAT_BITS)
        self.books.meter.add(leg)
        simulated = float((self.clock.transfer(leg) + self.costs.of_round(len(data)).forward).max())
        self.clock.advance(simulated if seconds is None else seconds)

    def _tell(self, ids: Tensor, h: Tensors, present: Tensor | None) -> None:
        """Let an audit hear the last embeddings (B, D_m) of records ``ids``."""
        if self.tap is None:
            return
        for party, own in enumerate(h):
            held = torch.ones(len(ids), dtype=torch.bool) if present is None else present[ids, party].cpu()
            self.tap.sent(Message("final embeddings", "server", (party,), (own[held],)), ids[held])

    def owners(self) -> Iterator[nn.Module]:
        *parties, server = super().owners()
        yield from (nn.ModuleList(pair) for pair in zip(parties, self.heads, strict=True))
        yield server

    def protection(self, uploads: int) -> str | None:
        return "none: the server reads every embedding, and the clusters of a party's gradients are nearly the classes"


def clusters_of(table: RecordTable, classes: int) -> Tensor:
    """(N, M) int64, the cluster of each record among a party's gradients; ``NONE``: the party has no gradient of it."""
    from sklearn.cluster import KMeans  # 1 s, where it is used

    columns = []
    for gradients in torch.split(table.rows.cpu().double(), list(table.widths), dim=1):
        labels = torch.full((len(gradients),), NONE)
        received = gradients.any(1)
        if int(received.sum()) >= classes:
            found = KMeans(classes, n_init=10, random_state=0).fit(gradients[received].numpy()).labels_
            labels[received] = torch.from_numpy(found).long()
        columns.append(labels)
    return torch.stack(columns, 1).to(table.rows.device)


def local_loss(logits: Tensor, labels: Tensor, there: Tensor, confidence: float) -> Tensor:
    """The mean loss over the records with a label, or with a confident prediction in its place.

    Args:
        logits: (B, C), of one party.
        labels: (B,) int64, ``NONE``: there is no label.
        there: (B,) bool, the records that the party holds.
        confidence: the smallest probability of a prediction that is learnt from.
    """
    probability, predicted = logits.detach().softmax(1).max(1)
    guessed = torch.where(there & (probability >= confidence), predicted, NONE)
    targets = torch.where(labels == NONE, guessed, labels)
    total = cross_entropy(logits, targets, ignore_index=NONE, reduction="sum")
    return total / (targets != NONE).sum().clamp(min=1)
