"""A process of a federation from its start to its end: the server's, or that of one party."""

from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from time import monotonic, time
from typing import Any

from lightning.pytorch.utilities import rank_zero_warn

from lightning_vfl.crypto import verified
from lightning_vfl.errors import ConfigurationError, on_one_line
from lightning_vfl.federation.alignment import RollCall, align
from lightning_vfl.federation.at_party import AtParty, join
from lightning_vfl.federation.at_server import AtServer
from lightning_vfl.federation.cascade import CascadeAtParty, CascadeAtServer
from lightning_vfl.federation.charter import Charter, Consent
from lightning_vfl.federation.decoupled import DecoupledAtParty, DecoupledAtServer
from lightning_vfl.federation.events import EventsAtParty, EventsAtServer
from lightning_vfl.federation.heads import HeadsAtParty, HeadsAtServer
from lightning_vfl.federation.hub import Hub, Request
from lightning_vfl.federation.link import Link
from lightning_vfl.federation.one_shot import OneShotAtParty, OneShotAtServer
from lightning_vfl.federation.reception import Reception
from lightning_vfl.federation.recipe import first_difference
from lightning_vfl.federation.record import Record
from lightning_vfl.federation.refusals import refuse_unfederated
from lightning_vfl.federation.rounds_at_party import RoundsAtParty
from lightning_vfl.federation.rounds_at_server import RoundsAtServer
from lightning_vfl.federation.run import Run
from lightning_vfl.federation.spans import exported
from lightning_vfl.federation.versions import upgrade
from lightning_vfl.federation.watch import State, counts, watched
from lightning_vfl.protocols.accounts.books import SeatLedger
from lightning_vfl.protocols.asynchronous import AsyncVFL
from lightning_vfl.protocols.cascade import CascadeVFL
from lightning_vfl.protocols.decoupled import DecoupledVFL
from lightning_vfl.protocols.heads import HeadsVFL
from lightning_vfl.protocols.one_shot import OneShotVFL
from lightning_vfl.protocols.split import SplitVFL
from lightning_vfl.types import Seat

_LATE = 15.0  # seconds in which parties that are still being started are told why nothing will begin
_PLACES: Mapping[type, tuple[type[AtServer], type[AtParty]]] = {
    AsyncVFL: (EventsAtServer, EventsAtParty),
    HeadsVFL: (HeadsAtServer, HeadsAtParty),
    CascadeVFL: (CascadeAtServer, CascadeAtParty),
    OneShotVFL: (OneShotAtServer, OneShotAtParty),
    DecoupledVFL: (DecoupledAtServer, DecoupledAtParty),
    SplitVFL: (RoundsAtServer, RoundsAtParty),
}
SIGNED = "lightning-vfl keys"  # what an identity signs: its key for sealed messages in this federation


def serve(run: Run, record: Path | None = None, told: Callable[[str], None] = print) -> None:
    """Run the server's process until the training is over.

    Args:
        run: of the server.
        record: the file in which rounds are kept; None: none.
        told: is given lines for the user.

    Raises:
        ConfigurationError: before training, for settings that do not work between processes, for a party that does not
            join, and for one whose recipe differs.
    """
    charter = run.charter
    refuse_unfederated(run)
    hub = Hub(len(charter.parties), charter.agreed(run.model.active))
    _warn_of_end(charter)
    names = tuple(party.name for party in charter.parties)
    reception = Reception(names, {"injected": run.injected}, lambda party, hello: _wrong(run, hub, party, hello))
    run.take_seat(Seat(None))
    roll_call: RollCall | None = None
    if run.data.own_files:
        roll_call = RollCall(run.data, names, charter.alignment, run.model.active, charter.normalise)

    def greet(request: Request) -> bytes | None:
        met = reception.answer(request)
        return met if met is not None or roll_call is None else roll_call.answer(request)

    hub.greet = greet
    kept = None if record is None else Record(record, names)
    port = run.way.port(hub)
    started = time()

    def state() -> State:
        joining = len(reception.hellos) < len(names)
        peers = dict(zip(names, hub.peers(), strict=True))
        phase = "over" if hub.over else "running"
        waited = hub.waited()
        if joining:
            phase = "joining"
            waited = time() - started
            away = {name for number, name in enumerate(names) if number not in reception.hellos}
            peers = {name: replace(peer, awaited=name in away) for name, peer in peers.items()}
        name = charter.server.name
        return State(charter.federation, name, started, phase, waited, peers, **counts(run.model, hub.seconds))

    try:
        with exported(charter.server.name), watched(run.seat, state):
            told(f"{charter.federation}: waiting for {', '.join(names)} at {run.way.place}")
            reception.await_all(charter.patience.join)
            for line in reception.remarks(run.about()["versions"]):
                told(line)
            if kept is not None:
                reception.came_back = kept.restored.__setitem__
            if roll_call is not None:
                run.use_fitted()
                roll_call.finish(charter.patience.join)
            place = _places(run.model)[0](hub, run.injected, charter.patience.reconnect, kept)
            place.calls.joins = lambda: reception.joins
            run.model.place = place
            run.draw_secrets(None)
            run.train()
            _part(hub, f"{charter.federation} is over", run.way.last_words)
    except BaseException as error:
        why = f"the server has ended: {error}" if str(error) else f"the server has ended ({type(error).__name__})"
        _part(hub, on_one_line(why)[:500], run.way.last_words, _LATE if reception.waits_for_others else 0.0)
        raise
    finally:
        port.close()
        if kept is not None:
            kept.close()


