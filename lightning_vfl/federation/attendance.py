"""Who takes part in a round at the server: as it was planned, or as it turns out."""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, replace
from math import inf, isfinite, nan, prod
from time import monotonic
from types import MappingProxyType
from typing import Any, ClassVar

import torch
from torch import Tensor

from lightning_vfl.aggregators.clear import BYTE_BITS, EMBEDDINGS
from lightning_vfl.aggregators.secure.consent import SIGNED
from lightning_vfl.errors import ConfigurationError, MalformedMessage
from lightning_vfl.federation.agreed import Agreed
from lightning_vfl.federation.hub import At, Hub, Key, Request
from lightning_vfl.federation.letters import read
from lightning_vfl.federation.turns import numbers
from lightning_vfl.missing import MissingPolicy
from lightning_vfl.networks.halved_top import GRADIENTS
from lightning_vfl.rounds.plan import close_leg, rule_of
from lightning_vfl.types import Parties, Roll, RoundNames
from lightning_vfl.waiting import WaitingRule
from lightning_vfl.wire import Leg, Message

OUTPUTS = "outputs"  # of the parties' heads, in an evaluation
RELAYED = (SIGNED,)  # kinds that the server hands on unchanged to the parties that answer


class Attendance(ABC):
    """Who takes part in one round at the server.

    Args:
        hub: the parties' requests.
        at: where the round is.
        form: what messages are compared with.
        roll: the role of each party, as far as it is known.
        needed: how many parties answer the legs after the first.

    Attributes:
        everybody: (M,) bool, the parties that exchange messages at the beginning of the round.
        uploading: (M,) bool, the parties whose first upload is awaited.
        accepted: by party, the request that was compared with the form of the leg that was awaited last. When it is
            read, a party may have hung up or made another call, so that the desk has another request or none.

    Class data:
        tolerant: whether the training goes on if a party is gone.
    """

    tolerant: ClassVar[bool]
    everybody: Tensor
    uploading: Tensor
    accepted: Mapping[int, Request] = MappingProxyType({})

    def __init__(self, hub: Hub, at: At, form: "Form", roll: Roll, needed: int) -> None:
        self.hub = hub
        self.at = at
        self.form = form
        self.roll = roll
        self.needed = needed

    @abstractmethod
    def await_leg(self, turn: int, leg: Leg, asked: Tensor) -> Tensor:
        """(M,) bool, the parties whose message of a leg is ``accepted`` when its gate closes; waits until then."""

    @abstractmethod
    def include(self, arrived: Tensor) -> bool:
        """Settle who is in the round, after the first leg; False: the round is given up."""

    @abstractmethod
    def answering(self) -> Parties:
        """The parties that are asked for the legs after the first."""

    @abstractmethod
    def finish(self, responders: Tensor) -> bool:
        """Settle who has answered the last leg; False: the round is given up."""


class Planned(Attendance):
    """Faults are played from the recipe: every process knows who is where."""

    tolerant = False

    def __init__(self, hub: Hub, at: At, form: "Form", roll: Roll, needed: int) -> None:
        super().__init__(hub, at, form, roll, needed)
        self.everybody = torch.ones_like(roll.called)
        self.uploading = roll.included

    def await_leg(self, turn: int, leg: Leg, asked: Tensor) -> Tensor:
        wanted = numbers(asked)
        key = Key(self.at, turn)
        here: dict[int, Request] = {}

        def all_here() -> bool | None:
            here.update({party: r for party in wanted if (r := self.hub.request(party, key)) is not None})
            lacking = [party for party in wanted if party not in here]
            if lost := [party for party in lacking if not self.hub.present(party)]:
                raise ConfigurationError(
                    f"{self.hub.agreed.party(lost[0])} has gone while faults are injected; run without --inject to go "
                    "on without it"
                )
            return None if lacking else True

        self.hub.wait(all_here, leg=leg.kind)
        for party, request in here.items():
            if (wrong := self.form.misfit(request, leg)) is not None:
                raise ConfigurationError(f"{self.hub.agreed.party(party)} sent {wrong}; all must run the same recipe")
        self.accepted = here
        return asked

    def include(self, arrived: Tensor) -> bool:
        return True

    def answering(self) -> Parties:
        return numbers(self.roll.responders)[: self.needed]

    def finish(self, responders: Tensor) -> bool:
        return True


