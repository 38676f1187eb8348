"""Cut a trained model into halves: one network for each party, and one for the server."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import accumulate
from math import prod
from typing import Any, cast

import torch
from torch import Tensor, nn

from lightning_vfl.aggregators import LocalGaussian, MaskedSum, PoissonBinomial
from lightning_vfl.aggregators.local_gaussian import NoisyWire
from lightning_vfl.datamodules.records.column_encoders import encoder_of
from lightning_vfl.datamodules.records.step_chain import plain_numbers
from lightning_vfl.errors import ConfigurationError, reason
from lightning_vfl.export.halves import PartyNetwork, ServerNetwork
from lightning_vfl.export.manifest import (
    RECORDS,
    SERVER,
    Kind,
    Missing,
    PartyHalf,
    Port,
    Protection,
    ServerHalf,
)
from lightning_vfl.export.trained import Trained
from lightning_vfl.federation.seat_sums import network_of
from lightning_vfl.missing import Exclude, PadAfterNorm, Stale, Zeros
from lightning_vfl.objectives import MultiLabel, predictions
from lightning_vfl.privacy.events import PrivacyEvent
from lightning_vfl.protocols import DecoupledVFL, HeadsVFL, VFLModule
from lightning_vfl.trained.fitted import Fitted, FittedParty
from lightning_vfl.types import Roll, VerticalBatch

EXAMPLES = 3  # records that trace a program; torch treats 0 and 1 as special


@dataclass(frozen=True)
class Part:
    """One half of a model.

    Args:
        name: of the party, or ``server``.
        network: in evaluation mode.
        half: what the manifest says about it.
        inputs: of the program.
        outputs: of the program.
        example: input of a few records.
    """

    name: str
    network: nn.Module
    half: PartyHalf | ServerHalf
    inputs: tuple[Port, ...]
    outputs: tuple[Port, ...]
    example: tuple[Any, ...]


def party_names(module: VFLModule) -> tuple[str, ...]:
    """The names of the parties' tables; ``party-0`` and so on if the parties are not tables of their own."""
    tables = _tables(module)
    return tuple(tables) if tables else tuple(f"party-{m}" for m in range(module.roster.parties))


def party_part(module: VFLModule, party: int) -> Part:
    """The half of a party: the scaling of its features and its bottom."""
    own = _fitted_of(module, party)
    tables = _tables(module)
    encoders: tuple[Mapping[str, Any], ...] | None = None
    names = own.columns
    if tables:
        encoders = tuple(list(tables.values())[party])
        names = tuple(_names_of(list(tables.values())[party]))
    elif own.columns:  # each column of the file is one number
        encoders = tuple(plain_numbers(name).state() for name in own.columns)
    noisy = noisy_wire(module)
    clipped = None if noisy is None else noisy.mechanism.clipped
    network = PartyNetwork(module.bottoms.parties[party], own.shape, own.shift, own.scale, clipped).eval()
    shape = own.shape if encoders is None else (len(own.shift),)
    example = _example(network, own).view(EXAMPLES, *shape)
    dtype = str(example.dtype).removeprefix("torch.")
    inputs = (Port("features", (RECORDS, *shape), dtype),)
    outputs = (Port("embedding", (RECORDS, module.embedding_widths[party]), "float32"),)
    in_ledgers = module.summed.network or network_of(module.bottoms.parties[party])  # as an evaluation names it
    half = PartyHalf(encoders, names, protection_of(module, party), in_ledgers, sums_since(module, party))
    return Part(
        party_names(module)[party],
        network,
        half,
        inputs,
        outputs,
        (example,),
    )


def sums_since(module: VFLModule, party: int) -> int:
    """The rounds of training from which sums are of embeddings like the exported ones: those of the last epoch.

    Of a bottom that does not learn, all rounds.
    """
    learns = any(weight.requires_grad for weight in module.bottoms.parties[party].parameters())
    rounds = module.books.training_rounds
    return max(rounds - module.books.epoch_batches, 0) if learns else 0


def _example(network: nn.Module, own: FittedParty) -> Tensor:
    """(EXAMPLES, F) features of the party that its half takes, for tracing.

    Random numbers are tried first. A bottom with an embedding takes numbers of categories alone, so whole numbers, 0
    and 1, are tried next, and last the record that is 0 after scaling, with which the bottom was built.

    Raises:
        ConfigurationError: if the bottom fails with all of them.
    """
    generator = torch.Generator().manual_seed(0)
    scaled = torch.randn(EXAMPLES, len(own.shift), generator=generator)
    whole = torch.randint(2, scaled.shape, generator=generator).to(own.shift.dtype)
    raw = scaled.to(own.shift.dtype) * own.scale + own.shift
    told = ""
    if own.dtype:
        return whole.to(getattr(torch, own.dtype))
    for example in (raw, whole, whole * own.scale + own.shift, own.shift.expand(EXAMPLES, -1).contiguous()):
        try:
            with torch.no_grad():
                network(example.view(EXAMPLES, *own.shape))
            return example
        except (IndexError, RuntimeError, ValueError) as error:
            told = told or reason(error)
    raise ConfigurationError(f"the bottom fails with records for tracing ({told}); export needs one that takes zeros")


