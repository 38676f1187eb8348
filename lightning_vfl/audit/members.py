"""Predictions of training records and of others, as anybody sees them who asks for predictions."""

from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from lightning_vfl.networks.modes import evaluating
from lightning_vfl.streams import stream
from lightning_vfl.types import RecordSource, RoundNames, Stage, VerticalBatch

if TYPE_CHECKING:
    from lightning_vfl.audit.truth import Truth
    from lightning_vfl.protocols import VFLModule

MOST = 5000  # records of either kind
AT_ONCE = 1024


def members_and_others(module: "VFLModule", truth: "Truth") -> tuple[dict[str, Tensor], Tensor]:
    """What the attacker sees, and (n,) bool, which of the records have been trained on.

    The attacker sees ``predictions`` (n, C) or (n,), and knows the ``labels`` (n,), of as many training records as
    validation records; nothing if they have no labels.
    """
    predictions, labels = [], []
    sources = {name: truth.data.records(name) for name in ("train", "val")}
    count = min(MOST, *map(len, sources.values()))
    for name, source in sources.items():
        if source.labels is None:
            return {}, torch.empty(0, dtype=torch.bool)
        order = np.random.Generator(stream(module.seed, "audit", "members", name)).permutation(len(source))
        ids = torch.from_numpy(order[:count]).sort().values
        predictions.append(_predict(module, source, ids))
        labels.append(source.labels[ids])
    member = torch.arange(2 * count) < count
    return {"predictions": torch.cat(predictions).double(), "labels": torch.cat(labels)}, member


@torch.no_grad()
def _predict(module: "VFLModule", source: RecordSource, ids: Tensor) -> Tensor:
    like = next(module.bottoms.parameters())
    parts = []
    with evaluating(module):
        for number, some in enumerate(torch.split(ids, AT_ONCE)):
            present = None if source.present is None else source.present[some]
            batch = VerticalBatch(tuple(x.to(like) for x in source.rows(some)), None, some, present)
            if module.protected_evaluation:
                output = module.output_in_the_clear(batch)
            else:
                output = module.evaluated(batch, RoundNames(module.seed, Stage.PREDICT, number))
            parts.append(module.objective.predict(output).float().cpu())
    return torch.cat(parts)
