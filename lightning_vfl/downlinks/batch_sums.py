"""The sums over a batch that parties with linear bottoms are sent in place of the gradients of single records."""

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from math import ceil

import numpy as np
import torch
from torch import Tensor

from lightning_vfl.crypto.paillier import KeyPair, PublicKey, pack, unpack
from lightning_vfl.errors import ConfigurationError
from lightning_vfl.types import RoundNames
from lightning_vfl.wire import Leg, Message

SEALED, BLINDED, OPENED = "encrypted gradients", "blinded sums", "sums over the batch"  # kinds of messages
SUMS = "gradients of weights"  # kind of what a party computes from the opened sums
GRADIENT_STEP, COLUMN_STEP = 2.0**-20, 2.0**-10  # of the integers that gradients and columns are rounded to
_BYTE = 8

Tell = Callable[[Message], None]


@dataclass(frozen=True)
class SumSizes:
    """The sizes of integers and messages.

    Args:
        key_bits: of the modulus n.
        gradients: the largest size of a number in the gradient of one record.
        columns: the largest size of a number in a party's columns.
        solvable: whether sums of so few records may be sent that they tell every gradient.
    """

    key_bits: int
    gradients: float
    columns: float
    solvable: bool = False

    def slot(self, rows: int) -> int:
        """The bits of one sum of so many products, with its sign.

        Raises:
            ConfigurationError: if sums could be larger than 64-bit integers.
        """
        largest = ceil(self.gradients / GRADIENT_STEP) * ceil(self.columns / COLUMN_STEP) * max(rows, 1)
        if largest >= 2**62:
            raise ConfigurationError(
                f"sums of {rows:,} records take more than 62 bits with gradient_range = {self.gradients:g} and "
                f"column_range = {self.columns:g}; lower a range, or use a smaller batch_size"
            )
        return largest.bit_length() + 1

    def together(self, rows: int) -> int:
        """How many sums are side by side in one plaintext."""
        return (self.key_bits - 2) // self.slot(rows)

    def legs(self, rows: int, widths: tuple[int, ...], basis: tuple[int, ...]) -> tuple[Leg, Leg, Leg]:
        """The encrypted gradients, a party's blinded sums, and the opened sums, for embeddings of these widths.

        Work counts two FLOPs for each product of 64-bit words.
        """
        wide, inputs = torch.tensor(widths), torch.tensor(basis)
        plaintexts = (wide + self.together(rows) - 1) // self.together(rows)
        sealed, answers = rows * plaintexts, inputs * plaintexts
        modulus, square = self.key_bits // _BYTE, 2 * self.key_bits // _BYTE
        short, long = (4.0 * (bits / 64) ** 2 for bits in (self.key_bits, 2 * self.key_bits))  # a product modulo p², n²
        encrypting = 2 * (self.key_bits / 2 / 8) * short
        digits = ceil(ceil(self.columns / COLUMN_STEP).bit_length() / 4)
        adding = (digits * (rows + 64) + 1.2 * self.key_bits) * long
        return (
            Leg(SEALED, "parties", sealed * square, _BYTE, sealed.double() * encrypting),
            Leg(BLINDED, "server", answers * square, _BYTE, answers.double() * adding),
            Leg(OPENED, "parties", answers * modulus, _BYTE, answers.double() * 1.2 * self.key_bits * short),
        )

    def integers(self, numbers: Tensor, gradients: bool) -> "np.ndarray[tuple[int, ...], np.dtype[np.int64]]":
        """Real numbers in units of their step, rounded to the nearest.

        Raises:
            ConfigurationError: for a number that is larger than announced, and for NaN.
        """
        step, limit = (GRADIENT_STEP, self.gradients) if gradients else (COLUMN_STEP, self.columns)
        largest = float(numbers.abs().max()) if numbers.numel() else 0.0
        if not largest <= limit:
            what, setting = ("a gradient", "gradient_range") if gradients else ("a column", "column_range")
            raise ConfigurationError(
                f"{what} has a number of size {largest:.4g}, above {setting} = {limit:g} of SummedGradients; raise "
                f"{setting}, or scale the data"
            )
        return np.rint(numbers.detach().to("cpu", torch.float64).numpy() / step).astype(np.int64)


class BatchSums(ABC):
    """How parties get the sums of a round.

    Args:
        sizes: of integers and messages.
    """

    def __init__(self, sizes: SumSizes) -> None:
        self.sizes = sizes

    @abstractmethod
    def send(self, gradients: Tensor, party: int, names: RoundNames, tell: Tell | None) -> None:
        """Send a party the gradients (B, D) of single records, encrypted, of which it asks nothing."""

    @abstractmethod
    def run(self, gradients: Tensor, basis: Tensor, party: int, names: RoundNames, tell: Tell | None) -> Tensor:
        """(W, D) float64, the sums over the batch of the products of basis (B, W) and gradients (B, D).

        Args:
            gradients: of the loss of each record alone, in the server's process.
            basis: the inputs of the party's linear bottom.
            party: who asks.
            names: of the round.
            tell: hears the messages; None: nobody does.

        Raises:
            ConfigurationError: for numbers outside the announced ranges.
        """


