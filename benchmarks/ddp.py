"""What two processes that share every batch (DDP) bring on two cores.

SplitVFL with 4 parties of 196 columns, bottoms 196-1024-1024-64 and a top 64-1024-10, joint batches of 4,096 records,
float32. One process with one thread takes the whole batch; two processes with one thread each take half of it and add
up gradients by gloo; one process with two threads shares the arithmetic within every operation. In turn, each time in
new processes; a step is timed from batch to batch once everything is warm.

    python -m benchmarks.ddp [--json FILE] [--turns T]
"""

import os
import tempfile
import warnings
from functools import partial
from pathlib import Path

import torch
from lightning.fabric.plugins.environments.lightning import find_free_network_port
from lightning.pytorch import Trainer
from torch.multiprocessing.spawn import start_processes

from benchmarks.harness import Goal, Pairs, arguments, report
from benchmarks.steps import RandomFloats, Steps
from lightning_vfl import SplitVFL
from lightning_vfl.aggregators import Mean
from lightning_vfl.commands.allocator import keep_freed_memory
from lightning_vfl.networks import MLP

BATCH, RECORDS, STEPS, WIDTH = 4_096, 40_960, 40, 1_024


def train(rank: int, processes: int, threads: int, port: int, file: str) -> None:
    """Fit some steps; the first process writes the median seconds of one."""
    warnings.filterwarnings("ignore")
    keep_freed_memory()
    torch.set_num_threads(threads)
    if processes > 1:  # as a launcher outside would tell Lightning, which then starts no processes of its own
        os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "LOCAL_RANK": str(rank)}
    torch.manual_seed(0)
    data = RandomFloats(4, RECORDS, BATCH // processes, 196)
    bottom, top = partial(MLP, hidden=(WIDTH, WIDTH)), partial(MLP, hidden=(WIDTH,))
    steps = Steps()
    with tempfile.TemporaryDirectory() as folder:
        Trainer(
            accelerator="cpu",
            devices=processes,
            strategy="ddp" if processes > 1 else "auto",
            max_steps=STEPS,
            logger=False,
            enable_checkpointing=False,
            enable_progress_bar=False,
            enable_model_summary=False,
            callbacks=[steps],
            default_root_dir=folder,
        ).fit(SplitVFL(Mean(), bottom, top, 64, seed=0), datamodule=data)
    if rank == 0:
        Path(file).write_text(str(steps.step))
    if processes > 1:
        torch.distributed.destroy_process_group()


def step(processes: int, threads: int) -> float:
    """Seconds of a step in new processes."""
    with tempfile.TemporaryDirectory() as folder:
        file = str(Path(folder) / "seconds")
        given = processes, threads, find_free_network_port(), file
        start_processes(train, given, processes, start_method="spawn")  # type: ignore[no-untyped-call]  # torch's
        return float(Path(file).read_text())


def main() -> None:
    parser = arguments(__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--turns", type=int, default=5, help="how often each kind is fitted")
    chosen = parser.parse_args()
    kinds = {"one process": (1, 1), "two processes": (2, 1), "one process, two threads": (1, 2)}
    taken: dict[str, list[float]] = {kind: [] for kind in kinds}
    for _ in range(chosen.turns):
        for kind, (processes, threads) in kinds.items():
            taken[kind].append(step(processes, threads))
    one = taken["one process"]
    rows = [
        {
            "kind": kind,
            "ms a step": 1e3 * sorted(own)[len(own) // 2],
            "records a second": BATCH / sorted(own)[len(own) // 2],
            "times one process": Pairs(one, own).ratio,
            "spread": Pairs(one, own).spread,
        }
        for kind, own in taken.items()
    ]
    ratio = Pairs(one, taken["two processes"]).ratio
    goal = Goal("records a second of two processes over those of one, a thread each", ratio, 1.7, "higher")
    report(rows, [goal], chosen.json)


if __name__ == "__main__":
    main()
