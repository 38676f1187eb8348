"""The process of one party: what is the same for all protocols, and its part of evaluations."""

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any, Literal

import torch
from torch import Tensor

from lightning_vfl.aggregators.clear import EMBEDDINGS
from lightning_vfl.errors import ConfigurationError
from lightning_vfl.federation.at_server import metrics_of
from lightning_vfl.federation.frames import Frame
from lightning_vfl.federation.hub import At, Key
from lightning_vfl.federation.letters import Seals, enclosed, for_receiver, message_of
from lightning_vfl.federation.link import Link, RoundClosed
from lightning_vfl.federation.turns import at_of, plan_of
from lightning_vfl.networks.halved_top import ACTIVATIONS
from lightning_vfl.objectives import labels_of
from lightning_vfl.protocols.checks import scales_losses
from lightning_vfl.protocols.place import Place, nothing
from lightning_vfl.protocols.scores import Attendance as TookPart
from lightning_vfl.protocols.step import Step
from lightning_vfl.rounds.plan import RoundPlan
from lightning_vfl.types import Parties, Roll, RoundNames, Seat, Shape, Stage, Tensors, VerticalBatch, mask_of
from lightning_vfl.wire import Message, PartyView


@dataclass(frozen=True, eq=False)
class Evaluation:
    """A round of evaluation, as a party takes part in it.

    Args:
        names: of the round.
        roll: the parties of a round without faults.
        at: where the round is.
        called: (M,) bool, the parties that are called.
    """

    names: RoundNames
    roll: Roll
    at: At
    called: Tensor


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

    def called(self, module: Any, at: At, planned: Tensor | None = None) -> Tensor | None:
        """(M,) bool, the parties that are called in a round; None: this party is not.

        Args:
            module: the protocol.
            at: the round.
            planned: the parties, if faults are played from the recipe; None: everybody.

        Raises:
            ConfigurationError: if this party would be summed with fewer parties than it allows.
        """
        if self.injected:
            called = module.roster.everybody if planned is None else planned
        elif self._is_called(at):
            called = mask_of(self.link.standing.called, module.roster.parties)
        else:
            return None
        if int(called.sum()) < self.least_members:
            raise ConfigurationError(
                f"the server calls {int(called.sum())} parties, and seat.yaml of this party has least_members: "
                f"{self.least_members}; wait until more parties are there, or lower least_members"
            )
        return called

    def _is_called(self, at: At) -> bool:
        """Whether the server calls this party; asks it where that is not known."""
        standing = self.link.standing
        if at < standing.at:  # while the party was away, the others went on
            return False
        if self.party in standing.called and standing.enough:
            return True
        return self.link.ask(Key(at, -1), "ready") is not None

    def told(self, module: Any) -> RoundPlan | None:
        """What has become of the round, as the server has told it; None: it has told nothing."""
        told = self.link.told
        return None if told is None else plan_of(told, module.roster.parties)

    def message(
        self,
        kind: str,
        to: Literal["server", "peers"],
        piece: Tensor,
        names: RoundNames,
        receivers: Parties | None = None,
    ) -> Message:
        """A message of this party; axis 0 of a piece to peers is the receiver."""
        return Message(kind, to, (self.party,), (piece,), receivers=receivers, round=names)

    def ask(self, key: Key, say: str, *written: Any) -> Frame:
        """The server's answer to a request at a turn of a round; ``written``: its header, tensors and bits.

        Raises:
            RoundClosed: if the server has gone on without this party.
        """
        frame = self.link.ask(key, say, *written)
        if frame is None:
            raise RoundClosed
        return frame

    def tell_server(
        self, module: Any, message: Message, rows: int, key: Key, labels: Tensor | None = None, **more: Any
    ) -> Frame:
        """Send a message to the server; ``more``: further lines of its header."""
        header, tensors, bits = enclosed(message, {"part": "upload", **more}, self.bits(module, rows))
        if labels is not None:
            header["labels"] = True
            tensors = [*tensors, labels]
            bits = [*bits, None]
        return self.ask(key, "tell", header, tensors, bits)

    def tell_peers(
        self,
        module: Any,
        message: Message,
        view: PartyView,
        key: Key,
        labels: Tensor | None = None,
        part: str = "upload",
        **more: Any,
    ) -> tuple[list[Message], Frame]:
        """Send a message to peers; everybody's messages for this party, its own included, and the server's answer.

        ``part``: of the round; ``more``: further lines of the header.
        """
        if self.link.standing.joins != self._joins and self.seals.fetch is not None:
            self._joins = self.link.standing.joins
            self.seals.learn(self.seals.fetch())
        m = module.roster.parties
        bits = self.bits(module, view.rows.total)
        receivers = range(m) if message.receivers is None else message.receivers
        called = [party for party in receivers if view.called[party] or self.injected]
        sealed = self.seals.seal(message, m, called, bits) if message.senders else {}
        own = [] if labels is None else [labels]
        header = {"part": part, **more, "sealed": list(sealed), "labels": labels is not None}
        header, _, _ = enclosed(replace(message, pieces=(), alongside=None), header)
        frame = self.ask(key, "tell", header, [*own, *sealed.values()])
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

    def answer(self, module: Any, frame: Frame) -> Message:
        """The server's last message of a round, without pieces if it has none."""
        if "message" not in frame.header:
            return Message("nothing", "parties", (), frame.tensors)
        return message_of(frame, module.seed, self.link.agreed)

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
        shapes: Sequence[Shape],
        module: Any,
        who: str = "the server",
    ) -> Tensors:
        """What the server or another party has sent: gradients, embeddings, or activations at the cut of a top.

        A precision that scales losses gives infinite gradients on purpose, so that their values are not compared there.

        Raises:
            ConfigurationError: for other shapes, and numbers that are not finite or above ``limits.value``.
        """
        most = self.link.agreed.limits.value
        if [tuple(one.shape) for one in numbers] != [*shapes] or not all(one.is_floating_point() for one in numbers):
            raise ConfigurationError(f"{who} has sent no {what} of shapes {shapes}; check who runs {who}")
        if not scales_losses(module.trainer) and not all(bool((one.abs() <= most).all()) for one in numbers):
            raise ConfigurationError(
                f"{who} has sent {what} that are not finite or larger than {most:g}, which is limits.value of "
                f"federation.yaml; lower the learning rate, or check who runs {who}"
            )
        return tuple(numbers)

    def opened_piece(self, module: Any, message: Message, shape: Sequence[int]) -> Tensor:
        """The one tensor, of this shape, that a party has sealed for this one."""
        who = self.link.agreed.party(message.senders[0])
        (piece,) = self.refuse_absurd(message.kind, message.pieces, [(1, *shape)], module, who)
        return piece[0].to(module.device)

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
        """Take part in a round of evaluation; the server's answer. None: it asks for nothing of this party.

        By default, the party sends its embeddings in the clear.
        """
        if self.injected and not bool(turn.roll.included[self.party]):
            return None
        with torch.no_grad():
            embedding = module.bottoms.one(self.party, batch.features[self.party])
        message = self.message(EMBEDDINGS, "server", embedding, turn.names)
        labels = self.own_labels(module, batch)
        return self.answer(module, self.tell_server(module, message, len(embedding), Key(turn.at, 0), labels))

    def miss(self, module: Any, batch: VerticalBatch, names: RoundNames) -> None:
        """Note a round of evaluation for which this party was not called; default: nothing."""
        return

    def output(self, module: Any, batch: VerticalBatch, names: RoundNames, roll: Roll) -> Tensor:
        """Take part in a round of evaluation, again if the server has lost it with another party."""
        found = None
        lost = -1
        while found is None and self._retries(module, names) > lost:
            lost = self._retries(module, names)
            if self.injected and not bool(roll.called[self.party]) and module.aggregator.opening is None:
                break  # it was planned that this party does nothing
            at = at_of(module, names, self.evaluated + lost)
            called = self.called(module, at, roll.called)
            if called is None:
                self.miss(module, batch, names)
                continue
            if not self.injected:
                begun = self.link.standing.counts.get(str(names.stage), 0) - (self.link.standing.at == at)
                names = names._replace(round=begun)  # the server's number: this party may have missed some
                module.books.rounds[str(names.stage)] = begun + 1
            with suppress(RoundClosed):
                found = self.evaluate(module, batch, Evaluation(names, roll, at, called))
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
        here = at_of(module, names, 0)
        last = self.link.standing.at
        return self.link.standing.retries if (here.round, here.stage) == (last.round, last.stage) else 0

    def share_metrics(self, module: Any, split: str) -> None:
        """Log the metrics that the server has found; a party that has the predictions tells the server its own."""
        names = RoundNames(module.seed, module.stage, 0)
        at = at_of(module, names, self.evaluated + self._retries(module, names))
        self.evaluated = 0
        if self.has_last_half(module):
            predicted = self.predicted
            self.predicted = 0
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


