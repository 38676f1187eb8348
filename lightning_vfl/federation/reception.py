"""Joining: the server compares recipes and records with every party, before training and when one comes back."""

from collections.abc import Callable, Mapping
from typing import Any

from lightning_vfl.federation.frames import pack
from lightning_vfl.federation.gathering import Gathering, refusal
from lightning_vfl.federation.hub import Request


class Reception:
    """Answers the first requests of parties: ``hello``, and ``publics`` for the public keys of the others.

    Nobody is answered before all parties have joined once; who comes back later is answered at once.

    Args:
        names: of the parties, in order of their numbers.
        about: what every party is told, once all are there.
        differs: from a party's number and its hello to what is wrong with it; None: nothing is.
    """

    AGAIN = "the server has been started again; start this party again too, with --ckpt_path of the server's round"

    def __init__(
        self,
        names: tuple[str, ...],
        about: Mapping[str, Any],
        differs: Callable[[int, Mapping[str, Any]], str | None],
    ) -> None:
        self.names = names
        self.about = about
        self.differs = differs
        self.publics: dict[int, list[str]] = {}  # of each party its public key and signature
        self.joins = 0
        self.hellos: dict[int, Mapping[str, Any]] = {}
        self.came_back: Callable[[int, int], None] | None = None  # party, and round of its checkpoint
        self.waits_for_others = False  # a party was refused before the others had the time to join
        self._gathering = Gathering(names)

    def answer(self, request: Request) -> bytes | None:
        """The frame that answers a request; None if the request is not for the reception."""
        if request.say == "publics":
            return pack({"outcome": "go", "publics": self._publics()})
        if request.say == "hello":
            wrong = self.differs(request.party, request.frame.header)
            if wrong is not None:
                if request.party not in self.hellos:  # else the others go on with the process that has joined
                    self.waits_for_others = True
                    self._gathering.fail(wrong)
                return refusal(wrong)
            return self._gathering.answer(request, self._welcome)
        if request.party not in self.hellos:  # it has joined an earlier process of the server
            return pack({"outcome": "over", "why": self.AGAIN})
        return None

    def _welcome(self, request: Request) -> tuple[Mapping[str, Any], tuple[()]]:
        header = request.frame.header
        self.publics[request.party] = list(header["public"])
        if request.party in self.hellos and self.came_back is not None:
            self.came_back(request.party, header["rounds"])
        self.hellos[request.party] = header
        self.joins += 1
        self._gathering.wait(self._all_are_here)
        return {"publics": self._publics(), **self.about}, ()

    def _all_are_here(self) -> bool:
        return len(self.hellos) == len(self.names)

    def await_all(self, patience: float) -> None:
        """Wait until all parties have joined.

        Raises:
            ConfigurationError: naming those that have not, or the party whose recipe differs.
        """
        self._gathering.wait_for_all(
            lambda: self._gathering.away(self.hellos),
            patience,
            "to join; start lightning-vfl party there, or see what it prints",
            f"have not joined within {patience:g} s; start lightning-vfl party there, or raise patience.join",
        )

    def remarks(self, versions: Mapping[str, Any]) -> list[str]:
        """Lines about differences that are allowed."""
        found = []
        for party, hello in self.hellos.items():
            for key, what in (("torch", "torch"), ("package", "lightning-vfl")):
                theirs, ours = hello["versions"].get(key), versions[key]
                if theirs != ours:
                    has = f"party {self.names[party]} has {what} {theirs}, the server {ours}"
                    found.append(f"{has}: last bits may differ from a simulation")
        return found

    def _publics(self) -> dict[str, list[str]]:
        return {str(party): public for party, public in self.publics.items()}
