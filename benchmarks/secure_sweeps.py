"""How the Secure Layer's overhead grows (vFedSec's Table 3), and a product under encryption (its Figure 3)."""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import log
from pathlib import Path
from statistics import mean, median
from typing import Any

import numpy as np
import torch

from benchmarks.homomorphic import NumberByNumber, NumberCKKS, NumberPaillier
from benchmarks.secure_parties import BATCH, KEY, ROUNDS, Bill, Member, must_agree, summed
from lightning_vfl.aggregators.secure.codec import Shift, shift_for
from lightning_vfl.crypto import KeyPair, MaskNames, Sealed


@dataclass(frozen=True)
class Point:
    """A round of N parties with B records of D = 128: overheads of a passive party, CPU of the server, bytes."""

    party: float
    setup: float
    server: float
    passive_bytes: int
    active_bytes: int
    relayed_bytes: int


def point(parties: int, batch: int, repeats: int = 15) -> Point:
    codec = shift_for(4.0, "auto", parties, 32)
    publics = {number: KeyPair().public for number in range(parties - 1)}
    number, members, h = parties - 1, range(parties), torch.randn(batch, 128).clamp_(-4, 4)
    setups, rounds, sums = [], [], []
    letter = Sealed(bytes(KEY)).seal(bytes(8 * batch), 0)
    uploads = [np.random.default_rng(m).integers(2**32, size=h.shape, dtype=np.uint32) for m in range(parties)]
    for _ in range(repeats):
        account = Bill()
        with account.timed("setup"):
            member = Member(number, codec, "fit")
            member.agree({**publics, number: member.own.public})
            member.masks.keystreams(range(number), MaskNames("embeddings", "fit", 0, 0, 0))
        setups.append(account.setup)
        for round in range(ROUNDS):
            account = Bill()
            with account.timed("protection"):
                Sealed(bytes(KEY)).open(letter, 0)
                member.protected(h, "embeddings", 0, members, round)
            rounds.append(account.protection)
        account = Bill()
        with account.timed("protection"):
            summed(uploads, codec)
        sums.append(account.protection)
    keys = KEY * parties // ROUNDS
    ids = (parties - 1) * len(letter)
    return Point(
        median(rounds), median(setups), median(sums), len(letter) + keys, ids + keys, 2 * ids + 2 * parties * keys
    )


def growth() -> list[dict[str, Any]]:
    """Table 3: what grows how."""
    by_parties = {n: point(n, BATCH) for n in (4, 8, 16, 32, 64)}
    by_batch = {b: point(8, b) for b in (64, 128, 256, 512, 1024, 2048)}
    rows: list[dict[str, Any]] = []
    for variable, points in (("N", by_parties), ("B", by_batch)):
        for value, one in points.items():
            rows.append(
                {
                    "table": "Table 3: overhead of a round, D = 128",
                    "N": value if variable == "N" else 8,
                    "B": value if variable == "B" else BATCH,
                    "party, ms": 1e3 * one.party,
                    "its set-up, ms": 1e3 * one.setup,
                    "server, ms": 1e3 * one.server,
                    "passive, bytes": one.passive_bytes,
                    "active, bytes": one.active_bytes,
                    "server, bytes": one.relayed_bytes,
                }
            )
    said = {  # paper's law in N, in B
        "party": ("CPU of a party's round", "1 (hN + B)", "1"),
        "setup": ("CPU of a party's set-up", "1", "0"),
        "server": ("CPU of the server", "0", "0"),
        "passive_bytes": ("bytes of a passive party", "1 (N + B)", "1 (N + B)"),
        "active_bytes": ("bytes of the active party", "1 (N + B)", "1 (N + B)"),
        "relayed_bytes": ("bytes of the server", "1", "1"),
    }
    for part, (what, in_parties, in_batch) in said.items():
        fits = [
            np.polyfit([log(v) for v in points], [log(getattr(one, part)) for one in points.values()], 1)[0]
            for points in (by_parties, by_batch)
        ]
        rows.append(
            {
                "table": "Table 3: exponents fitted from N = 4 to 64 and B = 64 to 2048",
                "what": what,
                "in N": float(fits[0]),
                "paper's in N": in_parties,
                "in B": float(fits[1]),
                "paper's in B": in_batch,
            }
        )
    per = [1e9 * one.party / (BATCH * 128) for one in by_parties.values()]
    slope, base = np.polyfit(list(by_parties), per, 1)
    rows.append(
        {
            "table": "Table 3: exponents fitted from N = 4 to 64 and B = 64 to 2048",
            "what": f"a party's round: {base:.1f} + {slope:.2f} N ns a number",
        }
    )
    return rows


