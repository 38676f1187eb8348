"""The server's process: what is the same for all protocols, and its part of evaluations."""

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, ClassVar

import torch
from lightning.pytorch.utilities import rank_zero_warn
from torch import Tensor

from lightning_vfl.errors import ConfigurationError, MalformedMessage
from lightning_vfl.federation.attendance import Attendance, Form, Planned, Seen
from lightning_vfl.federation.calls import Calls
from lightning_vfl.federation.collecting import Collector, Uploads
from lightning_vfl.federation.frames import pack
from lightning_vfl.federation.hub import At, Hub, Key, Request
from lightning_vfl.federation.letters import enclosed
from lightning_vfl.federation.turns import at_of, clear_leg, numbers, told_plan, turns_of
from lightning_vfl.missing import Exclude, MissingPolicy
from lightning_vfl.networks.halved_top import ACTIVATIONS
from lightning_vfl.objectives import predictions
from lightning_vfl.protocols.accounts.charging import charge
from lightning_vfl.protocols.place import Place, nothing
from lightning_vfl.protocols.scores import Attendance as TookPart
from lightning_vfl.rounds.exchange import decoded
from lightning_vfl.rounds.plan import RoundPlan
from lightning_vfl.types import Roll, RoundNames, Seat, Stage, Tensors, VerticalBatch, joint_rows, mask_of, over_rows
from lightning_vfl.wire import Aggregate, Leg, Message, ServerView

if TYPE_CHECKING:
    from lightning_vfl.federation.record import Record


