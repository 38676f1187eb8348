"""The messages of a round, what parties and server may read, and what parties keep between rounds."""

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
from lightning_vfl.wire.round_state import RoundState
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
    "RoundState",
    "ServerView",
    "Tap",
]
