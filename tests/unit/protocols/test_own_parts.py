"""Wrong networks, aggregators and fault models of one's own end in one line that names the class and the shapes."""

import re
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import nn

from lightning_vfl.aggregators import Aggregator, Concat, Mean
from lightning_vfl.aggregators.clear import InTheClear, PlainServer
from lightning_vfl.callbacks import FaultInjector
from lightning_vfl.errors import ConfigurationError
from lightning_vfl.federation.hub import Hub
from lightning_vfl.federation.rounds_at_server import RoundsAtServer
from lightning_vfl.missing import MissingPolicy, StandIn
from lightning_vfl.simulation import FaultModel, RoundOutcome
from lightning_vfl.types import Roll, Roster, RoundNames, Stage, VerticalBatch
from lightning_vfl.waiting import WaitForAll, WaitingRule
from tests.subjects import Blobs, split, trainer


class Scaled(Aggregator):
    """Wrong in the way that is asked for."""

    def __init__(self, announced=0, dim=0, factors=None):
        self.announced, self.dim, self.factors = announced, dim, factors

    def out_width(self, width, roster):
        return width + self.announced

    def plain(self, h, roll, present=None):
        stacked = torch.stack(h)
        if self.factors is not None:
            stacked = stacked * torch.as_tensor(self.factors)[:, None, None]
        return stacked.mean(self.dim)


class Weekly(FaultModel):
    def __init__(self, **changes):
        self.changes = changes

    def sample(self, request, roster, seed):
        there = torch.ones(roster.parties, dtype=torch.bool)
        there[self.changes.get("resting", 0)] = request < 4
        if "resting" in self.changes:
            return replace(RoundOutcome.nothing(roster), announced=there)
        return replace(RoundOutcome.nothing(roster), **self.changes)


class Pair(nn.Module):
    def forward(self, x):
        return x, x


class Halved(nn.Module):
    def forward(self, x):
        return x.half()


def tried(tmp_path, module, *models):
    callbacks = [FaultInjector(model) for model in models]
    trainer(tmp_path, max_epochs=1, callbacks=callbacks).fit(module, datamodule=Blobs(batch_size=10))
    return module


class OfWidths(Scaled):
    def out_width(self, widths):
        return widths[0]


WRONG_AGGREGATORS = {
    "another signature": (
        OfWidths(),
        "OfWidths cannot announce its widths: OfWidths.out_width() takes 2 positional arguments but 3 were given",
    ),
    "another width": (
        Scaled(announced=2),
        "plain of Scaled returns (2, 5) for two records with embeddings of 3 parties, 5 wide, but out_width announces "
        "(2, 7)",
    ),
    "another dtype": (
        Scaled(factors=torch.ones(3).double()),
        "plain of Scaled returns torch.float64 for embeddings of 3 parties, 5 wide of torch.float32; return the dtype",
    ),
    "records are joined": (Scaled(dim=1), "plain of Scaled returns (3, 5) for two records"),
    "other parties": (
        Scaled(factors=[1.0, 2.0]),
        "plain of Scaled cannot join embeddings of 3 parties, 5 wide: The size of tensor a (3) must match",
    ),
}


class InNumpy(Scaled):
    def plain(self, h, roll, present=None):
        return torch.from_numpy(sum(x.numpy() for x in h))


class Detached(Scaled):
    def plain(self, h, roll, present=None):
        return torch.stack(h).mean(0).detach()


class InPlace(Scaled):
    def plain(self, h, roll, present=None):
        return h[0].add_(h[1])


@pytest.mark.parametrize("cls", [InNumpy, Detached, InPlace])
def test_an_aggregator_without_a_graph(tmp_path, cls):
    module = split(cls())
    with pytest.raises(ConfigurationError, match=f"plain of {cls.__name__} returns a tensor without a graph, so no"):
        tried(tmp_path, module)
    assert "fit" not in module.books.rounds


class Middle(Scaled):
    """The median of all parties; zeros of absent parties count."""

    def plain(self, h, roll, present=None):
        return torch.stack(h).median(0).values


