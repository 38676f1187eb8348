"""A long federation of real processes, in which a party is killed and started again every minute.

The digits are cut into a table for each party. The training is as long as the minutes that are asked for, judged by a
short training before it. At the end it is said whether a round was stuck, whether the memory of the server has grown,
and whether the replay of the record has the weights of the federation, bit for bit.

    python -m tests.soak_federation [--minutes N] [--parties M] [--every S]
"""

import argparse
import os
import sys
import tempfile
import time
from functools import partial
from pathlib import Path
from statistics import median

import torch

from lightning_vfl.commands.program import run_or_exit
from lightning_vfl.federation.local import start
from tests.integration.federations import Federation, prepare

STUCK = 30.0  # seconds without a round
GROWTH = 1.05  # of the resident memory of the server
WARM = 60.0  # seconds after which its memory is compared


def resident(process: int) -> float:
    """MB of a process; 0 if it has ended."""
    try:
        pages = int(Path(f"/proc/{process}/statm").read_text().split()[1])
    except (FileNotFoundError, IndexError):
        return 0.0
    return pages * os.sysconf("SC_PAGE_SIZE") / 1e6


def _run(words: list[str]) -> None:
    run_or_exit(words)


def cut(folder: Path, parties: int) -> tuple[str, ...]:
    """Tables of the digits, and the recipe of every process; party names are those of the tables."""
    words = ["cut", "--config", "data/digits", "--data.partitioner.parties", str(parties), "--out", str(folder)]
    _, status = os.waitpid(start(partial(_run, words), folder.parent / "cut.txt"), 0)
    if status:
        raise RuntimeError((folder.parent / "cut.txt").read_text())
    names = sorted(path.stem for path in folder.glob("*.parquet") if path.stem != "labels")
    return tuple(names)


def calm(folder: Path, names: tuple[str, ...], recipe: tuple[str, ...]) -> float:
    """Seconds of an epoch, from some epochs without anything going wrong."""
    epochs = 8
    trial = Federation(folder, names, (*recipe, "--trainer.max_epochs", str(epochs)))
    trial.everybody()
    trial.await_round(10)
    began = time.monotonic()
    trial.await_round(210)
    a_round = (time.monotonic() - began) / 200
    statuses = trial.wait(300.0)
    if any(statuses.values()):
        raise RuntimeError(f"a process has failed before anything was killed: {statuses}; see {folder}")
    return a_round * (int(trial.rounds()[-1]["round"]) + 1) / epochs


def soak(
    federation: Federation, every: float, last: float, limit: float
) -> tuple[dict[str, int], list[tuple[float, float]], float]:
    """Run the federation; kill a party every so many seconds, and nobody after ``last``, who would come back too late.

    Returns:
        Exit statuses, (seconds, MB) of the server, and the longest time without a round.
    """
    federation.everybody()
    began = time.monotonic()
    statuses: dict[str, int] = {}
    memory: list[tuple[float, float]] = []
    written, since, longest, next_kill, kills = 0, began, 0.0, began + every, 0
    while federation.running:
        now = time.monotonic()
        for name, process in list(federation.running.items()):
            ended, status = os.waitpid(process, os.WNOHANG)
            if ended:
                statuses[name] = os.waitstatus_to_exitcode(status)
                del federation.running[name]
        size = federation.events.stat().st_size if federation.events.exists() else 0
        if size > written or "scorer" in statuses:
            longest = max(longest, now - since) if written else longest
            written, since = size, now
        if "scorer" in federation.running:
            memory.append((now - began, resident(federation.running["scorer"])))
        victim = federation.names[kills % len(federation.names)]
        if next_kill < now < began + last and len(federation.running) == len(federation.names) + 1:
            federation.kill(victim)
            federation.party(victim, "--ckpt_path", "last")
            kills, next_kill = kills + 1, now + every
            print(f"{now - began:6.0f} s  killed {victim}; the server has {memory[-1][1]:.0f} MB", flush=True)
        if now - began > limit or (written and now - since > 4 * STUCK):
            stuck = list(federation.running)
            federation.stop()
            raise TimeoutError(f"{stuck} have not ended; see {federation.folder}")
        time.sleep(0.25)
    return statuses, memory, longest


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--minutes", type=float, default=30.0)
    parser.add_argument("--parties", type=int, default=8)
    parser.add_argument("--every", type=float, default=60.0, help="seconds between two kills")
    given = parser.parse_args()
    prepare()
    root = Path(tempfile.mkdtemp(prefix="soak-"))
    names = cut(root / "parts", given.parties)
    recipe: tuple[str, ...] = (
        "--config",
        str(root / "parts/csv_tables.yaml"),
        "--config",
        "protocol/mean",
        "--config",
        "policy/stale",
    )
    recipe += ("--trainer.enable_model_summary", "false", "--trainer.logger", "false")
    an_epoch = calm(root / "calm", names, recipe)
    epochs = max(2, round(60 * given.minutes / an_epoch))
    print(f"{root}: {len(names)} parties, {an_epoch:.2f} s an epoch, {epochs} epochs", flush=True)
    recipe = (*recipe, "--trainer.max_epochs", str(epochs))
    federation = Federation(root / "long", names, recipe, silence=15)
    statuses, memory, longest = soak(federation, given.every, 54 * given.minutes, 60 * (3 * given.minutes + 5))
    begun, ended = [mb for at, mb in memory if WARM < at < 2 * WARM], [mb for _, mb in memory[-80:]]
    growth = median(ended) / median(begun) if begun else float("nan")
    rows = federation.rounds()
    together, replayed = federation.states(), federation.replay(*recipe, seconds=3600.0)
    equal = sum(torch.equal(together[name], weights) for name, weights in replayed.items())
    back = sum(1 for row in rows if row["restored"])
    print(f"{memory[-1][0] / 60:.1f} minutes, {int(rows[-1]['round']) + 1} rounds, {back} parties have come back")
    print(f"exit statuses: {statuses}")
    checks = {
        f"longest time without a round: {longest:.1f} s, at most {STUCK:g}": longest <= STUCK,
        f"memory of the server, last 20 s over second minute: {growth:.3f}, at most {GROWTH}": growth <= GROWTH,
        f"tensors of the replay that are equal: {equal} of {len(replayed)}": equal == len(replayed) == len(together),
        "every process has ended by itself": set(statuses.values()) == {0},
    }
    for line, met in checks.items():
        print(f"{'met   ' if met else 'MISSED'}  {line}")
    return 0 if all(checks.values()) else 1


if __name__ == "__main__":
    sys.exit(main())
