"""Features from aggregates: the server knows some records of a batch and solves for the others.

Under FedVS with linear bottoms the aggregate of a record is a linear map of all parties' features, plus a constant.
With as many columns as features the map is invertible, and the features of few known records determine it.
"""

import numpy as np
import torch

from lightning_vfl.aggregators import LagrangeCoded
from lightning_vfl.datamodules import Digits
from lightning_vfl.networks import PolynomialNetwork
from lightning_vfl.networks.bank import PartyBank
from lightning_vfl.rounds.exchange import Exchange, ExpandedRecords, contribute, set_up
from lightning_vfl.types import Roll, Roster, RoundNames, Rows, Stage
from lightning_vfl.wire import PartyView, ServerView
from tests.attacks.row import Row

PARTIES, BATCH = 4, 256
RIDGE = 1e-6


def decoded(width: int, batch: int = BATCH) -> tuple[torch.Tensor, torch.Tensor]:
    """A batch of Digits: what the server decodes in a FedVS round (B, width), and all raw features (B, 64)."""
    torch.manual_seed(0)
    data = Digits(batch_size=batch)
    data.setup("fit")
    records = data.records("train")
    networks = [PolynomialNetwork(shape, width) for shape in data.party_shapes]
    bottoms = PartyBank(networks)
    roster, names = Roster.singles(PARTIES), RoundNames(0, Stage.FIT, 0)
    aggregator = LagrangeCoded(blocks=1, privacy=1)
    ids = torch.arange(batch)
    rows, everyone = Rows(ids, 0, batch), Roll.everyone(PARTIES)
    basis = tuple(len(network.weight) for network in networks)
    expanded = ExpandedRecords(records, bottoms, torch.device("cpu"))
    weights = enumerate(network.weight.detach() for network in networks)
    agreed = dict(aggregator.setup.settle([aggregator.setup.propose(expanded, m, w, roster) for m, w in weights]))
    parties = tuple(range(PARTIES))
    nobody = Rows(torch.empty(0, dtype=torch.int64), 0, 0)
    memory = set_up(
        aggregator.setup, expanded, basis, PartyView(names, roster, parties, everyone.called, nobody, agreed=agreed)
    )
    features = records.rows(ids)
    contribution = contribute(aggregator.form, bottoms, features)
    view = PartyView(names, roster, parties, everyone.called, rows, memory, None, agreed)
    server = ServerView(names, roster, rows, everyone, (width,) * PARTIES, None, len(records), agreed)
    value = Exchange(aggregator, contribution, view, server).run()
    return value.detach().double(), torch.cat([x.flatten(1) for x in features], 1).double()


def explained(width: int, known: int, batch: int = BATCH) -> float:
    """R² of all features of the records that the server does not know; constant columns do not count."""
    z, x = decoded(width, batch)
    inputs = np.column_stack([z.numpy(), np.ones(len(z))])
    a, target = inputs[:known], x[:known].numpy()  # some pixels are constant: a ridge keeps the solution finite
    solution = np.linalg.solve(a.T @ a + RIDGE * np.eye(a.shape[1]), a.T @ target)
    wrong, truth = inputs[known:] @ solution - x[known:].numpy(), x[known:].numpy()
    varying = truth.var(0) > 1e-6
    residue = (wrong[:, varying] ** 2).sum()
    return float(1 - residue / ((truth - truth.mean(0))[:, varying] ** 2).sum())


def rows() -> list[Row]:
    """The attack with as many columns as features, and with a quarter of them."""
    made = []
    for width, known in ((64, 66), (16, 66)):
        made.append(
            Row(
                f"features of Digits (64), FedVS, width {width}",
                f"the server: one decoded batch of {BATCH} records, all features of {known} of them",
                f"R² {explained(width, known):.4f} of the other {BATCH - known} records",
                "the same: FedVS hides the summands, not what their sum tells",
                "R² 0",
            )
        )
    return made