def server_part(trained: Trained) -> Part:
    """The half of the server: the aggregation rule, the top and the predictions of the objective.

    Raises:
        ConfigurationError: for a protocol in which other participants than parties and server hold networks.
    """
    module = trained.module
    refuse_hosts(module)
    roll = roll_of(module)
    members = roll.included_parties
    names = party_names(module)
    widths = module.embedding_widths
    *_, own = module.owners()
    head = partial(module.head, columns=module.columns_from(roll))
    noisy = noisy_wire(module)
    aggregator = module.aggregator if noisy is None else noisy.inner  # which does not clip a second time
    network = ServerNetwork([own], aggregator, head, module.objective, roll, widths).eval()
    embeddings = tuple(torch.randn(EXAMPLES, widths[m], generator=torch.Generator().manual_seed(m)) for m in members)
    present = torch.ones(EXAMPLES, len(members), dtype=torch.bool)
    half = ServerHalf(
        tuple(names[m] for m in members),
        _classes(module),
        module.aggregator.identity,
        differences(module),
        trained.overlap,
        tuple(tuple(names[m] for m in group) for group in module.roster.shared),
        _targets(module),
        isinstance(module.objective, MultiLabel),
        protection_of(module),
        missing_of(module, network),
    )
    inputs = tuple(Port(f"embedding_{names[m]}", (RECORDS, widths[m]), "float32") for m in members)
    with torch.no_grad():
        output = network(embeddings, present)
    return Part(
        SERVER,
        network,
        half,
        (*inputs, Port("present", (RECORDS, len(members)), "bool")),
        (Port("prediction", (RECORDS, *output.shape[1:]), "float32"),),
        (embeddings, present),
    )


def roll_of(module: VFLModule) -> Roll:
    """The parties that evaluation includes."""
    roll = module.evaluation_roll()
    for cached in ("complete", "counted", "included_parties"):  # tracing cannot compute them
        getattr(roll, cached)
    return roll


def differences(module: VFLModule) -> str:
    """How predictions of ``predict`` may differ from the aggregate in the clear; empty: they do not."""
    if not module.protected_evaluation:
        return ""
    name = type(module.aggregator).__name__
    return (
        f"predict runs the messages of {name} (evaluate: protocol), which round, clip or add noise; the exported "
        f"program computes the aggregate in the clear, as predict does with evaluate: plain"
    )


def protection_of(module: VFLModule, party: int = 0) -> Protection:
    """How production protects the embeddings of this model; ``party``: of which the half is."""
    aggregator = module.aggregator
    name = type(aggregator).__name__
    if isinstance(aggregator, MaskedSum) and aggregator.layout == "sum" and not module.roster.shared:
        codec = aggregator.codec(module.roster)
        return Protection(Kind.MASKED, name, False, party_names(module), codec.clip, codec.levels)
    if aggregator.wire is None and aggregator.setup is None:
        return Protection(Kind.CLEAR, name)
    if not module.protected_evaluation:
        return Protection(Kind.CLEAR, name, consent=True)
    everybody = tuple(range(module.roster.parties))
    if isinstance(aggregator, LocalGaussian):
        alone = aggregator.accounting.event((party,), module.embedding_widths, module.roster)
        event = {**cast(PrivacyEvent, alone).plain(), "parties": len(everybody)}
        return Protection(Kind.CLEAR, name, clip=aggregator.clip, event=event, bounds=aggregator.bounds)
    if isinstance(aggregator, PoissonBinomial) and aggregator.inner.layout == "sum":
        drawn = aggregator.accounting.event(everybody, module.embedding_widths, module.roster)
        event = cast(PrivacyEvent, drawn).plain()
        return Protection(Kind.MASKED, name, False, party_names(module), aggregator.clip, event=event, bounds="value")
    return Protection(Kind.UNSERVED, name)


def noisy_wire(module: VFLModule) -> NoisyWire | None:
    """The wire of embeddings that each party clips before it adds noise in production; None: parties add no noise."""
    wire = module.aggregator.wire
    return wire if module.protected_evaluation and isinstance(wire, NoisyWire) else None