class SumsInTheClear(BatchSums):
    """The integers of the encrypted exchange, computed in one place without encryption or messages."""

    def send(self, gradients: Tensor, party: int, names: RoundNames, tell: Tell | None) -> None:
        return

    def run(self, gradients: Tensor, basis: Tensor, party: int, names: RoundNames, tell: Tell | None) -> Tensor:
        whole = self.sizes.integers(basis, False).T @ self.sizes.integers(gradients, True)
        return torch.from_numpy(whole * (GRADIENT_STEP * COLUMN_STEP))


class EncryptedSums(BatchSums):
    """The exchange with encryption: the server has the key, and parties compute with ciphertexts.

    Guarantee: the bits of ``SumsInTheClear``.
    """

    def __init__(self, sizes: SumSizes) -> None:
        super().__init__(sizes)
        self.server = SumsAtServer(KeyPair(sizes.key_bits), sizes)
        self.party = SumsAtParty(self.server.keys.public, sizes)

    def send(self, gradients: Tensor, party: int, names: RoundNames, tell: Tell | None) -> None:
        self._sent(gradients, party, names, tell)

    def run(self, gradients: Tensor, basis: Tensor, party: int, names: RoundNames, tell: Tell | None) -> Tensor:
        sealed = self._sent(gradients, party, names, tell)
        asked, masks = self.party.ask(sealed, basis, gradients.shape[1])
        opened = self.server.open(asked)
        if tell is not None:
            sums = in_bytes(opened, self.sizes.key_bits // 8)
            tell(Message(BLINDED, "server", (party,), (in_bytes(asked, self.party.key.bytes),), round=names))
            tell(Message(OPENED, "parties", (), (sums,), receivers=(party,), round=names))
        return self.party.sums(opened, masks, len(basis), basis.shape[1], gradients.shape[1])

    def _sent(self, gradients: Tensor, party: int, names: RoundNames, tell: Tell | None) -> list[int]:
        sealed = self.server.seal(gradients, names)
        if tell is not None:
            piece = in_bytes(sealed, self.party.key.bytes)
            tell(Message(SEALED, "parties", (), (piece,), receivers=(party,), round=names))
        return sealed


class SumsAtServer:
    """The server: it has the gradients and the key, and never sees a party's columns.

    Args:
        keys: its key.
        sizes: of the integers.
    """

    def __init__(self, keys: KeyPair, sizes: SumSizes) -> None:
        self.keys = keys
        self.sizes = sizes
        self._sealed: tuple[RoundNames, Tensor, list[int]] | None = None

    def seal(self, gradients: Tensor, names: RoundNames) -> list[int]:
        """Ciphertexts, record by record; equal gradients for several parties of a round are encrypted once."""
        if self._sealed is not None and self._sealed[0] == names and torch.equal(self._sealed[1], gradients):
            return self._sealed[2]
        slot, together = self.sizes.slot(len(gradients)), self.sizes.together(len(gradients))
        plain = [
            pack(row[first : first + together], slot)
            for row in self.sizes.integers(gradients, True).tolist()
            for first in range(0, len(row), together)
        ]
        sealed = self.keys.encrypt(plain)
        self._sealed = names, gradients.clone(), sealed
        return sealed

    def open(self, asked: list[int]) -> list[int]:
        """The blinded sums."""
        return self.keys.decrypt(asked)


class SumsAtParty:
    """A party: it has the columns and the public key, and learns sums over the batch.

    Args:
        key: of the server.
        sizes: of the integers.
    """

    def __init__(self, key: PublicKey, sizes: SumSizes) -> None:
        self.key = key
        self.sizes = sizes

    def ask(self, sealed: list[int], basis: Tensor, width: int) -> tuple[list[int], list[int]]:
        """Blinded ciphertexts of the sums, and the numbers that blind them."""
        weights, pieces = self.sizes.integers(basis, False), ceil(width / self.sizes.together(len(basis)))
        sums = [self.key.weighted_sums(sealed[piece::pieces], weights) for piece in range(pieces)]
        return self.key.blind([c for piece in sums for c in piece])

    def sums(self, opened: list[int], masks: list[int], rows: int, inputs: int, width: int) -> Tensor:
        """(W, D) float64, the sums for W inputs."""
        slot, together, n = self.sizes.slot(rows), self.sizes.together(rows), int(self.key.n)
        plain = [(number - mask + n // 2) % n - n // 2 for number, mask in zip(opened, masks, strict=True)]
        pieces = [
            [unpack(number, slot, min(together, width - first)) for number in plain[place * inputs :][:inputs]]
            for place, first in enumerate(range(0, width, together))
        ]
        whole = np.concatenate([np.array(piece, dtype=np.int64).reshape(inputs, -1) for piece in pieces], axis=1)
        return torch.from_numpy(whole * (GRADIENT_STEP * COLUMN_STEP))


def in_bytes(numbers: list[int], size: int) -> Tensor:
    """The numbers one after the other, as (len · size,) bytes."""
    return torch.frombuffer(bytearray(b"".join(int(n).to_bytes(size, "big") for n in numbers)), dtype=torch.uint8)
