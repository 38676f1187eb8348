"""Runs attacks and reports their success. The truth is in the case, and in no attack."""

import time
from collections.abc import Sequence
from dataclasses import replace
from math import isnan, nan

import torch
from torch import Tensor

from lightning_vfl.audit.attack import Attack, Guesses, Known, NotAttacked, NothingSeen, Target
from lightning_vfl.audit.attacker import Attacker
from lightning_vfl.audit.attacks.canaries import CanariesInTraining
from lightning_vfl.audit.attacks.epsilon_lower_bound import EpsilonLowerBound
from lightning_vfl.audit.case import Case
from lightning_vfl.audit.finding import NOT_ATTACKED, Finding, label
from lightning_vfl.audit.guesses import refuse_other_guesses
from lightning_vfl.audit.mechanism import run_trials
from lightning_vfl.audit.scores import Score, epsilon_of_trials
from lightning_vfl.audit.side_knowledge import known_records, known_to
from lightning_vfl.audit.success import RULES, chance_of, measure_of, score_of, success_without
from lightning_vfl.audit.verdicts import MARGIN
from lightning_vfl.errors import ConfigurationError

LABELS = Target.RANKS, Target.CLASSES


def run_attacks(case: Case, attacks: Sequence[Attack]) -> list[Finding]:
    """The findings, one for each attack; ``judged`` gives them verdicts."""
    return [run_attack(case, attack) for attack in attacks]


def refuse_unsuitable(case: Case, attacks: Sequence[Attack]) -> None:
    """Refuse attacks that cannot be tried on a training, before it starts.

    Raises:
        ConfigurationError: for the first such attack, for too many known records, and for two attacks by canaries.
    """
    if sum(isinstance(attack, CanariesInTraining) for attack in attacks) > 1:
        raise ConfigurationError(
            "the canaries of two CanariesInTraining would be in the same batches, so that neither tells of its party "
            "alone; audit two trainings, with one each"
        )
    for attack in attacks:
        if RULES[attack.target].of_party:
            Attacker(False, (attack.party,)).refuse_strangers(case.truth.parties)
        attack.check(case.seen())
        if not isinstance(attack, CanariesInTraining):
            known_records(case, attack.needs)


def run_attack(case: Case, attack: Attack) -> Finding:
    """One attack: choose its side knowledge, run it, score its guesses and the guesses without the protocol."""
    began = time.perf_counter()
    if isinstance(attack, EpsilonLowerBound) and case.transcript.attacker.server:
        finding = _on_mechanism(case, attack)
    else:
        finding = _on_training(case, attack)
    return replace(finding, seconds=time.perf_counter() - began)


def _on_mechanism(case: Case, attack: EpsilonLowerBound) -> Finding:
    trials = run_trials(case.module.aggregator, case.module.roster, attack, case.module.seed)
    guesses = attack.run(trials.seen, Known(torch.empty(0, dtype=torch.int64)))
    score = epsilon_of_trials(guesses.values.numpy(), trials.second.numpy(), attack.delta)
    return _finding(label(attack, case.truth.names), "server", guesses.saw, score, None, trials.claimed)


def _on_training(case: Case, attack: Attack) -> Finding:
    known = known_to(case, attack)
    without = success_without(case, attack, known)
    claimed = plain = pictures = None
    verdict = ""
    try:
        guesses = attack.run(case.seen(), known)
    except NothingSeen as nothing:
        saw = str(nothing)
        score = _not_scored(case, attack, chance_of(case, attack))
        verdict = f"nothing to attack: {nothing}"
    except NotAttacked as why:
        saw = str(why)
        score = _not_scored(case, attack, nan)
        verdict = f"{NOT_ATTACKED}: {why}; this is not a safety result"
    else:
        refuse_other_guesses(case, attack, guesses)
        saw = guesses.saw
        score = score_of(case, attack, guesses, known.ids)
        if isinstance(attack, CanariesInTraining):
            claimed = case.claimed_epsilon(attack.delta)
        pictures = _pictures(case, attack, guesses, known.ids)
        if guesses.plain is not None:
            uploads = replace(guesses, values=guesses.plain)
            refuse_other_guesses(case, attack, uploads)
            plain = score_of(case, attack, uploads, known.ids).success
    allowed = case.allowed_area() if score.measure.startswith("AUC") and attack.target in LABELS else None
    finding = _finding(label(attack, case.truth.names), str(case.transcript.attacker), saw, score, without, claimed)
    return replace(finding, verdict=verdict or finding.verdict, allowed=allowed, plain=plain, pictures=pictures)


def _not_scored(case: Case, attack: Attack, success: float) -> Score:
    return Score(measure_of(case, attack.target), success, success, success, chance_of(case, attack))


def _finding(
    attack: str, attacker: str, saw: str, score: Score, without: float | None, claimed: float | None
) -> Finding:
    verdict = ""
    if claimed is not None:
        verdict = "within the accountant's ε" if score.success <= claimed else "ABOVE the accountant's ε"
    numbers = score.measure, score.success, score.low, score.high, score.chance, without, claimed
    finding = Finding(attack, attacker, saw, *numbers, verdict)
    p = None if score.p is None or isnan(score.success) else score.p(finding.known_anyway + MARGIN)
    return replace(finding, p=p)


def _pictures(case: Case, attack: Attack, guesses: Guesses, known: Tensor) -> tuple[Tensor, Tensor] | None:
    """Guesses and truth of features, of a few records."""
    if attack.target != Target.FEATURES:
        return None
    some = (~torch.isin(guesses.ids, known)).nonzero().flatten()[:400]
    values = guesses.values[some]
    truth = case.truth.features(attack.party)[guesses.ids[some]]
    shape = case.truth.shape(attack.party)
    return (values, truth) if len(shape) < 2 else (values.view(-1, *shape), truth.view(-1, *shape))
