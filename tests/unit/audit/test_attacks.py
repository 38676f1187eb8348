"""Attacks on small trainings whose success is known, against what they may and may not get."""

import copy
import math
from functools import partial
from inspect import isabstract

import numpy as np
import pytest
import torch
from lightning.pytorch import Callback
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import roc_auc_score

from lightning_vfl import CascadeVFL, DecoupledVFL, SplitVFL, audit
from lightning_vfl.aggregators import Concat, LagrangeCoded, LocalGaussian, MaskedSum, PoissonBinomial, Sum
from lightning_vfl.audit import (
    Attack,
    Attacker,
    BatchLabelCounts,
    CanariesInTraining,
    Collusion,
    Entry,
    EpsilonLowerBound,
    FeatureReconstruction,
    GroupInversion,
    Known,
    KnownPlaintext,
    LabelsByDirection,
    LabelsByNorm,
    LabelsOverEpochs,
    MembershipByLoss,
    ModelCompletion,
    Seen,
    SingleUpload,
    Transcript,
)
from lightning_vfl.audit.attacks.model_completion import best_head
from lightning_vfl.callbacks import Audit
from lightning_vfl.datamodules import ContiguousColumns, Groups
from lightning_vfl.downlinks import RandomizedResponse
from lightning_vfl.errors import ConfigurationError
from lightning_vfl.networks import MLP, Linear, PolynomialNetwork
from lightning_vfl.privacy import Sigma, rounded_up
from tests.further import further
from tests.subjects import Blobs, Values, YesNo, same, trainer

TANH = partial(MLP, output_activation=torch.nn.Tanh)
ADAM = partial(torch.optim.Adam, lr=1e-2)
PUBLISHED = {getattr(audit, name) for name in audit.__all__ if isinstance(getattr(audit, name), type)}


class Many(YesNo):
    """Enough records for known ones."""

    records_in_all = 600


def audited(module, data, attacker, attacks, folder, epochs=3):
    callback = Audit(attacker, attacks)
    trainer(folder, max_epochs=epochs, callbacks=[callback], limit_val_batches=1).fit(module, datamodule=data)
    return callback.findings


def split(aggregator, bottom=MLP, **settings):
    torch.manual_seed(0)
    return SplitVFL(aggregator, bottom, width=8, seed=0, optimizer=ADAM, **settings)


def test_every_attack_is_published_and_says_what_it_guesses():
    found = {kind for kind in PUBLISHED if issubclass(kind, Attack) and kind is not Attack}
    own = {kind for kind in subclasses_of(Attack) if kind.__module__.startswith("lightning_vfl.")}
    assert found == {kind for kind in own if not isabstract(kind)}
    assert len(found) == 18


def subclasses_of(kind):
    for other in kind.__subclasses__():
        yield other
        yield from subclasses_of(other)


def test_labels_leak_through_masks(tmp_path):
    attacks = [LabelsByNorm(), LabelsByDirection(), ModelCompletion(known=5)]
    norm, direction, completion = audited(
        split(MaskedSum(clip=64.0)), Many(batch_size=32), "party:1", attacks, tmp_path
    )
    assert direction.success > 0.99
    assert direction.low > direction.without + 0.02
    assert direction.verdict == "leak"
    assert norm.without == 0.5
    assert completion.success > 0.5


def test_server_sees_features_in_the_clear_and_none_in_one_masked_upload(tmp_path):
    attacks = [FeatureReconstruction(1, 200), SingleUpload(1, 200), KnownPlaintext(1, 200), MembershipByLoss()]
    clear = audited(split(Concat()), Many(batch_size=32), "server", attacks, tmp_path / "a", epochs=2)
    assert clear[0].success > 0.9
    assert clear[1].success > 0.9
    assert clear[0].success > clear[0].without
    masked = audited(split(MaskedSum(clip=64.0)), Many(batch_size=32), "server", attacks, tmp_path / "b", epochs=2)
    assert masked[0].success > 0.3
    assert abs(masked[1].success) < 0.06  # of few records; docs/results/audits.md has it of thousands
    assert 0.4 < masked[3].success < 0.7


def noisy_gradients(records=3000, epochs=12, width=8, noise=0.7):
    """What a party is sent: gradients along a direction that turns from epoch to epoch, with noise; and the labels."""
    random = torch.Generator().manual_seed(0)
    labels = (torch.rand(records, generator=random) < 0.3).long()
    direction = torch.randn(width, generator=random)
    transcript, told = Transcript(Attacker(False, (1,))), 0
    for epoch in range(1, epochs + 1):
        direction = torch.nn.functional.normalize(direction + 0.3 * torch.randn(width, generator=random), dim=0)
        rows = (0.3 - labels.float())[:, None] * direction + noise * torch.randn(records, width, generator=random)
        transcript.entries.append(Entry("gradients", "down", None, 1, epoch, epoch, torch.arange(records), rows))
        told = told - rows @ direction  # the score of an attacker who knows the directions
    return transcript, labels, told


