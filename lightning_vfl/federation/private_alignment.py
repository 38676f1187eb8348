"""``alignment: psi``: the parties of a federation find their common records, and the server compares masked ids.

Every party raises the lists of all others to its key, round a ring. Parties talk through the server, in sealed letters:
the server relays them, cannot read them, and cannot put a list of its own in their place. It receives each list when it
has the keys of all parties. If the server has a table, it masks a list of its own ids; the parties raise it one after
the other, and the last one changes the order of its places, so that the server sees how many of its ids are where, and
not which. The last party then tells it which of its ids are common to ALL parties.

A party keeps the common order in a file of its own, with which it comes back after it was killed. What the server and
the parties learn is in ``docs/guides/align.md``.
"""

import json
import secrets
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from lightning.pytorch.utilities import rank_zero_info
from torch import Tensor

from lightning_vfl.align.files import write_whole
from lightning_vfl.align.group import SIZE, NoPoint, raised
from lightning_vfl.align.ids import Step
from lightning_vfl.align.ring import Secret, masked
from lightning_vfl.align.session import Session
from lightning_vfl.errors import ConfigurationError, MalformedMessage
from lightning_vfl.federation.frames import Frame
from lightning_vfl.federation.hub import DOOR
from lightning_vfl.federation.letters import Seals
from lightning_vfl.federation.link import Link, fields_of
from lightning_vfl.federation.private_ring import OWN, SAY, SERVER, are_places, id_messages, tensor_of
from lightning_vfl.types import SeatedData
from lightning_vfl.wire import Message
from lightning_vfl.wire.record_ids import as_ids

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from lightning_vfl.align.group import Points

    Ids = NDArray[np.generic]

FEW = 1000  # ids of the server's own that a party always compares


def align_privately(
    link: Link,
    data: SeatedData,
    seals: Seals,
    draws: bool,
    keep: Path,
    normalise: tuple[Step, ...],
) -> None:
    """A party's part, up to the order of its records.

    Args:
        link: to the server.
        data: of this party.
        seals: channels to the other parties.
        draws: whether this party has the labels, and draws the splits.
        keep: a file of this party alone, in which it keeps the order for when it comes back.
        normalise: how ids are made equal, as all have agreed.

    Raises:
        ConfigurationError: if the server refuses, for lists that cannot be used, and for a party that comes back
            without its file.
    """
    said, for_server, done = fields_of(_ask(link, "session", process=secrets.token_hex(8)), "session", "server", "done")
    session = _read(said)
    others = [*seals.publics]
    if not done:
        try:
            if session.normalise != normalise:
                raise ConfigurationError(
                    f"the server normalises ids by {', '.join(session.normalise) or 'nothing'}, federation.yaml says "
                    f"{', '.join(normalise) or 'nothing'}; check who runs the server"
                )
            ids = _common_ids(link, data.own_ids(), seals, session, bool(for_server))
        except ConfigurationError as error:
            with suppress(ConfigurationError):  # the server tells the others, which would wait
                _ask(link, "failed", why=str(error))
            raise
        if draws:
            order = data.split_records(dict.fromkeys(others, ids))
            _tell_order(link, seals, rows_of(order, ids))
        else:
            order = _told_order(link, seals, ids)
            data.align(order)
        _keep(keep, session, order)
        return
    kept = _kept(keep, session)
    if draws:
        data.split_records(dict.fromkeys(others, np.concatenate([*kept.values()])))
    else:
        data.align(kept)


def _tell_order(link: Link, seals: Seals, rows: "Mapping[str, NDArray[np.int64]]") -> None:
    """Tell the other parties the numbers of each split's records, and the server how many each split has."""
    numbers = torch.from_numpy(np.concatenate([*rows.values()]))
    for other in seals.publics:
        _ask(link, "give", [_seal(seals, other, "order", numbers)], to=other, what="order")
    link.ask(DOOR, "order", {"splits": list(rows), "sizes": [len(part) for part in rows.values()]})


