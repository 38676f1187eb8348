"""What vFedSec's Secure Layer costs beside homomorphic encryption: the paper's Tables 1 to 5 and its Figure 3.

Functions, without a Trainer: every party's own work in CPU seconds of one thread, every message made and weighed. One
set-up and five rounds of 256 records, training and testing; medians of the repeats, a passive party is the mean of all.
Unsecured: bottoms forward and backward, embeddings up, gradients down, labels from C_0, and the updates of parties that
share a bottom. Ours adds fresh keys, sealed record ids to every party, quantisation, masks. Homomorphic encryption is
counted as the paper counts it (the last linear layer's weights encrypted number by number and multiplied by the batch
in nested loops, results sent 4096 a ciphertext), measured on a sample and multiplied; and as a fair user would (what
ours protects, packed, added by the server). It is spared its set-up and the sealed ids; the sum and its decryption are
the server's and the key holder's, in a table of their own.

The top model is the server's and in nobody's figures. Guessed: zeros stand in for records of others in the unsecured
arm too; the bottoms end without activation; the CNN's with a layer from 448 to 600, which the paper's figures imply.

    python -m benchmarks.secure_layer [--json FILE] [--figure FILE.svg] [--repeats N]      # 2 to 3 minutes
"""

import time
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import ceil
from pathlib import Path
from statistics import mean
from typing import Any

import numpy as np
import torch
from torch import nn

from benchmarks import vfedsec_tables as paper
from benchmarks.harness import Goal, arguments, report
from benchmarks.homomorphic import (
    CHAIN,
    NumberByNumber,
    NumberCKKS,
    NumberPaillier,
    Packed,
    PackedCKKS,
    PackedPaillier,
    big_integers,
)
from benchmarks.secure_parties import (
    BATCH,
    ROUNDS,
    SETTINGS,
    Bill,
    Party,
    Run,
    Setting,
    bill,
    measured,
    must_agree,
    parties_of,
)
from benchmarks.secure_sweeps import draw_sweep, growth, sweep
from lightning_vfl.commands.allocator import keep_freed_memory

MIB = 2**20
PHASES = ("fit", "test")
CKKS_PAPER, PHE_PAPER = "CKKS, as the paper", "Paillier, as the paper"
CKKS_FAIR, CKKS_LEAN, PHE_FAIR = "CKKS, packed", "CKKS, packed, leanest", "Paillier, packed"


@dataclass(frozen=True)
class Operations:
    """CPU seconds of one encryption and of one multiplication with addition; bytes of a ciphertext."""

    encryption: float
    multiplication: float
    size: int


def operations(scheme: NumberByNumber, rows: int = 16, inner: int = 8, outer: int = 8) -> Operations:
    """Nested loops over numbers, on a product of (rows, inner) and (inner, outer)."""
    draw = np.random.default_rng(0)
    x, weights = draw.standard_normal((rows, inner)), draw.standard_normal((inner, outer))
    began = time.process_time()
    hidden = scheme.encrypt(weights.tolist())
    between = time.process_time()
    product = scheme.product(x.tolist(), hidden)
    ended = time.process_time()
    must_agree("the encrypted product", scheme.decrypt(product), x @ weights, 1e-4)
    count = inner * outer
    return Operations((between - began) / count, (ended - between) / (rows * count), scheme.size(product[0][0]))


def last_layer(party: Party) -> tuple[int, int, int]:
    """Rows, inputs and outputs of the product before the cut."""
    *_, last = (module for module in party.bottom.modules() if isinstance(module, nn.Linear))
    return int(party.held.sum()), last.in_features, last.out_features


def as_the_paper(plain: Run, parties: Sequence[Party], cost: Operations, slots: int) -> list[Bill]:
    """Five times: weights encrypted, batch times weights. Results travel ``slots`` a ciphertext."""
    bills = []
    for own, party in zip(plain.bills, parties, strict=True):
        rows, inner, outer = last_layer(party)
        seconds = inner * outer * (cost.encryption + rows * cost.multiplication)
        size = ceil(BATCH * outer / slots) * cost.size - 4 * BATCH * outer
        bills.append(Bill(own.model, ROUNDS * seconds, own.sent, float(ROUNDS * size)))
    return bills


