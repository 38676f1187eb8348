"""How the records of processes find each other before training: ids in the clear, equal lists, or masked ids.

The server learns which ids each party has (``clear``), the digest of each list (``given``), or what the comparer of a
private set intersection learns (``psi``, see ``private_alignment``). Every party learns which of its own records are
used, and in which split; of records that it does not hold (``overlap: keep``) it learns the places, and no id.
"""

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import reduce
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from torch import Tensor

from lightning_vfl.align.ids import Step
from lightning_vfl.errors import ConfigurationError
from lightning_vfl.federation.charter import Alignment
from lightning_vfl.federation.gathering import Gathering, Told
from lightning_vfl.federation.hub import DOOR, Request
from lightning_vfl.federation.letters import Seals
from lightning_vfl.federation.link import Link, fields_of
from lightning_vfl.federation.private_alignment import align_privately, rows_of, told_splits
from lightning_vfl.federation.private_ring import SAY, PrivateRing
from lightning_vfl.types import SeatedData
from lightning_vfl.wire.record_ids import IdDigest, ids_from_tensor, ids_to_tensor, known_ids, refuse_other_ids

if TYPE_CHECKING:
    from numpy.typing import NDArray


class RollCall:
    """The server's part: it waits for the ids of all parties, draws the splits, and tells everybody's shapes.

    Args:
        data: the server's datamodule, which has the labels.
        names: of the parties.
        kind: whether ids are told, compared, or masked.
        active: the party that has the labels and draws the splits; None: the server does.
        normalise: how masked ids are made equal that are written in different ways.
    """

    def __init__(
        self,
        data: Any,
        names: tuple[str, ...],
        kind: Alignment,
        active: int | None = None,
        normalise: tuple[Step, ...] = (),
    ) -> None:
        self.data = data
        self.names = names
        self.kind = kind
        self.active = active
        self._gathering = Gathering(names)
        self._ring = PrivateRing(data, self._gathering, active, normalise) if kind == Alignment.PSI else None
        self._common: NDArray[np.generic] | None = None  # the ids that all have, if a party draws the splits
        self._ids: dict[int, NDArray[np.generic]] = {}
        self._digests: dict[int, IdDigest] = {}
        self._shapes: dict[int, list[int]] = {}
        self._order: dict[str, NDArray[np.generic]] | None = None
        self._classes: dict[str, Any] = {}  # of the party that has the labels

    def answer(self, request: Request) -> bytes | None:
        """The frame that answers a request of the roll call; None for other requests. Runs in the caller's thread."""
        handlers: Mapping[str, Callable[[Request], Told]] = {
            "ids": self._hear_ids,
            "order": self._hear_order,
            "shape": self._hear_shape,
            "failed": self._hear_failure,
        }
        if self._ring is not None:
            handlers = {**handlers, SAY: self._ring.hear}
        handle = handlers.get(request.say)
        return None if handle is None else self._gathering.answer(request, handle)

    def finish(self, patience: float) -> None:
        """Wait for all parties, and align the server's own data.

        Args:
            patience: seconds to wait for the ids, and for the shapes.

        Raises:
            ConfigurationError: if the records of the parties do not fit, and naming parties that tell nothing.
        """
        with self._gathering.failing():
            ids = None if self._ring is None else self._ring.finish(patience)
            with self._gathering.changed:  # requests of the parties read the data too
                if ids is not None:
                    self._divide_privately(ids, patience)
                else:
                    self._divide(patience)
                self._await("shape", patience, lambda: self._gathering.away(self._shapes))
                self.data.told_shapes(self._all_shapes(), **self._all_classes())
                if self._ring is not None:
                    self._ring.forget()
                self._gathering.over = True

    def _divide(self, patience: float) -> None:
        """Draw or await the splits of records whose ids are told or compared."""
        given = self.kind == Alignment.GIVEN
        told: Collection[int] = self._digests if given else self._ids
        self._await("ids", patience, lambda: self._gathering.away(told))
        if self.active is None:
            self._order = self.data.split_records({} if given else self._ids)
        else:
            whole = self.data.everybody_holds
            # if all records of the party with the labels are used, it needs to know of no other party's
            self._common = reduce(np.intersect1d, self._ids.values() if whole else [self._ids[self.active][:0]])
            self._await_splits(patience)
            self.data.align(self._order, {} if whole else self._ids)

    def _divide_privately(self, ids: "NDArray[np.generic]", patience: float) -> None:
        """Draw or await the splits of records whose numbers alone are told; ``ids``: the server's, by number."""
        if self.active is None:
            numbers = rows_of(self.data.split_records(dict.fromkeys(range(len(self.names)), ids)), ids)
            self._order = dict(numbers)
        else:
            self._await_splits(patience)
            self.data.align(self._order)

    def _await_splits(self, patience: float) -> None:
        """Wait until the party with the labels has told the splits."""
        told = {*range(len(self.names))} - {self.active}
        self._await("splits", patience, lambda: "" if self._order is not None else self._gathering.away(told))

    def _await(self, what: str, patience: float, lacking: Callable[[], str]) -> None:
        self._gathering.wait_for_all(
            lacking,
            patience,
            f"to tell their {what}",
            f"have not told their {what} within {patience:g} s; start all processes again, or raise patience.join",
        )

    def _hear_ids(self, request: Request) -> Told:
        """Take the ids of a party, or what stands for them; the order of the records, or what it is drawn from."""
        header = request.frame.header
        tensors = request.frame.tensors
        name = self.names[request.party]
        draws = request.party == self.active
        if self.kind == Alignment.GIVEN:
            digest = IdDigest(int(header.get("count", -1)), str(header.get("sha256")))
            refuse_other_ids(IdDigest.of(self.data.own_ids()), {name: digest})
            self._digests[request.party] = digest
        elif self._ring is None:
            if not tensors:
                raise ValueError("it has sent no ids; use the same recipe")
            self._ids[request.party] = ids_from_tensor(tensors[0])
        self._gathering.wait(lambda: (self._common if draws else self._order) is not None)
        if draws and self._common is not None:
            return {}, [ids_to_tensor(self._common)]
        return self._told_order(request.party)

    def _hear_order(self, request: Request) -> Told:
        """Take the splits of the party with the labels: see the table in ``fields``."""
        header = request.frame.header
        tensors = request.frame.tensors
        if self._ring is None:
            self._order = dict(zip(header["splits"], map(ids_from_tensor, tensors), strict=True))
        else:
            self._order = dict(told_splits(dict(zip(header["splits"], header["sizes"], strict=True))))
        return self._told_order(request.party)

    def _hear_shape(self, request: Request) -> Told:
        """Take the shape of a party's features; the shapes of all, and the classes."""
        header = request.frame.header
        party = request.party
        self._shapes[party] = header["shape"]
        if self.data.copies and header.get("labels_sha256") != self.data.labels_digest():
            raise ConfigurationError(
                f"the labels of party {self.names[party]} are not those of the server for the same records; correct "
                "one of them"
            )
        if party == self.active:
            self._classes = {name: header.get(name) for name in ("num_classes", "class_names")}
        self._gathering.wait(lambda: len(self._shapes) == len(self.names))
        return {"shapes": self._all_shapes(), **self._all_classes()}, ()

    def _hear_failure(self, request: Request) -> Told:
        name = self.names[request.party]
        raise ConfigurationError(f"party {name} cannot align its records; what it has printed says why")

    def _told_order(self, party: int) -> Told:
        """The ids of each split that a party is told: of records that it does not hold, stand-ins."""
        order = self._order or {}
        if order and not self.data.everybody_holds and party in self._ids:
            every = np.unique(np.concatenate([*order.values()]))
            known = known_ids(every, self._ids[party])
            order = {name: known[np.searchsorted(every, ids)] for name, ids in order.items()} | {"predict": known}
        by = {} if self._ring is None or self.active is None else {"by": self.active}
        return {"splits": list(order), **by}, [ids_to_tensor(ids) for ids in order.values()]

    def _all_shapes(self) -> list[list[int]]:
        return [self._shapes[party] for party in sorted(self._shapes)]

    def _all_classes(self) -> dict[str, Any]:
        return self._classes or classes_of(self.data)