class AtServer(Place):
    """The server's part of a protocol.

    Guarantee: with ``injected``, weights, books and virtual seconds are those of the simulation. Without, what happens
        is met by the waiting rule and the policy of the recipe, and the record is enough to repeat it.

    Args:
        hub: the parties' requests.
        injected: faults are played from the recipe; else what happens is met as it comes.
        reconnect: seconds to wait for parties without which no round is possible.
        record: keeps what has happened; None: nothing is kept.

    Class data:
        all_answer: every party answers every leg of a round whose faults are played; else as many as the wire needs.
    """

    seat = Seat(None)
    all_answer: ClassVar[bool] = False

    def __init__(self, hub: Hub, injected: bool, reconnect: float = 600.0, record: "Record | None" = None) -> None:
        self.hub = hub
        self.injected = injected
        self.record = record
        self.calls = Calls(hub, injected, reconnect)
        self.collector = Collector(self.calls)

    @abstractmethod
    def policy(self, module: Any) -> MissingPolicy:
        """The policy that says whether the parties that are there are enough for a round."""

    def refuses(self, module: Any, rounds: int) -> str | None:
        """Why a party cannot come back from a checkpoint with so many training rounds; None: it can, the default."""
        return None

    # ---- what every round needs

    def begin(
        self,
        module: Any,
        batch: VerticalBatch,
        names: RoundNames,
        at: At,
        planned: Roll | None = None,
        whole: bool = False,
    ) -> Attendance:
        """Begin a round; who takes part in it, and what the form of their messages is.

        Args:
            module: the protocol.
            batch: of the round.
            names: of the round.
            at: where the round is.
            planned: the roll, if faults are played from the recipe; None: everybody takes part.
            whole: no waiting rule closes a leg, as in evaluations.
        """
        policy = self.policy(module)
        self.calls.begin(module, at, policy)
        trains = names.stage == Stage.FIT
        unhurried = whole or not trains
        plain = unhurried and not module.protected_evaluation
        labelled = None
        if module.roster.active is not None and names.stage != Stage.PREDICT and not module.labels_stay:
            labelled = (clear_leg(module, batch) if plain else turns_of(module, batch)[0]).kind
        clear = module.wire.traits.visible or plain
        form = Form(module, self.hub.agreed, joint_rows(batch).total, clear, names, labelled)
        parties = self.hub.parties
        needed = module.wire.needed(parties)
        if self.injected:
            roll = planned or Roll.everyone(parties)
            return Planned(self.hub, at, form, roll, parties if self.all_answer else needed)
        nobody = mask_of([], parties)
        roll = Roll(mask_of(self.calls.called, parties), nobody, nobody, nobody)
        rule = None if unhurried else module.waiting
        return Seen(self.hub, at, form, roll, needed, policy if trains else Exclude(), rule)

    def note(self, names: RoundNames, plan: RoundPlan) -> None:
        """Write what has become of a round into the record."""
        if self.record is not None and not self.injected:
            self.record.add(names.round, plan)

    def decoded(
        self,
        module: Any,
        batch: VerticalBatch,
        names: RoundNames,
        uploads: Uploads,
        policy: MissingPolicy,
        copies: int = 1,
    ) -> Aggregate | None:
        """The aggregate; None if the round is given up, also for a message that cannot be decoded.

        ``batch`` has so many ``copies`` of the records of which embeddings have come, see ``Subsets``.
        """
        if not uploads.messages:
            return None
        view = self.view(module, batch, names, uploads.roll)
        messages = list(uploads.messages)
        if copies > 1:  # pieces of masked messages have no rows
            messages = [repeated(message, copies) for message in messages]
        try:
            with torch.no_grad():
                aggregate = decoded(module.sides.server, policy, messages, view)
        except MalformedMessage as error:
            if self.injected:
                raise
            rank_zero_warn(f"round {names.round} is given up: {error}")
            return None
        module.enter_sum(names.stage, uploads.roll.included_parties, batch)
        return aggregate

    def view(self, module: Any, batch: VerticalBatch, names: RoundNames, roll: Roll) -> ServerView:
        """What the server knows of a round when it decodes."""
        prepared = module.preparation
        rows = joint_rows(batch)
        records = prepared.count(names.stage)
        seen = batch.present if module.wire.traits.visible else None
        if module.aggregator.wire is None:
            module.refuse_uncounted(roll, seen)
        return ServerView(names, module.roster, rows, roll, module.embedding_widths, seen, records, prepared.agreed)

    # ---- evaluation

    def output(self, module: Any, batch: VerticalBatch, names: RoundNames, roll: Roll) -> Tensor:
        """Run a round of evaluation; a batch that is lost with a party is evaluated again.

        Raises:
            ConfigurationError: if parties that are needed do not come back, and for messages that cannot be decoded.
        """
        if self.evaluated == 0:
            self.calls.retries = 0
        while True:
            at = at_of(module, names, self.evaluated + self.calls.retries)
            if module.protected_evaluation:
                module.enter_evaluation(batch, names, roll)
            attendance = self.begin(module, batch, names, at, roll)
            legs = self.evaluation_legs(module, batch)
            uploads = self.collector.collect(attendance, legs, opens=module.protected_evaluation)
            if module.protected_evaluation:
                charge(module, uploads.roll, uploads.roll.called, batch)
            if uploads.messages or self.injected:
                break
            self.calls.retries += 1  # a party was lost on the way: those that are there evaluate the batch again
            self.calls.call_next(at, numbers(uploads.roll.called))
            self.calls.end(at, (), told_plan(uploads.plan(skipped=True, legs=1)))
            names = module.next_round()
        self.evaluated += 1
        output = self.joined_output(module, batch, names, uploads)
        self.labels = uploads.labels
        included = uploads.roll.included_parties
        predicts = names.stage == Stage.PREDICT
        if predicts:  # the file of predictions names those that took part
            some_away = not {*roll.included_parties} <= {*included} or batch.present is not None
            parties = uploads.roll.holders(output, batch.present)
            module.attendance = TookPart(parties, module.answers(parties)) if some_away else None
        self.calls.call_next(at, included)
        header = {**self.calls.standing("go"), "final": True}
        for party in included:
            if module.labels_stay and party == module.roster.active:
                self.answer(party, at, uploads, *enclosed(to_label_holder(module, output, names), header))
            else:
                told = self._predictions_for(module, party, output) if predicts and self.tells_predictions else ()
                self.answer(party, at, uploads, header, told)
        self.calls.end(at, included, told_plan(uploads.plan(skipped=False)))
        return nothing() if module.labels_stay else output

    def answer(
        self,
        party: int,
        at: At,
        uploads: Uploads,
        header: Mapping[str, Any],
        tensors: Sequence[Tensor] = (),
        bits: Sequence[int | None] | None = None,
    ) -> None:
        """Answer a party at the end of a round: it may be late with a leg that others have answered."""
        content = pack(header, tensors, bits)
        self.hub.put([(party, Key(at, turn), content) for turn in range(uploads.first, uploads.turn + 1)])

    def _predictions_for(self, module: Any, party: int, output: Tensor) -> list[Tensor]:
        """The predictions that a party is told, and who took part in them; nothing of records that it does not hold."""
        values: Tensor = predictions(module.objective, output)
        if module.attendance is None:
            return [values]
        parties: Tensor = module.attendance.parties
        own = parties[:, party]
        unknown = values.new_full((), torch.nan)
        values = torch.where(over_rows(own, values), values, unknown)
        return [values, (parties & own[:, None]).to(torch.uint8)]

    def evaluation_legs(self, module: Any, batch: VerticalBatch) -> Sequence[Leg]:
        """The legs of a round of evaluation."""
        return turns_of(module, batch) if module.protected_evaluation else (clear_leg(module, batch),)

    def joined_output(self, module: Any, batch: VerticalBatch, names: RoundNames, uploads: Uploads) -> Tensor:
        """The output for what has come in a round of evaluation."""
        columns = module.columns_from(uploads.roll)
        if module.protected_evaluation:
            aggregate = self.decoded(module, batch, names, uploads, Exclude())
            if aggregate is None:
                raise ConfigurationError(f"the {names.stage} cannot be decoded; the line above says why")
            output: Tensor = module.head(aggregate.value, columns)
            return output
        (message,) = uploads.messages
        h = embeddings_of(module, len(batch.record_ids), message.by_sender)
        output = module.output_of(h, uploads.roll, batch.present, columns)
        return output

    def share_metrics(self, module: Any, split: str) -> None:
        """Tell the parties the metrics of an evaluation, which the label holder has told if it has the predictions."""
        at = at_of(module, RoundNames(module.seed, module.stage, 0), self.evaluated + self.calls.retries)
        metrics = self._of_label_holder(module, at) if module.labels_stay else metrics_of(module, split)
        self.evaluated = 0
        self.calls.tell_metrics(at, metrics)

    def _of_label_holder(self, module: Any, at: At) -> Mapping[str, float]:
        """The metrics of an evaluation, from the party behind the cut; they are logged here too.

        Raises:
            ConfigurationError: if that party has gone, or has not predicted all batches.
        """
        active = module.roster.active
        who = f"{self.hub.agreed.party(active)}, which has the labels"

        def told() -> Request | bool | None:
            request = self.hub.request(active, Key(at, 0))
            return request or (None if self.hub.stays(active) else False)

        request = self.hub.wait(told)
        if not isinstance(request, Request):
            raise ConfigurationError(f"{who}, has gone with the metrics; start all processes again with --ckpt_path")
        header = request.frame.header
        if header.get("batches") != self.evaluated or "metrics" not in header:
            raise ConfigurationError(
                f"{who}, has predicted {header.get('batches')} of {self.evaluated} batches; start all processes again "
                "with --ckpt_path"
            )
        metrics: dict[str, float] = header["metrics"]
        module.log_dict({name: torch.tensor(value) for name, value in metrics.items()})
        return metrics


