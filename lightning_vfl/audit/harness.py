"""Runs attacks and reports their success. The truth is in the case, and in no attack."""

import time
from collections.abc import Sequence
from dataclasses import replace
from math import isnan, nan
from typing import Any

import numpy as np
import torch
from torch import Tensor

from lightning_vfl.audit.attack import Attack, Guesses, Known, Needs, NotAttacked, NothingSeen, Target
from lightning_vfl.audit.attacker import Attacker
from lightning_vfl.audit.attacks.lower_bounds import CanariesInTraining, EpsilonLowerBound, run_trials
from lightning_vfl.audit.case import Case
from lightning_vfl.audit.scores import Score, epsilon_of_trials
from lightning_vfl.audit.success import RULES, chance_of, measure_of, score_of, success_without
from lightning_vfl.audit.verdicts import MARGIN, NOT_ATTACKED, Finding, label
from lightning_vfl.checks import within
from lightning_vfl.errors import ConfigurationError
from lightning_vfl.streams import stream
from lightning_vfl.types import NO_RECORDS, Shape

LABELS = Target.RANKS, Target.CLASSES
OF_ONE_NUMBER = Target.RANKS, Target.COINS, Target.CANARIES, Target.MEMBERS
OF_COLUMNS = Target.NEIGHBOURS, Target.COLUMNS


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
    values, second, claimed = run_trials(case.module.aggregator, case.module.roster, attack, case.module.seed)
    score = epsilon_of_trials(values.numpy(), second.numpy(), attack.delta)
    saw = f"aggregates of {attack.trials:,} trials with {attack.uploads} upload{'s' if attack.uploads > 1 else ''}"
    return _finding(case, attack, saw, score, claimed=claimed)


def _on_training(case: Case, attack: Attack) -> Finding:
    known = known_to(case, attack)
    without = success_without(case, attack, known)
    try:
        guesses = attack.run(case.seen(), known)
    except NothingSeen as nothing:
        score = _not_scored(case, attack, chance_of(case, attack))
        finding = _finding(case, attack, str(nothing), score, without)
        return replace(finding, verdict=f"nothing to attack: {nothing}")
    except NotAttacked as why:
        finding = _finding(case, attack, str(why), _not_scored(case, attack, nan), without)
        return replace(finding, verdict=f"{NOT_ATTACKED}: {why}; this is not a safety result")
    refuse_other_guesses(case, attack, guesses)
    score = score_of(case, attack, guesses, known.ids)
    claimed = case.claimed_epsilon(attack.delta) if isinstance(attack, CanariesInTraining) else None
    plain = None
    if guesses.plain is not None:
        uploads = replace(guesses, values=guesses.plain)
        refuse_other_guesses(case, attack, uploads)
        plain = score_of(case, attack, uploads, known.ids).success
    finding = _finding(case, attack, guesses.saw, score, without, claimed)
    return replace(finding, plain=plain, pictures=_pictures(case, attack, guesses, known.ids))


def _not_scored(case: Case, attack: Attack, success: float) -> Score:
    return Score(measure_of(case, attack.target), success, success, success, chance_of(case, attack))


def _finding(
    case: Case,
    attack: Attack,
    saw: str,
    score: Score,
    without: float | None = None,
    claimed: float | None = None,
) -> Finding:
    verdict = ""
    if claimed is not None:
        verdict = "within the accountant's ε" if score.success <= claimed else "ABOVE the accountant's ε"
    name = label(attack, case.truth.names)
    numbers = score.measure, score.success, score.low, score.high, score.chance, without, claimed
    finding = Finding(name, str(case.transcript.attacker), saw, *numbers, verdict)
    if score.p is not None and not isnan(score.success):
        finding = replace(finding, p=score.p(finding.known_anyway + MARGIN))
    if score.measure.startswith("AUC") and attack.target in LABELS:
        finding = replace(finding, allowed=case.allowed_area())
    return finding


def _pictures(case: Case, attack: Attack, guesses: Guesses, known: Tensor) -> tuple[Tensor, Tensor] | None:
    """Guesses and truth of features, of a few records."""
    if attack.target != Target.FEATURES:
        return None
    unknown = ~torch.isin(guesses.ids, known)
    some = unknown.nonzero().flatten()[:400]
    values = guesses.values[some]
    truth = case.truth.features(attack.party)[guesses.ids[some]]
    shape = case.truth.shape(attack.party)
    return values.view(-1, *shape), truth.view(-1, *shape)


# ---- the side knowledge that a case gives to an attack


def known_to(case: Case, attack: Attack) -> Known:
    """The side knowledge of an attack."""
    truth = case.truth
    needs = attack.needs
    if isinstance(attack, CanariesInTraining):  # the coins of every second canary
        ids = attack.chosen(truth.records, case.module.seed)[::2]
        return Known(ids, None if case.coins is None else case.coins[ids].long())
    ids = known_records(case, needs)
    prior = torch.bincount(truth.labels(), minlength=truth.classes).double() / truth.records if needs.prior else None
    if needs.records:
        embeddings = attack.target == Target.EMBEDDINGS
        features = truth.embeddings(case.module, attack.party) if embeddings else truth.features(attack.party)
        return Known(ids, features=features[ids], prior=prior)
    return Known(ids, truth.labels()[ids] if len(ids) else None, prior=prior)


