"""The messages of a round, and what parties and server may read."""

from lightning_vfl.wire.messages import (
    Aggregate,
    Contribution,
    Embeddings,
    Gate,
    Leg,
    LinearForms,
    Message,
    PartyView,
    ServerView,
)
from lightning_vfl.wire.tap import Tap

__all__ = [
    "Aggregate",
    "Contribution",
    "Embeddings",
    "Gate",
    "Leg",
    "LinearForms",
    "Message",
    "PartyView",
    "ServerView",
    "Tap",
]
