"""Compressors: embeddings and gradients in fewer bytes, and what the sender has left out of them.

Numbers travel as bytes, with as many for each record as the width alone says, so that every announced byte is exact.
"""

from abc import ABC, abstractmethod
from math import prod
from typing import Any, NamedTuple

import torch
from torch import Tensor

from lightning_vfl.checks import one_of, positive, within
from lightning_vfl.errors import ConfigurationError, MalformedMessage
from lightning_vfl.rebuildable import Rebuildable
from lightning_vfl.streams import seed_torch
from lightning_vfl.types import Parties, RoundNames, Shape, Tensors

__all__ = ["Compressor", "Quantise", "TopK"]


class Compressor(Rebuildable, ABC):
    """How numbers of records, (B, D) float32, are sent in fewer bytes.

    Every tensor of ``encode`` has a row for each record. A row depends on the same row of the input alone, and its
    size on the width alone. A draw comes from torch's generator, which is seeded by the round and the sender.

    Attributes:
        feedback: the sender keeps what it has left out of each record's numbers, and adds it to the next message about
            the record.
    """

    feedback: bool = False

    @abstractmethod
    def encode(self, h: Tensor) -> Tensors:
        """What is sent of h (B, D)."""

    @abstractmethod
    def decode(self, tensors: Tensors, width: int) -> Tensor:
        """(B, D) float32, what the receiver has instead of h, D = ``width``."""

    def parts(self, width: int) -> list["_Part"]:
        """The form of the tensors of one record; ``encode`` is tried once for each width."""
        forms: dict[int, list[_Part]] = self.__dict__.setdefault("_forms", {})
        if width not in forms:
            forms[width] = _parts(self, width)
        return forms[width]


class TopK(Compressor):
    """The k largest numbers of each record by magnitude, in float32, and their places; the others become zero.

    Guarantee: the squared error of a record is at most 1 - k/D of its squared norm.

    Args:
        k: how many numbers are sent; None: a share of them.
        share: the share of the width that is sent, if k is None; at least one number.
        feedback: as in ``Compressor``.

    Raises:
        ConfigurationError: for both or neither, and, before training, for more numbers than the width.

    Examples:
        >>> TopK(1).decode(TopK(1).encode(torch.tensor([[1.0, -3.0, 2.0]])), 3).tolist()
        [[0.0, -3.0, 0.0]]
    """

    def __init__(self, k: int | None = None, share: float | None = None, feedback: bool = False) -> None:
        if (k is None) == (share is None):
            raise ConfigurationError(f"TopK needs k or share; got k={k} and share={share}; use for example share=0.25")
        self.k = None if k is None else positive("k", k, whole=True)
        self.share = None if share is None else within("share", share, above=0, most=1)
        self.feedback = feedback

    def encode(self, h: Tensor) -> Tensors:
        width = h.shape[1]
        k = self.k or max(1, round((self.share or 0) * width))
        within("k of TopK", k, 1, width, whole=True, advice="use at most the width, or share")
        places = h.abs().topk(k, dim=1).indices
        return h.gather(1, places), places.to(_dtype_of_places(width))

    def decode(self, tensors: Tensors, width: int) -> Tensor:
        kept, places = tensors
        where = places.long()
        if where.numel() and not 0 <= int(where.min()) <= int(where.max()) < width:
            raise ValueError(f"a place outside of {width} numbers")
        return kept.new_zeros(len(kept), width).scatter_(1, where, kept)