def known_records(case: Case, needs: Needs) -> Tensor:
    """(k,) records drawn by the run's seed, the same for every attack with the same needs.

    Raises:
        ConfigurationError: for more records than there are.
    """
    truth = case.truth
    generator = np.random.Generator(stream(case.module.seed, "audit", "known"))
    drawn = torch.from_numpy(generator.permutation(truth.records))
    if needs.records:
        within("known", needs.records, 1, truth.records - 1, whole=True, advice="some records have to be unknown")
        return drawn[: needs.records]
    if not needs.labels_per_class and not needs.positives:
        return drawn[:0]
    if truth.classes < 2:
        raise ConfigurationError("the attack guesses classes, but the labels are numbers; attack features instead")
    classes = list(range(truth.classes))
    count = needs.labels_per_class
    if truth.classes == 2 and needs.positives:
        classes = [1]
        count = needs.positives
    chosen = []
    for number in classes:
        members = drawn[truth.labels()[drawn] == number]
        advice = f"some of the {len(members)} training records of class {number} have to be unknown"
        within("known", count, 1, len(members) - 1, whole=True, advice=advice)
        chosen.append(members[:count])
    return torch.cat(chosen)


# ---- the form that guesses must have, by what is guessed; scores of other guesses would mean something else


def refuse_other_guesses(case: Case, attack: Attack, guesses: Any) -> None:
    """Accept guesses with the ids and the shape that the attack's target asks for.

    Raises:
        ConfigurationError: naming the attack, what it returns, and what it has to return.
    """
    who = type(attack).__name__
    if not isinstance(guesses, Guesses):
        raise ConfigurationError(
            f"run of {who} must return Guesses, or raise NothingSeen if it has none; got {guesses!r}"
        )
    ids = guesses.ids
    values = guesses.values
    for name, tensor in (("ids", ids), ("values", values)):
        if not isinstance(tensor, Tensor) or tensor.device.type != "cpu":
            raise ConfigurationError(f"{name} that {who} guesses must be a tensor on the CPU; got {_form(tensor)}")
    if ids.dim() != 1 or ids.dtype != torch.int64:
        raise ConfigurationError(f"ids that {who} guesses must be (n,) torch.int64; got {_form(ids)}")
    shapes = _shapes(case, attack, len(ids), values.shape[1] if values.dim() > 1 else 0)
    if tuple(values.shape) not in shapes or values.is_complex():
        raise ConfigurationError(
            f"{who} guesses {attack.target.value}, so that values for {len(ids)} ids must be "
            f"{' or '.join(map(str, shapes))}; got {_form(values)}"
        )
    what, existing = _existing(case, attack)
    unknown = ids[~torch.isin(ids, existing)]
    if len(unknown):
        raise ConfigurationError(
            f"{who} guesses for {what} {int(unknown[0])}, which does not exist; use ids of the entries of "
            "seen.transcript, or of known"
        )
    several, times = torch.unique(ids, return_counts=True)
    if len(several) < len(ids):
        most = int(times.argmax())
        raise ConfigurationError(
            f"{who} guesses for {what} {int(several[most])} {int(times[most])} times; return one guess for each"
        )


def _existing(case: Case, attack: Attack) -> tuple[str, Tensor]:
    """What an id is the number of, and all such numbers."""
    if attack.target == Target.COUNTS:
        return "round", torch.tensor(sorted({entry.round for entry in case.transcript.entries if len(entry.ids)}))
    if attack.target == Target.JOINED:
        return "round", torch.tensor([*case.joined], dtype=torch.int64)
    if attack.target == Target.MEMBERS and case.members is not None:
        return "record", torch.arange(len(case.members))
    return "record", torch.arange(case.truth.records)


def _shapes(case: Case, attack: Attack, n: int, second: int) -> list[Shape]:
    """The allowed shapes of values for n ids; ``second`` is the length of the second axis of the guesses."""
    if attack.target in OF_ONE_NUMBER:
        return [(n,)]
    if attack.target in OF_COLUMNS:  # an attack may find fewer or more directions than there are columns
        return [(n, second)]
    if attack.target == Target.JOINED:  # of a round, any number of rows
        widths = {rows.shape[1] for rows in case.joined.values()}
        return [(n, second, width) for width in sorted(widths) or [0]]
    if attack.target == Target.CLASSES:
        classes = case.truth.classes
        return [(n, classes), (n,)] if classes == 2 else [(n, classes)]
    nothing = RULES[attack.target].truth(case, attack, NO_RECORDS)
    return [(n, *nothing.shape[1:])]


def _form(value: Any) -> str:
    if isinstance(value, Tensor):
        return f"{(*value.shape,)} {value.dtype}" + ("" if value.device.type == "cpu" else f" on {value.device}")
    return repr(value)