class Attentive(Scaled):
    """It leaves out absent parties, and not the rows that a party does not hold."""

    def plain(self, h, roll, present=None):
        return torch.stack([h[m] for m in roll.counted]).mean(0)


@pytest.mark.parametrize("cls", [Scaled, Middle])
def test_an_aggregator_that_uses_absent_parties_ends_the_first_round_without_one(tmp_path, cls):
    module = split(cls())
    with pytest.raises(ConfigurationError, match=f"plain of {cls.__name__} uses the embeddings of absent parties"):
        tried(tmp_path, module, Weekly(resting=2))
    assert module.books.rounds["fit"] == 3
    assert tried(tmp_path, split(Attentive()), Weekly(resting=2)).books.rounds["fit"] == 6


@pytest.mark.parametrize("cls", [Scaled, Middle])
def test_the_server_of_a_federation_refuses_it_too(tmp_path, cls):
    module, data = split(cls()), Blobs(batch_size=10)
    trainer(tmp_path, max_epochs=1).fit(module, datamodule=data)
    batch = next(iter(data.train_dataloader()))
    names = RoundNames(0, Stage.FIT, 0)
    two = Roll.of(torch.tensor([True, True, False]))
    server = RoundsAtServer(Hub(3), injected=False)
    server.view(module, batch, names, Roll.everyone(3))
    with pytest.raises(ConfigurationError, match=f"plain of {cls.__name__} uses the embeddings of absent parties"):
        server.view(module, batch, names, two)


class OfAllServer(PlainServer):
    """It divides by the number of all parties, also if some are absent."""

    def aggregate(self, h, roll, present):
        return super().aggregate(h, Roll.everyone(len(h)), present)


class InAnotherOrderServer(PlainServer):
    """Its values differ in the last bits, as if it had added the embeddings in another order."""

    def aggregate(self, h, roll, present):
        aggregate = super().aggregate(h, roll, present)
        return replace(aggregate, value=aggregate.value * (1 + 1e-6))


class OfAllWire(InTheClear):
    """The server and ``clear`` compute the mean in the way that is asked for."""

    def __init__(self, decode=PlainServer, clear=PlainServer):
        super().__init__(Mean())
        object.__setattr__(self, "sides", (decode, clear))

    def server_side(self):
        return self.sides[0](self.aggregator)

    def clear(self, contribution, view, roll):
        return self.sides[1](self.aggregator).aggregate(contribution.leaves, roll, view.present)


class Sent(Mean):
    def __init__(self, **sides):
        self.sides = sides

    @property
    def wire(self):
        return OfAllWire(**self.sides)


@pytest.mark.parametrize("wrong", ["decode", "clear"])
def test_a_wire_that_ignores_who_is_absent_ends_the_first_round_without_a_party(tmp_path, wrong):
    module = split(Sent(**{wrong: OfAllServer}))
    with pytest.raises(ConfigurationError, match="OfAllWire decodes the messages of a round with absent parties to an"):
        tried(tmp_path, module, Weekly(resting=2))
    assert module.books.rounds["fit"] == 3
    for sides in ({}, {wrong: InAnotherOrderServer}):
        assert tried(tmp_path, split(Sent(**sides)), Weekly(resting=2)).books.rounds["fit"] == 6


def test_an_aggregator_that_uses_rows_that_a_party_does_not_hold(tmp_path):
    module = split(Attentive())
    module.build_for(Blobs(batch_size=10))
    features = tuple(torch.zeros(4, *shape) for shape in module.hparams["party_shapes"])
    held = torch.ones(4, 3, dtype=torch.bool)
    assert module.output_in_the_clear(VerticalBatch(features, None, torch.arange(4))).shape[0] == 4
    with pytest.raises(
        ConfigurationError, match="plain of Attentive uses the embeddings of rows that a party does not"
    ):
        module.output_in_the_clear(VerticalBatch(features, None, torch.arange(4), held))


