"""Downlinks against enumeration, frequencies and a random search; each alone, without a training."""

import re
import warnings
from math import exp
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from scipy import stats

from lightning_vfl.downlinks import GaussianGradients, LaplaceLabels, Marvell, MaxNorm, RandomizedResponse
from lightning_vfl.downlinks import draws as draws_of
from lightning_vfl.downlinks.base import LabelDownlink
from lightning_vfl.downlinks.guard import guarded, refuse_other_labels
from lightning_vfl.downlinks.marvell import eigenvalues, sum_kl
from lightning_vfl.errors import ConfigurationError
from lightning_vfl.privacy import Budget, gaussian_epsilon
from lightning_vfl.privacy.accountant import composed_epsilon
from lightning_vfl.privacy.events import GaussianEvent
from lightning_vfl.types import RoundNames, Stage
from tests.further import further

IDS = torch.arange(40_000)


def names(round=0):
    return RoundNames(0, Stage.FIT, round)


@pytest.mark.parametrize("draws", ["seeded", "system"])
def test_gaussian_gradients_are_clipped_and_have_their_noise(draws):
    downlink = GaussianGradients(clip=2.0, sigma=0.5, draws=draws)
    grad = torch.cat([torch.full((500, 8), 3.0), torch.full((500, 8), 0.1)])
    sent = downlink.protect(grad, torch.zeros(1000), names(), 0).double()
    expected = torch.cat([torch.full((500, 8), 2.0 / 8**0.5), torch.full((500, 8), 0.1)]).double()
    assert stats.kstest(((sent - expected) / 0.5).flatten().numpy(), "norm").pvalue > 1e-4


def test_noise_that_is_seeded_belongs_to_the_round_and_the_row():
    downlink = GaussianGradients(clip=1.0, sigma=1.0, draws="seeded")
    grad = torch.randn(6, 4)
    whole = downlink.protect(grad, torch.zeros(6), names(), 0)
    assert torch.equal(whole[4:], downlink.protect(grad[4:], torch.zeros(2), names(), 4))
    assert not torch.equal(whole, downlink.protect(grad, torch.zeros(6), names(1), 0))


def test_noise_of_the_system_is_never_the_same():
    downlink = GaussianGradients(clip=1.0, sigma=1.0)
    one, two = (downlink.protect(torch.zeros(4, 4), torch.zeros(4), names(), 0) for _ in range(2))
    assert not bool((one == two).any())


@pytest.mark.parametrize("value", [0.1, 1 / 3])
def test_the_last_bits_of_what_is_sent_do_not_tell_the_gradient(value):
    """Noise on a grid of its own, added to a value beside it, shows the value where the sum is small."""
    sent = GaussianGradients(clip=1.0, sigma=1.0).protect(
        torch.full((20_000, 4), value), torch.zeros(20_000), names(), 0
    )
    steps = sent[sent.abs() < 1.0].double() * 2**20
    assert torch.equal(steps, steps.round())


def test_the_gradient_of_a_record_is_never_longer_than_the_clip():
    torch.manual_seed(0)
    grad = torch.randn(5000, 7) * 10
    downlink = GaussianGradients(clip=0.3, sigma=1e-12)
    sent = downlink.protect(grad.double(), torch.zeros(5000), names(), 0)
    assert float(torch.linalg.vector_norm(sent, dim=1).max()) <= 0.3 + 1e-10


def test_sigma_follows_from_the_epsilon_of_all_rounds():
    downlink = GaussianGradients(clip=3.0, epsilon=2.0, delta=1e-6, rounds=20)
    assert gaussian_epsilon(downlink.sigma, 6.0, 1e-6, uploads=20) == pytest.approx(2.0, rel=1e-6)


