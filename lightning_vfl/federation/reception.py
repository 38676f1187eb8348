"""Joining: the server compares recipes and records with every party, before training and when one comes back."""

from collections.abc import Callable, Mapping
from threading import Condition
from time import monotonic
from typing import Any

from lightning_vfl.errors import ConfigurationError
from lightning_vfl.federation.frames import pack
from lightning_vfl.federation.hub import Request
from lightning_vfl.federation.long_waits import LongWait


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
        self.refused: str | None = None
        self.waits_for_others = False  # a party was refused before the others had the time to join
        self._changed = Condition()

    def answer(self, request: Request) -> bytes | None:
        """The frame that answers a request; None if the request is not for the reception."""
        if request.say == "publics":
            return pack({"outcome": "go", "publics": self._publics()})
        if request.say == "hello":
            return pack(self._welcome(request))
        if request.party not in self.hellos:  # it has joined an earlier process of the server
            return pack({"outcome": "over", "why": self.AGAIN})
        return None

    def _welcome(self, request: Request) -> Mapping[str, Any]:
        header = request.frame.header
        wrong = self.differs(request.party, header)
        with self._changed:
            if wrong is not None:
                if request.party not in self.hellos:  # else the others go on with the process that has joined
                    self.refused, self.waits_for_others = wrong, True
                    self._changed.notify_all()
                return {"outcome": "refused", "why": wrong}
            self.publics[request.party] = [str(text) for text in header["public"]]
            if request.party in self.hellos and self.came_back is not None:
                self.came_back(request.party, int(header["rounds"]))
            self.hellos[request.party] = header
            self.joins += 1
            self._changed.notify_all()
            while len(self.hellos) < len(self.names):
                self._changed.wait(timeout=1.0)
                if self.refused is not None:
                    return {"outcome": "refused", "why": self.refused}
            return {"outcome": "go", "publics": self._publics(), **self.about}

    def await_all(self, patience: float) -> None:
        """Wait until all parties have joined.

        Raises:
            ConfigurationError: naming those that have not, or the party whose recipe differs.
        """
        end = monotonic() + patience

        def away() -> str:
            return ", ".join(name for number, name in enumerate(self.names) if number not in self.hellos)

        waiting = LongWait(lambda: f"{away()} to join; start lightning-vfl party there, or see what it prints")
        with self._changed:
            while len(self.hellos) < len(self.names):
                waiting.look()
                if self.refused is not None:
                    raise ConfigurationError(self.refused)
                if monotonic() > end:
                    self.refused = (
                        f"{away()} have not joined within {patience:g} s; start lightning-vfl party there, or "
                        "raise patience.join"
                    )
                    self._changed.notify_all()  # those that have joined are told too
                    raise ConfigurationError(self.refused)
                self._changed.wait(timeout=1.0)

    def remarks(self, versions: Mapping[str, Any]) -> list[str]:
        """Lines about differences that are allowed."""
        own = versions["torch"]
        others = {self.names[m]: hello["versions"].get("torch") for m, hello in self.hellos.items()}
        return [
            f"party {name} has torch {torch}, the server {own}: last bits may differ from a simulation"
            for name, torch in others.items()
            if torch != own
        ]

    def _publics(self) -> dict[str, list[str]]:
        return {str(party): public for party, public in self.publics.items()}
