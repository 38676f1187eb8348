"""Columns behind linear bottoms, up to rotation, from uploads that drift by known gradients."""

import math
from typing import NamedTuple

import torch
from torch import Tensor

from lightning_vfl.audit.attacks.drift.served import ServedSteps, State, Visits
from lightning_vfl.types import places

MOST_DIMENSIONS = 48  # of the space of columns; the equations for G have so many squared unknowns
ROUNDS = 16
BETTER = 0.98  # a round that leaves a larger share of the least residue is idle
PATIENCE = 3  # idle rounds, one after the other, that end the search
ENOUGH = 1e-12  # a residue, in variances of the uploads, near what float32 leaves
CLEARLY = 0.9  # the share of the residue under which a fit without noise counts
FAINT = 1e-12  # of the largest diagonal, added so that a space with idle dimensions can be solved


class _Solution(NamedTuple):
    """Columns (n, r) up to rotation, and the variance of what they leave of the uploads."""

    columns: Tensor
    residue: float


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
    best = space = _first_space(visits, rank, served)
    if int(visits.count.max()) > 1:
        with_noise = _solve(served, visits, space, doubt=1.0)
        without_noise = _solve(served, visits, space, doubt=0.0)
        clearly_better = without_noise.residue < with_noise.residue * CLEARLY
        best = without_noise.columns if clearly_better else with_noise.columns
    columns = torch.full((served.records, best.shape[1]), float("nan"), dtype=torch.float64)
    columns[visits.seen] = best - best.mean(0)
    return columns


def _solve(served: ServedSteps, visits: Visits, space: Tensor, doubt: float) -> _Solution:
    """The solution of the round with the smallest residue.

    ``doubt``: 1 takes the residue for noise, which the uploads of a noisy training have; 0 fits without noise.
    """
    best = _Solution(space, math.inf)
    gram = torch.eye(space.shape[1], dtype=torch.float64)
    residue = float(visits.uploads.var())
    idle_rounds = 0
    for _ in range(ROUNDS):
        moved, kept = _moves(served, visits, space, gram)
        # an upload is u_i (c_t C + G P_t): divided by c_t, all uploads of a record share u_i C
        moves = moved / kept[:, None, None]
        uploads = visits.uploads / kept[visits.step, None]

        gram, unmoved = _gram(visits, space, moves, uploads, doubt * residue)
        if not bool(unmoved.isfinite().all() and space.isfinite().all()):
            break  # the rounds diverge: the best one counts
        initial_weights = torch.linalg.lstsq(space, unmoved).solution
        weights = initial_weights + gram @ moves  # (T, r, W), in coordinates of the space
        explained = torch.einsum("vr,vrw->vw", space[visits.row], weights[visits.step])
        residue = float((explained - uploads).var())

        idle_rounds = 0 if residue < best.residue * BETTER else idle_rounds + 1
        if residue < best.residue:
            best = _Solution(_turned(space, gram), residue)
        if idle_rounds == PATIENCE or residue < ENOUGH * float(uploads.var()):
            break
        space = _rows(visits, weights, uploads, doubt * residue)
    return best


def _first_space(visits: Visits, rank: int, served: ServedSteps) -> Tensor:
    """(n, r): mean uploads in their principal directions, and those of single visits where these are too narrow.

    Their sizes are those of the columns if initial weights have the variance 1 / (3 d_m) of torch's linear layers.
    """
    if served.width >= rank:
        table = visits.mean(visits.uploads)
    else:
        by_record = torch.argsort(visits.row, stable=True)
        end = visits.count.long().cumsum(0)
        begin = end - visits.count.long()
        fewest = int(visits.count.min())
        single = [visits.uploads[by_record[begin + visit]] for visit in range(fewest)]
        table = torch.cat(single, 1) / fewest**0.5
    basis, sizes, _ = torch.linalg.svd(table, full_matrices=False)
    mean_columns = sum(served.columns) / len(served.columns)
    scale = (3 * mean_columns / served.width) ** 0.5
    result: Tensor = (basis * sizes)[:, :rank] * scale
    return result


