"""A step in which parties receive only the gradient of their weights over a batch, under homomorphic encryption.

``SummedGradients`` with Paillier's scheme, the packaged downlink, beside two lattice schemes of tenseal. In all of them
the server encrypts the gradients G (B, D) of a party's embeddings, a party with a linear bottom computes their sums or
products with its columns x_f and with 1 (for the bias), hides them under random numbers and sends them back, and the
server decrypts. CreditDefault's shape: 24 columns at 4 parties, B = 256, D = 16, so that B D fills the 4,096 slots of
CKKS at N = 8192. BFV computes the same with integers on a fixed grid, and masks that are uniform modulo t.

All parties are computed in turn. Nobody should send what CKKS and BFV give to a server that has reasons to look at it:
see the page of results on downlinks for what they do not hide.

    python -m benchmarks.summed_gradients [--json FILE] [--turns T]
"""

import time
from abc import ABC, abstractmethod
from collections.abc import Callable
from functools import partial
from statistics import median
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from benchmarks.harness import Goal, arguments, report
from benchmarks.homomorphic import module
from lightning_vfl.crypto.paillier import KeyPair
from lightning_vfl.downlinks.batch_sums import SumsAtParty, SumsAtServer, SumSizes
from lightning_vfl.types import RoundNames, Stage

Floats = NDArray[np.float64]
Words = NDArray[np.int64]

ROWS, WIDTH, COLUMNS, PARTIES = 256, 16, 6, 4
SLOTS = ROWS * WIDTH
LIMIT = 2.0  # seconds of a step


class Scheme(ABC):
    """One encryption; vectors have a number for each slot."""

    name: str

    @abstractmethod
    def encrypt(self, gradients: Floats) -> bytes:
        """The gradients (SLOTS,), by the server."""

    @abstractmethod
    def multiply(self, sealed: bytes, column: Floats) -> tuple[bytes, Any]:
        """The masked product with a column (SLOTS,) and the mask, by the party, which has no secret key."""

    @abstractmethod
    def sums(self, sealed: bytes) -> Any:
        """The (WIDTH,) sums of a masked product over the rows, by the server."""

    @abstractmethod
    def unmask(self, sums: Any, mask: Any) -> Floats:
        """The (WIDTH,) gradients of one weight row, by the party."""


class CKKS(Scheme):
    """Floating-point numbers; masks are uniform in ±2^10, 13 bits above the largest product."""

    name = "CKKS, N = 8192"

    def __init__(self) -> None:
        self.ts = ts = module("tenseal")
        self.own = ts.context(ts.SCHEME_TYPE.CKKS, 8192, coeff_mod_bit_sizes=[60, 40, 60])
        self.own.global_scale = 2**40
        self.key, self.public = self.own.secret_key(), self.own.copy()
        self.public.make_context_public()
        self.random = np.random.default_rng(0)

    def encrypt(self, gradients: Floats) -> bytes:
        sealed: bytes = self.ts.ckks_vector(self.own, gradients).serialize()
        return sealed

    def multiply(self, sealed: bytes, column: Floats) -> tuple[bytes, Any]:
        mask = self.random.uniform(-(2.0**10), 2.0**10, SLOTS)
        product = self.ts.ckks_vector_from(self.public, sealed) * column.tolist() + mask.tolist()
        return product.serialize(), mask

    def sums(self, sealed: bytes) -> Any:
        return np.array(self.ts.ckks_vector_from(self.own, sealed).decrypt(self.key)).reshape(WIDTH, ROWS).sum(1)

    def unmask(self, sums: Any, mask: Any) -> Floats:
        found: Floats = sums - mask.reshape(WIDTH, ROWS).sum(1)
        return found


