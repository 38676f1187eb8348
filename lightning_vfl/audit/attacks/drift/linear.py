"""Columns behind linear bottoms, up to rotation, from uploads that drift by known gradients."""

import torch
from torch import Tensor

from lightning_vfl.audit.attacks.drift.served import ServedSteps, Visits

MOST_DIMENSIONS = 48  # of the space of columns; the equations for G have so many squared unknowns
ROUNDS = 16
BETTER, PATIENCE = 0.98, 3  # rounds that leave a larger share of the residue, and how many of them end the search
ENOUGH = 1e-12  # a residue, in variances of the uploads, near what float32 leaves
CLEARLY = 0.9  # the share of the residue under which a fit without noise counts
FAINT = 1e-12  # of the largest diagonal, added so that a space with idle dimensions can be solved


def linear(served: ServedSteps) -> Tensor:
    r"""The columns (N, d') of all records up to rotation and translation, from linear bottoms.

    With X the columns and a constant one, an upload is :math:`z_i(t) = x_i^T W_t`. Plain SGD moves W by
    :math:`-\eta \sum_j x_j \delta_j^T`, and the server has sent all :math:`\delta`. For X = U B this is linear in
    G = B Bᵀ and in C = B W_0 for given U, and linear in each row of U for given G and C. The rounds solve for G, C and
    U in turn, from the space of the first uploads on; the solution with the smallest residue counts. Momentum and
    decay are linear too. For Adam, the second moments are those of the rows in the space of U, which is exact for no
    single weight.

    Shapes: d' = min(d + 1, 48). Rows of records that are never uploaded are NaN.
    Guarantee: a function of ``served`` alone.
    Not guaranteed: the columns themselves. After one visit to each record, the result is the space of the uploads as
        they are.
    """
    visits = Visits.of(served)
    rank = min(sum(served.columns) + 1, MOST_DIMENSIONS, len(visits.seen))
    space = _first_space(visits, rank, served)
    best = space
    if int(visits.count.max()) > 1:
        careful, left = _solve(served, visits, space, 1.0)
        free, left_free = _solve(served, visits, space, 0.0)
        best = free if left_free < left * CLEARLY else careful
    columns = torch.full((served.records, best.shape[1]), float("nan"), dtype=torch.float64)
    columns[visits.seen] = best - best.mean(0)
    return columns


def _solve(served: ServedSteps, visits: Visits, space: Tensor, doubt: float) -> tuple[Tensor, float]:
    """The columns of the round with the smallest residue, and the variance of this residue.

    ``doubt``: 1 takes the residue for noise, which the uploads of a noisy training have; 0 fits without noise.
    """
    best, least, idle = space, float("inf"), 0
    gram, noise = torch.eye(space.shape[1], dtype=torch.float64), float(visits.uploads.var())
    for _ in range(ROUNDS):
        moved, kept = _moves(served, visits, space, gram)
        moves, uploads = moved / kept[:, None, None], visits.uploads / kept[visits.step, None]
        gram, middle = _gram(visits, space, moves, uploads, doubt * noise)
        weights = torch.linalg.lstsq(space, middle).solution + gram @ moves  # (T, r, W), in coordinates of the space
        noise = float((torch.einsum("vr,vrw->vw", space[visits.row], weights[visits.step]) - uploads).var())
        idle = 0 if noise < least * BETTER else idle + 1
        if noise < least:
            best, least = _turned(space, gram), noise
        if idle == PATIENCE or noise < ENOUGH * float(uploads.var()):
            break
        space = _rows(visits, weights, uploads, doubt * noise)
    return best, least


def _first_space(visits: Visits, rank: int, served: ServedSteps) -> Tensor:
    """(n, r): mean uploads in their principal directions, and those of single visits where these are too narrow.

    Their sizes are those of the columns if initial weights have the variance 1 / (3 d_m) of torch's linear layers.
    """
    if served.width >= rank:
        table = visits.mean(visits.uploads)
    else:
        order = torch.argsort(visits.row, stable=True)
        begin = visits.count.long().cumsum(0) - visits.count.long()
        several = range(int(visits.count.min()))
        table = torch.cat([visits.uploads[order[begin + visit]] for visit in several], 1) / len(several) ** 0.5
    basis, sizes, _ = torch.linalg.svd(table, full_matrices=False)
    mean_columns = sum(served.columns) / len(served.columns)
    result: Tensor = (basis * sizes)[:, :rank] * (3 * mean_columns / served.width) ** 0.5
    return result


