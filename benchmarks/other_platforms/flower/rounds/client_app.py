"""Answers each message with a matrix of the same shape."""

from flwr.app import ArrayRecord, Context, Message, RecordDict
from flwr.clientapp import ClientApp

app = ClientApp()


@app.query()
def answer(message: Message, context: Context) -> Message:
    """The same matrix back."""
    arrays = message.content["tensor"].to_numpy_ndarrays()
    return Message(RecordDict({"tensor": ArrayRecord(arrays)}), reply_to=message)
