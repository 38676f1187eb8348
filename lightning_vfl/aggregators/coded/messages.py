"""Checks of messages on Lagrange shares."""

import torch
from torch import Tensor

from lightning_vfl.aggregators.coded.blocks import Shares
from lightning_vfl.aggregators.messages import check_message, refuse_outside, width_of
from lightning_vfl.field import PrimeField
from lightning_vfl.types import numbers_in
from lightning_vfl.wire import Message, PartyView, ServerView

DATA = "data shares"
MODELS = "model shares"
ZEROS = "zero shares"
PRODUCTS = "products"
EMBEDDINGS = "embedding shares"
SUMS = "sums"


def check_data_shares(message: Message, memory: Shares, at_once: int, field: PrimeField, view: PartyView) -> None:
    """The next piece of set-up, of one sender.

    Raises:
        MalformedMessage: also for a piece too many.
    """
    m = view.roster.parties
    shapes = {}
    for party in range(m):
        rows_left = memory.blocks.rows - memory.filled[party]
        width = memory.widths[party]
        shapes[party] = (min(max(1, at_once // (m * width)), rows_left), width)
    check_message(message, DATA, "peers", shapes, torch.int64, view.names, 1, view.parties, m)
    refuse_outside(message.pieces, message.senders, DATA, field.modulus)


def check_model_shares(
    message: Message, memory: Shares, rows: int, rerandomised: bool, included: Tensor, view: PartyView
) -> None:
    """Shares of the weights of every included party, and of its polynomial that is zero where results are read.

    Raises:
        MalformedMessage: also where the data shares of a sender are not complete.
    """
    width = width_of(message)
    senders = numbers_in(included)
    shapes = {party: (memory.widths[party], width) for party in senders}
    _check_all(message, MODELS, shapes, view, ZEROS if rerandomised else None)
    if message.alongside is not None:
        _check_all(message.alongside, ZEROS, dict.fromkeys(senders, (rows, width)), view)


def check_embedding_shares(message: Message, rows: int, included: Tensor, view: PartyView) -> None:
    """Shares of the embeddings of every included party."""
    shapes = dict.fromkeys(numbers_in(included), (rows, width_of(message)))
    _check_all(message, EMBEDDINGS, shapes, view)


def check_results(message: Message, kind: str, rows: int, needed: int, view: ServerView) -> None:
    """The results that parties have computed on shares, of at least ``needed`` parties."""
    shapes = dict.fromkeys(view.roll.responding, (rows, view.widths[0]))
    check_message(message, kind, "server", shapes, torch.int64, view.names, needed)


def _check_all(
    message: Message, kind: str, shapes: dict[int, tuple[int, int]], view: PartyView, alongside: str | None = None
) -> None:
    """Shares of these shapes, each of which has to be there."""
    parties = view.roster.parties
    check_message(message, kind, "peers", shapes, torch.int64, view.names, shapes, view.parties, parties, alongside)
