"""``lightning-vfl status``: who is there in a federation, since when, and what is awaited."""

from time import localtime, strftime

from jsonargparse import ArgumentParser, Namespace

from lightning_vfl.commands.alone import AloneCommand, add_seat
from lightning_vfl.errors import ConfigurationError, printable
from lightning_vfl.federation.charter import Charter, SeatFile
from lightning_vfl.federation.watch import Peer, State, ask

_ABOUT = (
    "Say who is there in a running federation, since when, and who is awaited: as the process of this host sees it, "
    "whose seat.yaml has metrics: 127.0.0.1:9100. The server sees all parties, a party the server."
)


class StatusCommand(AloneCommand):
    """Ask the process of this host."""

    about = _ABOUT

    def add_options(self, parser: ArgumentParser) -> None:
        parser.add_argument("federation", metavar="FEDERATION", help="federation.yaml, the same on all hosts")
        add_seat(parser)

    def work(self, given: Namespace) -> int:
        charter = Charter.read(given.federation)
        seat = SeatFile.read(given.seat)
        if seat.metrics is None:
            raise ConfigurationError(
                f"{given.seat} has no address to ask; add metrics: 127.0.0.1:9100 and start the process again"
            )
        state = ask(seat.metrics)
        if state.federation != charter.federation:
            raise ConfigurationError(
                f"the process at {seat.metrics} is of the federation {printable(state.federation)}, not of "
                f"{charter.federation}; check metrics of {given.seat}"
            )
        for line in lines(state):
            print(printable(line))
        return 0


def lines(state: State) -> list[str]:
    """The lines of a state: one of the process, and one of each that it is connected with."""
    rounds = ", ".join(f"{count:,} of {stage}" for stage, count in state.rounds.items()) or "none"
    waits = "" if state.waited is None else f", waiting for {state.waited:,.0f} s"
    own = f"{state.name} of {state.federation}: {state.phase} since {_time(state.started)}{waits}; rounds: {rounds}"
    return [own, *(f"{name}: {_seen(peer)}" for name, peer in state.peers.items())]


def _seen(peer: Peer) -> str:
    if peer.connected is None:
        there = "behind a relay"
    elif peer.since is None:
        there = "has not come yet"
    else:
        there = f"{'connected' if peer.connected else 'GONE'} since {_time(peer.since)}"
    losses = f", lost {peer.losses:,} times before" if peer.losses else ""
    return f"{there}{losses}{', awaited' if peer.awaited else ''}"


def _time(seconds: float) -> str:
    return strftime("%Y-%m-%d %H:%M:%S", localtime(seconds))