def test_noise_that_hides_labels_in_one_epoch_does_not_hide_them_in_all():
    transcript, labels, told = noisy_gradients()
    seen = Seen(Attacker(False, (1,)), transcript, len(labels), 2, {}, {}, None, None, None)
    one = labels.nonzero()[0]
    known, nobody = Known(one, labels[one]), Known(one[:0], prior=torch.tensor([0.7, 0.3]))
    best = roc_auc_score(labels, told)
    once = roc_auc_score(labels, LabelsByDirection().run(seen, known).values)
    assert abs(once - 0.5) < 0.15
    assert best > 0.9
    for attack, knowledge in ((LabelsOverEpochs(), known), (LabelsOverEpochs(0, sizes=True), nobody)):
        assert roc_auc_score(labels, attack.run(seen, knowledge).values) > best - 0.02


def gradients_of_three_classes(noise, shares=(0.6, 0.3, 0.1), records=1500, epochs=6, width=8):
    """As ``noisy_gradients``, of three classes: (p - y) W with weights W that turn from epoch to epoch."""
    random = torch.Generator().manual_seed(0)
    shares = torch.tensor(shares)
    labels = torch.multinomial(shares, records, replacement=True, generator=random)
    wrong = shares - torch.nn.functional.one_hot(labels, 3)
    weights = torch.randn(3, width, generator=random)
    transcript = Transcript(Attacker(False, (1,)))
    for epoch in range(1, epochs + 1):
        weights = weights + 0.3 * torch.randn(3, width, generator=random)
        rows = wrong @ weights + noise * torch.randn(records, width, generator=random)
        transcript.entries.append(Entry("gradients", "down", None, 1, epoch, epoch, torch.arange(records), rows))
    seen = Seen(Attacker(False, (1,)), transcript, records, 3, {}, {}, None, None, None)
    return seen, Known(torch.empty(0, dtype=torch.int64), prior=shares.double()), labels


@pytest.mark.parametrize(("noise", "least", "most"), [(0.1, 0.99, 1.0), (0.7, 0.9, 1.0), (1e6, 0.0, 0.45)])
def test_classes_are_named_by_their_shares_alone_unless_there_is_noise_alone(noise, least, most):
    seen, known, labels = gradients_of_three_classes(noise)
    guesses = LabelsOverEpochs(0).run(seen, known)
    assert least <= float((guesses.values.argmax(1) == labels).double().mean()) <= most


def test_the_rarer_of_two_classes_is_known_by_its_share():
    transcript, labels, _ = noisy_gradients()
    seen = Seen(Attacker(False, (1,)), transcript, len(labels), 2, {}, {}, None, None, None)
    for rarer in (labels, 1 - labels):
        share = rarer.double().mean()
        known = Known(torch.empty(0, dtype=torch.int64), prior=torch.stack([1 - share, share]))
        assert roc_auc_score(rarer, LabelsOverEpochs(0).run(seen, known).values) > 0.9


def test_a_head_of_few_records_is_tuned_on_them():
    draw = np.random.default_rng(0)
    labels = np.arange(2000) % 2
    inputs = draw.standard_normal((2000, 300))
    inputs[:, :3] += labels[:, None]
    few = slice(0, 40)
    tuned = roc_auc_score(labels[40:], best_head(inputs[few], labels[few]).predict_proba(inputs[40:])[:, 1])
    usual = LogisticRegression(C=100.0, max_iter=1000).fit(inputs[few], labels[few])
    assert tuned >= roc_auc_score(labels[40:], usual.predict_proba(inputs[40:])[:, 1]) - 0.005
    assert best_head(inputs[:2], labels[:2]).C == 1.0


class Times(Callback):
    """Multiplies the gradients of one party's bottom."""

    def on_train_start(self, trainer, pl_module):
        for parameter in pl_module.bottoms.parties[1].parameters():
            parameter.register_hook(lambda gradient: 3.0 * gradient)


