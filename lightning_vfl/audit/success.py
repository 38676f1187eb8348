"""The success of guesses, by what is guessed; of guesses without the protocol; and by chance."""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from lightning_vfl.audit.attack import Attack, Guesses, Known, Target, cosines
from lightning_vfl.audit.attacks.drift.measure import exact_columns, nearest_right
from lightning_vfl.audit.attacks.regression import ridge_guesses
from lightning_vfl.audit.case import Case
from lightning_vfl.audit.scores import Score, auc, epsilon_of_one_run, r_squared, share

CLOSE = 0.05  # a record is recovered if its relative error in L2 norm is at most this


Scoring = Callable[[Case, Attack, Tensor, Tensor], Score]


@dataclass(frozen=True)
class Rule:
    """How guesses of one kind are scored.

    Args:
        measure: the name of the success.
        score: of a case and an attack, the success of guesses (n, ...) with their ids (n,).
        of_party: whether the attack names the party that it attacks.
        of_records: whether ids are training records; those that the attacker knows are not scored.
    """

    measure: str
    score: Scoring
    of_party: bool = False
    of_records: bool = True


def score_of(case: Case, attack: Attack, guesses: Guesses, known: Tensor) -> Score:
    """The success for the records that the attacker did not know."""
    rule = RULES[attack.target]
    ids = guesses.ids
    values = guesses.values.double()
    if rule.of_records:
        keep = ~torch.isin(ids, known)
        ids = ids[keep]
        values = values[keep]
    return rule.score(case, attack, ids, values)


def measure_of(case: Case, target: Target) -> str:
    """The name of the success of an attack on this target."""
    return "AUC" if target == Target.CLASSES and case.truth.classes <= 2 else RULES[target].measure


def chance_of(case: Case, attack: Attack) -> float:
    """The success of an attacker who sees nothing."""
    if attack.target == Target.NEIGHBOURS:
        return 1 / max(case.truth.records - 1, 1)
    if attack.target in (Target.RANKS, Target.MEMBERS):
        return 0.5
    if attack.target == Target.CLASSES:
        counts = torch.bincount(case.truth.labels())
        return 0.5 if case.truth.classes == 2 else float(counts.max()) / int(counts.sum())
    return 0.0


def success_without(case: Case, attack: Attack, known: Known) -> float | None:
    """The success with the same side knowledge and without any message."""
    truth = case.truth
    parties = case.transcript.attacker.parties
    if attack.target in (Target.RANKS, Target.CLASSES) and parties:
        values = _from_own_features(torch.cat([truth.features(party) for party in parties], 1), known, truth.classes)
    elif attack.target in (Target.FEATURES, Target.EMBEDDINGS) and known.features is not None:
        others = [truth.features(party) for party in range(truth.parties) if party != attack.party]
        values = ridge_guesses(torch.cat(others, 1), known.features, known.ids)
    else:
        return None
    return score_of(case, attack, Guesses(torch.arange(truth.records), values, ""), known.ids).success


def _from_own_features(features: Tensor, known: Known, classes: int) -> Tensor:
    """Label guesses (N,) or (N, C) from the attacker's own features (N, W).

    A logistic regression on the known records, if labels of all classes are known; the mean cosine with the known
    records of class 1, if only these are known; zeros, if no label is known.
    """
    from sklearn.linear_model import LogisticRegression

    if known.labels is None or not len(known.ids):
        return torch.zeros(len(features), dtype=torch.float64)
    x = ((features - features.mean(0)) / features.std(0).clamp(min=1e-9)).double()
    if len(torch.unique(known.labels)) < classes:
        return cosines(x, x[known.ids]).mean(1)
    model = LogisticRegression(max_iter=300).fit(x[known.ids].numpy(), known.labels.numpy())
    return torch.from_numpy(model.predict_proba(x.numpy()))


def _r_squared(truth_of: Callable[[Case, Attack, Tensor], Tensor]) -> Scoring:
    """R² against these true numbers of records or rounds."""
    return lambda case, attack, ids, values: r_squared(values.numpy(), truth_of(case, attack, ids).numpy())


