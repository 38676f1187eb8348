"""Raw records from the model updates of a group: the server solves the sum of a group's updates for the group's rows.

The server follows the protocol and looks at what it gets. It has computed the gradient g_j of every embedding, it knows
the shared bottom because it applies the updates, and it decodes the sum of a group's updates. So the rows are the only
unknowns. Three attacks:

- ``by_pseudo_inverse``: one update of a linear bottom is G' X, one of the last layer of an MLP is G' A; a
  pseudo-inverse gives X, or the hidden values A, from whose active units a least-squares fit gives X.
- ``of_linear_updates``: the updates of several rounds about the same rows of a linear bottom are one linear system.
- ``of_mlp_updates``: the same for an MLP, by the Gauss-Newton method on the last layer's update, which is continuous in
  the rows; it needs more numbers in the updates than in the rows, and no more rows than that.

The attacks over several rounds need to know which row of a batch is which record: a server that holds the record ids
knows it, and so does one that colludes with C_0.
"""

import tempfile
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple
from unittest.mock import patch

import torch
from torch import Tensor

from lightning_vfl import SplitVFL
from lightning_vfl.aggregators import MaskedSum
from lightning_vfl.aggregators.masked_sum import MaskedUpdates
from lightning_vfl.aggregators.secure.masked_wire import MaskedServer
from lightning_vfl.datamodules import BreastCancer, ContiguousColumns, Groups, Standardise
from lightning_vfl.errors import ConfigurationError
from lightning_vfl.networks import MLP, Linear
from lightning_vfl.wire import Message
from tests.attacks.row import Row
from tests.subjects import trainer

FIRST, MEMBERS = 1, [1, 3, 3]  # the group that is attacked begins with party 1
BOTTOMS: dict[str, Callable[..., Any]] = {"linear": Linear, "MLP(64)": partial(MLP, hidden=[64])}
CLOSE = 0.05  # a record is recovered where its relative error in L2 norm is at most this
DITHER = 6e-8  # an integer of the masked sum stands for 8 / 2^27


class Seen(NamedTuple):
    """What the server has of one update: the bottom before it, gradients (B, D), rows in their order, the sum."""

    weights: list[Tensor]
    gradients: Tensor
    ids: Tensor
    update: list[Tensor]


def listen(bottom: str, batch: int, epochs: int = 1, **settings: Any) -> tuple[list[Seen], Tensor]:
    """What a server sees of the first group in a real run with masks and Adam, and the rows (N, F) that it is after."""
    torch.manual_seed(0)
    scaling = Standardise(public=True)
    data = BreastCancer(Groups(ContiguousColumns(len(MEMBERS)), MEMBERS), normaliser=scaling, batch_size=batch)
    top = partial(MLP, hidden=[128])
    usual: dict[str, Any] = {"evaluate": "plain", "allow_invertible_updates": True}
    module = SplitVFL(MaskedSum(), BOTTOMS[bottom], top, width=64, active=0, seed=0, **(usual | settings))
    rounds: list[tuple[Tensor, Tensor]] = []  # since the last update
    seen: list[Seen] = []
    answer, join = MaskedServer.answer, MaskedUpdates.join

    def answering(self: MaskedServer, grad: Tensor, aggregate: Any, view: Any) -> Any:
        rounds.append((grad.double(), view.rows.ids.clone()))
        return answer(self, grad, aggregate, view)

    def joining(self: MaskedUpdates, message: Message, view: Any) -> Tensor:
        total = join(self, message, view)
        own = [p.detach().double() for p in module.bottoms.parties[min(message.senders)].parameters()]
        if FIRST in message.senders:
            parts = total.double().split([p.numel() for p in own])
            summed = [part.view_as(p) for part, p in zip(parts, own, strict=True)]
            seen.append(Seen(own, torch.cat([g for g, _ in rounds]), torch.cat([ids for _, ids in rounds]), summed))
        else:
            rounds.clear()  # the other group's follows in the same round
        return total

    with (
        patch.object(MaskedServer, "answer", answering),
        patch.object(MaskedUpdates, "join", joining),
        tempfile.TemporaryDirectory() as folder,
    ):
        fit = trainer(folder, max_epochs=epochs, num_sanity_val_steps=0, limit_val_batches=0)
        fit.fit(module, datamodule=data)
    records = data.records("train")
    rows, present = records.rows(torch.arange(len(records))), records.present
    if present is None:
        raise TypeError("Groups says who holds what")
    group = range(FIRST, FIRST + MEMBERS[1])
    truth = torch.stack([torch.where(present[:, m, None], rows[m], 0.0) for m in group]).sum(0)
    return seen, truth.double()


def by_pseudo_inverse(update: Seen, features: int) -> Tensor:
    """(B, F) rows from one update."""
    inverse = torch.linalg.pinv(update.gradients.T, rcond=1e-9)  # (B, D)
    if len(update.weights) == 2:
        linear: Tensor = inverse @ update.update[0]
        return linear
    first, bias, _, _ = update.weights
    hidden = inverse @ update.update[2]
    active = hidden > 4 * DITHER * inverse.norm(dim=1, keepdim=True)
    rows = torch.zeros(len(hidden), features, dtype=torch.float64)
    for j, units in enumerate(active):
        if units.sum() >= features:
            rows[j] = torch.linalg.lstsq(first[units], (hidden[j] - bias)[units, None]).solution[:, 0]
    return rows