def _told_order(link: Link, seals: Seals, ids: "Ids") -> "dict[str, Ids]":
    """The ids of each split, of what the server or the party with the labels tells: numbers of records.

    Raises:
        ConfigurationError: for numbers of records that are none.
    """
    told = link.knock("ids")
    header = told.header
    tensors = list(told.tensors)
    if "by" in header:  # sealed by the party with the labels
        letter = _ask(link, "fetch", of=header["by"], what="order")
        sealed = _open(seals, int(header["by"]), "order", letter)
        tensors = list(torch.split(sealed, [len(part) for part in tensors]))
    parts = [part.numpy() for part in tensors]
    for part in parts:
        if part.dtype != np.int64 or (len(part) and not 0 <= part.min() <= part.max() < len(ids)):
            raise ConfigurationError("the server sends numbers of records that do not exist; start all processes again")
    return {str(name): ids[part] for name, part in zip(header["splits"], parts, strict=True)}


def _common_ids(link: Link, ids: "Ids", seals: Seals, session: Session, for_server: bool) -> "Ids":
    """Mask the ids of this party, raise the lists of the others, and learn which ids are common to all.

    Returns:
        (n,) this party's ids of the common records; the number of a record is its place here.
    """
    me = seals.party
    parties = len(seals.publics) + 1
    if len(session.parties) != parties + 1:
        raise ConfigurationError(f"the server tells a ring of {len(session.parties) - 1} parties, not {parties}")
    secret = Secret.make(session, session.parties[me], len(ids))
    before, behind = (me - 1) % parties, (me + 1) % parties

    def hand_on(owner: int, hop: int, content: "Points") -> None:
        """Give a list with ``hop`` keys to the next party; with all keys to the server."""
        if hop == parties:
            _ask(link, "list", [tensor_of(content)], of=str(owner))
        else:
            what = f"list {owner} hop {hop}"
            _ask(link, "give", [_seal(seals, behind, what, tensor_of(content))], to=behind, what=what)

    hand_on(me, 1, masked(secret, id_messages(ids, session, f"party {secret.party}")).points[:, 0])
    for hop in range(1, parties):
        owner = (me - hop) % parties
        what = f"list {owner} hop {hop}"
        given = _open(seals, before, what, _ask(link, "fetch", of=before, what=what))
        hand_on(owner, hop + 1, _raised(given, secret, f"party {session.parties[owner]}"))
    most = link.agreed.limits.server_ids or max(FEW, 2 * len(ids))
    shuffle = _raise_for_server(link, seals, secret, parties, most) if for_server else None
    places = _only(_ask(link, "places")).numpy()
    if not are_places(places, len(ids)):
        raise ConfigurationError("the places of common records that the server sends do not exist; start again")
    if shuffle is not None:
        asked = _only(_ask(link, "fetch", of=SERVER, what="places of the server")).numpy()
        # the server may learn of the records that all have, and of no other
        if asked.shape != places.shape or not are_places(asked, len(shuffle)):
            raise ConfigurationError(
                "the server asks for records that are not the common ones; check who runs the server"
            )
        _ask(link, "give", [torch.from_numpy(shuffle[asked])], to=SERVER, what="places of the server")
    common: Ids = ids[secret.order[places]]
    return common


def _keep(path: Path, session: Session, order: "Mapping[str, Ids]") -> None:
    said = {"session": session.name, "order": {name: part.tolist() for name, part in order.items()}}
    write_whole(path, json.dumps(said).encode("utf-8", "surrogatepass"), 0o600)


def _kept(path: Path, session: Session) -> "dict[str, Ids]":
    try:
        said = json.loads(path.read_bytes())
        if said["session"] != session.name:
            raise ValueError("it is of another start of the server")
        return {str(name): as_ids(part) for name, part in said["order"].items()}
    except (OSError, KeyError, TypeError, ValueError) as error:
        raise ConfigurationError(
            f"this party comes back without the order of the records: {path} cannot be used ({error}); give the same "
            "trainer.default_root_dir as before, or start all processes again"
        ) from None