WRONG_FAULTS: dict[str, tuple[dict[str, Any], str]] = {
    "a party too many": ({"delay": torch.zeros(4)}, "delay that Weekly samples must be (3,) torch.float64; got (4,)"),
    "numbers for truth": (
        {"sends": torch.ones(3)},
        "sends that Weekly samples must be (3,) torch.bool; got (3,) torch",
    ),
    "no tensor": ({"slowdown": 2.0}, "slowdown that Weekly samples must be (3,) torch.float64; got 2.0"),
    "a negative time": (
        {"delay": torch.full((3,), -1.0).double()},
        "delay that Weekly samples must be 0 or more; got [-1.0, -1.0, -1.0]",
    ),
    "no time": ({"peer_delay": torch.full((3,), torch.nan).double()}, "peer_delay that Weekly samples must be 0 or"),
    "faster than possible": ({"slowdown": torch.full((3,), 0.5).double()}, "slowdown that Weekly samples must be 1 or"),
    "no such party": (
        {"resting": 3},
        "Weekly(changes={'resting': 3}) has no outcome of request 0 for 3 parties and 1 hosts: index 3 is out of",
    ),
}


WRONG_NETWORKS = {
    "too wide": (
        lambda shape, width: nn.Linear(shape[0], width + 1),
        "but 5 are needed; set its output width to 5, or width (--model.width) to 6",
    ),
    "another input": (
        lambda shape, width: nn.Linear(width, width),
        "cannot take input of per-record shape (3,): mat1 and mat2",
    ),
    "float16": (
        lambda shape, width: nn.Sequential(nn.Linear(shape[0], width), Halved()),
        "the bottom Sequential of party 0 outputs torch.float16 for features of torch.float32; return the dtype",
    ),
    "a pair": (
        lambda shape, width: Pair(),
        "the bottom Pair of party 0 cannot take input of per-record shape (3,): 'tuple'",
    ),
}


class Written(FaultModel):
    """Writes into the outcome that all requests share."""

    def sample(self, request, roster, seed):
        outcome = RoundOutcome.nothing(roster)
        if request == 4:
            outcome.announced[1] = False
        return outcome


def test_a_fault_model_that_writes_into_the_shared_outcome_is_refused_and_changes_no_other_run(tmp_path):
    with pytest.raises(ConfigurationError, match=re.escape("Written writes into a tensor of RoundOutcome.nothing")):
        tried(tmp_path, split(Mean()), Written())
    assert bool(RoundOutcome.nothing(Roster.singles(3)).announced.all())


class Counting(FaultModel):
    """Keeps a counter, which no checkpoint has."""

    calls = 0

    def sample(self, request, roster, seed):
        self.calls += 1
        return replace(RoundOutcome.nothing(roster), delay=torch.full((roster.parties,), 0.1 * self.calls).double())


def test_a_fault_model_that_keeps_a_counter_is_refused_because_a_resumed_run_would_differ(tmp_path):
    with pytest.raises(ConfigurationError, match=r"Counting samples another delay when it is asked for request 0 "):
        tried(tmp_path, split(Mean()), Counting())


def test_a_lost_message_that_the_model_does_not_declare_ends_the_run_and_is_not_free(tmp_path):
    lossy = Weekly(sends=torch.tensor([True, False, True]))
    message = "'embeddings' of party 1 is lost without notice, and WaitForAll(timeout=None) would wait for it for ever"
    with pytest.raises(ConfigurationError, match=re.escape(message)):
        tried(tmp_path, split(Mean()), lossy)
    module = tried(tmp_path, split(Mean(), waiting=WaitForAll(timeout=0.5)), lossy)
    assert module.clock.seconds > 6 * 0.5


class Closes(WaitingRule):
    """Returns what it is asked for."""

    patience = None

    def __init__(self, told):
        self.told = told

    def close(self, arrivals, needed=1):
        return self.told

    def fewest(self, parties, needed=1):
        return parties


class Plans(MissingPolicy):
    """Plans and fills in what it is asked for."""

    def __init__(self, told=None, filled=None):
        self.told, self.filled = told, filled
        self.stand_in = None if filled is None else Fills(filled)

    def plan(self, held, included):
        return self.told(held, included) if self.told else held & ~included


class Fills(StandIn):
    def __init__(self, filled):
        self.filled = filled

    def fill(self, message, view):
        missing = view.roll.filled.nonzero().flatten().tolist()
        pieces = [self.filled(len(view.rows.ids), view.widths[m]) for m in missing]
        return replace(message, senders=(*message.senders, *missing), pieces=(*message.pieces, *pieces))


