"""Rounds of validation, test and prediction that meet the faults, the waiting rule and the policy of training."""

from collections.abc import Collection
from dataclasses import replace
from math import nan

import torch
from torch import Tensor

from lightning_vfl.missing import MissingPolicy, Zeros
from lightning_vfl.networks.flops import Work
from lightning_vfl.protocols.accounts.charging import charge_evaluation
from lightning_vfl.protocols.message_rounds import MessageRounds
from lightning_vfl.protocols.scores import Attendance
from lightning_vfl.rounds.plan import RoundCosts, RoundPlan
from lightning_vfl.simulation.faults import FaultModel, Faults
from lightning_vfl.streams import seed_of
from lightning_vfl.types import Roll, RoundNames, Stage, VerticalBatch, joint_rows


def faults_of(module: MessageRounds, stage: Stage, subsets: Collection[FaultModel]) -> Faults:
    """The faults of a stage: the models of training with streams of their own, without the subsets of training."""
    faults = Faults(seed_of(module.seed, "faults in evaluation", stage))
    for model in module.faults.models:
        if not any(model is own for own in subsets):
            faults.add(model)
    return faults


def policy_of(module: MessageRounds) -> MissingPolicy:
    """The policy in evaluation: records of an evaluation have no earlier embedding, so ``Stale`` puts zeros."""
    return Zeros() if module.missing.memory is not None else module.missing


def plan_evaluation(
    module: MessageRounds, costs: RoundCosts, batch: VerticalBatch, names: RoundNames, faults: Faults
) -> RoundPlan:
    """The plan of an evaluation round: the forward half of a training round, at requests 2·round and 2·round + 1."""
    roster = module.roster
    held = torch.ones(roster.parties, dtype=torch.bool)
    if batch.present is not None and not module.wire.traits.everybody_called:
        held = batch.present.any(0).cpu()
    forward = faults.at(2 * names.round, roster)
    backward = faults.at(2 * names.round + 1, roster)
    backward = replace(backward, receives=torch.ones_like(held))  # nobody waits for an answer
    return module.plan(costs, held, forward, backward, policy=policy_of(module))


def forward_costs(module: MessageRounds, batch: VerticalBatch, names: RoundNames) -> RoundCosts:
    """Traffic and seconds of the forward half of a round; legs have the kinds of their stage."""
    bottoms, top = module.costs.work
    forward = [Work(work.forward, 0.0) for work in bottoms]
    rows = joint_rows(batch).total
    legs, cut = module.costs.of_evaluation(rows, module.coded_rows(batch), names.stage)
    return RoundCosts.of(legs, None, rows, forward, Work(top.forward, 0.0), module.clock, cut=cut)


def faulty_output(
    module: MessageRounds, batch: VerticalBatch, names: RoundNames, faults: Faults
) -> tuple[Tensor, Attendance]:
    """The top's output (B, outputs) of a round with faults, and who took part; its bytes and seconds are counted.

    Records without a prediction have NaN: those of a round that is given up, and those that no party has answered.
    """
    costs = forward_costs(module, batch, names)
    plan = plan_evaluation(module, costs, batch, names, faults)
    roll = plan.roll
    # books and privacy account, before anything is sent
    if plan.reached:
        module.clock.advance(module.enter_opening(joint_rows(batch).total, names, roll.called))
    module.books.enter(plan, costs)
    module.clock.advance(plan.seconds)
    if module.protected_evaluation:
        charge_evaluation(module, roll, plan.sent[0], batch)

    parties = roll.holders(batch.record_ids, batch.present)
    if plan.skipped:
        nobody = torch.zeros_like(parties)
        like = module.output_in_the_clear(batch, Roll.everyone(module.roster.parties))
        return torch.full_like(like, nan), Attendance(nobody, module.answers(nobody))
    if module.protected_evaluation:
        output, _ = module.run_round(batch, names, roll, policy_of(module))
    else:
        embeddings = module.bottoms(batch.features)
        h = tuple(x if roll.included[m] else torch.zeros_like(x) for m, x in enumerate(embeddings))
        columns = module.aggregator.columns(module.embedding_widths, roll)
        output = module.output_of(h, roll, batch.present, columns)
    answered = module.answers(parties)
    no_prediction = ~answered.view(-1, *(1,) * (output.dim() - 1))
    return output.masked_fill(no_prediction, nan), Attendance(parties, answered)