@pytest.mark.parametrize("epsilon", [0.1, *map(further, (0.5, 1.0, 5.0, 8.0)), 50.0])
def test_the_accountant_finds_no_more_than_the_asked_epsilon(epsilon):
    for delta in (1e-3, 1e-5, 1e-9):
        for rounds in (1, 2, 7, 100):
            downlink = GaussianGradients(clip=3.0, epsilon=epsilon, delta=delta, rounds=rounds)
            assert composed_epsilon({downlink.event: rounds}, delta) <= epsilon
        for sensitivity in (0.1, 2.0, 1e6):
            event = GaussianEvent(Budget(epsilon, delta).sigma(1.0, sensitivity, 1), sensitivity, 1)
            assert composed_epsilon({event: 1}, delta) <= epsilon


def test_max_norm_makes_expected_squared_norms_alike():
    grad = torch.tensor([[3.0, 4.0], [0.6, 0.8], [0.0, 0.0]])
    sent = torch.stack([MaxNorm("seeded").protect(grad, torch.zeros(3), names(n), 0) for n in range(1500)])
    assert sent.square().sum(2).mean(0).tolist() == pytest.approx([25.0, 25.0, 0.0], rel=0.1)
    cosines = torch.nn.functional.cosine_similarity(sent[:, 1], grad[1].expand(1500, 2), dim=1)
    assert torch.allclose(cosines.abs(), torch.ones(1500), atol=1e-5)  # what it does not protect


@pytest.mark.parametrize("classes", [2, 5])
@pytest.mark.parametrize("draws", ["seeded", "system"])
def test_randomized_response_has_its_probabilities(classes, draws):
    downlink = RandomizedResponse(epsilon=1.5, draws=draws)
    downlink.prepare(classes, classes)
    counts = np.bincount(downlink.targets(torch.ones(len(IDS), dtype=torch.int64), IDS, 0), minlength=classes)
    weights = np.ones(classes)
    weights[1] = exp(1.5)
    assert stats.chisquare(counts, len(IDS) * weights / weights.sum()).pvalue > 1e-4


def test_the_label_of_a_record_is_drawn_once_and_kept_by_a_checkpoint():
    one, two = RandomizedResponse(0.1), RandomizedResponse(0.1)
    for downlink in (one, two):
        downlink.prepare(4, 4)
    labels = torch.zeros(len(IDS), dtype=torch.int64)
    first = one.targets(labels, IDS, 0)
    assert torch.equal(first[100:200], one.targets(labels[100:200], IDS[100:200], 0))
    assert not torch.equal(first, two.targets(labels, IDS, 0))
    two.load(one.state())
    assert torch.equal(first, two.targets(labels, IDS, 0))


def test_laplace_labels_are_the_posterior_of_laplace_noise():
    classes, epsilon = 3, 2.0
    downlink = LaplaceLabels(epsilon, "seeded")
    downlink.prepare(classes, classes)
    labels = IDS % classes
    soft = downlink.targets(labels, IDS, 0).double()
    assert torch.allclose(soft.sum(1), torch.ones(len(IDS)).double(), atol=1e-5)
    for low, high in ((0.0, 0.2), (0.2, 0.5), (0.5, 0.8)):  # a posterior is calibrated
        here = (soft >= low) & (soft < high)
        truth = torch.nn.functional.one_hot(labels, classes)[here].double()
        assert truth.mean().item() == pytest.approx(soft[here].mean().item(), abs=0.015)
    ratio = soft[:, 0] / soft[:, 1]  # of likelihoods: within e^±ε
    assert ratio.max() <= exp(epsilon) * 1.0001
    assert ratio.min() >= exp(-epsilon) / 1.0001


def test_laplace_labels_of_two_classes_are_one_probability():
    downlink = LaplaceLabels(80.0, "seeded")
    downlink.prepare(2, 1)
    assert downlink.targets(torch.tensor([1, 0, 1]), torch.arange(3), 0).round().tolist() == [1, 0, 1]


CASES = [
    (16, 1.0, 0.1, 0.1, 0.3, 4.0),
    (16, 1.0, 0.01, 0.2, 0.2, 1.0),
    (64, 0.5, 0.3, 0.02, 0.5, 2.0),
    (2, 1.0, 0.5, 0.5, 0.5, 0.1),
    (1, 1.0, 0.2, 0.4, 0.1, 1.0),
]