def embeddings_of(module: Any, rows: int, arrived: Mapping[int, Tensor]) -> Tensors:
    """The embeddings (B, D_m) of all parties; zeros for those of which none has ``arrived``."""
    like = next(iter(arrived.values()), torch.empty(0))
    widths = enumerate(module.embedding_widths)
    return tuple(arrived[m] if m in arrived else like.new_zeros((rows, width)) for m, width in widths)


def repeated(message: Message, copies: int) -> Message:
    """A message whose pieces have so many copies of their rows, one after the other."""
    return replace(message, pieces=tuple(piece.repeat(copies, 1) for piece in message.pieces))


def summed(answer: Message, copies: int) -> Message:
    """An answer to embeddings that were ``repeated``: the gradients of all copies of a row are summed."""
    return replace(answer, pieces=tuple(piece.reshape(copies, -1, piece.shape[1]).sum(0) for piece in answer.pieces))


def to_label_holder(module: Any, crossing: Tensor, names: RoundNames) -> Message:
    """What crosses the cut of a top in halves; in predictions with who took part, if somebody was away."""
    pieces = [crossing.detach()]
    if names.stage == Stage.PREDICT and module.attendance is not None:
        pieces.append(module.attendance.parties.to(torch.uint8))
    return Message(ACTIVATIONS, "parties", (), tuple(pieces), receivers=(module.roster.active,), round=names)


def metrics_of(module: Any, split: str) -> dict[str, float]:
    """The metrics of an evaluation in the process that has the predictions."""
    found = module.trainer.callback_metrics
    return {name: float(value) for name, value in found.items() if name.startswith(f"{split}/")}