@pytest.mark.parametrize("optimizer", [partial(torch.optim.SGD, lr=0.05), further(ADAM)])
def test_a_larger_rate_makes_longer_steps_of_the_attacker_alone(optimizer, tmp_path):
    bottoms = []
    for number, callback in enumerate((Times(), Audit("party:1", [ModelCompletion(2, rate=3.0)]))):
        torch.manual_seed(0)
        module = SplitVFL(Concat(), Linear, width=4, seed=0, optimizer=optimizer)
        fit = trainer(tmp_path / str(number), max_epochs=1, limit_val_batches=0, callbacks=[callback])
        fit.fit(module, datamodule=YesNo(batch_size=9))
        bottoms.append(torch.cat([p.detach().flatten() for p in module.bottoms.parties[1].parameters()]))
    longer = (bottoms[1] - bottoms[0]).abs().max()  # Adam divides by the size of the gradients
    assert longer < 1e-5 if optimizer is not ADAM else longer > 0.05


def test_labels_over_all_epochs_stay_within_the_bound_of_a_private_label(tmp_path):
    module = split(Concat(), downlink=RandomizedResponse(epsilon=1.0, draws="seeded"))
    (found,) = audited(module, Many(batch_size=32), "party:1", [LabelsOverEpochs(0)], tmp_path, epochs=10)
    bound = math.e / (1 + math.e)  # the area below the ROC curve with the corners that ε = 1 allows
    assert found.success > 0.6
    assert found.low <= bound


def test_one_epoch_without_noise_is_enough(tmp_path):
    (found,) = audited(split(Concat()), Many(batch_size=32), "party:1", [LabelsOverEpochs()], tmp_path, epochs=1)
    assert found.success > 0.99


def test_more_classes_over_all_epochs(tmp_path):
    attacks = [LabelsOverEpochs(2)]
    (found,) = audited(split(Concat()), Blobs(batch_size=9), "party:1", attacks, tmp_path, epochs=4)
    assert found.success > 0.9


def test_decoupled_training_sends_no_gradient(tmp_path):
    module = DecoupledVFL(width=4, host_width=3, hosts=1, guest_epochs=1, seed=0)
    (found,) = audited(module, Many(batch_size=32), "party:1", [LabelsByDirection()], tmp_path)
    assert found.verdict == "nothing to attack: no gradient is sent"
    assert found.success == found.chance == 0.5


def test_an_attack_says_why_it_has_no_gradients(tmp_path):
    attacks = [LabelsByNorm(), LabelsByDirection()]
    norm, direction = audited(split(Concat()), Many(batch_size=32), "party:1", attacks, tmp_path / "a", epochs=2)
    assert norm.verdict == (
        "not attacked: the attack takes epoch 3, the training has 1 to 2; this is not a safety result"
    )
    assert direction.verdict == "leak"
    (norm,) = audited(split(Concat()), Many(batch_size=32), "server", attacks[:1], tmp_path / "b", epochs=1)
    assert norm.verdict == "nothing to attack: gradients are sent to parties, and the attacker is none"


def test_shares_of_t_parties_tell_nothing_and_shares_of_k_plus_t_parties_everything(tmp_path):
    for attacker, exact in (("party:1", False), ("party:1+party:2", True)):
        module = split(LagrangeCoded(blocks=1, privacy=1), PolynomialNetwork)
        (found,) = audited(module, YesNo(batch_size=9), attacker, [Collusion()], tmp_path / attacker, epochs=1)
        assert found.success == 1.0 if exact else found.success <= found.chance


def test_collaborator_of_cascade_training_learns_the_counts_of_batches(tmp_path):
    torch.manual_seed(0)
    module = CascadeVFL(Concat(), width=4, seed=0)
    (found,) = audited(module, Blobs(batch_size=6), "server", [BatchLabelCounts()], tmp_path, epochs=1)
    assert found.measure == "R²"
    assert found.success > 0.6


def test_linear_groups_are_read_from_their_updates(tmp_path):
    data = Many(Groups(ContiguousColumns(2), [1, 2]), batch_size=6)
    top = partial(MLP, hidden=[64])  # the gradients under a linear top would all have one direction
    module = split(Sum(), Linear, top=top, active=0, allow_invertible_updates=True)
    (found,) = audited(module, data, "server", [GroupInversion(1)], tmp_path, epochs=1)
    assert found.success > 0.8


@pytest.mark.parametrize(
    ("aggregator", "uploads"),
    [
        (PoissonBinomial(levels=2, beta=0.05), 1),
        (LocalGaussian(Sigma(4.0)), 5),
        further(PoissonBinomial(levels=2, beta=0.05), 5),
        further(LocalGaussian(Sigma(4.0)), 1),
    ],
)
def test_lower_bound_is_below_the_accountant(aggregator, uploads, tmp_path):
    attack = EpsilonLowerBound(trials=30_000, uploads=uploads)
    bottom = TANH if isinstance(aggregator, PoissonBinomial) else MLP
    module = split(aggregator, bottom, evaluate="plain")
    (found,) = audited(module, YesNo(batch_size=9), "server", [attack], tmp_path, epochs=1)
    assert 0 <= found.success <= found.claimed
    assert found.verdict == "within the accountant's ε"


