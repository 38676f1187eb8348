"""How the records of processes find each other before training: ids in the clear, or equal lists.

The server learns which ids each party has (``clear``), or the digest of each list (``given``). Every party learns which
of its own records are in common, and in which split.
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from functools import reduce
from threading import Condition
from time import monotonic
from typing import TYPE_CHECKING, Any

import numpy as np
from torch import Tensor

from lightning_vfl.errors import ConfigurationError
from lightning_vfl.federation.charter import Alignment
from lightning_vfl.federation.frames import pack
from lightning_vfl.federation.hub import At, Key, Request
from lightning_vfl.federation.link import Link
from lightning_vfl.types import SeatedData
from lightning_vfl.wire.record_ids import IdDigest, ids_from_tensor, ids_to_tensor, refuse_other_ids

if TYPE_CHECKING:
    from numpy.typing import NDArray

DOOR = Key(At(-1, 0, 0), 0)  # of requests that belong to no round


class RollCall:
    """The server's part: it waits for the ids of all parties, draws the splits, and tells everybody's shapes.

    Args:
        data: the server's datamodule, which has the labels.
        names: of the parties.
        kind: whether ids are told, or compared.
        active: the party that has the labels and draws the splits; None: the server does.
    """

    def __init__(self, data: Any, names: tuple[str, ...], kind: Alignment, active: int | None = None) -> None:
        self.data = data
        self.names = names
        self.kind = kind
        self.active = active
        self._common: NDArray[np.generic] | None = None  # the ids that all have, if a party draws the splits
        self._told: dict[str, Any] = {}  # the classes, of the party that has the labels
        self._ids: dict[int, NDArray[np.generic]] = {}
        self._digests: dict[int, IdDigest] = {}
        self._shapes: dict[int, list[int]] = {}
        self._order: dict[str, NDArray[np.generic]] | None = None
        self._failed: str | None = None
        self._changed = Condition()

    def answer(self, request: Request) -> bytes | None:
        """The frame that answers a request of the roll call; None for other requests. Runs in the caller's thread."""
        if request.say not in ("ids", "order", "shape"):
            return None
        draws = request.party == self.active
        with self._changed:
            if request.say == "ids":
                self._take_ids(request)
                self._wait(lambda: (self._common if draws else self._order) is not None)
            elif request.say == "order":
                splits = [str(name) for name in request.frame.header["splits"]] if draws else []
                self._order = dict(zip(splits, map(ids_from_tensor, request.frame.tensors), strict=True))
                self._changed.notify_all()
            else:
                self._take_shape(request)
                self._wait(lambda: len(self._shapes) == len(self.names))
            if self._failed is not None:
                return pack({"outcome": "refused", "why": self._failed})
            if request.say == "ids" and draws and self._common is not None:
                return pack({"outcome": "go"}, [ids_to_tensor(self._common)])
            if request.say in ("ids", "order"):
                order = self._order or {}
                return pack({"outcome": "go", "splits": list(order)}, [ids_to_tensor(ids) for ids in order.values()])
            return pack({"outcome": "go", "shapes": self._all_shapes(), **self._classes()})

    def finish(self, patience: float) -> None:
        """Wait for all parties, and align the server's own data.

        Args:
            patience: seconds to wait for the ids, and for the shapes.

        Raises:
            ConfigurationError: if the records of the parties do not fit, and naming parties that tell nothing.
        """
        with self._changed:
            try:
                ids: Collection[int] = self._digests if self.kind == Alignment.GIVEN else self._ids
                self._await(lambda: self._away(ids), "ids", patience)
                if self.active is None:
                    self._order = self.data.split_records({} if self.kind == Alignment.GIVEN else self._ids)
                else:
                    drawing = self.names[self.active]
                    self._common = reduce(np.intersect1d, self._ids.values())
                    self._changed.notify_all()
                    self._await(lambda: [drawing] if self._order is None else [], "splits", patience)
                    self.data.align(self._order)
                self._changed.notify_all()
                self._await(lambda: self._away(self._shapes), "shape", patience)
                self.data.told_shapes(self._all_shapes(), **self._classes())
            except ConfigurationError as error:
                self._failed = str(error)
                raise
            finally:
                self._changed.notify_all()

    def _take_shape(self, request: Request) -> None:
        header = request.frame.header
        self._shapes[request.party] = [int(side) for side in header["shape"]]
        if request.party == self.active:
            self._told = {name: header[name] for name in ("num_classes", "class_names")}
        self._changed.notify_all()

    def _take_ids(self, request: Request) -> None:
        header = request.frame.header
        if self.kind == Alignment.GIVEN:
            digest = IdDigest(int(header["count"]), str(header["sha256"]))
            try:
                refuse_other_ids(IdDigest.of(self.data.own_ids()), {self.names[request.party]: digest})
                self._digests[request.party] = digest
            except ConfigurationError as error:
                self._failed = str(error)
        else:
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
        while away := lacking():
            if self._failed is not None:
                raise ConfigurationError(self._failed)
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


def align(link: Link, data: SeatedData, kind: Alignment, others: Sequence[int] = ()) -> None:
    """A party's part: tell the ids or their digest, take the common order, and tell the shape of its features.

    ``others``: the numbers of the other parties, if this party has the labels; it then draws the splits.

    Raises:
        ConfigurationError: if the server refuses.
    """
    ids, tensors = data.own_ids(), list[Tensor]()
    header: Mapping[str, Any] = {}
    if kind == Alignment.GIVEN:
        digest = IdDigest.of(ids)
        header = {"count": digest.count, "sha256": digest.sha256}
    else:
        tensors = [ids_to_tensor(ids)]
    frame = link.ask(DOOR, "ids", header, tensors)
    if frame is None:
        raise ConfigurationError("the server has closed the federation; start it again")
    more: dict[str, Any] = {}
    if others:
        order = data.split_records(dict.fromkeys(others, ids_from_tensor(frame.tensors[0])))
        link.ask(DOOR, "order", {"splits": list(order)}, [ids_to_tensor(part) for part in order.values()])
        more = classes_of(data)
    else:
        parts = zip(frame.header["splits"], frame.tensors, strict=True)
        data.align({name: ids_from_tensor(part) for name, part in parts})
    frame = link.ask(DOOR, "shape", {"shape": list(data.own_shape()), **more})
    if frame is None:
        raise ConfigurationError("the server has closed the federation; start it again")
    told = frame.header
    data.told_shapes(told["shapes"], told["num_classes"], told["class_names"])
