"""Asks all clients at once, round after round, and writes down when each round has ended."""

import json
from pathlib import Path
from time import perf_counter, sleep

import numpy as np
from flwr.app import ArrayRecord, Context, Message, RecordDict
from flwr.serverapp import Grid, ServerApp

app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    """Carry out the rounds."""
    config = context.run_config
    tensor = np.random.default_rng(0).standard_normal((int(config["rows"]), int(config["width"])), dtype=np.float32)
    while len(nodes := list(grid.get_node_ids())) < int(config["clients"]):
        sleep(0.1)
    ends = []
    for _ in range(int(config["rounds"])):
        record = RecordDict({"tensor": ArrayRecord([tensor])})
        messages = [Message(record, dst_node_id=node, message_type="query") for node in nodes]
        replies = list(grid.send_and_receive(messages, timeout=120.0))
        if len(replies) < len(nodes) or any(reply.has_error() for reply in replies):
            raise RuntimeError(f"{len(replies)} of {len(nodes)} clients have answered")
        ends.append(perf_counter())
    Path(str(config["file"])).write_text(json.dumps(ends))