def test_canaries_are_told_apart_where_little_is_hidden(tmp_path):
    module = split(LocalGaussian(Sigma(0.05), inner=Sum()), evaluate="plain")
    attack = CanariesInTraining(canaries=120)
    (found,) = audited(module, Many(batch_size=32), "server", [attack], tmp_path, epochs=2)
    assert 1.0 < found.success <= found.claimed


def normed(shape, width):
    layers = torch.nn.Linear(shape[0], width), torch.nn.BatchNorm1d(width), torch.nn.Dropout(0.5)
    return torch.nn.Sequential(torch.nn.Flatten(), *layers)


class Before(Callback):
    """The state of the bottoms before the attacks."""

    def on_fit_end(self, trainer, pl_module):
        self.state = copy.deepcopy(pl_module.bottoms.state_dict())


@pytest.mark.parametrize(("attacker", "attack"), [("server", KnownPlaintext(2, 50)), ("party:1", ModelCompletion(10))])
def test_an_audit_changes_nothing_of_the_model(attacker, attack, tmp_path):
    before, module = Before(), split(Sum(), normed)
    fit = trainer(tmp_path, max_epochs=1, limit_val_batches=0, callbacks=[before, Audit(attacker, [attack])])
    fit.fit(module, datamodule=Many(batch_size=32))
    assert same(before.state, module.bottoms.state_dict())


def test_parties_of_several_widths_are_audited(tmp_path):
    for party in (0, 2):
        aggregator = PoissonBinomial(MaskedSum(layout="segments"), levels=2, beta=0.05)
        module = split(aggregator, TANH, evaluate="plain", active=0)
        attack = EpsilonLowerBound(trials=20_000, party=party)
        (found,) = audited(module, YesNo(batch_size=9), "server", [attack], tmp_path / str(party), epochs=1)
        assert 0 <= found.success <= found.claimed


def test_canaries_are_compared_with_the_epsilon_of_their_delta(tmp_path):
    module = split(LocalGaussian(Sigma(0.5), inner=Sum()), evaluate="plain")
    attack = CanariesInTraining(canaries=40, delta=1e-2)
    (found,) = audited(module, Many(batch_size=32), "server", [attack], tmp_path, epochs=1)
    assert found.claimed == rounded_up(module.privacy.accountant.epsilon(1e-2, "party-record"))
    assert found.claimed < module.privacy.accountant.epsilon(1e-5, "party-record")


def test_attacks_that_do_not_suit_are_refused_in_one_line(tmp_path):
    with pytest.raises(ConfigurationError, match="LabelsByNorm tells two classes apart, and the data have 3"):
        audited(split(Sum()), Blobs(batch_size=9), "party:1", [LabelsByNorm()], tmp_path / "a")
    with pytest.raises(ConfigurationError, match=r"known must be a whole number from .*training records of class 1"):
        audited(split(Sum()), YesNo(batch_size=9), "party:1", [LabelsByDirection(1000)], tmp_path / "b")
    with pytest.raises(ConfigurationError, match="the labels are numbers"):
        audited(split(Sum()), Values(batch_size=9), "party:1", [LabelsByDirection()], tmp_path / "c")
    module = split(LagrangeCoded(blocks=1, privacy=1), PolynomialNetwork)
    with pytest.raises(ConfigurationError, match="shares the records before training"):
        audited(module, YesNo(batch_size=9), "server", [CanariesInTraining(canaries=20)], tmp_path / "d")
    with pytest.raises(ConfigurationError, match="needs an aggregator that accounts for privacy"):
        audited(split(Sum()), YesNo(batch_size=9), "server", [EpsilonLowerBound()], tmp_path / "e")
    attacks = [CanariesInTraining(0, canaries=20), CanariesInTraining(1, canaries=20)]
    with pytest.raises(ConfigurationError, match="audit two trainings, with one each"):
        audited(split(LocalGaussian()), YesNo(batch_size=9), "server", attacks, tmp_path / "f")
    with pytest.raises(ConfigurationError, match=r"'party:1\+party:01' is unknown"):
        Audit("party:1+party:01")
    with pytest.raises(ConfigurationError, match="the ending of report must be"):
        Audit("server", report="audit.txt")
