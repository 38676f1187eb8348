"""Runs attacks and scores their guesses. The truth is here and in no attack."""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from math import isnan
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from lightning_vfl.audit.attack import Attack, Guesses, Known, Needs, NothingSeen, Seen, Target
from lightning_vfl.audit.attacker import Attacker
from lightning_vfl.audit.attacks.canaries import CanariesInTraining
from lightning_vfl.audit.attacks.epsilon_lower_bound import EpsilonLowerBound
from lightning_vfl.audit.mechanism import run_trials
from lightning_vfl.audit.scores import Score, auc, epsilon_of_one_run, epsilon_of_trials, r_squared, share
from lightning_vfl.audit.truth import Truth
from lightning_vfl.audit.without import from_other_columns, from_own_features
from lightning_vfl.errors import ConfigurationError
from lightning_vfl.streams import stream

if TYPE_CHECKING:
    from lightning_vfl.audit.transcript import Transcript
    from lightning_vfl.protocols import VFLModule

MARGIN = 0.02  # a success is called a leak if its interval is above the reference by more
CLOSE = 0.05  # a record is recovered if its relative error in L2 norm is at most this


@dataclass(frozen=True)
class Finding:
    """The result of one attack.

    Args:
        attack: its name, with the settings that are not the defaults.
        attacker: who attacked.
        saw: what was used.
        measure: of the success.
        success: the success; NaN: the attack could not be tried.
        low: end of the 95 % interval.
        high: end of the 95 % interval.
        chance: the success of guesses that do not depend on the truth.
        without: the success without the protocol, from what the attacker knows anyway; None: there is no such attack.
        claimed: the accountant's ε; None: the attack bounds no ε.
        verdict: in a few words.
        seconds: the time that the attack took.
        pictures: guesses and truth of a few records, for the page.
    """

    attack: str
    attacker: str
    saw: str
    measure: str
    success: float
    low: float
    high: float
    chance: float
    without: float | None
    claimed: float | None
    verdict: str
    seconds: float
    pictures: tuple[Tensor, Tensor] | None = field(default=None, repr=False, compare=False)


@dataclass(frozen=True, eq=False)
class Case:
    """A training that is attacked.

    Args:
        module: the trained protocol.
        truth: its records.
        transcript: what the attacker has received.
        inputs: as in ``Seen``.
        members: (n,) bool, which of the records of ``inputs`` have been trained on; None: unknown.
        coins: (N,) bool, the coins of the canaries in the training, by record; None: there are none.
    """

    module: "VFLModule"
    truth: Truth
    transcript: "Transcript"
    inputs: dict[str, Tensor] = field(default_factory=dict)
    members: Tensor | None = None
    coins: Tensor | None = None

    @property
    def claimed_epsilon(self) -> float | None:
        """The accountant's ε of a party's record in this training; None: the aggregator claims none."""
        accountant = self.module.privacy.accountant
        return None if accountant is None else accountant.epsilon(1e-5, "party-record")

    def seen(self) -> Seen:
        """What the attacker has."""
        module, attacker = self.module, self.transcript.attacker
        return Seen(
            attacker,
            self.transcript,
            self.truth.records,
            self.truth.classes,
            {party: self.truth.raw(party) for party in attacker.parties},
            {party: module.bottoms.parties[party] for party in attacker.parties},
            module.top if attacker.server else None,
            module.roster,
            module.aggregator,
            module.preparation.agreed,
            module.seed,
            self.inputs,
        )


def run_attacks(case: Case, attacks: Sequence[Attack]) -> list[Finding]:
    """The findings, one for each attack."""
    return [run_attack(case, attack) for attack in attacks]


def refuse_unsuitable(case: Case, attacks: Sequence[Attack]) -> None:
    """Refuse attacks that cannot be tried on a training, before it starts.

    Raises:
        ConfigurationError: for the first such attack, and for too many known records.
    """
    for attack in attacks:
        if attack.target in _OF_PARTY:
            Attacker(False, (attack.party,)).refuse_strangers(case.truth.parties)
        attack.check(case.seen())
        if not isinstance(attack, CanariesInTraining):
            choose_known(case, attack.needs, attack.party, Target.FEATURES)


def run_attack(case: Case, attack: Attack) -> Finding:
    """One attack: choose its side knowledge, run it, score its guesses and the guesses without the protocol."""
    began, attacker = time.perf_counter(), str(case.transcript.attacker)
    if isinstance(attack, EpsilonLowerBound) and case.transcript.attacker.server:
        return _of_mechanism(case, attack, began)
    seen = case.seen()
    known = _known_coins(case, attack) if isinstance(attack, CanariesInTraining) else _known(case, attack)
    without = _without(case, attack, known)
    try:
        guesses = attack.run(seen, known)
    except NothingSeen as nothing:
        chance = _chance(case, attack)
        taken = time.perf_counter() - began
        verdict = f"nothing to attack: {nothing}"
        name = _MEASURES[attack.target] if attack.target != Target.CLASSES or case.truth.classes > 2 else "AUC"
        return Finding(
            label(attack), attacker, str(nothing), name, chance, chance, chance, chance, without, None, verdict, taken
        )
    score = _score(case, attack, guesses, known.ids)
    taken = time.perf_counter() - began
    claimed = case.claimed_epsilon if attack.target == Target.CANARIES else None
    return Finding(
        label(attack), attacker, guesses.saw, score.measure, score.success, score.low, score.high, score.chance,
        without, claimed, _verdict(score, without, claimed), taken, _pictures(case, attack, guesses, known.ids),
    )  # fmt: skip


