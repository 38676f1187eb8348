"""The process of one party: what is the same for all protocols, and its part of evaluations."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from lightning_vfl.aggregators.clear import EMBEDDINGS
from lightning_vfl.errors import ConfigurationError
from lightning_vfl.federation.at_server import metrics_of
from lightning_vfl.federation.calls import numbers
from lightning_vfl.federation.frames import Frame
from lightning_vfl.federation.hub import Key
from lightning_vfl.federation.letters import Seals, for_receiver, read, written
from lightning_vfl.federation.link import Link
from lightning_vfl.federation.turns import at_of
from lightning_vfl.networks.halved_top import ACTIVATIONS
from lightning_vfl.objectives import labels_of
from lightning_vfl.protocols.place import Place, nothing
from lightning_vfl.protocols.scores import Attendance as TookPart
from lightning_vfl.protocols.step import Step
from lightning_vfl.rounds.plan import RoundPlan
from lightning_vfl.types import Roll, RoundNames, Seat, Stage, VerticalBatch, mask_of
from lightning_vfl.wire import Message, PartyView


@dataclass(frozen=True, eq=False)
class Evaluation:
    """A round of evaluation, as a party takes part in it.

    Args:
        names: of the round.
        roll: the parties of a round without faults.
        key: its first turn.
        called: (M,) bool, the parties that are called.
        plan: of the round, if faults are played from the recipe.
    """

    names: RoundNames
    roll: Roll
    key: Key
    called: Tensor
    plan: RoundPlan | None


class AtParty(Place):
    """One party's part of a protocol.

    Args:
        link: the line to the server.
        party: the number of the party.
        seals: channels to the other parties.
        injected: faults are played from the recipe; else the server says who is called.
    """

    def __init__(self, link: Link, party: int, seals: Seals, injected: bool) -> None:
        self.seat = Seat(party)
        self.link = link
        self.party = party
        self.seals = seals
        self.injected = injected
        self.least_members = 1
        self._joins = 0  # how often a party had joined when this one last asked for keys
        self.predicted = 0  # batches of the evaluation that is going on, if this party has the predictions

    def is_called(self, module: Any, key: Key) -> bool:
        """Whether this party takes part in the round; asks the server where that is not known."""
        standing = self.link.standing
        if key.at < standing.at:  # while the party was away, the others went on
            return False
        if self.party in standing.called and standing.enough:
            return True
        return self.link.ask(Key(key.at, -1), "ready") is not None

    def refuse_few(self, called: Tensor) -> None:
        """Refuse a round in which this party would be summed with fewer parties than it allows.

        Raises:
            ConfigurationError: naming both numbers.
        """
        if len(numbers(called)) < self.least_members:
            raise ConfigurationError(
                f"the server calls {len(numbers(called))} parties, and seat.yaml of this party has least_members: "
                f"{self.least_members}; wait until more parties are there, or lower least_members"
            )

    def tell_server(
        self, module: Any, message: Message, rows: int, key: Key, labels: Tensor | None = None, **more: Any
    ) -> Frame | None:
        """Send a message to the server; ``more``: further lines of its header. None: the round is closed."""
        letter, tensors, bits = written(message, self.bits(module, rows))
        header: dict[str, Any] = {"part": "upload", "message": letter, **more}
        if labels is not None:
            header["labels"], tensors, bits = True, [*tensors, labels], [*bits, None]
        return self.link.ask(key, "tell", header, tensors, bits)

    def tell_peers(
        self,
        module: Any,
        message: Message,
        view: PartyView,
        key: Key,
        header: Mapping[str, Any],
        labels: Tensor | None = None,
    ) -> tuple[list[Message], Frame] | None:
        """Send a message to peers; everybody's messages for this party, its own included."""
        if self.link.standing.joins != self._joins and self.seals.fetch is not None:
            self._joins = self.link.standing.joins
            self.seals.learn(self.seals.fetch())
        m, bits = module.roster.parties, self.bits(module, view.rows.total)
        receivers = range(m) if message.receivers is None else message.receivers
        called = [party for party in receivers if view.called[party] or self.injected]
        sealed = self.seals.seal(message, m, called, bits) if message.senders else {}
        letter = written(replace(message, pieces=(), alongside=None)).letter
        tensors = [*sealed.values()] if labels is None else [labels, *sealed.values()]
        about = {**header, "sealed": list(sealed), "message": letter, "labels": labels is not None}
        frame = self.link.ask(key, "tell", about, tensors)
        if frame is None:
            return None
        if frame.header.get("final"):
            return [], frame
        heard = self.opened(module, frame)
        included = frame.header.get("heard", {}).get("included")
        if message.senders and self.party in receivers and (included is None or self.party in included):
            heard.append(for_receiver(message, self.party, m))
        return sorted(heard, key=lambda one: one.senders), frame

    def opened(self, module: Any, frame: Frame) -> list[Message]:
        """What other parties have sealed for this one, in an answer; a message of the server's own comes after it."""
        senders = frame.header.get("relayed", ())
        own = int(frame.header.get("message", {}).get("pieces", 0))
        if len(senders) + own != len(frame.tensors):
            raise ConfigurationError(
                f"the server relays {len(frame.tensors)} messages of {len(senders)} parties; check who runs the server"
            )
        return [self.seals.open(s, piece, module.seed) for s, piece in zip(senders, frame.tensors, strict=False)]

    def answer(self, module: Any, frame: Frame | None) -> Message | None:
        """The server's last message of a round, without pieces if it has none; None: the round is closed."""
        if frame is None:
            return None
        if "message" not in frame.header:
            return Message("nothing", "parties", (), frame.tensors)
        return read(dict(frame.header["message"]), iter(frame.tensors), module.seed, self.link.agreed)

    def own_labels(self, module: Any, batch: VerticalBatch) -> Tensor | None:
        """The labels of the batch, if this party holds them and the round needs them."""
        if module.roster.active != self.party or module.stage == Stage.PREDICT or module.labels_stay:
            return None
        return labels_of(batch)

    def bits(self, module: Any, rows: int) -> Mapping[str, int]:
        """By kind, the size of an integer on the wire, in a round with so many rows."""
        return {leg.kind: leg.bits for leg in module.costs.legs(rows)}

    def refuse_absurd(
        self,
        what: str,
        numbers: Sequence[Tensor],
        shapes: Sequence[tuple[int, ...]],
        module: Any,
        who: str = "the server",
    ) -> tuple[Tensor, ...]:
        """What the server or another party has sent: gradients, embeddings, or activations at the cut of a top.

        A precision that scales losses gives infinite gradients on purpose, so that their values are not compared there.

        Raises:
            ConfigurationError: for other shapes, and numbers that are not finite or above ``limits.value``.
        """
        most = self.link.agreed.limits.value
        if [tuple(one.shape) for one in numbers] != [*shapes] or not all(one.is_floating_point() for one in numbers):
            raise ConfigurationError(f"{who} has sent no {what} of shapes {shapes}; check who runs {who}")
        scaled = getattr(module.trainer.precision_plugin, "scaler", None) is not None
        if not scaled and not all(bool((one.abs() <= most).all()) for one in numbers):
            raise ConfigurationError(
                f"{who} has sent {what} that are not finite or larger than {most:g}, which is limits.value of "
                f"federation.yaml; lower the learning rate, or check who runs {who}"
            )
        return tuple(numbers)

    def has_last_half(self, module: Any) -> bool:
        """Whether this party has the top, or its half behind the cut, and with it the predictions."""
        return bool(module.labels_stay and module.roster.active == self.party)

    def crossed(self, module: Any, message: Message, rows: int) -> Tensor:
        """(B, cut), what the server has sent over the cut of a top.

        Raises:
            ConfigurationError: for anything else.
        """
        pieces = message.pieces[:1] if message.kind == ACTIVATIONS else ()
        (crossing,) = self.refuse_absurd("activations at the cut", pieces, [(rows, module.cut_width)], module)
        return crossing

    # ---- evaluation

    def evaluate(self, module: Any, batch: VerticalBatch, turn: Evaluation) -> Message | None:
        """Take part in a round of evaluation; the server's answer. None: the round is closed.

        By default, the party sends its embeddings in the clear.
        """
        self.refuse_few(turn.called)
        with torch.no_grad():
            embedding = module.bottoms.one(self.party, batch.features[self.party])
        message = Message(EMBEDDINGS, "server", (self.party,), (embedding,), round=turn.names)
        labels = self.own_labels(module, batch)
        return self.answer(module, self.tell_server(module, message, len(embedding), turn.key, labels))

    def miss(self, module: Any, batch: VerticalBatch, names: RoundNames) -> None:
        """Note a round of evaluation for which this party was not called; default: nothing."""
        return

    def output(self, module: Any, batch: VerticalBatch, names: RoundNames, roll: Roll) -> Tensor:
        """Take part in a round of evaluation, again if the server has lost it with another party."""
        found = None
        if self.injected:
            plan = RoundPlan(roll, roll.called, (roll.called,), roll.called, 0.0, False)
            if bool(roll.called[self.party]) or module.aggregator.opening is not None:
                at = at_of(module, names, self.evaluated)
                found = self.evaluate(module, batch, Evaluation(names, roll, Key(at, 0), roll.called, plan))
        else:
            lost = -1
            while found is None and self._retries(module, names) > lost:
                lost = self._retries(module, names)
                at = at_of(module, names, self.evaluated + lost)
                if not self.is_called(module, Key(at, 0)):
                    self.miss(module, batch, names)
                else:
                    begun = self.link.standing.counts.get(str(names.stage), 0) - (self.link.standing.at == at)
                    names = names._replace(round=begun)  # the server's number: this party may have missed some
                    module.books.rounds[str(names.stage)] = begun + 1
                    called = mask_of(self.link.standing.called, module.roster.parties)
                    found = self.evaluate(module, batch, Evaluation(names, roll, Key(at, 0), called, None))
        self.evaluated += 1
        if found is not None and self.has_last_half(module):
            return self._predict(module, batch, names, found)
        if found is None or not self.tells_predictions or names.stage != Stage.PREDICT:
            return nothing()
        rows = len(batch.record_ids)
        values, *more = found.pieces
        self._note_parties(module, len(values), rows, more)
        return values

    def _predict(self, module: Any, batch: VerticalBatch, names: RoundNames, found: Message) -> Tensor:
        """The output of the last half of a top, which this party has."""
        rows = len(batch.record_ids)
        crossing = self.crossed(module, found, rows)
        self.predicted += 1
        if names.stage == Stage.PREDICT:
            self._note_parties(module, rows, rows, found.pieces[1:])
        output: Tensor = module.behind_cut(crossing, batch, names)
        return output

    @staticmethod
    def _note_parties(module: Any, predictions: int, rows: int, more: Sequence[Tensor]) -> None:
        """Note who took part in the predictions, if the server has told it."""
        if predictions != rows or any(one.shape != (rows, module.roster.parties) for one in more):
            raise ConfigurationError(
                f"the server has told {predictions} predictions of {rows} records; check who runs the server"
            )
        parties = more[0].bool() if more else None
        module.attendance = None if parties is None else TookPart(parties, module.answers(parties))

    def _retries(self, module: Any, names: RoundNames) -> int:
        """How many batches of this evaluation the server has lost and evaluated again."""
        here, last = at_of(module, names, 0), self.link.standing.at
        return self.link.standing.retries if (here.round, here.stage) == (last.round, last.stage) else 0

    def share_metrics(self, module: Any, split: str) -> None:
        """Log the metrics that the server has found; a party that has the predictions tells the server its own."""
        names = RoundNames(module.seed, module.stage, 0)
        at = at_of(module, names, self.evaluated + self._retries(module, names))
        self.evaluated = 0
        if self.has_last_half(module):
            predicted, self.predicted = self.predicted, 0
            self.link.ask(Key(at, 0), "metrics", {"metrics": metrics_of(module, split), "batches": predicted})
            return
        # of an evaluation that this party has missed, the answer has the latest metrics: they are asked for once
        if at >= self.link.standing.at or not self.link.metrics:
            self.link.ask(Key(at, 0), "metrics")
        module.log_dict({name: torch.tensor(value) for name, value in self.link.metrics.items()})


def nothing_learnt(module: Any) -> Step:
    """A step of other processes: it counts, and changes nothing here."""
    zero = torch.stack([parameter.sum() for parameter in module.parameters()]).sum() * 0.0
    return Step(zero, (), withheld=(module,))
