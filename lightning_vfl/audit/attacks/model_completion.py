"""Labels from a party's own trained bottom, completed by a head."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor, nn

from lightning_vfl.audit.attack import Attack, Guesses, Known, Needs, NothingSeen, Seen, Target, asked_for, standardised
from lightning_vfl.checks import positive
from lightning_vfl.networks.bank import PartyBank
from lightning_vfl.networks.modes import evaluating

if TYPE_CHECKING:
    from numpy.typing import NDArray
    from sklearn.linear_model import LogisticRegression

GAMMA = 1.0  # scale of the ratio of two gradients (Fu et al.)
LEAST, MOST = 1.0, 5.0  # range of the factor
STRENGTHS = tuple(10.0**power for power in range(-4, 4))  # inverse strengths of the L2 penalty of a head
FOLDS = 5
CONFIDENT = (0.1, 0.2, 0.4, 0.6, 0.8)  # shares of all records that get pseudo-labels, one refit after the other


@dataclass
class ModelCompletion(Attack):
    """A party's bottom has learnt what its columns tell about labels; a few known labels make a head for it.

    The head is a logistic regression on the embeddings of the known records, its penalty chosen by cross-validation on
    them, and refitted on growing sets of its own most confident guesses. The paper trains bottom and head by MixMatch
    in place of these refits.

    With ``active``, the attacker changes its training: it multiplies each number of the gradient of its bottom by
    1 + γ g_t / g_(t-1), cut to [1, 5], so that the server's top relies on it more. With ``rate``, it multiplies each of
    its steps by a number, whatever the optimiser is.

    Args:
        known: k, records of each class with a known label.
        active: whether the attacker uses the malicious local optimiser; this changes the training.
        rate: by how much the attacker's learning rate is larger than that of the recipe; another than 1 changes the
            training.

    References:
        Fu et al., "Label Inference Attacks Against Vertical Federated Learning", USENIX Security 2022, sections 4.1
        (passive) and 4.2 (active, the malicious local optimiser).
    """

    target = Target.CLASSES
    listens = ()
    known: int = 40
    active: bool = False
    rate: float = 1.0
    _last: dict[int, Tensor] = field(default_factory=dict, init=False, repr=False, compare=False)
    _before: dict[nn.Parameter, Tensor] = field(default_factory=dict, init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        positive("rate", self.rate)

    @property
    def needs(self) -> Needs:
        return Needs(labels_per_class=self.known)

    def run(self, seen: Seen, known: Known) -> Guesses:
        from sklearn.base import clone

        if not seen.features:
            raise NothingSeen("the attacker has no bottom")
        embeddings = torch.cat([embeddings_of(seen.bottoms[party], x) for party, x in seen.features.items()], 1)
        h = standardised(embeddings).numpy()
        ids = known.ids.numpy()
        labels = asked_for(known.labels).numpy()
        model = best_head(h[ids], labels)
        for share in CONFIDENT:
            certain = model.predict_proba(h)
            guessed = certain.argmax(1)
            rows = [ids]
            targets = [labels]
            for c in range(seen.classes):  # as many of each class as it has guesses, so that no class dies out
                members = np.flatnonzero(guessed == c)
                order = np.argsort(-certain[members, c])
                most_certain = members[order[: int(share * len(members))]]
                rows.append(most_certain)
                targets.append(guessed[most_certain])
            pseudo_labels = np.concatenate(targets)
            if len(np.unique(pseudo_labels)) == seen.classes:
                model = clone(model).fit(h[np.concatenate(rows)], pseudo_labels)
        changed = ", amplified gradients" if self.active else ""
        changed += f", rate × {self.rate:g}" if self.rate != 1 else ""
        saw = f"its trained bottom, {len(ids)} known labels{changed}"
        return Guesses(torch.arange(len(h)), torch.from_numpy(model.predict_proba(h)), saw)

    def before_step(self, bottoms: PartyBank, parties: Sequence[int]) -> None:
        """Change the gradients of the attacker's bottoms, before the optimiser's step."""
        for party in parties:
            for parameter in bottoms.parties[party].parameters():
                if parameter.grad is None:
                    continue
                if self.rate != 1:
                    self._before[parameter] = parameter.detach().clone()
                if not self.active:
                    continue
                gradient = parameter.grad.clone()
                last = self._last.get(id(parameter))
                if last is not None:
                    parameter.grad.mul_((1 + GAMMA * gradient / (last + 1e-7)).clamp(LEAST, MOST))
                self._last[id(parameter)] = gradient

    def after_step(self) -> None:
        """Make the steps of the attacker's bottoms longer or shorter."""
        with torch.no_grad():
            for parameter, before in self._before.items():
                parameter.add_(parameter - before, alpha=self.rate - 1)
        self._before.clear()


def embeddings_of(bottom: nn.Module, features: Tensor) -> Tensor:
    """(N, D) float64, the embeddings by a trained bottom."""
    like = next(bottom.parameters())
    with torch.no_grad(), evaluating(bottom):
        return torch.cat([bottom(x.to(like)).double().cpu() for x in torch.split(features, 8192)])


def best_head(inputs: "NDArray[np.float64]", labels: "NDArray[np.int64]") -> "LogisticRegression":
    """A logistic regression on these records, whose penalty is the best of eight by cross-validation on them alone.

    With one record of a class there is nothing to validate on, and the penalty is that of scikit-learn.

    Args:
        inputs: (k, D), of about unit size.
        labels: (k,).
    """
    from sklearn.linear_model import LogisticRegression
    from sklearn.model_selection import GridSearchCV

    head = LogisticRegression(max_iter=1000)
    folds = min(FOLDS, int(np.unique(labels, return_counts=True)[1].min()))
    if folds < 2:
        return head.fit(inputs, labels)
    search = GridSearchCV(head, {"C": STRENGTHS}, scoring="neg_log_loss", cv=folds)
    best: LogisticRegression = search.fit(inputs, labels).best_estimator_
    return best
