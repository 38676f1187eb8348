"""Checks of messages on Lagrange shares."""

import torch
from torch import Tensor

from lightning_vfl.aggregators.coded.shares import Shares
from lightning_vfl.aggregators.messages import check_message, refuse_outside, width_of
from lightning_vfl.field import PrimeField
from lightning_vfl.wire import Message, PartyView, ServerView

DATA, MODELS, ZEROS, PRODUCTS = "data shares", "model shares", "zero shares", "products"
EMBEDDINGS, SUMS = "embedding shares", "sums"


def check_data_shares(message: Message, memory: Shares, at_once: int, field: PrimeField, view: PartyView) -> None:
    """The next piece of set-up, of one sender.

    Raises:
        MalformedMessage: also for a piece too many.
    """
    m = view.roster.parties
    widths = {party: memory.offsets[party + 1] - memory.offsets[party] for party in range(m)}
    left = {party: memory.blocks.rows - memory.filled[party] for party in range(m)}
    shapes = {party: (min(max(1, at_once // (m * w)), left[party]), w) for party, w in widths.items()}
    check_message(message, DATA, "peers", shapes, torch.int64, view.names, 1, view.parties, m)
    refuse_outside(message.pieces, message.senders, DATA, field.modulus)


def check_model_shares(
    message: Message, memory: Shares, rows: int, rerandomised: bool, included: Tensor, view: PartyView
) -> None:
    """Shares of the weights of every included party, and of its polynomial that is zero where results are read.

    Raises:
        MalformedMessage: also where the data shares of a sender are not complete.
    """
    who, m = included.nonzero().flatten().tolist(), view.roster.parties
    width = width_of(message)
    shapes = {party: (memory.offsets[party + 1] - memory.offsets[party], width) for party in who}
    more = ZEROS if rerandomised else None
    check_message(message, MODELS, "peers", shapes, torch.int64, view.names, who, view.parties, m, more)
    if message.alongside is not None:
        zeros = dict.fromkeys(who, (rows, width))
        check_message(message.alongside, ZEROS, "peers", zeros, torch.int64, view.names, who, view.parties, m)


def check_embedding_shares(message: Message, rows: int, included: Tensor, view: PartyView) -> None:
    """Shares of the embeddings of every included party."""
    who, m = included.nonzero().flatten().tolist(), view.roster.parties
    width = width_of(message)
    shapes = dict.fromkeys(who, (rows, width))
    check_message(message, EMBEDDINGS, "peers", shapes, torch.int64, view.names, who, view.parties, m)


def check_results(message: Message, kind: str, rows: int, needed: int, view: ServerView) -> None:
    """The results that parties have computed on shares, of at least ``needed`` parties."""
    answering = view.roll.responders.nonzero().flatten().tolist()
    shapes = dict.fromkeys(answering, (rows, view.widths[0]))
    check_message(message, kind, "server", shapes, torch.int64, view.names, needed)