def _of_mechanism(case: Case, attack: EpsilonLowerBound, began: float) -> Finding:
    trials = run_trials(case.module.aggregator, case.module.roster, attack, case.module.seed)
    guesses = attack.run(trials.seen, Known(torch.empty(0, dtype=torch.int64)))
    score = epsilon_of_trials(guesses.values.numpy(), trials.second.numpy(), attack.delta)
    return Finding(
        label(attack), "server", guesses.saw, score.measure, score.success, score.low, score.high, score.chance,
        None, trials.claimed, _verdict(score, None, trials.claimed), time.perf_counter() - began,
    )  # fmt: skip


# ---- side knowledge


def _known(case: Case, attack: Attack) -> Known:
    return choose_known(case, attack.needs, attack.party, attack.target)


def _known_coins(case: Case, attack: CanariesInTraining) -> Known:
    """The coins of every second canary."""
    ids = attack.chosen(case.truth.records, case.module.seed)[::2]
    return Known(ids, None if case.coins is None else case.coins[ids].long())


def choose_known(case: Case, needs: Needs, party: int, target: Target) -> Known:
    """The side knowledge: records drawn by the run's seed, the same for every attack with the same needs.

    Raises:
        ConfigurationError: for more records than there are.
    """
    truth = case.truth
    draw = np.random.Generator(stream(case.module.seed, "audit", "known")).permutation(truth.records)
    prior = None
    if needs.prior:
        prior = torch.bincount(truth.labels(), minlength=truth.classes).double() / truth.records
    if needs.records:
        if needs.records >= truth.records:
            raise ConfigurationError(
                f"known must be less than the number of training records, {truth.records:,}; got {needs.records:,}"
            )
        ids = torch.from_numpy(draw[: needs.records].copy())
        attacked = truth.embeddings(case.module, party) if target == Target.EMBEDDINGS else truth.features(party)
        return Known(ids, None, attacked[ids], prior)
    if not needs.labels_per_class and not needs.positives:
        return Known(torch.empty(0, dtype=torch.int64), prior=prior)
    if truth.classes < 2:
        raise ConfigurationError("the attack guesses classes, but the labels are numbers; attack features instead")
    labels, order = truth.labels(), torch.from_numpy(draw.copy())
    only = truth.classes == 2 and needs.positives
    chosen = []
    for c in [1] if only else range(truth.classes):
        own = order[labels[order] == c]
        k = needs.positives if only else needs.labels_per_class
        if k >= len(own):
            raise ConfigurationError(
                f"known must be less than the size of every class; class {c} has {len(own)} training records and the "
                f"attack wants {k}"
            )
        chosen.append(own[:k])
    ids = torch.cat(chosen)
    return Known(ids, labels[ids], None, prior)


# ---- scores

_OF_PARTY = (Target.FEATURES, Target.RECORDS, Target.SHARES, Target.EMBEDDINGS, Target.CANARIES)
_MEASURES = {
    Target.RANKS: "AUC",
    Target.CLASSES: "accuracy",
    Target.COUNTS: "R²",
    Target.FEATURES: "R²",
    Target.RECORDS: "share of records within 5 %",
    Target.SHARES: "share of exact numbers",
    Target.EMBEDDINGS: "R²",
    Target.COINS: "ε (lower bound)",
    Target.CANARIES: "ε (lower bound)",
    Target.MEMBERS: "AUC",
}


def _score(case: Case, attack: Attack, guesses: Guesses, known: Tensor) -> Score:
    """The success for the records that the attacker did not know."""
    keep = ~torch.isin(guesses.ids, known) if attack.target not in _NOT_RECORDS else torch.ones(len(guesses.ids)).bool()
    ids, values = guesses.ids[keep], guesses.values[keep].double()
    return _SCORES[attack.target](case, attack, ids, values)


def _ranks(case: Case, attack: Attack, ids: Tensor, values: Tensor) -> Score:
    return auc(values.numpy(), case.truth.labels()[ids].numpy() == 1)


def _classes(case: Case, attack: Attack, ids: Tensor, values: Tensor) -> Score:
    if case.truth.classes == 2:
        return _ranks(case, attack, ids, values if values.dim() == 1 else values[:, 1] - values[:, 0])
    labels = case.truth.labels()[ids]
    most = float(torch.bincount(labels).max()) / len(labels)
    return share(int((values.argmax(1) == labels).sum()), len(ids), most)


def _counts(case: Case, attack: Attack, ids: Tensor, values: Tensor) -> Score:
    return r_squared(values.numpy(), case.truth.counts(case.transcript, ids).numpy())