def _ranks(case: Case, attack: Attack, ids: Tensor, values: Tensor) -> Score:
    return auc(values.numpy(), case.truth.labels()[ids].numpy() == 1)


def _classes(case: Case, attack: Attack, ids: Tensor, values: Tensor) -> Score:
    if case.truth.classes == 2:
        return _ranks(case, attack, ids, values if values.dim() == 1 else values[:, 1] - values[:, 0])
    labels = case.truth.labels()[ids]
    most = float(torch.bincount(labels).max()) / len(labels)
    return share(int((values.argmax(1) == labels).sum()), len(ids), most)


def _records(case: Case, attack: Attack, ids: Tensor, values: Tensor) -> Score:
    truth = case.truth.group_features(attack.party)[ids]
    close = (values - truth).norm(dim=1) <= CLOSE * truth.norm(dim=1)
    return share(int(close.sum()), len(ids), 0.0, RULES[Target.RECORDS].measure)


def _shares(case: Case, attack: Attack, ids: Tensor, values: Tensor) -> Score:
    truth = case.truth.shared_numbers(case.module, attack.party, ids)
    most = float((truth == truth.flatten().mode().values).double().mean())  # always the most frequent number
    return share(int((values == truth).sum()), truth.numel(), most, RULES[Target.SHARES].measure)


def _coins(case: Case, attack: Attack, ids: Tensor, values: Tensor) -> Score:
    raise TypeError("trials of a mechanism have coins of their own; the harness scores them")


def _canaries(case: Case, attack: Attack, ids: Tensor, values: Tensor) -> Score:
    if case.coins is None:
        raise TypeError("no canaries are in this training")
    return epsilon_of_one_run(values.numpy(), case.coins[ids].numpy(), getattr(attack, "delta", 1e-5))


def _neighbours(case: Case, attack: Attack, ids: Tensor, values: Tensor) -> Score:
    """The share of records whose nearest record is right, among the records that are guessed; ties are right."""
    right = nearest_right(values, case.truth.everything(case.transcript.attacker.parties)[ids])
    return share(int(right.sum()), len(ids), 1 / max(len(ids) - 1, 1), RULES[Target.NEIGHBOURS].measure)


def _columns(case: Case, attack: Attack, ids: Tensor, values: Tensor) -> Score:
    """The share of columns with two to five values whose values are told apart without an error."""
    right, of = exact_columns(values, case.truth.everything(case.transcript.attacker.parties)[ids])
    return share(right, of, 0.0, RULES[Target.COLUMNS].measure)


def _members(case: Case, attack: Attack, ids: Tensor, values: Tensor) -> Score:
    if case.members is None:
        raise TypeError("it is not known who was trained on")
    return auc(values.numpy(), case.members[ids].numpy())


_COUNTS = _r_squared(lambda case, attack, rounds: case.truth.counts(case.transcript, rounds))
_FEATURES = _r_squared(lambda case, attack, ids: case.truth.features(attack.party)[ids])
_EMBEDDINGS = _r_squared(lambda case, attack, ids: case.truth.embeddings(case.module, attack.party)[ids])
RULES = {
    Target.RANKS: Rule("AUC", _ranks),
    Target.CLASSES: Rule("accuracy", _classes),
    Target.COUNTS: Rule("R²", _COUNTS, of_records=False),
    Target.FEATURES: Rule("R²", _FEATURES, of_party=True),
    Target.RECORDS: Rule("share of records within 5 %", _records, of_party=True),
    Target.SHARES: Rule("share of exact numbers", _shares, of_party=True),
    Target.EMBEDDINGS: Rule("R²", _EMBEDDINGS, of_party=True),
    Target.COINS: Rule("ε (lower bound)", _coins, of_records=False),
    Target.CANARIES: Rule("ε (lower bound)", _canaries, of_party=True),
    Target.NEIGHBOURS: Rule("share of nearest records", _neighbours),
    Target.COLUMNS: Rule("share of columns with few values", _columns),
    Target.MEMBERS: Rule("AUC", _members, of_records=False),
}
