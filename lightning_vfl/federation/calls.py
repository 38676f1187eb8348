"""Who is called in the next round, and what parties are told about it with every answer."""

from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from time import monotonic
from typing import TYPE_CHECKING, Any

import torch
from lightning.pytorch.utilities import rank_zero_warn

from lightning_vfl.errors import ConfigurationError
from lightning_vfl.federation.frames import pack
from lightning_vfl.federation.hub import At, Hub, Key, Request
from lightning_vfl.federation.turns import told_plan
from lightning_vfl.missing import MissingPolicy
from lightning_vfl.rounds.plan import RoundPlan
from lightning_vfl.types import Parties, mask_of

if TYPE_CHECKING:
    from lightning_vfl.protocols.module import VFLModule


class Calls:
    """The server's book of who is called.

    A party is called in a round if it has learnt from the round before, or if it waited to come in when that round
    ended. A process that takes the place of one that was called has other keys, so it waits to come in too. Everybody
    is told with the answers of the round before, because masks depend on it.

    A party that comes back is told at once how far the others are. When it has come so far and asks again, its request
    waits for the next round, however many have gone by meanwhile: over a slow link it would else always ask too late.

    Args:
        hub: the parties' requests.
        injected: faults are played from the recipe, so that all processes know who is called.
        reconnect: seconds to wait for parties without which no round is possible.
    """

    def __init__(self, hub: Hub, injected: bool, reconnect: float) -> None:
        self.hub = hub
        self.injected = injected
        self.reconnect = reconnect
        self.called = frozenset(range(hub.parties))
        self.keyed: dict[str, Parties] = {}  # by stage: the parties that have the keys of its rounds
        self.retries = 0  # batches of the evaluation that is going on that were lost and are evaluated again
        self.metrics: Mapping[str, float] = {}  # of the latest evaluation
        self.joins: Callable[[], int] = lambda: 0  # how often a party has joined, with a new key for sealed messages
        self.enough = True  # whether the parties that are called can make a round; else they wait for others
        self._suffice: Callable[[], bool] = lambda: True
        self._counts: dict[str, int] = {}
        self.holds = True  # whether a party that asks too late waits for the next round
        self._told: dict[int, tuple[bytes, At]] = {}  # by party, its process, and how far it was told that others are
        self._begun = self.called  # the parties that are called in the round that has begun last
        self.last = At(0, 0, -1)

    # ---- a round

    def begin(self, module: "VFLModule", at: At, policy: MissingPolicy) -> None:
        """Begin a round: requests of earlier rounds are closed from now on.

        The parties that were told that they are called begin too, so the set is left as it was told, although some of
        them may have gone since. If they were told that they are too few, everybody waits here for others.

        Args:
            module: the protocol.
            at: the round.
            policy: says whether the parties that are there are enough.

        Raises:
            ConfigurationError: if parties that the round needs do not come back.
        """
        self.close(module, at)
        if self.injected:
            return
        self._suffice = lambda: self._can_make_a_round(module, policy)
        if not self.enough:
            self._await_enough(at)
        # for parties that do not know yet that they are called
        there = filter(self.hub.stays, self.called)
        self.hub.post_to_all(there, Key(at, -1), self.standing("go"))
        self._begun = self.called
        self.hub.close(at, self._closed)  # wakes those that have waited for this round

    def stand(self, module: "VFLModule", at: At) -> None:
        """From now on, parties are told that the server stands at this round."""
        self._counts = {str(stage): number for stage, number in module.books.rounds.items()}
        self.last = at

    def close(self, module: "VFLModule", at: At) -> None:
        """Answer all requests of rounds before this one: they are closed."""
        self.stand(module, at)
        self.hub.close(at, self._closed)

    @contextmanager
    def ending(
        self, at: At, plan: RoundPlan, answered: Collection[int], in_step: Collection[int] | None = None
    ) -> Iterator[dict[str, Any]]:
        """End a round: the block answers some parties, and then everybody else who waits is told what has become of it.

        The block is given the header of its answers.

        Args:
            at: the round.
            plan: what has become of it.
            answered: the parties that the block answers.
            in_step: the parties that need not wait to come in; None: those that were included.
        """
        self.call_next(at, plan.roll.included_parties if in_step is None else in_step)
        told = told_plan(plan)
        yield {**self.standing("go"), "plan": told}
        self.end(at, answered, told)

    def end(self, at: At, answered: Collection[int], plan: Mapping[str, Any]) -> None:
        """End a round for everybody who has no answer yet: parties that were late, or that wait to come in.

        Args:
            at: the round.
            answered: the parties that have an answer.
            plan: what has become of the round.
        """
        for party in range(self.hub.parties):
            waiting = self.hub.waiting(party)
            if party in answered or waiting is None:
                continue
            if waiting.key.at == at:
                self.hub.post(party, waiting.key, {**self.standing("closed"), "plan": plan})
            elif waiting.key.at > at and waiting.say == "ready" and self.enough and not self.injected:
                self.hub.post(party, waiting.key, self.standing("go"))
        self.hub.close(At(at.round, at.stage, at.batch + 1), self._closed)

    def call_next(self, at: At, learnt: Collection[int]) -> None:
        """Decide who is called in the round after this one; before the answers of this one are sent."""
        if self.injected:
            return
        stay = set(filter(self.hub.stays, range(self.hub.parties)))
        following = stay & {*learnt}
        for party in filter(self.hub.present, range(self.hub.parties)):
            waiting = self.hub.waiting(party)
            if waiting is not None and (waiting.say == "ready" or waiting.key.at >= at):
                following.add(party)
        fresh = following - (self.called & stay)
        self.called = frozenset(following)
        for party in fresh:
            self._admit(party)
        self.hub.call_upon(following)
        self.enough = self._suffice()

    # ---- what parties are told

    def standing(self, outcome: str) -> dict[str, Any]:
        """The header of an answer: ``go`` or ``closed``, and where the server stands."""
        told = {
            "at": list(self.last),
            "called": sorted(self.called),
            "enough": self.enough,
            "counts": self._counts,
            "keyed": self.keyed,
            "joins": self.joins(),
            "retries": self.retries,
        }
        return {"outcome": outcome, "standing": told}

    def tell_metrics(self, at: At, metrics: Mapping[str, float]) -> None:
        """Answer the parties' requests for the metrics of an evaluation."""
        self.last = at
        self.metrics = metrics
        for party in range(self.hub.parties):
            self.hub.post(party, Key(at, 0), {**self.standing("go"), "metrics": metrics})

    def _closed(self, request: Request) -> bytes | None:
        """The answer to a request of a round that is over; None: the request waits for the next round."""
        party = request.party
        process = self.hub.process(party)
        before, at = self._told.get(party, (None, self.last))
        follows = before == process and request.key.at >= at  # it has come as far as it was told
        awaited = party in self._begun and self.hub.stays(party)
        if request.say == "ready" and follows and self.holds and not (awaited or self.hub.over):
            return None
        self._told[party] = process, self.last
        header = self.standing("closed")
        if not self.hub.stays(party):  # another process of this party was called
            header["standing"]["called"] = sorted(self.called - {party})
        if request.say == "metrics":
            header["metrics"] = self.metrics
        return pack(header)

    # ---- who is there

    def _await_enough(self, at: At) -> None:
        """Wait until enough parties are there, and call those that wait for this round.

        Raises:
            ConfigurationError: if they do not come back.
        """

        def enough() -> bool | None:
            for party in range(self.hub.parties):
                waiting = self.hub.waiting(party)
                if not self.hub.stays(party):
                    self.called -= {party}
                waits = waiting is not None and waiting.say == "ready" and waiting.key.at <= at
                if waits and party not in self.called:
                    self._admit(party)
            self.enough = self._suffice()
            return self.enough or None

        began = monotonic()
        if self.hub.wait(enough, lambda: began) is None:
            rank_zero_warn(f"round {at.round} waits for parties that are away; present are parties {self._present()}")
            if self.hub.wait(enough, lambda: began + self.reconnect) is None:
                raise ConfigurationError(
                    f"round {at.round} has waited {self.reconnect:g} s for parties that are away (present: "
                    f"{self._present()}); start them again with --ckpt_path last, or use a policy that goes on"
                )

    def _can_make_a_round(self, module: "VFLModule", policy: MissingPolicy) -> bool:
        """Whether the parties that are called are enough for a round."""
        called = mask_of(self.called, self.hub.parties)
        there = module.wire.takes_part(called, called, module.roster)
        if not there.any() or int(there.sum()) < module.wire.needed(module.roster.parties):
            return False
        if module.roster.active is not None and not there[module.roster.active]:  # nobody else has the labels
            return False
        return policy.plan(torch.ones_like(there), there) is not None

    def _admit(self, party: int) -> None:
        """Call a party that was away; it has no keys of any stage, so that all keys are renewed."""
        self.called |= {party}
        self.hub.call_upon((party,))
        self.keyed = {stage: tuple(m for m in held if m != party) for stage, held in self.keyed.items()}

    def _present(self) -> list[int]:
        return list(filter(self.hub.present, range(self.hub.parties)))
