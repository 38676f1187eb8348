"""Guesses of an attack of one's own that cannot be scored end in one line that names the attack."""

import re
from dataclasses import replace

import pytest
import torch

from lightning_vfl import SplitVFL
from lightning_vfl.aggregators import Concat
from lightning_vfl.audit import Attack, Guesses, Target
from lightning_vfl.audit.case import Case, Truth
from lightning_vfl.audit.harness import run_attack
from lightning_vfl.callbacks import Audit
from lightning_vfl.errors import ConfigurationError
from tests.subjects import Blobs, YesNo, trainer

N = 54
IDS = torch.arange(N)
FIT = torch.zeros(N, dtype=torch.float64)


class Own(Attack):
    """Returns what it is told to."""

    target = Target.RANKS

    def __init__(self, told, target=Target.RANKS, party=0):
        self.told, self.party = told, party
        self.target = target

    def run(self, seen, known):
        return self.told if not isinstance(self.told, tuple) else Guesses(*self.told, "own")


@pytest.fixture(scope="module")
def case(tmp_path_factory):
    torch.manual_seed(0)
    callback, module = Audit("party:1", []), SplitVFL(Concat(), width=4, seed=0)
    trainer(tmp_path_factory.mktemp("audit"), max_epochs=1, callbacks=[callback]).fit(
        module, datamodule=YesNo(batch_size=9)
    )
    data = YesNo(batch_size=9)
    data.setup("fit")
    return Case(module, Truth(data), callback.transcript)


WRONG = {
    "nothing": (None, "run of Own must return Guesses, or raise NothingSeen if it has none; got None"),
    "a list of ids": (([0, 1], FIT), "ids that Own guesses must be a tensor on the CPU; got [0, 1]"),
    "ids as numbers": ((IDS.double(), FIT), "ids that Own guesses must be (n,) torch.int64; got (54,) torch.float64"),
    "an id too few": ((IDS[1:], FIT), "so that values for 53 ids must be (53,); got (54,) torch.float64"),
    "a column": ((IDS, FIT[:, None]), "Own guesses labels, two classes, so that values for 54 ids must be (54,); got"),
    "no such record": ((IDS + 1, FIT), "Own guesses for record 54, which does not exist; use ids of the entries of"),
    "before the first": ((IDS - 1, FIT), "Own guesses for record -1, which does not exist"),
    "a record twice": ((IDS.clamp(min=2), FIT), "Own guesses for record 2 3 times; return one guess for each"),
}
SHAPES = {
    Target.CLASSES: ("must be (54, 2) or (54,)", (N, 3)),
    Target.FEATURES: ("must be (54, 3)", (N,)),
    Target.RECORDS: ("must be (54, 3)", (N, 2)),
    Target.EMBEDDINGS: ("must be (54, 4)", (N, 1)),
    Target.COUNTS: ("must be (54, 2)", (N, 1)),
    Target.MEMBERS: ("must be (54,)", (N, 1)),
    Target.CANARIES: ("must be (54,)", (N, 1)),
}


@pytest.mark.parametrize("name", WRONG)
def test_wrong_guesses(case, name):
    told, message = WRONG[name]
    with pytest.raises(ConfigurationError, match=re.escape(message)) as error:
        run_attack(case, Own(told))
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("target", SHAPES)
def test_shapes_of_the_targets(case, target):
    message, shape = SHAPES[target]
    with pytest.raises(ConfigurationError, match=re.escape(message)):
        run_attack(case, Own((IDS, torch.zeros(shape)), target))


def test_rounds_that_are_not_in_the_transcript(case):
    rounds = torch.tensor([0, 5, 6])
    with pytest.raises(ConfigurationError, match="Own guesses for round 6, which does not exist"):
        run_attack(case, Own((rounds, torch.zeros(3, 2)), Target.COUNTS))
    assert run_attack(case, Own((rounds[:2], torch.zeros(2, 2)), Target.COUNTS)).measure == "R²"


def test_rows_of_joined_embeddings_are_scored_in_any_order(case):
    truth = torch.arange(1.0, 13.0).view(4, 3)
    case = replace(case, joined={5: truth, 7: truth[:2]})  # the second batch is smaller
    guesses = torch.full((2, 5, 3), torch.nan)
    guesses[0, :2] = truth[[3, 1]] * 1.001
    guesses[0, 2] = truth[0] * 1.1  # too far away
    guesses[1, 4] = truth[0]
    found = run_attack(case, Own((torch.tensor([5, 7]), guesses), Target.JOINED))
    assert found.success == 3 / 6
    with pytest.raises(ConfigurationError, match=re.escape("Own guesses joined embeddings, so that values for 2 ids")):
        run_attack(case, Own((torch.tensor([5, 7]), guesses[..., :2]), Target.JOINED))
    with pytest.raises(ConfigurationError, match="Own guesses for round 6, which does not exist"):
        run_attack(case, Own((torch.tensor([5, 6]), guesses), Target.JOINED))


def test_an_attack_on_three_classes_needs_no_known_label(tmp_path):
    ids = torch.arange(54)
    callback = Audit("party:1", [Own((ids, torch.zeros(54, 3)), Target.CLASSES)])
    fit = trainer(tmp_path, max_epochs=1, callbacks=[callback])
    fit.fit(SplitVFL(Concat(), width=4, seed=0), datamodule=Blobs(batch_size=27))
    (found,) = callback.findings
    assert found.measure == "accuracy"
    assert found.without == found.success  # both guess class 0 for all records


def test_some_records_are_enough(case):
    labels = case.truth.labels()
    assert run_attack(case, Own((IDS[:30].flip(0), labels[:30].flip(0)))).success == 1.0
    assert run_attack(case, Own((IDS, torch.eye(2)[labels]), Target.CLASSES)).success == 1.0
    features = case.truth.features(1)
    assert run_attack(case, Own((IDS, features), Target.FEATURES, party=1)).success == 1.0