def _features(case: Case, attack: Attack, ids: Tensor, values: Tensor) -> Score:
    return r_squared(values.numpy(), case.truth.features(attack.party)[ids].numpy())


def _records(case: Case, attack: Attack, ids: Tensor, values: Tensor) -> Score:
    truth = case.truth.group_features(attack.party)[ids]
    close = (values - truth).norm(dim=1) <= CLOSE * truth.norm(dim=1)
    return share(int(close.sum()), len(ids), 0.0, _MEASURES[Target.RECORDS])


def _shares(case: Case, attack: Attack, ids: Tensor, values: Tensor) -> Score:
    truth = case.truth.shared_numbers(case.module, attack.party, ids)
    most = float((truth == truth.flatten().mode().values).double().mean())  # always the most frequent number
    return share(int((values == truth).sum()), truth.numel(), most, _MEASURES[Target.SHARES])


def _embeddings(case: Case, attack: Attack, ids: Tensor, values: Tensor) -> Score:
    return r_squared(values.numpy(), case.truth.embeddings(case.module, attack.party)[ids].numpy())


def _canaries(case: Case, attack: Attack, ids: Tensor, values: Tensor) -> Score:
    if case.coins is None:
        raise TypeError("no canaries are in this training")
    return epsilon_of_one_run(values.numpy(), case.coins[ids].numpy(), getattr(attack, "delta", 1e-5))


def _members(case: Case, attack: Attack, ids: Tensor, values: Tensor) -> Score:
    if case.members is None:
        raise TypeError("it is not known who was trained on")
    return auc(values.numpy(), case.members[ids].numpy())


_NOT_RECORDS = (Target.COUNTS, Target.MEMBERS)
_SCORES: dict[Target, Callable[[Case, Attack, Tensor, Tensor], Score]] = {
    Target.RANKS: _ranks,
    Target.CLASSES: _classes,
    Target.COUNTS: _counts,
    Target.FEATURES: _features,
    Target.RECORDS: _records,
    Target.SHARES: _shares,
    Target.EMBEDDINGS: _embeddings,
    Target.CANARIES: _canaries,
    Target.MEMBERS: _members,
}


def _chance(case: Case, attack: Attack) -> float:
    """The success of an attacker who sees nothing."""
    if attack.target in (Target.RANKS, Target.MEMBERS):
        return 0.5
    if attack.target == Target.CLASSES:
        counts = torch.bincount(case.truth.labels())
        return 0.5 if case.truth.classes == 2 else float(counts.max()) / int(counts.sum())
    return 0.0


def _without(case: Case, attack: Attack, known: Known) -> float | None:
    """The success with the same side knowledge and without any message."""
    truth, attacker = case.truth, case.transcript.attacker
    if attack.target in (Target.RANKS, Target.CLASSES) and attacker.parties:
        own = torch.cat([truth.features(party) for party in attacker.parties], 1)
        ids = torch.arange(truth.records)
        guesses = Guesses(ids, from_own_features(own, known, truth.classes), "")
        return _score(case, attack, guesses, known.ids).success
    if attack.target in (Target.FEATURES, Target.EMBEDDINGS) and known.features is not None:
        others = torch.cat([truth.features(m) for m in range(truth.parties) if m != attack.party], 1)
        guesses = Guesses(torch.arange(truth.records), from_other_columns(others, known), "")
        return _score(case, attack, guesses, known.ids).success
    return None


def _verdict(score: Score, without: float | None, claimed: float | None) -> str:
    if isnan(score.success):
        return "not measured"
    if claimed is not None:
        return "within the accountant's ε" if score.success <= claimed else "ABOVE the accountant's ε"
    reference = max(score.chance, score.chance if without is None or isnan(without) else without)
    if score.low > reference + MARGIN:
        return "leaks"
    return "no more than without the protocol" if score.low > score.chance + MARGIN else "chance"


def _pictures(case: Case, attack: Attack, guesses: Guesses, known: Tensor) -> tuple[Tensor, Tensor] | None:
    """Guesses and truth of features, of a few records."""
    if attack.target != Target.FEATURES:
        return None
    ids = guesses.ids[~torch.isin(guesses.ids, known)][:400]
    place = torch.full((case.truth.records,), -1)
    place[guesses.ids] = torch.arange(len(guesses.ids))
    shape = case.truth.shape(attack.party)
    return tuple(  # type: ignore[return-value]  # two of them
        table.view(len(ids), *shape) if len(shape) > 1 else table
        for table in (guesses.values[place[ids]], case.truth.features(attack.party)[ids])
    )


def label(attack: Attack) -> str:
    """The name of an attack, with the settings that are not the defaults."""
    import inspect

    settings: dict[str, Any] = {}
    for name, parameter in inspect.signature(type(attack)).parameters.items():
        value = getattr(attack, name, parameter.default)
        if value != parameter.default:
            settings[name] = value
    inside = ", ".join(f"{name}={value}" for name, value in settings.items())
    return type(attack).__name__ + (f"({inside})" if inside else "")