def classes_of(data: Any) -> dict[str, Any]:
    """The classes of the labels, for a header."""
    names = None if data.num_classes is None else list(data.class_names)
    return {"num_classes": data.num_classes, "class_names": names}


def align(
    link: Link,
    data: SeatedData,
    kind: Alignment,
    others: Sequence[int] = (),
    seals: Seals | None = None,
    keep: Path = Path("alignment.json"),
    normalise: tuple[Step, ...] = (),
) -> None:
    """A party's part: tell what ``kind`` says of the ids, take the common order, and tell the shape of its features.

    Args:
        link: to the server.
        data: of this party.
        kind: whether ids are told, compared, or masked.
        others: the numbers of the other parties, if this party has the labels; it then draws the splits.
        seals: channels to the other parties, which masked ids need.
        keep: where a party keeps the order of its records if ids are masked.
        normalise: how masked ids are made equal, as all have agreed.

    Raises:
        ConfigurationError: if the server refuses.
    """
    if kind == Alignment.PSI:
        if seals is None:
            raise ConfigurationError("alignment: psi needs sealed channels between the parties; give seals")
        align_privately(link, data, seals, bool(others), keep, normalise)
    else:
        with _telling(link):
            own = _own_ids(data, kind)
        frame = link.knock("ids", *own)
        if others:
            common = dict.fromkeys(others, ids_from_tensor(frame.tensors[0]))
            with _telling(link):
                order = data.split_records(common if data.everybody_holds else {})
            link.ask(DOOR, "order", {"splits": list(order)}, [ids_to_tensor(part) for part in order.values()])
        else:
            (splits,) = fields_of(frame, "splits")
            if len(splits) != len(frame.tensors):
                raise ConfigurationError(
                    f"the server tells {len(frame.tensors)} lists of {len(splits)} splits; check who runs the server"
                )
            with _telling(link):
                data.align({name: ids_from_tensor(part) for name, part in zip(splits, frame.tensors, strict=True)})
    with _telling(link):
        more = classes_of(data) if others else {}
        if data.copies:
            more["labels_sha256"] = data.labels_digest()
        shape = list(data.own_shape())
    told = link.knock("shape", {"shape": shape, **more})
    data.told_shapes(*fields_of(told, "shapes", "num_classes", "class_names"))


@contextmanager
def _telling(link: Link) -> Iterator[None]:
    """Tell the server that this party's records cannot be aligned, so that nobody waits for it."""
    try:
        yield
    except ConfigurationError:
        with suppress(ConfigurationError):  # the party ends with its own words
            link.ask(DOOR, "failed")
        raise


def _own_ids(data: SeatedData, kind: Alignment) -> tuple[Mapping[str, Any], list[Tensor]]:
    ids = data.own_ids()
    if kind == Alignment.GIVEN:
        digest = IdDigest.of(ids)
        return {"count": digest.count, "sha256": digest.sha256}, []
    return {}, [ids_to_tensor(ids)]