def of_linear_updates(updates: list[Seen], records: int, features: int, ridge: float = 1e-13) -> Tensor:
    """(N, F) rows from all updates of a linear bottom: ridge regression, by its normal equations.

    The best ``ridge`` is the variance of the noise in an update over that of the features, which is 1 here.
    """
    matrix = torch.eye(records, dtype=torch.float64) * ridge
    right = torch.zeros(records, features, dtype=torch.float64)
    for update in updates:
        spread = torch.zeros(update.gradients.shape[1], records, dtype=torch.float64)
        spread.index_add_(1, update.ids, update.gradients.T)
        matrix += spread.T @ spread
        right += spread.T @ update.update[0]
    rows: Tensor = torch.linalg.solve(matrix, right)
    return rows


def of_mlp_updates(updates: list[Seen], records: int, features: int, steps: int = 20) -> Tensor:
    """(N, F) rows from updates of an MLP with one hidden layer: Levenberg's method from rows of zeros."""
    rows: Tensor = torch.zeros(records, features, dtype=torch.float64)
    damping = 1e-3

    def misfit(x: Tensor) -> float:
        total = 0.0
        for update in updates:
            hidden = (x[update.ids] @ update.weights[0].T + update.weights[1]).relu()
            total += float((update.update[2] - update.gradients.T @ hidden).square().sum())
        return total

    current = misfit(rows)
    for _ in range(steps):
        matrix = torch.zeros(records, features, records, features, dtype=torch.float64)
        right = torch.zeros_like(rows)
        for update in updates:
            first, bias, _, _ = update.weights
            inputs, g, ids = rows[update.ids] @ first.T + bias, update.gradients, update.ids
            slopes = (inputs > 0).double()[:, :, None] * first  # (B, H, F), of every hidden value
            flat = slopes.permute(0, 2, 1).reshape(-1, len(first))  # (B F, H)
            block = (flat @ flat.T).view(len(ids), features, len(ids), features) * (g @ g.T)[:, None, :, None]
            matrix[ids[:, None], :, ids[None, :], :] += block.permute(0, 2, 1, 3)
            left = g @ (update.update[2] - g.T @ inputs.relu())  # (B, H)
            right[ids] += torch.einsum("jh,jhf->jf", left, slopes)
        square = matrix.view(records * features, -1)
        diagonal = square.diagonal().clone()
        for _ in range(8):
            step = torch.linalg.solve(square + torch.diag(damping * diagonal + 1e-18), right.view(-1)).view_as(rows)
            if (after := misfit(rows + step)) < current:
                break
            damping *= 8
        else:
            return rows
        rows = rows + step
        damping, gained, current = max(damping / 8, 1e-9), 1 - after / current, after
        if gained < 1e-3:
            return rows
    return rows


def close(rows: Tensor, truth: Tensor) -> int:
    """How many records are recovered."""
    return int(((rows - truth).norm(dim=1) <= CLOSE * truth.norm(dim=1)).sum())


def one_by_one(seen: list[Seen], truth: Tensor) -> int:
    """Records recovered from the updates of one epoch, each by itself."""
    return sum(close(by_pseudo_inverse(update, truth.shape[1]), truth[update.ids]) for update in seen)


def together(bottom: str, seen: list[Seen], truth: Tensor) -> int:
    """Records recovered from all updates together."""
    solve = of_linear_updates if bottom == "linear" else of_mlp_updates
    return close(solve(seen, *truth.shape), truth)


def alone(seen: Seen, truth: Tensor) -> int:
    """Records recovered from one update of an MLP by the Gauss-Newton method."""
    own = Seen(seen.weights, seen.gradients, torch.arange(len(seen.ids)), seen.update)
    return close(of_mlp_updates([own], len(seen.ids), truth.shape[1]), truth[seen.ids])


def refusal(bottom: str, batch: int, **settings: Any) -> str:
    """Why the attacked training is refused today, in one word."""
    try:
        listen(bottom, batch, allow_invertible_updates=False, **settings)
    except ConfigurationError as error:
        return "refused: allow_invertible_updates" if "allow_invertible_updates" in str(error) else str(error)
    return "accepted"


def rows() -> list[Row]:
    """One update of each batch size; several updates."""
    sees, made = "gradients of embeddings, the shared bottom, the sum of a group's updates", []
    for bottom in BOTTOMS:
        for batch in (32, 64, 128):
            seen, truth = listen(bottom, batch)
            made.append(
                Row(
                    f"records of a group from one update: {bottom} bottoms, batch {batch}",
                    sees,
                    f"{one_by_one(seen, truth)} of {len(truth)} records within 5 %",
                    refusal(bottom, batch),
                    "0",
                )
            )
    seen, truth = listen("MLP(64)", 128)
    whole = [update for update in seen if len(update.ids) == 128]
    taken = sum(alone(update, truth) for update in whole)
    made.append(
        Row(
            "the same by the Gauss-Newton method: MLP(64) bottoms, batch 128",
            sees,
            f"{taken} of {128 * len(whole)} records within 5 %",
            refusal("MLP(64)", 128),
            "0",
        )
    )
    for bottom, epochs in (("linear", 3), ("MLP(64)", 2)):
        seen, truth = listen(bottom, 128, epochs)
        made.append(
            Row(
                f"records of a group from the updates of {epochs} epochs: {bottom} bottoms, batch 128",
                f"{sees}, record ids",
                f"{together(bottom, seen, truth)} of {len(truth)} records within 5 %",
                refusal(bottom, 128, epochs=epochs),
                "0",
            )
        )
    return made
