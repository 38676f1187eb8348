"""On a party's host: hands the server's answer to ``lightning-vfl party --relay``, and fetches what it asks next.

Flower starts a process for each message, so the state of the party is in a process of its own. ``socket`` of the
SuperNode's ``--node-config`` says where that process listens.
"""

from multiprocessing.connection import Client

from flwr.app import ConfigRecord, Context, Message, RecordDict
from flwr.clientapp import ClientApp

SILENCE = 30.0  # seconds without a word after which the party counts as gone; it says something every 10 s
LARGEST = 2**30  # bytes

app = ClientApp()


@app.query()
def relay(message: Message, context: Context) -> Message:
    """Pass bytes on, both ways; ``there`` is false if no party listens at the socket."""
    content, there = b"", False
    try:
        with Client(str(context.node_config["socket"]), "AF_UNIX") as party:
            party.send_bytes(message.content["frame"]["content"])
            if party.poll(SILENCE):
                content, there = party.recv_bytes(LARGEST), True
    except (OSError, EOFError):
        pass
    return Message(RecordDict({"frame": ConfigRecord({"content": content, "there": there})}), reply_to=message)