EVERYBODY = torch.ones(3, dtype=torch.bool)
WRONG_RULES = {
    "nothing": (None, "close of Closes must return (3,) bool and a number of seconds; got None"),
    "a list": (([True] * 3, 9.0), "close of Closes must return (3,) bool and a number of seconds; got ([True"),
    "numbers for truth": ((torch.ones(3), 9.0), "close of Closes must return (3,) bool"),
    "too early": ((EVERYBODY, 0.0), "close of Closes includes a party that arrives after 3 s and goes on after 0 s"),
}


WRONG_POLICIES = {
    "a list": (
        lambda held, included: [False] * len(held),
        "plan of Plans must return (3,) bool, or None to skip a round; got [False, False, False]",
    ),
    "a party too few": (lambda held, included: (held & ~included)[:-1], "plan of Plans must return (3,) bool, or None"),
    "numbers": (lambda held, included: (held & ~included).int(), "to skip a round; got (3,) torch.int32"),
    "included parties": (
        lambda held, included: torch.ones_like(held),
        "plan of Plans returns parties [0, 1, 2] where [1, 2] are missing; return no others, such as held & ~included",
    ),
    "an error": (lambda held, included: held[7], "plan of Plans cannot plan a round with parties [] of 3: index 7 is"),
}


WRONG_STAND_INS = {
    "too wide": (lambda rows, width: torch.ones(rows, width + 1), "of party 2 by (10, 6) torch.float32; it must be"),
    "too few rows": (
        lambda rows, width: torch.ones(1, width),
        "of party 2 by (1, 5) torch.float32; it must be (10, 5)",
    ),
    "float64": (
        lambda rows, width: torch.ones(rows, width).double(),
        "fill of Fills replaces the embedding of party 2 by (10, 5) torch.float64; it must be (10, 5) torch.float32",
    ),
}


RESTING = Weekly(resting=2)
# settings of the module, a model of faults, and the words; a part of one's own that is wrong
WRONG = {
    **{f"aggregator: {name}": ({"aggregator": own}, None, words) for name, (own, words) in WRONG_AGGREGATORS.items()},
    **{f"network: {name}": ({"bottom": bottom}, None, words) for name, (bottom, words) in WRONG_NETWORKS.items()},
    **{f"faults: {name}": ({}, Weekly(**changes), words) for name, (changes, words) in WRONG_FAULTS.items()},
    **{f"rule: {name}": ({"waiting": Closes(told)}, None, words) for name, (told, words) in WRONG_RULES.items()},
    **{
        f"policy: {name}": ({"missing": Plans(told, torch.ones)}, None, words)
        for name, (told, words) in WRONG_POLICIES.items()
    },
    **{
        f"stand-in of {aggregator.__name__}: {name}": (
            {"aggregator": aggregator(), "missing": Plans(filled=filled)},
            RESTING,
            words,
        )
        for name, (filled, words) in WRONG_STAND_INS.items()
        for aggregator in (Mean, Concat)
    },
}


@pytest.mark.parametrize("name", WRONG)
def test_a_wrong_part_of_ones_own_is_refused_by_name(tmp_path, name):
    settings, model, message = WRONG[name]
    module = split(**settings)
    with pytest.raises(ConfigurationError, match=re.escape(message)):
        tried(tmp_path, module, *([] if model is None else [model]))
    assert not name.startswith("faults") or "fit" not in module.books.rounds


@pytest.mark.parametrize(
    ("settings", "models"),
    [
        ({"aggregator": Scaled()}, []),
        ({}, [RESTING]),
        *(({"aggregator": own(), "missing": Plans(filled=torch.ones)}, [RESTING]) for own in (Mean, Concat)),
    ],
    ids=["aggregator", "faults", "stand-in of Mean", "stand-in of Concat"],
)
def test_a_sound_part_of_ones_own_trains(tmp_path, settings, models):
    assert tried(tmp_path, split(**settings), *models).books.rounds["fit"] == 6