def missing_of(module: VFLModule, network: ServerNetwork) -> Missing:
    """What the model's policy makes of a party that is absent in production.

    The exported program knows the records that parties hold, not who is absent. So the policy holds in production if
    the program gives the same predictions as the module does without a party; else there are none without a party.
    """
    policies = {Exclude: Missing.EXCLUDE, PadAfterNorm: Missing.EXCLUDE, Zeros: Missing.ZEROS, Stale: Missing.ZEROS}
    missing = policies.get(type(module.missing), Missing.SKIP)
    roll = roll_of(module)
    if protection_of(module).kind is Kind.MASKED:  # the sums with and without a party would show its embedding
        return Missing.SKIP
    if missing is Missing.SKIP or module.roster.shared or len(roll.included_parties) < module.roster.parties:
        return Missing.SKIP
    noisy = noisy_wire(module)
    generator = torch.Generator().manual_seed(1)
    h = tuple(torch.randn(EXAMPLES, width, generator=generator) for width in module.embedding_widths)
    for party in range(module.roster.parties):
        there = torch.arange(module.roster.parties) != party
        filled = torch.zeros_like(there) if missing is Missing.EXCLUDE else ~there
        without = tuple(torch.zeros_like(x) if m == party else x for m, x in enumerate(h))
        present = (there | filled).expand(EXAMPLES, -1)
        alone = Roll(there, there, there, filled)
        columns = module.aggregator.columns(module.embedding_widths, alone)
        with torch.no_grad():
            expected = predictions(module.objective, module.output_of(without, alone, None, columns))
            sent = without if noisy is None else tuple(noisy.mechanism.clipped(x).to(x.dtype) for x in without)
            if not torch.allclose(network(sent, present), expected, 1e-5, 1e-6):
                return Missing.SKIP
    return missing


def refuse_hosts(module: VFLModule) -> None:
    """Accept a protocol whose server joins the embeddings itself.

    Raises:
        ConfigurationError: for ``DecoupledVFL``, whose hosts compute between the parties and the owner, for protocols
            with a head at every party, and for a top in two halves.
    """
    if isinstance(module, HeadsVFL):
        raise ConfigurationError(
            f"{type(module).__name__} has a head at every party and no server, which export does not write; use "
            "lightning-vfl predict"
        )
    if module.halved:
        raise ConfigurationError(
            "the top has a half at the active party, and export writes one server; export single parties with --party "
            "NAME, or use lightning-vfl predict"
        )
    if isinstance(module, DecoupledVFL):
        raise ConfigurationError(
            "DecoupledVFL has hosts between its guests and the owner, which export does not write; export single "
            "guests with --party NAME, or use lightning-vfl predict"
        )


def _tables(module: VFLModule) -> Mapping[str, Sequence[Mapping[str, Any]]]:
    """Table -> the states of its encoders, if the parties are the tables; else empty."""
    fitted = module.fitted
    if fitted is None:
        return {}
    numbers = {
        name: [plain_numbers(column).state() for column in columns]
        for name, columns in fitted.own.get("columns", {}).items()
    }
    states_of = fitted.own.get("encoders", numbers)
    found = {name: states for name, states in states_of.items() if _names_of(states)}
    widths = [len(_names_of(states)) for states in found.values()]
    begins = [0, *accumulate(widths)]
    alike = len(widths) == len(fitted.parties) and all(
        torch.equal(party.positions, torch.arange(begin, begin + width))
        for party, begin, width in zip(fitted.parties, begins, widths, strict=False)
    )
    return found if alike else {}


def _names_of(states: Sequence[Mapping[str, Any]]) -> list[str]:
    return [name for state in states for name in encoder_of(state).names]


def _fitted_of(module: VFLModule, party: int) -> FittedParty:
    """What the party has fitted; of a model that was trained without a datamodule, its features as they are."""
    fitted: Fitted | None = module.fitted
    if fitted is not None:
        return fitted.parties[party]
    shape = tuple(module.hparams["party_shapes"][party])
    size = prod(shape)
    return FittedParty(torch.arange(size), shape, torch.zeros(size), torch.ones(size))


def _classes(module: VFLModule) -> tuple[int | str, ...]:
    if module.fitted is not None:
        return module.fitted.class_names
    return tuple(range(module.hparams["num_classes"] or 0))


def _targets(module: VFLModule) -> tuple[str, ...]:
    """The names of the labels, if a record has several."""
    if module.objective.targets == 1:
        return ()
    numbered = [f"label_{i}" for i in range(module.objective.targets)]
    return tuple(numbered if module.fitted is None else module.fitted.own.get("targets", numbered))


def example_holders(module: VFLModule) -> Tensor:
    """(B, M) bool, who holds which example: one party of each group, in turn."""
    held = torch.ones(EXAMPLES, module.roster.parties, dtype=torch.bool)
    for group in module.roster.shared:
        for row in range(EXAMPLES):
            held[row, list(group)] = torch.tensor(group) == group[row % len(group)]
    return held


def in_the_clear(module: VFLModule, features: Sequence[Tensor]) -> Tensor:
    """The module's own predictions (B, ...) for the scaled features of the examples, aggregated in the clear."""
    held = example_holders(module) if module.roster.shared else None
    batch = VerticalBatch(tuple(features), None, torch.arange(EXAMPLES), held)
    if not module.protected_evaluation:
        own: Tensor = module(batch)
        return own.float()
    return predictions(module.objective, module.output_in_the_clear(batch, roll_of(module)))