class Seen(Attendance):
    """What happens is met as it comes, by the waiting rule and the policy of the recipe.

    A party whose connection has ended is not waited for. A message that does not have the form of its leg is refused,
    and its sender counts as one that is not there.

    Args:
        hub, at, form, roll, needed: as in ``Attendance``.
        policy: for missing uploads.
        waiting: closes the legs; None: who is alive is waited for.
    """

    tolerant = True

    def __init__(
        self,
        hub: Hub,
        at: At,
        form: "Form",
        roll: Roll,
        needed: int,
        policy: MissingPolicy,
        waiting: WaitingRule | None,
    ) -> None:
        super().__init__(hub, at, form, roll, needed)
        self.policy = policy
        self.waiting = waiting
        self.everybody = self.uploading = roll.called
        self._refused: set[int] = set()

    def await_leg(self, turn: int, leg: Leg, asked: Tensor) -> Tensor:
        wanted = numbers(asked)
        key = Key(self.at, turn)
        began = monotonic()
        closing = [inf]
        here: dict[int, Request] = {}
        fitting: set[Request] = set()  # a request is looked at once, and not after every other one that comes

        def fits(request: Request) -> bool:
            if request not in fitting and self._fits(request, leg):
                fitting.add(request)
            return request in fitting

        def closed() -> Tensor | None:
            arrivals = [nan] * len(asked)
            now = monotonic() - began
            here.clear()
            for party in wanted:
                request = self.hub.request(party, key)
                if party in self._refused or (request is not None and not fits(request)):
                    continue
                if request is not None:
                    arrivals[party] = request.arrived - began
                    here[party] = request
                elif self.hub.stays(party):
                    arrivals[party] = inf
            pending = arrivals.count(inf)
            arrived = sum(map(isfinite, arrivals))
            if not pending and not arrived:
                return torch.zeros_like(asked)
            if self.waiting is None:
                return None if pending else torch.tensor(arrivals).isfinite()
            rule = rule_of(leg, self.waiting)
            closing[0] = inf if rule.patience is None else rule.patience
            if pending and rule.waits_on(arrived, self.needed) and now < closing[0]:
                return None
            told = torch.tensor(arrivals, dtype=torch.float64)
            who, closing[0] = close_leg(leg, self.waiting, told, self.needed, waits=True)
            return who if closing[0] <= now else None

        while True:
            who = self.hub.wait(closed, lambda: began + closing[0] if isfinite(closing[0]) else None, leg.kind)
            if who is not None:
                self.accepted = here
                return who

    def include(self, arrived: Tensor) -> bool:
        module = self.form.module
        called = self.roll.called
        nobody = torch.zeros_like(arrived)
        included = module.wire.takes_part(called, arrived, module.roster)
        filled = self.policy.plan(torch.ones_like(called), included)
        active = module.roster.active
        needs_holder = self.form.labelled is not None or module.labels_stay
        unlabelled = needs_holder and active is not None and not bool(included[active])
        few = int(included.sum()) < max(self.needed, 1)  # so few cannot answer, and may not be asked to
        if filled is None or unlabelled or few:
            self.roll = Roll(called, nobody, nobody, nobody if filled is None else filled)
            return False
        self.roll = Roll(called, included, included, filled)
        return True

    def answering(self) -> Parties:
        return numbers(self.roll.included)

    def finish(self, responders: Tensor) -> bool:
        enough = int(responders.sum()) >= self.needed
        included = self.roll.included if enough else torch.zeros_like(responders)
        self.roll = replace(self.roll, included=included, responders=responders)
        return enough

    def _fits(self, request: Request, leg: Leg) -> bool:
        """Whether a message has the form of its leg; tells a sender whose message has not."""
        wrong = self.form.misfit(request, leg)
        if wrong is not None:
            self._refused.add(request.party)
            self.hub.refuse(request, wrong)
        return wrong is None


