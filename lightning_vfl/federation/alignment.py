"""How the records of processes find each other before training: ids in the clear, equal lists, or masked ids.

The server learns which ids each party has (``clear``), the digest of each list (``given``), or what the comparer of a
private set intersection learns (``psi``, see ``private_alignment``). Every party learns which of its own records are
used, and in which split; of records that it does not hold (``overlap: keep``) it learns the places, and no id.
"""

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import reduce
from pathlib import Path
from threading import Condition
from time import monotonic
from typing import TYPE_CHECKING, Any

import numpy as np
from torch import Tensor

from lightning_vfl.align.ids import Step
from lightning_vfl.errors import ConfigurationError
from lightning_vfl.federation.charter import Alignment
from lightning_vfl.federation.frames import Frame, pack
from lightning_vfl.federation.hub import DOOR, Request
from lightning_vfl.federation.letters import Seals
from lightning_vfl.federation.link import Link, fields_of
from lightning_vfl.federation.long_waits import LongWait
from lightning_vfl.federation.private_alignment import align_privately, rows_of, told_splits
from lightning_vfl.federation.private_ring import PrivateRing
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
        self._common: NDArray[np.generic] | None = None  # the ids that all have, if a party draws the splits
        self._told: dict[str, Any] = {}  # the classes, of the party that has the labels
        self._ring = PrivateRing(data, names, active, normalise) if kind == Alignment.PSI else None
        self._ids: dict[int, NDArray[np.generic]] = {}
        self._digests: dict[int, IdDigest] = {}
        self._shapes: dict[int, list[int]] = {}
        self._order: dict[str, NDArray[np.generic]] | None = None
        self._failed: str | None = None
        self._changed = Condition()

    def answer(self, request: Request) -> bytes | None:
        """The frame that answers a request of the roll call; None for other requests. Runs in the caller's thread."""
        if self._ring is not None and (told := self._ring.answer(request)) is not None:
            return told
        if request.say not in ("ids", "order", "shape", "failed"):
            return None
        draws = request.party == self.active
        with self._changed:
            if request.say == "ids":
                self._take_ids(request)
                self._wait(lambda: (self._common if draws else self._order) is not None)
            elif request.say == "order":
                self._take_order(request)
            elif request.say == "failed":
                name = self.names[request.party]
                self._failed = self._failed or f"party {name} cannot align its records; what it has printed says why"
                self._changed.notify_all()
            else:
                self._take_shape(request)
                self._wait(lambda: len(self._shapes) == len(self.names))
            if self._failed is not None:
                return pack({"outcome": "refused", "why": self._failed})
            if request.say == "ids" and draws and self._common is not None:
                return pack({"outcome": "go"}, [ids_to_tensor(self._common)])
            if request.say in ("ids", "order"):
                order = self._order_for(request.party)
                by = {} if self._ring is None or self.active is None else {"by": self.active}
                return pack(
                    {"outcome": "go", "splits": list(order), **by}, [ids_to_tensor(ids) for ids in order.values()]
                )
            return pack({"outcome": "go", "shapes": self._all_shapes(), **self._classes()})

    def finish(self, patience: float) -> None:
        """Wait for all parties, and align the server's own data.

        Args:
            patience: seconds to wait for the ids, and for the shapes.

        Raises:
            ConfigurationError: if the records of the parties do not fit, and naming parties that tell nothing.
        """
        found = self._find_privately(patience)
        with self._changed:
            try:
                if found is not None:
                    self._divide(found, patience)
                else:
                    self._join_told_ids(patience)
                self._changed.notify_all()
                self._await(lambda: self._away(self._shapes), "shape", patience)
                self.data.told_shapes(self._all_shapes(), **self._classes())
                if self._ring is not None:
                    self._ring.forget()
            except ConfigurationError as error:
                self._failed = str(error)
                raise
            finally:
                self._changed.notify_all()

    def _find_privately(self, patience: float) -> "NDArray[np.generic] | None":
        """The server's ids of the common records, by their numbers; None: ids are not masked."""
        try:
            return None if self._ring is None else self._ring.finish(patience)
        except ConfigurationError as error:
            with self._changed:
                self._failed = str(error)
                self._changed.notify_all()
            raise

    def _join_told_ids(self, patience: float) -> None:
        ids: Collection[int] = self._digests if self.kind == Alignment.GIVEN else self._ids
        self._await(lambda: self._away(ids), "ids", patience)
        if self.active is None:
            self._order = self.data.split_records({} if self.kind == Alignment.GIVEN else self._ids)
        else:
            drawing = self.names[self.active]
            # if all records of the party with the labels are used, it needs to know of no other party's
            told = self._ids.values() if self.data.everybody_holds else [self._ids[self.active][:0]]
            self._common = reduce(np.intersect1d, told)
            self._changed.notify_all()
            self._await(lambda: [drawing] if self._order is None else [], "splits", patience)
            self.data.align(self._order, {} if self.data.everybody_holds else self._ids)

    def _divide(self, ids: "NDArray[np.generic]", patience: float) -> None:
        """Draw or await the splits of records whose numbers alone are told; ``ids``: the server's, by number."""
        if self.active is None:
            numbers = rows_of(self.data.split_records(dict.fromkeys(range(len(self.names)), ids)), ids)
            self._order = dict(numbers)
        else:
            drawing = self.names[self.active]
            self._await(lambda: [drawing] if self._order is None else [], "splits", patience)
            self.data.align(self._order)

    def _order_for(self, party: int) -> "dict[str, NDArray[np.generic]]":
        """The ids of each split that a party is told: of records that it does not hold, stand-ins."""
        order = self._order or {}
        if self.data.everybody_holds or party not in self._ids:
            return order
        every = np.unique(np.concatenate([*order.values()]))
        known = known_ids(every, self._ids[party])
        return {name: known[np.searchsorted(every, ids)] for name, ids in order.items()} | {"predict": known}

    def _take_order(self, request: Request) -> None:
        header = request.frame.header  # of the party with the labels: see the table in ``fields``
        splits = [str(name) for name in header["splits"]]
        if self._ring is None:
            self._order = dict(zip(splits, map(ids_from_tensor, request.frame.tensors), strict=True))
        else:
            self._order = dict(told_splits(dict(zip(splits, header["sizes"], strict=True))))
        self._changed.notify_all()

    def _take_shape(self, request: Request) -> None:
        header = request.frame.header
        self._shapes[request.party] = [int(side) for side in header["shape"]]
        if self.data.copies and header.get("labels_sha256") != self.data.labels_digest():
            self._failed = self._failed or (
                f"the labels of party {self.names[request.party]} are not those of the server for the same records; "
                "correct one of them"
            )
        if request.party == self.active:
            self._told = {name: header.get(name) for name in ("num_classes", "class_names")}
        self._changed.notify_all()

    def _take_ids(self, request: Request) -> None:
        header = request.frame.header
        if self._ring is not None:
            return
        if self.kind == Alignment.GIVEN:
            digest = IdDigest(int(header.get("count", -1)), str(header.get("sha256")))
            try:
                refuse_other_ids(IdDigest.of(self.data.own_ids()), {self.names[request.party]: digest})
                self._digests[request.party] = digest
            except ConfigurationError as error:
                self._failed = str(error)
        else:
            if not request.frame.tensors:
                raise ConfigurationError(f"party {self.names[request.party]} has sent no ids; use the same recipe")
            self._ids[request.party] = ids_from_tensor(request.frame.tensors[0])
        self._changed.notify_all()

    def _all_shapes(self) -> list[list[int]]:
        return [self._shapes[m] for m in range(len(self.names))]

    def _classes(self) -> dict[str, Any]:
        return self._told or classes_of(self.data)

    def _away(self, told: Collection[int]) -> list[str]:
        """The names of the parties that have not told something."""
        return [name for number, name in enumerate(self.names) if number not in told]

    def _await(self, lacking: Callable[[], list[str]], what: str, patience: float) -> None:
        """Wait until no party lacks what it has to tell."""
        end = monotonic() + patience
        waiting = LongWait(lambda: f"{', '.join(lacking())} to tell their {what}")
        while True:
            if self._failed is not None:
                raise ConfigurationError(self._failed)
            if not (away := lacking()):
                return
            waiting.look()
            if monotonic() > end:
                raise ConfigurationError(
                    f"{', '.join(away)} have not told their {what} within {patience:g} s; start all processes again, "
                    "or raise patience.join"
                )
            self._changed.wait(timeout=min(1.0, patience))

    def _wait(self, done: Callable[[], bool]) -> None:
        while not done() and self._failed is None:
            self._changed.wait(timeout=1.0)


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
        align_privately(
            link,
            data,
            seals,
            bool(others),
            keep,
            lambda: _asked(link, "ids"),
            normalise,
            most=link.agreed.limits.server_ids,
        )
    else:
        with _telling(link):
            own = _own_ids(data, kind)
        frame = _asked(link, "ids", *own)
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
    told = _asked(link, "shape", {"shape": shape, **more})
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


def _asked(link: Link, say: str, header: Mapping[str, Any] | None = None, tensors: Sequence[Tensor] = ()) -> Frame:
    frame = link.ask(DOOR, say, header, tensors)
    if frame is None:
        raise ConfigurationError("the server has closed the federation; start it again")
    return frame