def rows_of(order: "Mapping[str, Ids]", ids: "Ids") -> "dict[str, NDArray[np.int64]]":
    """The numbers of the ids of each split."""
    by_id = np.argsort(ids, kind="stable")
    return {name: by_id[np.searchsorted(ids, part, sorter=by_id)] for name, part in order.items()}


def told_splits(sizes: Mapping[str, int]) -> "dict[str, NDArray[np.int64]]":
    """Split -> consecutive numbers, for a server that learns of each split its size alone."""
    ends = np.cumsum([0, *(int(size) for size in sizes.values())])
    return {name: np.arange(ends[i], ends[i + 1]) for i, name in enumerate(sizes)}


def _raise_for_server(link: Link, seals: Seals, secret: Secret, parties: int, most: int) -> "NDArray[np.int64] | None":
    """Raise the server's list; the last party returns it in another order, which this function returns then.

    Raises:
        ConfigurationError: for a list of more than ``most`` ids, which may be guessed.
    """
    me = seals.party
    what = "list server"
    fetched = _ask(link, "fetch", of=me - 1 if me else SERVER, what=what)
    given = _open(seals, me - 1, what, fetched) if me else _only(fetched)
    if len(given) > most:
        raise ConfigurationError(
            f"the server asks for {len(given)} ids of its own, and this party compares at most {most}: they may be "
            "guessed; check the server's table, or raise limits.server_ids of federation.yaml"
        )
    rank_zero_info(
        f"alignment: psi: the server compares {len(given)} ids of its own with those of the parties (at most {most}), "
        "and learns which of them all parties have"
    )
    points = _raised(given, secret, OWN)
    if me < parties - 1:
        _ask(link, "give", [_seal(seals, me + 1, what, tensor_of(points))], to=me + 1, what=what)
        return None
    order = np.argsort(np.frombuffer(secrets.token_bytes(8 * len(points)), "<u8"), kind="stable").astype(np.int64)
    _ask(link, "list", [tensor_of(points[order])], of=OWN)
    return order


def _raised(given: Tensor, secret: Secret, owner: str) -> "Points":
    if given.dtype != torch.uint8 or given.ndim != 2 or given.shape[1] != SIZE:
        raise ConfigurationError(f"the list of {owner} is not a list of points; start all processes again")
    try:
        return raised(given.numpy(), secret.key)
    except NoPoint as error:
        raise ConfigurationError(f"the list of {owner}: {error}; start all processes again") from None


def _only(frame: Frame) -> Tensor:
    """The one tensor of an answer."""
    if len(frame.tensors) != 1:
        raise ConfigurationError(
            f"the server has sent {len(frame.tensors)} tensors, not one; check who runs the server"
        )
    return frame.tensors[0]


def _ask(link: Link, step: str, tensors: Sequence[Tensor] = (), **more: Any) -> Frame:
    return link.knock(SAY, {"step": step, **more}, tensors)


def _seal(seals: Seals, receiver: int, what: str, content: Tensor) -> Tensor:
    message = Message(f"psi {what}", "peers", (seals.party,), (content[None],), receivers=(receiver,))
    return seals.seal(message, len(seals.publics) + 1, [receiver])[receiver]


def _open(seals: Seals, sender: int, what: str, frame: Frame) -> Tensor:
    try:
        message = seals.open(sender, _only(frame), 0)
        if message.kind != f"psi {what}" or len(message.pieces) != 1:
            raise MalformedMessage(f"party {sender} has sealed a {message.kind}, not {what}")
    except MalformedMessage as error:
        raise ConfigurationError(f"{error}; check who runs the server, and start all processes again") from None
    return message.pieces[0][0]


def _read(said: Any) -> Session:
    try:
        return Session.read(said)
    except (KeyError, TypeError, ValueError) as error:
        raise ConfigurationError(f"the server tells no session of psi ({error}); use the same version") from None