@dataclass(frozen=True)
class Form:
    """The form of the parties' messages in a round.

    Args:
        module: the protocol.
        agreed: of the federation.
        rows: of the batch.
        clear: the server reads embeddings.
        names: of the round; None: a message may name any round.
        labelled: the kind of the message with which the party that holds the labels sends them; None: the server has
            them, or the round needs none.
    """

    module: Any
    agreed: Agreed
    rows: int
    clear: bool
    names: RoundNames | None = None
    labelled: str | None = None

    def misfit(self, request: Request, leg: Leg) -> str | None:
        """What a message is instead of what its leg has planned; None: it fits."""
        header = request.frame.header
        party = request.party
        letter = header.get("message")
        part = "cut" if leg.kind == GRADIENTS else "upload"
        if header.get("part") != part or not isinstance(letter, dict):
            return f"'{request.say}', '{leg.kind}' was planned"
        told = letter["kind"], letter["to"], letter["senders"]
        if told != (leg.kind, leg.to, [party]):
            return f"'{told[0]}' to {told[1]} of parties {told[2]}, '{leg.kind}' to {leg.to} was planned"
        if letter["relayed"] != (leg.kind in RELAYED):
            return f"'{leg.kind}' with relayed: {letter['relayed']}"
        if self.names is not None and letter["round"] not in (None, [str(self.names.stage), self.names.round]):
            return f"'{leg.kind}' of round {letter['round']}, this is {self.names.round} of the {self.names.stage}"
        rest = iter(request.frame.tensors)
        try:
            read(letter, rest, 0, self.agreed)
        except MalformedMessage as error:
            return str(error)
        due = self.labelled == leg.kind and party == self.module.roster.active
        if due != (header.get("labels") is True):
            return f"'{leg.kind}' {'without' if due else 'with'} labels"
        wrong = self._wrong_labels(next(rest, None)) if due else None
        if wrong is not None:
            return wrong
        if leg.to != "server":  # sealed: the receivers check it
            listed = "sealed" in header and request.sealed is not None
            return None if listed else f"'{leg.kind}' without the list of its receivers"
        if letter["pieces"] != 1 or not request.frame.tensors:
            return f"{letter['pieces']} pieces, one was planned"
        return self._wrong_piece(request, leg)

    def _wrong_piece(self, request: Request, leg: Leg) -> str | None:
        party = request.party
        piece = request.frame.tensors[0]
        elements = int(leg.elements[party])
        at_cut = leg.kind == GRADIENTS
        clear = self.clear or at_cut  # gradients at the cut are never hidden from the server
        width = self.module.top.cut if at_cut else self.module.embedding_widths[party]
        if leg.kind == OUTPUTS:
            width = elements // self.rows
        if clear and leg.bits == BYTE_BITS:  # compressed: the numbers that it stands for are compared
            if request.decoded is None:
                try:
                    message = Message(leg.kind, "server", (party,), (piece,))
                    (request.decoded,) = self.module.sides.server.read(message, {party: width}).pieces
                except MalformedMessage as error:
                    return str(error)
            piece = request.decoded
            elements = self.rows * width
        shape = tuple(piece.shape)
        if clear and not piece.is_floating_point():
            return f"'{leg.kind}' of {piece.dtype}, real numbers were planned"
        exact = clear and leg.kind in (EMBEDDINGS, GRADIENTS, OUTPUTS) and shape != (elements // width, width)
        if prod(shape) != elements or exact:
            due = (elements // width, width) if exact else f"{elements} numbers"
            return f"'{leg.kind}' of shape {shape}, {due} was planned"
        if not clear:
            return None
        own = next((p.dtype for p in self.module.top.parameters()), piece.dtype)
        mixed = "mixed" in str(self.module.trainer.precision) and piece.dtype != torch.float64
        if piece.dtype != own and not mixed:
            return f"'{leg.kind}' of {piece.dtype}, {own} was planned"
        return absurd(piece, leg.kind, self.agreed.limits.value)

    def _wrong_labels(self, labels: Tensor | None) -> str | None:
        """What is wrong with the labels of the party that holds them."""
        targets = self.module.objective.targets
        due = (self.rows,) if targets == 1 else (self.rows, targets)
        if labels is None or tuple(labels.shape) != due:
            return f"labels of shape {None if labels is None else tuple(labels.shape)}, {due} was planned"
        if labels.is_floating_point():
            return absurd(labels, "labels", self.agreed.limits.value)
        classes = self.module.hparams.get("num_classes")
        if classes is not None and len(labels) and not 0 <= int(labels.min()) <= int(labels.max()) < max(classes, 2):
            return f"labels that are no classes from 0 to {classes - 1}"
        return None


def absurd(numbers: Tensor, kind: str, most: float) -> str | None:
    """What is wrong with real numbers; None: they are finite, and none is larger than ``most``."""
    if bool((numbers.abs() <= most).all()):  # False for NaN
        return None
    if not bool(torch.isfinite(numbers).all()):
        return f"'{kind}' with NaN or infinite numbers"
    return (
        f"'{kind}' with a number of {float(numbers.abs().max()):.3g}, limits.value of federation.yaml allows {most:g}"
    )