@pytest.mark.parametrize(("width", "gap", "u", "v", "share", "power"), CASES)
def test_no_random_covariance_of_this_power_has_a_smaller_sum_kl(width, gap, u, v, share, power):
    first0, rest0, first1, rest1 = eigenvalues(width, gap, u, v, share, power)
    spent = share * (first1 + (width - 1) * rest1) + (1 - share) * (first0 + (width - 1) * rest0)
    assert spent <= power * (1 + 1e-6)
    assert first0 >= rest0 >= 0
    assert first1 >= rest1 >= 0
    ours = sum_kl(width, gap, u, v, first0, rest0, first1, rest1)
    spent = np.random.default_rng(0).dirichlet([0.4] * 4, 20_000) * power
    rest0, rest1 = spent[:, 2] / ((1 - share) * width), spent[:, 3] / (share * width)
    first0, first1 = rest0 + spent[:, 0] / (1 - share), rest1 + spent[:, 1] / share
    assert ours <= sum_kl(width, gap, u, v, first0, rest0, first1, rest1).min() * (1 + 1e-6)


def test_noise_of_marvell_is_real_where_its_power_is_just_spent():
    generator = np.random.default_rng(0)
    for _ in range(500):
        width, share = int(generator.integers(1, 40)), float(generator.uniform(0.02, 0.98))
        u, v, power = (float(x) for x in 10 ** generator.uniform(-6, 1, 3))
        first0, rest0, first1, rest1 = eigenvalues(width, 1.0, u, v, share, power)
        assert min(rest0, rest1) >= 0
        assert first0 >= rest0
        assert first1 >= rest1
    labels = torch.arange(40) % 8 == 0
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for power in (0.1, 0.3, 1.0, 4.0):
            for ratio in (0.001, 0.01, 0.05):
                grad = torch.randn(40, 6, generator=torch.Generator().manual_seed(int(100 * power)))
                grad = torch.where(labels[:, None], ratio * grad + 1.0, grad)
                downlink = Marvell(power=power, draws="seeded")
                downlink.prepare(2, 1)
                assert downlink.protect(grad, labels.long(), names(), 0).dtype == torch.float32


def test_the_largest_and_the_smallest_word_are_inside_the_interval(monkeypatch):
    for byte in (b"\0", b"\xff"):
        monkeypatch.setattr(draws_of, "blake2b", lambda *_, byte=byte, **__: SimpleNamespace(digest=lambda: byte * 64))
        found = draws_of.RecordDraws("seeded").uniform(IDS[:2], 3, 0)
        assert ((found > 0) & (found < 1)).all()


def test_sum_kl_is_that_of_the_two_normal_distributions():
    width, gap, u, v = 3, 0.7, 0.2, 0.5
    first0, rest0, first1, rest1 = 0.9, 0.3, 0.4, 0.1
    axis = np.array([1.0, 2.0, 2.0]) / 3
    covariances = [
        (first - rest) * np.outer(axis, axis) + (rest + spread) * np.eye(width)
        for first, rest, spread in ((first0, rest0, u), (first1, rest1, v))
    ]

    def divergence(one, two):
        inverse, d = np.linalg.inv(two), gap**0.5 * axis
        logs = np.log(np.linalg.det(two) / np.linalg.det(one))
        return 0.5 * (np.trace(inverse @ one) + d @ inverse @ d - width + logs)

    expected = divergence(*covariances) + divergence(*covariances[::-1])
    assert sum_kl(width, gap, u, v, first0, rest0, first1, rest1) == pytest.approx(expected)


def test_marvell_adds_noise_of_the_asked_power():
    torch.manual_seed(0)
    labels = (torch.arange(200) % 4 == 0).long()
    grad = 0.1 * torch.randn(200, 6) + labels[:, None] * torch.tensor([1.0, 0, 0, 0, 0, 0])
    downlink = Marvell(power=3.0, draws="seeded")
    downlink.prepare(2, 1)
    noise = torch.stack([downlink.protect(grad, labels, names(n), 0) - grad for n in range(50)])
    gap = (grad[labels == 1].mean(0) - grad[labels == 0].mean(0)).square().sum()
    assert noise.square().sum(2).mean().item() == pytest.approx(3.0 * gap.item(), rel=0.1)
    assert torch.equal(downlink.protect(grad[:2], labels[1:3], names(), 0), grad[:2])  # one class alone


