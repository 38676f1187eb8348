"""The success of guesses, by what is guessed; of guesses without the protocol; and by chance."""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from lightning_vfl.audit.attack import Attack, Guesses, Known, Target, cosines, standardised
from lightning_vfl.audit.attacks.drift.measure import exact_columns, nearest_right
from lightning_vfl.audit.attacks.features import ridge_guesses
from lightning_vfl.audit.attacks.model_completion import best_head
from lightning_vfl.audit.attacks.top_gradients import recovered
from lightning_vfl.audit.case import Case
from lightning_vfl.audit.scores import Score, auc, epsilon_of_one_run, r_squared, share

MOST_ASKED = 1000  # records whose nearest ones are looked for
SAMPLE_SEED = 0
CLOSE = 0.05  # a record is recovered if its relative error in L2 norm is at most this


@dataclass(frozen=True)
class Rule:
    """How guesses of one kind are scored.

    Args:
        measure: the name of the success.
        truth: of a case and an attack, what is right for these ids (n,), in the shape of the guesses.
        score: the success of guesses (n, ...) against the truth.
        of_party: whether the attack names the party that it attacks.
        of_records: whether ids are training records; those that the attacker knows are not scored.
    """

    measure: str
    truth: Callable[[Case, Attack, Tensor], Tensor]
    score: Callable[[Tensor, Tensor], Score]
    of_party: bool = False
    of_records: bool = True


def score_of(case: Case, attack: Attack, guesses: Guesses, known: Tensor) -> Score:
    """The success for the records that the attacker did not know."""
    rule = RULES[attack.target]
    ids = guesses.ids
    values = guesses.values.double()
    if rule.of_records:
        unknown = ~torch.isin(ids, known)
        ids = ids[unknown]
        values = values[unknown]
    truth = rule.truth(case, attack, ids)
    if attack.target == Target.CANARIES:
        return epsilon_of_one_run(values.numpy(), truth.numpy(), getattr(attack, "delta", 1e-5))
    return rule.score(values, truth)


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
    if known.labels is None or not len(known.ids):
        shape = (len(features), classes) if classes > 2 else (len(features),)
        return torch.zeros(shape, dtype=torch.float64)
    x = standardised(features).double()
    if len(torch.unique(known.labels)) < classes:
        return cosines(x, x[known.ids]).mean(1)
    model = best_head(x[known.ids].numpy(), known.labels.numpy())
    return torch.from_numpy(model.predict_proba(x.numpy()))


def _coins(case: Case, attack: Attack, ids: Tensor) -> Tensor:
    if case.coins is None:
        raise TypeError("no canaries are in this training")
    return case.coins[ids]


def _members(case: Case, attack: Attack, ids: Tensor) -> Tensor:
    if case.members is None:
        raise TypeError("it is not known who was trained on")
    return case.members[ids]


def _columns(case: Case, attack: Attack, ids: Tensor) -> Tensor:
    """All columns that the attacker does not have itself."""
    return case.truth.everything(case.transcript.attacker.parties)[ids]


def _joined(case: Case, attack: Attack, rounds: Tensor) -> Tensor:
    """(rounds, B, D), filled up with NaN where a batch is smaller than the largest."""
    return pad_sequence([case.joined[number] for number in rounds.tolist()], True, torch.nan)


def _area(values: Tensor, truth: Tensor) -> Score:
    return auc(values.numpy(), truth.numpy())


def _accuracy(values: Tensor, labels: Tensor) -> Score:
    if values.dim() == 1:
        return _area(values, labels == 1)
    if values.shape[1] == 2:
        return _area(values[:, 1] - values[:, 0], labels == 1)
    most = float(torch.bincount(labels).max()) / len(labels)
    return share(int((values.argmax(1) == labels).sum()), len(labels), most)


def _explained(values: Tensor, truth: Tensor) -> Score:
    return r_squared(values.numpy(), truth.numpy())


def _recovered(values: Tensor, truth: Tensor) -> Score:
    close = (values - truth).norm(dim=1) <= CLOSE * truth.norm(dim=1)
    return share(int(close.sum()), len(truth), 0.0, RULES[Target.RECORDS].measure)


def _exact_rows(values: Tensor, truth: Tensor) -> Score:
    """The share of all true rows that some guess of their round is, to one per cent of their norm."""
    there = ~truth.isnan().any(2)
    right = recovered(values, truth).any(1)
    return share(int(right[there].sum()), int(there.sum()), 0.0, RULES[Target.JOINED].measure)


def _equal(values: Tensor, truth: Tensor) -> Score:
    most = float((truth == truth.flatten().mode().values).double().mean())  # always the most frequent number
    return share(int((values == truth).sum()), truth.numel(), most, RULES[Target.SHARES].measure)


def _nearest(values: Tensor, truth: Tensor) -> Score:
    """The share of records whose nearest record is right, among the records that are guessed; ties are right.

    Of many records, a sample is asked for its nearest ones among all: distances of all pairs would take gigabytes.
    """
    records = len(truth)
    measure = RULES[Target.NEIGHBOURS].measure
    some = None
    if records > MOST_ASKED:
        some = torch.randperm(records, generator=torch.Generator().manual_seed(SAMPLE_SEED))[:MOST_ASKED]
        measure += f" (of {MOST_ASKED:,} records)"
    right = nearest_right(values, truth, some)
    return share(int(right.sum()), len(right), 1 / max(records - 1, 1), measure)


def _exact(values: Tensor, truth: Tensor) -> Score:
    """The share of columns with two to five values whose values are told apart without an error."""
    return share(*exact_columns(values, truth), 0.0, RULES[Target.COLUMNS].measure)


def _of_harness(values: Tensor, truth: Tensor) -> Score:
    raise TypeError("a bound on ε needs the δ of the attack: the harness computes it")


RULES = {
    Target.RANKS: Rule("AUC", lambda case, _, ids: case.truth.labels()[ids] == 1, _area),
    Target.CLASSES: Rule("accuracy", lambda case, _, ids: case.truth.labels()[ids], _accuracy),
    Target.COUNTS: Rule(
        "R²", lambda case, _, rounds: case.truth.counts(case.transcript, rounds), _explained, of_records=False
    ),
    Target.FEATURES: Rule(
        "R²", lambda case, attack, ids: case.truth.features(attack.party)[ids], _explained, of_party=True
    ),
    Target.RECORDS: Rule(
        "share of records within 5 %",
        lambda case, attack, ids: case.truth.group_features(attack.party)[ids],
        _recovered,
        of_party=True,
    ),
    Target.SHARES: Rule(
        "share of exact numbers",
        lambda case, attack, ids: case.truth.shared_numbers(case.module, attack.party, ids),
        _equal,
        of_party=True,
    ),
    Target.EMBEDDINGS: Rule(
        "R²", lambda case, attack, ids: case.truth.embeddings(case.module, attack.party)[ids], _explained, of_party=True
    ),
    Target.JOINED: Rule("share of exact embeddings", _joined, _exact_rows, of_records=False),
    Target.COINS: Rule("ε (lower bound)", _coins, _of_harness, of_records=False),
    Target.CANARIES: Rule("ε (lower bound)", _coins, _of_harness, of_party=True),
    Target.NEIGHBOURS: Rule("share of nearest records", _columns, _nearest),
    Target.COLUMNS: Rule("share of columns with few values", _columns, _exact),
    Target.MEMBERS: Rule("AUC", _members, _area, of_records=False),
}