SWEEP = (8, 16, 32, 64, 128, 256)
SWEPT = {  # what is drawn, in the order of the labels
    "Paillier": "Paillier (phe), number by number",
    "CKKS": "CKKS (SEAL), number by number",
    "ours and product": "ours, and the product in nested loops",
    "ours": "ours: quantised and masked",
}


def plain_product(x: Sequence[Sequence[float]], weights: Sequence[Sequence[float]]) -> list[list[float]]:
    """What the encrypted products do, on plain numbers."""
    return [[sum(v * w[o] for v, w in zip(row, weights, strict=True)) for o in range(len(weights[0]))] for row in x]


def sweep(parties: int = 4) -> list[dict[str, Any]]:
    """Figure 3: a product of (B, 8) and (8, 8) hidden by masks, and computed under encryption."""
    rows = []
    codec = Shift()
    schemes: dict[str, NumberByNumber] = {"Paillier": NumberPaillier(), "CKKS": NumberCKKS()}
    members = [Member(number, codec, "fit") for number in range(parties)]
    for member in members:
        member.agree({one.number: one.own.public for one in members})
    counter = iter(range(10**9))
    draw = np.random.default_rng(0)
    for batch in SWEEP:
        x, weights = draw.uniform(-1, 1, (batch, 8)), draw.uniform(-1, 1, (8, 8)) / 2
        spent: dict[str, list[float]] = defaultdict(list)
        for _ in range(10):
            uploads, both, round = [], Bill(), next(counter)
            for member in members:
                with both.timed("model"):
                    product = torch.tensor(plain_product(x.tolist(), weights.tolist()))
                with both.timed("protection"):
                    uploads.append(member.protected(product, "embeddings", 0, range(parties), round))
            must_agree("the masked sum", summed(uploads, codec), parties * (x @ weights), parties * 1e-6)
            spent["ours"].append(both.protection / parties)
            spent["ours and product"].append(both.seconds / parties)
        for name, scheme in schemes.items():
            for _ in range(2):
                account = Bill()
                with account.timed("protection"):
                    found = scheme.product(x.tolist(), scheme.encrypt(weights.tolist()))
                must_agree("the encrypted product", scheme.decrypt(found[:1]), (x @ weights)[:1], 1e-4)
                spent[name].append(account.protection)
        row: dict[str, Any] = {"table": "Figure 3: (B, 8) times (8, 8), CPU ms", "B": batch}
        row |= {name: 1e3 * mean(spent[name]) for name in SWEPT}
        row |= {f"{name} over ours": mean(spent[name]) / mean(spent["ours"]) for name in schemes}
        rows.append(row)
    return rows


def draw_sweep(rows: Sequence[Mapping[str, Any]], file: Path) -> None:
    from matplotlib import rc_context
    from matplotlib.figure import Figure

    # colour, marker, points from the line up to its label
    looks = (("#D55E00", "s", 14), ("#CC79A7", "o", -24), ("#009E73", "^", 20), ("#0072B2", "D", -14))
    style: Any = {"font.size": 8, "axes.linewidth": 0.6, "lines.linewidth": 1.3, "svg.hashsalt": "lightning_vfl"}
    with rc_context(style):
        figure = Figure(figsize=(4.2, 3.2), layout="constrained")
        axes = figure.subplots()
        batches = [row["B"] for row in rows]
        for (key, label), (colour, marker, above) in zip(SWEPT.items(), looks, strict=True):
            values = [row[key] / 1e3 for row in rows]
            axes.plot(batches, values, color=colour, marker=marker, markersize=3.2)
            place: Any = {"xytext": (0, above), "textcoords": "offset points", "ha": "center"}
            axes.annotate(label, (batches[2], values[2]), color=colour, **place)
        axes.set_xscale("log", base=2)
        axes.set_yscale("log")
        axes.set_ylim(2e-5, 20)
        axes.set_xticks(batches, [str(batch) for batch in batches])
        axes.set_xlabel("batch size (records)")
        axes.set_ylabel("CPU time of a product (s)")
        axes.grid(alpha=0.25, linewidth=0.5)
        axes.spines[["top", "right"]].set_visible(False)
        figure.savefig(file, metadata={"Date": None})