def join(
    kind: type[AtParty],
    link: Link,
    party: int,
    session: bytes,
    hello: Mapping[str, Any],
    injected: bool,
    sign: Callable[[bytes], bytes],
    check: Callable[[int, bytes, bytes], None],
) -> AtParty:
    """The place of a party, after the server has welcomed it.

    Args:
        kind: of the place, which follows from the protocol.
        link: to the server.
        party: the number of the party.
        session: bytes that belong to this federation.
        hello: what the server compares.
        injected: faults are played from the recipe.
        sign: signs this party's public key.
        check: raises an error for a public key that its party has not signed.

    Raises:
        ConfigurationError: if the server refuses this party, and for keys that somebody has replaced.
    """
    seals = Seals(party, session)
    seals.agreed = link.agreed

    def publics(header: Mapping[str, Any]) -> dict[int, bytes]:
        found = {}
        for number, (public, signature) in header.get("publics", {}).items():
            found[int(number)] = bytes.fromhex(public)
            check(int(number), found[int(number)], bytes.fromhex(signature))
        if found.get(party, seals.pair.public) != seals.pair.public:
            raise ConfigurationError("the server has told another key for sealed messages than this party's own")
        return found

    def fetch() -> dict[int, bytes]:
        return publics(link.knock("publics").header)

    public = seals.pair.public
    frame = link.knock("hello", {**hello, "public": [public.hex(), sign(public).hex()]})
    seals.learn(publics(frame.header))
    seals.fetch = fetch
    return kind(link, party, seals, injected)
