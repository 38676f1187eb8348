"""Membership of records in the training, from the predictions that anybody sees who asks for them."""

import numpy as np
import torch
from torch import Tensor

from lightning_vfl.audit.attack import Attack, Guesses, Known, NothingSeen, Seen, Target
from lightning_vfl.audit.case import Truth
from lightning_vfl.errors import ConfigurationError
from lightning_vfl.networks.modes import evaluating
from lightning_vfl.objectives import predictions
from lightning_vfl.protocols import VFLModule
from lightning_vfl.streams import stream
from lightning_vfl.types import RecordSource, RoundNames, Stage, VerticalBatch

LEAST = 1e-12  # of a probability
MOST = 5000  # records of either kind
AT_ONCE = 1024


class MembershipByLoss(Attack):
    """Training records have smaller losses than others.

    The attacker is anybody who asks for predictions and knows the labels of the records. The guess is the negative loss
    of a record: cross-entropy, or the squared error of a number. Success is measured on as many training records as
    validation records.

    References:
        Yeom et al., "Privacy Risk in Machine Learning: Analyzing the Connection to Overfitting", CSF 2018, adversary 1.
    """

    target = Target.MEMBERS
    listens = ()

    def check(self, seen: Seen) -> None:
        if seen.classes < 1:
            raise ConfigurationError("MembershipByLoss needs predictions of classes or of numbers")

    def run(self, seen: Seen, known: Known) -> Guesses:
        if "predictions" not in seen.inputs:
            raise NothingSeen("no prediction is published")
        predictions = seen.inputs["predictions"]
        labels = seen.inputs["labels"]
        ids = torch.arange(len(labels))
        if seen.classes == 1:
            values = -(predictions.flatten() - labels.double().flatten()).square()
        elif predictions.dim() == 1:
            values = torch.where(labels == 1, predictions, 1 - predictions).clamp(min=LEAST).log()
        else:
            values = predictions[ids, labels.long()].clamp(min=LEAST).log()
        return Guesses(ids, values, f"predictions of {len(ids):,} records with their labels")


def members_and_others(module: VFLModule, truth: Truth) -> tuple[dict[str, Tensor], Tensor]:
    """What the attacker sees, and (n,) bool, which of the records have been trained on.

    The attacker sees ``predictions`` (n, C) or (n,), and knows the ``labels`` (n,), of as many training records as
    validation records; nothing if they have no labels.
    """
    predictions = []
    labels = []
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
def _predict(module: VFLModule, source: RecordSource, ids: Tensor) -> Tensor:
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
            parts.append(predictions(module.objective, output).cpu())
    return torch.cat(parts)