def packed(plain: Run, scheme: Packed) -> tuple[list[Bill], Bill, Bill]:
    """What ours hides, hidden by ciphertexts: bills of the parties, the server and the holder of the secret key."""
    bills = [Bill(own.model, 0.0, own.sent, 0.0) for own in plain.bills]
    server, holder = Bill(), Bill()
    rounds = ROUNDS if scheme.sample is None else 1
    for _ in range(rounds):
        for values in plain.sums:
            size = next(iter(values.values())).numel()
            count = ceil(size / scheme.slots)
            sample = min(count, scheme.sample or count)
            scale = count / sample * ROUNDS / rounds
            flat = {number: h.flatten()[: sample * scheme.slots].double().numpy() for number, h in values.items()}
            uploads = []
            for number, numbers in flat.items():
                work = Bill()
                with work.timed("protection"):
                    uploads.append(scheme.encrypt(numbers))
                bills[number].protection += scale * work.protection
                bills[number].more += scale * sum(map(len, uploads[-1])) - 4 * size * ROUNDS / rounds
            add, open_ = Bill(), Bill()
            with add.timed("protection"):
                total = scheme.add(uploads)
            with open_.timed("protection"):
                found = scheme.decrypt(total, len(flat))
            server.protection += scale * add.protection
            holder.protection += scale * open_.protection
            true = np.sum(list(flat.values()), axis=0)
            must_agree("the encrypted sum", found[: len(true)], true, 1.01 * len(flat) * scheme.tolerance)
    return bills, server, holder


ARMS = {  # who is compared, and the paper's name of it
    "unsecured": None,
    "ours": paper.OURS,
    CKKS_PAPER: paper.SEAL,
    PHE_PAPER: paper.PHE,
    CKKS_FAIR: None,
    CKKS_LEAN: None,
    PHE_FAIR: None,
}
EXTRAPOLATED = (CKKS_PAPER, PHE_PAPER, PHE_FAIR)


@dataclass(frozen=True)
class Cell:
    """Training and testing of one party in one arm."""

    fit: Bill
    test: Bill

    def row(self, total: str, overhead: str, scale: float) -> dict[str, float]:
        return {
            f"{name}{more}": scale * getattr(own, part)
            for name, own in (("training", self.fit), ("testing", self.test))
            for more, part in (("", total), (" overhead", overhead))
        }


def tables(repeats: int) -> tuple[list[dict[str, Any]], dict[tuple[str, str, str], Cell], Mapping[str, Operations]]:
    """Tables 1, 2, 4 and 5 with the server's; the cells by data, party and arm; single operations."""
    schemes: dict[str, Packed] = {
        CKKS_FAIR: PackedCKKS(),
        CKKS_LEAN: PackedCKKS(4096, (54, 55), 36),
        PHE_FAIR: PackedPaillier(),
    }
    single = {CKKS_PAPER: operations(NumberCKKS()), PHE_PAPER: operations(NumberPaillier())}
    slots = {CKKS_PAPER: 4096, PHE_PAPER: 1}
    cells: dict[tuple[str, str, str], Cell] = {}
    servers: list[dict[str, Any]] = []
    for setting in SETTINGS:
        parties = parties_of(setting, "fit")
        by_arm: dict[str, dict[str, list[Bill]]] = defaultdict(dict)
        for stage in PHASES:
            plain = measured(setting, stage, repeats)
            by_arm["unsecured"][stage] = [Bill(own.model, 0.0, own.sent, 0.0) for own in plain.bills]
            by_arm["ours"][stage] = plain.bills
            line = {"server": 1e3 * plain.server.model, "server, ours": 1e3 * plain.server.protection}
            for arm, cost in single.items():
                by_arm[arm][stage] = as_the_paper(plain, parties, cost, slots[arm])
            for arm, scheme in schemes.items():
                by_arm[arm][stage], server, holder = packed(plain, scheme)
                line[f"server, {arm}"], line[f"key holder, {arm}"] = 1e3 * server.protection, 1e3 * holder.protection
            servers.append({"table": "Server and key holder, CPU ms", "data": setting.data, "phase": stage, **line})
        for arm, bills in by_arm.items():
            for who, members in ((paper.ACTIVE, slice(0, 1)), (paper.PASSIVE, slice(1, None))):
                cells[setting.data, who, arm] = Cell(*(bill(bills[stage][members], mean) for stage in PHASES))
    rows = [row for setting in SETTINGS for row in rows_of(setting, cells)]
    return [*sorted(rows, key=lambda row: row["table"]), *servers], cells, single


def rows_of(setting: Setting, cells: Mapping[tuple[str, str, str], Cell]) -> Iterator[dict[str, Any]]:
    """A line a party and arm in the tables of time and of bytes, the paper's figures beside."""
    for title, total, overhead, scale, theirs, number in (
        ("CPU ms", "seconds", "protection", 1e3, paper.CPU, 1e3),
        ("sent and received, MiB", "bytes", "more", 1 / MIB, paper.MIB, 1.0),
    ):
        table = setting.tables[title != "CPU ms"]
        for who in (paper.ACTIVE, paper.PASSIVE):
            for arm, method in ARMS.items():
                row: dict[str, Any] = {
                    "table": f"Table {table}: {title}",
                    "data": setting.data,
                    "party": who,
                    "arm": arm,
                }
                row |= cells[setting.data, who, arm].row(total, overhead, scale)
                if method is not None:
                    entry = theirs[setting.data, method, who]
                    row |= {
                        f"paper's {name.replace('_', ' ')}": number * value for name, value in entry._asdict().items()
                    }
                if arm in EXTRAPOLATED and title == "CPU ms":
                    row["extrapolated"] = True
                yield row