def _moves(served: ServedSteps, visits: Visits, space: Tensor, gram: Tensor) -> tuple[Tensor, Tensor]:
    """P (T, r, W) and c (T,): before step t the weights are c_t C + G P_t in the coordinates of the space."""
    rule = served.rule
    row_of = places(visits.seen, served.records)
    moved = space.new_zeros(space.shape[1], served.width)
    kept = space.new_ones(())
    moves = []
    all_kept = []
    state: State = ()
    state_kept: State = ()

    def row_squares(gradient: Tensor) -> Tensor:
        """The mean squares (W,) of the rows of weights: gᵀ G g over the dimensions."""
        squares = torch.einsum("rw,rs,sw->w", gradient, gram, gradient) / len(gram)
        return squares.clamp(min=0)

    for number, step in enumerate(served.steps, 1):
        moves.append(moved)
        all_kept.append(kept)
        gradient = space[row_of[step.ids]].T @ step.gradient
        moved, state = rule.step(moved, gradient, state, number, step.rate, row_squares)
        if rule.kind != "adam":  # which decays the gradient, and with it C by no known share
            kept, state_kept = rule.step(kept, torch.zeros_like(kept), state_kept, number, step.rate)
    return torch.stack(moves), torch.stack(all_kept)


def _gram(visits: Visits, space: Tensor, moves: Tensor, uploads: Tensor, noise: float) -> tuple[Tensor, Tensor]:
    """G (r, r) from each record's uploads less their mean, and its mean upload without moves (n, W).

    A record's upload less its mean is u_i G (P_t - mean P), in the coordinates u_i of the space. A priori G is that of
    the first uploads, I, with the variance 1 / W that random initial weights give it.
    """
    rank = space.shape[1]
    mean_moves = visits.mean(moves[visits.step])
    mean_uploads = visits.mean(uploads)

    # (n, r, r): Σ over a record's visits of (P_t - mean P) (P_t - mean P)ᵀ
    spread = visits.total((moves @ moves.transpose(1, 2))[visits.step])
    spread -= visits.count[:, None, None] * (mean_moves @ mean_moves.transpose(1, 2))
    # the normal equations Σ_i (u_i u_iᵀ) G spread_i = Σ_i u_i (Σ_t apart_t (P_t - mean P)ᵀ), with G as one vector
    own_products = (space[:, :, None] * space[:, None, :]).flatten(1)
    by_pairs = (own_products.T @ spread.flatten(1)).view(rank, rank, rank, rank)
    square = by_pairs.permute(0, 2, 1, 3).reshape(rank**2, rank**2)
    apart = uploads - mean_uploads[visits.row]
    right = space.T @ visits.total(torch.einsum("vrw,vw->vr", moves[visits.step], apart))

    doubt = noise * uploads.shape[1]
    a_priori = torch.eye(rank, dtype=torch.float64).reshape(-1, 1)
    square.diagonal().add_(doubt + FAINT * float(square.diagonal().max()))
    gram = torch.linalg.solve(square, right.reshape(-1, 1) + doubt * a_priori).view(rank, rank)
    gram = (gram + gram.T) / 2
    unmoved = mean_uploads - torch.einsum("nr,nrw->nw", space @ gram, mean_moves)
    return gram, unmoved


def _rows(visits: Visits, weights: Tensor, uploads: Tensor, noise: float) -> Tensor:
    """(n, r): the row of each record that explains all its uploads best, with the size of 1 a priori."""
    square = visits.total((weights @ weights.transpose(1, 2))[visits.step])
    right = visits.total(torch.einsum("vrw,vw->vr", weights[visits.step], uploads))
    diagonal = square.diagonal(dim1=1, dim2=2)
    diagonal.add_(noise + FAINT * float(diagonal.max()))
    rows: Tensor = torch.linalg.solve(square, right[:, :, None])[:, :, 0]
    return rows


def _turned(space: Tensor, gram: Tensor) -> Tensor:
    """U B with B Bᵀ = G; directions in which G is negative are left out."""
    values, vectors = torch.linalg.eigh(gram)
    root = vectors * values.clamp(min=0).sqrt()
    result: Tensor = space @ root
    return result