class BFV(Scheme):
    """Integers modulo a prime t of 50 bits: gradients in steps of 2^-22, columns of 2^-12, uniform masks."""

    name = "BFV, N = 8192"
    steps = (2.0**22, 2.0**12)

    def __init__(self) -> None:
        self.ts = ts = module("tenseal")
        self.prime = module("tenseal.sealapi").PlainModulus.Batching(8192, 50).value()
        self.own = ts.context(ts.SCHEME_TYPE.BFV, 8192, plain_modulus=self.prime, coeff_mod_bit_sizes=[60, 60, 60])
        self.key, self.public = self.own.secret_key(), self.own.copy()
        self.public.make_context_public()
        self.random = np.random.default_rng(0)

    def encrypt(self, gradients: Floats) -> bytes:
        sealed: bytes = self.ts.bfv_vector(self.own, self.rounded(gradients, self.steps[0]).tolist()).serialize()
        return sealed

    def multiply(self, sealed: bytes, column: Floats) -> tuple[bytes, Any]:
        mask = self.random.integers(-(self.prime // 2), self.prime // 2 + 1, SLOTS)
        product = self.ts.bfv_vector_from(self.public, sealed) * self.rounded(column, self.steps[1]).tolist()
        return (product + mask.tolist()).serialize(), mask

    def sums(self, sealed: bytes) -> Any:
        numbers = np.array(self.ts.bfv_vector_from(self.own, sealed).decrypt(self.key), dtype=object)
        return numbers.reshape(WIDTH, ROWS).sum(1) % self.prime

    def unmask(self, sums: Any, mask: Any) -> Floats:
        plain = (sums - mask.astype(object).reshape(WIDTH, ROWS).sum(1)) % self.prime
        signed = [int(n) - self.prime if n > self.prime // 2 else int(n) for n in plain]
        return np.array(signed) / (self.steps[0] * self.steps[1])

    @staticmethod
    def rounded(numbers: Floats, step: float) -> Words:
        return np.rint(numbers * step).astype(np.int64)


def step(scheme: Scheme, gradients: list[Floats], columns: list[Floats]) -> dict[str, float]:
    """Seconds, bytes and the largest error of a step, over all parties."""
    seconds = {"encrypt": 0.0, "party": 0.0, "decrypt": 0.0}
    down = up = worst = 0.0
    for g, x in zip(gradients, columns, strict=True):
        began = time.perf_counter()
        sealed = scheme.encrypt(g.T.reshape(-1))
        sent = time.perf_counter()
        answers = [scheme.multiply(sealed, np.tile(column, WIDTH)) for column in x.T]
        answered = time.perf_counter()
        sums = [scheme.sums(product) for product, _ in answers]
        done = time.perf_counter()
        found = np.array([scheme.unmask(s, mask) for s, (_, mask) in zip(sums, answers, strict=True)])
        unmasked = time.perf_counter()
        worst = max(worst, float(np.abs(found - x.T @ g).max() / np.abs(x.T @ g).max()))
        seconds["encrypt"] += sent - began
        seconds["party"] += answered - sent + unmasked - done
        seconds["decrypt"] += done - answered
        down, up = len(sealed), sum(len(product) for product, _ in answers)
    return {**seconds, "down": down, "up": up, "error": worst}


def packaged_step(
    server: SumsAtServer, party: SumsAtParty, gradients: list[Floats], columns: list[Floats]
) -> dict[str, float]:
    """Seconds, bytes and the largest error of a step of ``SummedGradients``, over all parties."""
    seconds = {"encrypt": 0.0, "party": 0.0, "decrypt": 0.0}
    down = up = worst = 0.0
    names = RoundNames(0, Stage.FIT, time.perf_counter_ns())  # equal gradients are encrypted once in a round
    for g, x in zip(gradients, columns, strict=True):
        began = time.perf_counter()
        sealed = server.seal(torch.from_numpy(g * ROWS), names)
        sent = time.perf_counter()
        asked, masks = party.ask(sealed, torch.from_numpy(x), WIDTH)
        answered = time.perf_counter()
        opened = server.open(asked)
        done = time.perf_counter()
        found = party.sums(opened, masks, ROWS, x.shape[1], WIDTH).numpy() / ROWS
        unmasked = time.perf_counter()
        worst = max(worst, float(np.abs(found - x.T @ g).max() / np.abs(x.T @ g).max()))
        seconds["encrypt"] += sent - began
        seconds["party"] += answered - sent + unmasked - done
        seconds["decrypt"] += done - answered
        down, up = len(sealed) * party.key.bytes, len(asked) * party.key.bytes
    return {**seconds, "down": down, "up": up, "error": worst}


def main() -> None:
    parser = arguments(__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--turns", type=int, default=7, help="how often a step is measured")
    chosen = parser.parse_args()
    random = np.random.default_rng(1)
    gradients = [random.normal(size=(ROWS, WIDTH)) / ROWS for _ in range(PARTIES)]
    columns = [np.column_stack([random.normal(size=(ROWS, COLUMNS)), np.ones(ROWS)]) for _ in range(PARTIES)]
    rows, goals = [], []
    steps: dict[str, Callable[[], dict[str, float]]] = {}
    for bits in (2048, 3072):
        sizes = SumSizes(bits, 8.0, 128.0)
        server = SumsAtServer(KeyPair(bits), sizes)
        party = SumsAtParty(server.keys.public, sizes)
        for join, sent in (("Concat", gradients), ("Mean", gradients[:1] * PARTIES)):
            steps[f"Paillier, {bits:,} bits, {join}"] = partial(packaged_step, server, party, sent, columns)
    for scheme in (CKKS(), BFV()):
        steps[scheme.name] = partial(step, scheme, gradients, columns)
    for name, run in steps.items():
        turns = [run() for _ in range(chosen.turns)]
        total = median(turn["encrypt"] + turn["party"] + turn["decrypt"] for turn in turns)
        rows.append(
            {
                "scheme": name,
                **{
                    f"{part}, s": round(median(turn[part] for turn in turns), 3)
                    for part in ("encrypt", "party", "decrypt")
                },
                "step of 4 parties, s": round(total, 3),
                "down per party, kB": round(turns[0]["down"] / 1e3, 1),
                "up per party, kB": round(turns[0]["up"] / 1e3, 1),
                "largest relative error": f"{max(turn['error'] for turn in turns):.1e}",
            }
        )
        goals.append(Goal(f"a step with {name}, seconds", total, LIMIT))
    report(rows, goals, chosen.json)


if __name__ == "__main__":
    main()