def take_part(run: Run, name: str, new_ledger_after: str = "") -> None:
    """Run the process of one party until the training is over.

    Args:
        run: of the party.
        name: of the party.
        new_ledger_after: the run of the privacy ledger that ends; "": the ledger of the seat goes on.

    Raises:
        ConfigurationError: before training, for settings that do not work between processes, and if the server refuses
            this party.
    """
    charter = run.charter
    seat = run.seat
    refuse_unfederated(run, seat.evaluate == Consent.PLAIN)
    _warn_of_end(charter)
    party = charter.number(name)
    if seat.ledger is not None:
        _take_ledger(run, SeatLedger(seat.ledger, new_ledger_after))
    transport = run.way.transport(party)
    link = Link(transport, charter.agreed(run.model.active))
    started = time()

    def state() -> State:
        waited = None if link.asked is None else monotonic() - link.asked
        phase = "running" if isinstance(run.model.place, AtParty) else "joining"
        server = {charter.server.name: transport.server(awaited=waited is not None)}
        return State(charter.federation, name, started, phase, waited, server, **counts(run.model, link.seconds))

    def sign(public: bytes) -> bytes:
        return run.identity.signer.sign(SIGNED, charter.digest, party, public)

    def check(other: int, public: bytes, signature: bytes) -> None:
        pinned = charter.parties[other]
        if not verified(pinned.certificate.public, signature, SIGNED, charter.digest, other, public):
            raise ConfigurationError(
                f"the key for sealed messages of party {pinned.name} is not signed by its certificate, so somebody has "
                "replaced it on the way; check who runs the server"
            )

    try:
        with exported(name), watched(seat, state):
            run.take_seat(Seat(party))
            more = {"recipe": dict(run.recipe), "rounds": run.rounds, "process": transport.process.hex()}
            hello = {**run.about(), **more}
            place = join(_places(run.model)[1], link, party, charter.digest, hello, run.injected, sign, check)
            place.least_members = seat.least_members
            if isinstance(place, RoundsAtParty):
                place.sum_guard.limit = seat.subtractable_records
            run.model.place = place
            run.draw_secrets(party)
            if run.data.own_files:
                run.use_fitted()
                align(
                    place.link,
                    run.data,
                    charter.alignment,
                    others=[m for m in range(len(charter.parties)) if m != party] if run.model.active == party else (),
                    seals=place.seals,
                    keep=Path(run.trainer.default_root_dir) / f"{charter.federation}.{name}.alignment",
                    normalise=charter.normalise,
                )
            run.train()
    finally:
        transport.close()


def _warn_of_end(charter: Charter) -> None:
    """Warn of a certificate that ends soon."""
    line = charter.ending()
    if line is not None:
        rank_zero_warn(line)


def _take_ledger(run: Run, ledger: SeatLedger) -> None:
    """Let the model charge the ledger of the seat.

    Raises:
        ConfigurationError: for a recipe that names another ledger.
    """
    if run.model.privacy_ledger != "auto":
        raise ConfigurationError(
            f"privacy_ledger: {run.model.privacy_ledger} is for simulations; a party's ledger belongs to its data: "
            "leave privacy_ledger out, and name the file with ledger: in seat.yaml"
        )
    run.model.privacy.seat = ledger


def _part(hub: Hub, why: str, seconds: float, late: float = 0.0) -> None:
    """Tell all parties that it is over, and wait so long until they have come (``late``) and hung up (``seconds``)."""
    begun = monotonic()
    hub.end({"outcome": "over", "why": why})
    hub.wait(lambda: True if hub.all_have_come() else None, lambda: begun + late)
    end = monotonic() + seconds
    hub.wait(lambda: None if any(map(hub.present, range(hub.parties))) else True, lambda: end)


def _places(model: Any) -> tuple[type[AtServer], type[AtParty]]:
    """The places of a protocol: the server's, and a party's."""
    return next(places for protocol, places in _PLACES.items() if isinstance(model, protocol))


def _wrong(run: Run, hub: Hub, party: int, hello: Mapping[str, Any]) -> str | None:
    """What is wrong with a hello; None: nothing."""
    name = run.charter.parties[party].name
    own = run.about()
    theirs = hello.get("recipe")
    if hello.get("weights") != own["weights"]:
        return (
            f"party {name} has weights: {hello.get('weights')}, the server {own['weights']}; use the same "
            "federation.yaml"
        )
    if hello.get("digest") != own["digest"]:
        return f"party {name} has another federation.yaml than the server; use the same file"
    if hub.runs_twice(party, bytes.fromhex(str(hello.get("process", "")))):
        return f"party {name} is started twice; stop the other process, or wait until its connection has ended"
    versions = hello.get("versions")
    if not isinstance(versions, Mapping) or not isinstance(theirs, Mapping):
        return f"party {name} has sent no recipe; use the same version of lightning-vfl"
    other_version = upgrade(versions, f"party {name}", "the server")
    if other_version is not None:
        return other_version
    if hello.get("method") != run.method:
        return f"party {name} was started with --do {hello.get('method')}, the server with --do {run.method}"
    rounds = hello.get("rounds")
    if not isinstance(rounds, int) or rounds > max(run.rounds, run.model.books.training_rounds):
        return (
            f"party {name} stands at round {rounds}, the server at {run.rounds}: start {name} from its checkpoint of "
            f"round {run.rounds} or before"
        )
    place = run.model.place
    refusal = place.refuses(run.model, rounds) if isinstance(place, AtServer) else None
    if refusal is not None:
        return f"party {name} has come back from round {rounds}: {refusal}"
    return first_difference(run.recipe, {str(k): str(v) for k, v in theirs.items()}, f"party {name}")
