"""Runs attacks and reports their success. The truth is in the case, and in no attack."""

import time
from collections.abc import Sequence
from dataclasses import replace
from math import isnan

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
from lightning_vfl.audit.side_knowledge import choose_known, known_to
from lightning_vfl.audit.success import RULES, chance_of, measure_of, score_of, success_without
from lightning_vfl.errors import ConfigurationError

MARGIN = 0.02  # a success is called a leak if its interval is above the reference by more


def run_attacks(case: Case, attacks: Sequence[Attack]) -> list[Finding]:
    """The findings, one for each attack."""
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
            choose_known(case, attack.needs, attack.party, Target.FEATURES)


def run_attack(case: Case, attack: Attack) -> Finding:
    """One attack: choose its side knowledge, run it, score its guesses and the guesses without the protocol."""
    began, attacker = time.perf_counter(), str(case.transcript.attacker)
    if isinstance(attack, EpsilonLowerBound) and case.transcript.attacker.server:
        return _of_mechanism(case, attack, began)
    seen = case.seen()
    known = known_to(case, attack)
    without = success_without(case, attack, known)
    try:
        guesses = attack.run(seen, known)
    except NothingSeen as nothing:
        chance = chance_of(case, attack)
        score = Score(measure_of(case, attack.target), chance, chance, chance, chance)
        verdict = f"nothing to attack: {nothing}"
        return _finding(attack, attacker, str(nothing), score, without, None, verdict, began)
    except NotAttacked as why:
        unknown = float("nan")
        score = Score(measure_of(case, attack.target), unknown, unknown, unknown, chance_of(case, attack))
        verdict = f"{NOT_ATTACKED}: {why}; this is not a safety result"
        return _finding(attack, attacker, str(why), score, without, None, verdict, began)
    refuse_other_guesses(case, attack, guesses)
    score = score_of(case, attack, guesses, known.ids)
    claimed = case.claimed_epsilon(attack.delta) if isinstance(attack, CanariesInTraining) else None
    verdict = _verdict(score, without, claimed)
    found = _finding(attack, attacker, guesses.saw, score, without, claimed, verdict, began)
    pictures = _pictures(case, attack, guesses, known.ids)
    if guesses.plain is None:
        return replace(found, pictures=pictures)
    plain = replace(guesses, values=guesses.plain)
    refuse_other_guesses(case, attack, plain)
    return replace(found, pictures=pictures, plain=score_of(case, attack, plain, known.ids).success)


def _of_mechanism(case: Case, attack: EpsilonLowerBound, began: float) -> Finding:
    trials = run_trials(case.module.aggregator, case.module.roster, attack, case.module.seed)
    guesses = attack.run(trials.seen, Known(torch.empty(0, dtype=torch.int64)))
    score = epsilon_of_trials(guesses.values.numpy(), trials.second.numpy(), attack.delta)
    verdict = _verdict(score, None, trials.claimed)
    return _finding(attack, "server", guesses.saw, score, None, trials.claimed, verdict, began)


def _finding(
    attack: Attack,
    attacker: str,
    saw: str,
    score: Score,
    without: float | None,
    claimed: float | None,
    verdict: str,
    began: float,
) -> Finding:
    measured = score.measure, score.success, score.low, score.high, score.chance
    return Finding(label(attack), attacker, saw, *measured, without, claimed, verdict, time.perf_counter() - began)


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