class Quantise(Compressor):
    """Every number in ``bits`` bits, between the smallest and the largest of its record, rounded at random.

    Guarantee: the expectation of a decoded number is the number (within float32), and its error is below one step, the
        range of the record divided by 2^bits - 1. A record takes 8 bytes more.

    Args:
        bits: 1, 2, 4 or 8.
        feedback: as in ``Compressor``.

    Raises:
        ConfigurationError: for other bits.

    Examples:
        >>> Quantise(1).decode(Quantise(1).encode(torch.tensor([[1.0, -3.0, 1.0]])), 3).tolist()
        [[1.0, -3.0, 1.0]]
    """

    def __init__(self, bits: int = 8, feedback: bool = False) -> None:
        self.bits = one_of("bits", bits, (1, 2, 4, 8))
        self.feedback = feedback

    def encode(self, h: Tensor) -> Tensors:
        low, high = h.aminmax(dim=1, keepdim=True)
        most = 2**self.bits - 1
        step = (high - low) / most
        levels = torch.floor((h - low) / torch.where(step > 0, step, 1.0) + torch.rand_like(h)).clamp(0, most)
        together = 8 // self.bits  # numbers in a byte
        padded = torch.nn.functional.pad(levels.to(torch.uint8), (0, -h.shape[1] % together))
        shifts = torch.arange(together, device=h.device) * self.bits
        packed = (padded.view(len(h), -1, together).int() << shifts).sum(2)
        return packed.to(torch.uint8), torch.cat([low, step], dim=1)

    def decode(self, tensors: Tensors, width: int) -> Tensor:
        packed, scales = tensors
        shifts = torch.arange(8 // self.bits, device=packed.device) * self.bits
        levels = (packed.int()[..., None] >> shifts) & (2**self.bits - 1)
        low, step = torch.split(scales, 1, dim=1)
        decoded: Tensor = low + step * levels.flatten(1)[:, :width]
        return decoded


def bytes_of_record(compressor: Compressor, width: int) -> int:
    """How many bytes a record of this width takes.

    Raises:
        ConfigurationError: if the compressor cannot send this width, or gives other than a row for each record.
    """
    return sum(size for _, _, size in compressor.parts(width))


def packed(compressor: Compressor, h: Tensor) -> Tensor:
    """(B, n) uint8, what is sent of h (B, D).

    Raises:
        ConfigurationError: if it is not what was announced for this width.
    """
    tensors = compressor.encode(h)
    parts = compressor.parts(h.shape[1])
    forms = [(t.dtype, tuple(t.shape[1:])) for t in tensors]
    if forms != [(part.dtype, part.shape) for part in parts] or any(len(t) != len(h) for t in tensors):
        raise ConfigurationError(
            f"encode of {type(compressor).__name__} must give tensors whose rows depend on the width alone; got {forms}"
        )
    return torch.cat([_as_bytes(tensor) for tensor in tensors], dim=1)


def unpacked(compressor: Compressor, piece: Tensor, width: int, which: str) -> Tensor:
    """(B, D) float32, what the receiver has of packed numbers.

    Raises:
        MalformedMessage: for other than packed numbers of this width, naming the message, ``which``.
    """
    parts = compressor.parts(width)
    size = sum(part.size for part in parts)
    if piece.dtype != torch.uint8 or piece.dim() != 2 or piece.shape[1] != size:
        raise MalformedMessage(
            f"{which} are {piece.dtype} of shape {tuple(piece.shape)} where {size} bytes of each record were "
            "expected; all must run the same recipe"
        )
    rows = torch.split(piece, [part.size for part in parts], dim=1)
    tensors = [
        row.clone(memory_format=torch.contiguous_format).view(part.dtype).view(len(piece), *part.shape)
        for row, part in zip(rows, parts, strict=True)
    ]
    try:
        return compressor.decode(tuple(tensors), width)
    except (ValueError, RuntimeError, IndexError) as error:
        raise MalformedMessage(f"{which} cannot be decoded by {type(compressor).__name__}: {error}") from error


class Sender:
    """One end that sends compressed numbers of records, with the residues of ``feedback``.

    A residue changes when the message is known to have been used (``settle``), so that numbers of a message that came
    too late are not lost. What a round sends and its new residues are together the numbers and the old residues.

    Args:
        compressor: of the numbers.
        what: names the numbers in random streams.
    """

    def __init__(self, compressor: Compressor, what: str) -> None:
        self.compressor = compressor
        self.what = what
        self._records = 0
        self._residues: dict[int, Tensor] = {}  # by party (N, D_m), from its first message on
        self._left_out: dict[int, tuple[Tensor, Tensor]] = {}  # by party, the records of the message under way

    def pack(self, party: int, h: Tensor, ids: Tensor, names: RoundNames) -> Tensor:
        """(B, n) uint8, the message about the numbers (B, D_m) of the records ``ids`` of a party."""
        whole = h.detach().float()
        feedback = self.compressor.feedback
        if feedback:
            whole = whole + self._residue(party, whole)[ids.to(whole.device)]
        seed_torch(whole.device, names.seed, self.what, names.stage, names.round, party)
        message = packed(self.compressor, whole)
        if feedback:
            self._left_out[party] = ids, whole - unpacked(self.compressor, message, whole.shape[1], self.what)
        return message

    def settle(self, parties: Parties) -> None:
        """Keep what the messages of these parties have left out; those of others were not used."""
        for party in parties:
            if party in self._left_out:
                ids, residue = self._left_out[party]
                self._residues[party].index_copy_(0, ids.to(residue.device), residue)
        self._left_out.clear()

    def residue_of(self, party: int) -> Tensor | None:
        """(N, D_m), a copy of what was left out of a party's messages; None: it has sent none."""
        return self._residues[party].clone() if party in self._residues else None

    def put_back(self, party: int, residue: Tensor | None) -> None:
        """Make the residue of a party what it was; None: it has sent nothing yet."""
        self._residues.pop(party, None)
        if residue is not None:
            self._residues[party] = residue.clone()

    def _residue(self, party: int, like: Tensor) -> Tensor:
        if party not in self._residues:
            self._residues[party] = like.new_zeros(self._records, like.shape[1])
        self._residues[party] = self._residues[party].to(like.device)
        return self._residues[party]

    # ---- as a memory between rounds

    def prepare(self, records: int, widths: Any, device: torch.device) -> None:
        """Forget everything, and make room for so many records."""
        self._records = records
        self._residues.clear()
        self._left_out.clear()

    def move(self, device: torch.device) -> None:
        """Move the residues to this device."""
        self._residues = {party: residue.to(device) for party, residue in self._residues.items()}

    def state(self) -> dict[str, Any]:
        """The residues, for a checkpoint."""
        return {"residues": dict(self._residues)}

    def load(self, state: dict[str, Any]) -> None:
        """Restore the residues from a checkpoint."""
        self._residues = dict(state["residues"])


class _Part(NamedTuple):
    """One tensor of a record: its type, the shape of its row, and its bytes."""

    dtype: torch.dtype
    shape: Shape
    size: int


def _parts(compressor: Compressor, width: int) -> list[_Part]:
    with torch.random.fork_rng(devices=[]):  # the form of a message is no draw of a round
        tensors = compressor.encode(torch.zeros(1, width))
    if not isinstance(tensors, tuple) or not all(isinstance(t, Tensor) and t.dim() and len(t) == 1 for t in tensors):
        raise ConfigurationError(
            f"encode of {type(compressor).__name__} must give a tuple of tensors with a row for each record"
        )
    return [_Part(t.dtype, tuple(t.shape[1:]), prod(t.shape[1:]) * t.element_size()) for t in tensors]


def _as_bytes(tensor: Tensor) -> Tensor:
    return tensor.reshape(len(tensor), prod(tensor.shape[1:])).contiguous().view(torch.uint8)


def _dtype_of_places(width: int) -> torch.dtype:
    if width <= 2**8:
        return torch.uint8
    return torch.int16 if width <= 2**15 else torch.int32