def ratios(cells: Mapping[tuple[str, str, str], Cell]) -> list[dict[str, Any]]:
    """Homomorphic encryption over ours, row by row of the tables."""
    rows = []
    for (data, who, arm), cell in cells.items():
        if arm in ("ours", "unsecured"):
            continue
        row: dict[str, Any] = {"table": "Homomorphic encryption over ours", "data": data, "party": who, "arm": arm}
        own = cells[data, who, "ours"]
        for part, name in (
            ("protection", "CPU overhead"),
            ("seconds", "CPU total"),
            ("more", "bytes overhead"),
            ("bytes", "bytes total"),
        ):
            for phase, theirs, mine in (("training", cell.fit, own.fit), ("testing", cell.test, own.test)):
                row[f"{name}, {phase}"] = getattr(theirs, part) / getattr(mine, part)
        rows.append(row)
    return rows


def worst(rows: Sequence[Mapping[str, Any]], arm: str, what: str) -> float:
    own = [row for row in rows if row["arm"] == arm]
    return min(float(value) for row in own for key, value in row.items() if key.startswith(what))


def implied(single: Mapping[str, Operations]) -> Iterator[dict[str, Any]]:
    """Single operations here, and those with which the paper's CPU times come out."""
    terms: dict[tuple[str, str], list[tuple[int, int]]] = defaultdict(list)
    for setting in SETTINGS:
        for party in parties_of(setting, "test"):
            rows, inner, outer = last_layer(party)
            who = paper.PASSIVE if party.number else paper.ACTIVE
            terms[setting.data, who].append((inner * outer, rows * inner * outer))
    counts = np.array([np.mean(own, axis=0) for own in terms.values()])
    for arm, cost in single.items():
        method = str(ARMS[arm])
        seconds = np.array([paper.CPU[data, method, who].testing_overhead / ROUNDS for data, who in terms])
        by, *_ = np.linalg.lstsq(counts / seconds[:, None], np.ones(len(seconds)), rcond=None)
        yield {
            "table": "Number by number: one operation, and what the paper's tables imply",
            "arm": arm,
            "encryption, ms": 1e3 * cost.encryption,
            "paper's": 1e3 * by[0],
            "multiply-add, ms": 1e3 * cost.multiplication,
            "paper's ": 1e3 * by[1],
            "largest deviation of the paper's times, %": 100 * float(np.abs(counts @ by / seconds - 1).max()),
            "bytes of a ciphertext": cost.size,
            "MiB of 256 x 64 results, a ciphertext each": BATCH * 64 * cost.size / MIB,
        }


def goals(rows: Sequence[Mapping[str, Any]]) -> list[Goal]:
    """The worst of all rows of the tables, training and testing."""
    limits = (
        (CKKS_PAPER, "CPU overhead", 690),
        (CKKS_PAPER, "CPU total", 690),
        (CKKS_PAPER, "bytes overhead", 9.6),
        (CKKS_PAPER, "bytes total", 9.6),
        (CKKS_FAIR, "CPU overhead", 60),
        (CKKS_FAIR, "CPU total", 15),
        (CKKS_FAIR, "bytes overhead", 8),
        (CKKS_FAIR, "bytes total", 8),
    )
    return [
        Goal(f"{arm}, over ours, worst row: {what}", worst(rows, arm, what), at, "higher") for arm, what, at in limits
    ]


def main() -> None:
    parser = arguments(__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--figure", type=Path, help="draw the sweep over batch sizes into this file")
    parser.add_argument("--repeats", type=int, default=10, help="how often unsecured and ours are run")
    options = parser.parse_args()
    torch.set_num_threads(1)
    keep_freed_memory()  # as the command line does
    print(
        f"CKKS: N = 8192, primes of {CHAIN} bits; leanest: N = 4096, (54, 55). Paillier: 2048 bits, {big_integers()}."
    )
    rows, cells, single = tables(options.repeats)
    over_ours = ratios(cells)
    swept = sweep()
    if options.figure is not None:
        draw_sweep(swept, options.figure)
    rows += [*over_ours, *implied(single), *growth(), *swept]
    report(rows, goals(over_ours), options.json, by="table")


if __name__ == "__main__":
    main()