@pytest.mark.parametrize(
    ("make", "line"),
    [
        (lambda: GaussianGradients(1.0), "give sigma or epsilon, and not both; got sigma None and epsilon None"),
        (lambda: GaussianGradients(1.0, 1.0, 1.0), "give sigma or epsilon, and not both"),
        (lambda: GaussianGradients(0.0, 1.0), "clip of GaussianGradients must be a finite number .*; got 0.0"),
        (
            lambda: GaussianGradients(1e-150, 1.0),
            "clip of GaussianGradients must be .* at least 1e-140; got 1e-150",
        ),
        (
            lambda: GaussianGradients(1.0, 1.0, rounds=2.5),  # type: ignore[arg-type]  # a mistake
            "rounds of GaussianGradients must be a whole number, 1 or more; got 2.5",
        ),
        (lambda: GaussianGradients(1.0, -1.0), "sigma of GaussianGradients must be a finite number .*; got -1.0"),
        (lambda: RandomizedResponse(0.0), "epsilon of RandomizedResponse must be a finite number above 0; got 0.0"),
        (lambda: LaplaceLabels(float("inf")), "epsilon of LaplaceLabels must be a finite number above 0; got inf"),
        (lambda: Marvell(0.0), "power of Marvell must be a finite number above 0; got 0.0"),
        (lambda: MaxNorm("secret"), "draws must be 'system'"),  # type: ignore[arg-type]  # a mistake
        (lambda: Marvell().prepare(3, 3), "Marvell makes two classes alike, and the data report num_classes = 3"),
        (lambda: RandomizedResponse(1.0).prepare(None, 1), "changes classes, and the labels are real numbers"),
        (lambda: LaplaceLabels(1.0).prepare(None, 1), "changes classes, and the labels are real numbers"),
        (
            lambda: GaussianGradients(1.0, 1.0).protect(torch.full((1, 2), float("nan")), IDS[:1], names(), 0),
            "a gradient has NaN or infinite numbers",
        ),
    ],
)
def test_bad_settings_are_refused_in_one_line(make, line):
    with pytest.raises(ConfigurationError, match=line):
        make()


def test_a_downlink_that_sends_another_shape_is_told_so():
    value = guarded(torch.ones(3, 2, requires_grad=True), lambda grad: grad[:2])
    with pytest.raises(ConfigurationError, match=r"returned \(2, 2\) for gradients \(3, 2\); return a tensor"):
        value.sum().backward()
    value = guarded(torch.ones(3, 2, requires_grad=True), lambda grad: None, records=3)
    with pytest.raises(ConfigurationError, match=r"returned NoneType for gradients \(3, 2\); return a tensor with"):
        value.sum().backward()


@pytest.mark.parametrize(
    ("found", "message"),
    [
        (lambda y: None, "targets of Own returned None for 3 labels; return one for each"),
        (lambda y: y[:2], "targets of Own returned a tensor (2,) for 3 labels; return one for each"),
        (lambda y: y + 1, "targets of Own returned the classes [1, 2, 3]; return classes from 0 to 2"),
        (lambda y: y - 1, "targets of Own returned the classes [-1, 0, 1]; return classes from 0 to 2"),
    ],
)
def test_targets_that_no_loss_can_use_are_refused_before_training(found, message):
    class Own(LabelDownlink):
        def targets(self, labels, record_ids, seed):
            return found(labels)

        def prepare(self, num_classes, outputs):
            return

        def claim(self):
            return ""

    class Records:
        def __len__(self):
            return 3

        def labels_at(self, positions):
            return torch.tensor([0, 1, 2])[positions]

    with pytest.raises(ConfigurationError, match=re.escape(message)):
        refuse_other_labels(Own(), Records(), 0, 3)