def _moves(served: ServedSteps, visits: Visits, space: Tensor, gram: Tensor) -> tuple[Tensor, Tensor]:
    """P (T, r, W) and c (T,): before step t the weights are c_t C + G P_t in the coordinates of the space."""
    rule, row_of = served.rule, torch.full((served.records,), -1)
    row_of[visits.seen] = torch.arange(len(visits.seen))
    moved, kept = space.new_zeros(space.shape[1], served.width), 1.0
    first, first_kept = torch.zeros_like(moved), 0.0
    second = space.new_zeros(served.width)
    moves, all_kept = [], []
    for number, step in enumerate(served.steps):
        moves.append(moved)
        all_kept.append(kept)
        gradient = space[row_of[step.ids]].T @ step.gradient
        if rule.kind == "sgd":
            gradient = gradient + rule.weight_decay * moved
            decay = rule.weight_decay * kept
            first, first_kept = rule.momentum * first + gradient, rule.momentum * first_kept + decay
            change, lost = first, first_kept
            if rule.nesterov:
                change, lost = gradient + rule.momentum * first, decay + rule.momentum * first_kept
        else:
            decayed = rule.kind == "adamw"
            if not decayed:
                gradient = gradient + rule.weight_decay * moved
            fast, slow = rule.betas
            first = fast * first + (1 - fast) * gradient
            squares = torch.einsum("rw,rs,sw->w", gradient, gram, gradient) / len(gram)
            second = slow * second + (1 - slow) * squares.clamp(min=0)
            size = (second / (1 - slow ** (number + 1))).sqrt() + rule.eps
            change = first / (1 - fast ** (number + 1)) / size
            lost = rule.weight_decay * kept if decayed else 0.0
            change = change + rule.weight_decay * moved if decayed else change
        moved, kept = moved - step.rate * change, kept - step.rate * lost
    return torch.stack(moves), torch.tensor(all_kept, dtype=torch.float64)


def _gram(visits: Visits, space: Tensor, moves: Tensor, uploads: Tensor, noise: float) -> tuple[Tensor, Tensor]:
    """G (r, r) from each record's uploads less their mean, and its mean upload without moves (n, W).

    A priori G is that of the first uploads, I, with the variance 1 / W that random initial weights give it.
    """
    rank = space.shape[1]
    mean_moves, mean_uploads = visits.mean(moves[visits.step]), visits.mean(uploads)
    spread = visits.total((moves @ moves.transpose(1, 2))[visits.step])
    spread -= visits.count[:, None, None] * (mean_moves @ mean_moves.transpose(1, 2))
    pairs = (space[:, :, None] * space[:, None, :]).flatten(1)
    square = (pairs.T @ spread.flatten(1)).view(rank, rank, rank, rank).permute(0, 2, 1, 3).reshape(rank**2, rank**2)
    apart = uploads - mean_uploads[visits.row]
    right = space.T @ visits.total(torch.einsum("vrw,vw->vr", moves[visits.step], apart))
    doubt, usual = noise * uploads.shape[1], torch.eye(rank, dtype=torch.float64).reshape(-1, 1)
    square.diagonal().add_(doubt + FAINT * float(square.diagonal().max()))
    gram = torch.linalg.solve(square, right.reshape(-1, 1) + doubt * usual).view(rank, rank)
    gram = (gram + gram.T) / 2
    return gram, mean_uploads - torch.einsum("nr,nrw->nw", space @ gram, mean_moves)


def _rows(visits: Visits, weights: Tensor, uploads: Tensor, noise: float) -> Tensor:
    """(n, r): the row of each record that explains all its uploads best, with the size of 1 a priori."""
    square = visits.total((weights @ weights.transpose(1, 2))[visits.step])
    right = visits.total(torch.einsum("vrw,vw->vr", weights[visits.step], uploads))
    square.diagonal(dim1=1, dim2=2).add_(noise + FAINT * float(square.diagonal(dim1=1, dim2=2).max()))
    rows: Tensor = torch.linalg.solve(square, right[:, :, None])[:, :, 0]
    return rows


def _turned(space: Tensor, gram: Tensor) -> Tensor:
    """U B with B Bᵀ = G; directions in which G is negative are left out."""
    values, vectors = torch.linalg.eigh(gram)
    result: Tensor = space @ (vectors * values.clamp(min=0).sqrt())
    return result
