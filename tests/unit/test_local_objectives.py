"""Local objectives against plain formulas in numpy, written record by record."""

import copy

import numpy as np
import pytest
import torch
from torch import nn

from lightning_vfl.errors import ConfigurationError
from lightning_vfl.local_objectives import BarlowTwins, Reconstruction
from lightning_vfl.networks import MLP, Linear
from lightning_vfl.networks.batched import batched, has_rule

N, B, S, D = 3, 7, (2, 3), 4
OBJECTIVES = {
    "reconstruction": Reconstruction(output_activation=nn.Sigmoid),
    "barlow twins": BarlowTwins(projector=(6, 5), off_diagonal=0.05, corruption=0.4),
}
every_objective = pytest.mark.parametrize("objective", OBJECTIVES.values(), ids=OBJECTIVES)


def drawing():
    return torch.Generator().manual_seed(5)


@pytest.fixture
def x():
    return torch.rand(N, B, *S, generator=torch.Generator().manual_seed(1), dtype=torch.float64)


@pytest.fixture
def weight():
    """Participants with some rows, with all, and with none; what counts need not count 1."""
    return torch.tensor([[1, 0, 1, 1, 0, 0.5, 2], [1] * 7, [0] * 7], dtype=torch.float64)


def participants(objective, n=N):
    torch.manual_seed(3)
    encoders = [MLP(S, D, hidden=(5,), activation=nn.LeakyReLU, output_activation=nn.ReLU) for _ in range(n)]
    partners = [objective.partner(encoder, S, D) for encoder in encoders]
    return [network.double() for network in encoders], [network.double() for network in partners]


def together(objective, encoders, partners, x, weight):
    return objective.losses(
        lambda rows: batched(encoders[0], encoders, rows),
        lambda rows: batched(partners[0], partners, rows),
        x,
        weight,
        drawing,
    )


def alone(network):
    """One participant's network as an objective calls it."""
    return lambda rows: network(rows[0])[None]


def gradients(networks):
    return [[torch.zeros_like(p) if p.grad is None else p.grad for p in network.parameters()] for network in networks]


@every_objective
@pytest.mark.parametrize("weighted", [False, True])
def test_many_at_once_are_each_alone(objective, x, weight, weighted):
    """Losses, embeddings and gradients of n participants, against n calls without a batched rule and without zeros."""
    encoders, partners = participants(objective)
    losses, h = together(objective, encoders, partners, x, weight if weighted else None)
    losses.sum().backward()
    assert not h.requires_grad
    joint = gradients([*encoders, *partners])
    for i, (encoder, partner) in enumerate(zip(*copy.deepcopy((encoders, partners)), strict=True)):
        encoder.zero_grad(), partner.zero_grad()
        (loss,), own = objective.losses(
            alone(encoder),
            alone(partner),
            x[i : i + 1],
            weight[i : i + 1] if weighted else None,
            drawing,
        )
        loss.backward()
        encoder_grads, partner_grads = gradients([encoder, partner])
        torch.testing.assert_close(losses[i], loss, rtol=1e-6, atol=1e-12)
        torch.testing.assert_close(h[i], own[0])
        torch.testing.assert_close(h[i], encoder(x[i]))
        torch.testing.assert_close(joint[i] + joint[N + i], [*encoder_grads, *partner_grads], atol=1e-12, rtol=1e-6)


@every_objective
def test_no_gradient_passes_from_one_participant_to_another(objective, x):
    encoders, partners = participants(objective)
    losses, _ = together(objective, encoders, partners, x, None)
    losses[1].backward()
    for i, grads in enumerate(gradients([*encoders, *partners])):
        assert any(grad.any() for grad in grads) == (i % N == 1)
    before = gradients([encoders[1]])[0]
    encoders[1].zero_grad()
    changed = x.clone()
    changed[0] += 100
    together(objective, encoders, partners, changed, None)[0][1].backward()
    assert all(torch.equal(a, b) for a, b in zip(before, gradients([encoders[1]])[0], strict=True))


@every_objective
def test_rows_that_do_not_count_teach_nothing(objective, x, weight):
    encoders, partners = participants(objective)
    losses, _ = together(objective, encoders, partners, x, weight)
    losses.sum().backward()
    before = gradients([*encoders, *partners])
    for network in [*encoders, *partners]:
        network.zero_grad()
    padded = torch.where((weight > 0)[..., None, None], x, 9.0)
    again, _ = together(objective, encoders, partners, padded, weight)
    again.sum().backward()
    torch.testing.assert_close(again, losses, rtol=1e-12, atol=0)
    torch.testing.assert_close(gradients([*encoders, *partners]), before, rtol=1e-9, atol=1e-12)


@every_objective
@pytest.mark.parametrize("rows", [0, 1, B])
def test_without_a_row_that_counts_the_loss_is_nothing(objective, x, rows):
    encoders, partners = participants(objective)
    losses, h = together(objective, encoders, partners, x[:, :rows], torch.zeros(N, rows, dtype=torch.float64))
    losses.sum().backward()
    assert h.shape == (N, rows, D)
    assert losses.tolist() == [0] * N
    assert not any(grad.any() for grads in gradients([*encoders, *partners]) for grad in grads)  # NaN is true


def test_reconstruction_is_the_mean_squared_error(x, weight):
    objective = OBJECTIVES["reconstruction"]
    encoders, partners = participants(objective)
    losses, _ = together(objective, encoders, partners, x, weight)
    for i in range(2):
        errors = []
        for row in x[i]:
            drawn = partners[i](encoders[i](row[None])).detach().numpy().reshape(S)
            errors.append(np.mean((drawn - row.numpy()) ** 2))
        assert losses[i].item() == pytest.approx(np.average(errors, weights=weight[i].numpy()), rel=1e-9)


def views(x, corruption):
    """Two views of every record, the masks drawn as the objective says: the same for all participants."""
    masks = (torch.rand(2, *x.shape[1:], generator=drawing()) >= corruption).double()
    return x * masks[0], x * masks[1]


def test_barlow_twins_is_the_papers_formula(x):
    """Equations (1) and (2), with numpy's own correlation."""
    objective = OBJECTIVES["barlow twins"]
    encoders, partners = participants(objective)
    losses, h = together(objective, encoders, partners, x, None)
    one, other = views(x, 0.4)
    for i in range(N):
        a, b = (partners[i](encoders[i](view[i])).detach().numpy() for view in (one, other))
        loss = 0.0
        for j in range(5):
            for k in range(5):
                spread = np.sqrt((a[:, j].var() + 1e-5) * (b[:, k].var() + 1e-5))
                c = np.cov(a[:, j], b[:, k], bias=True)[0, 1] / spread
                loss += (1 - c) ** 2 if j == k else 0.05 * c**2
        assert losses[i].item() == pytest.approx(loss, rel=1e-8)
        torch.testing.assert_close(h[i], encoders[i](x[i]))


def test_barlow_twins_learns_to_agree_without_repeating():
    """Of two numbers, each held six times: the views come to agree, and the outputs tell the two apart."""
    torch.manual_seed(0)
    objective = BarlowTwins(projector=(2,), off_diagonal=0.5, corruption=0.3)
    x = torch.randn(1, 128, 2).repeat_interleave(6, dim=2)
    encoder, projector = MLP((12,), 6, hidden=()), objective.partner(nn.Identity(), (12,), 6)
    adam = torch.optim.Adam([*encoder.parameters(), *projector.parameters()], lr=2e-2)
    losses = []
    for step in range(40):
        adam.zero_grad()
        (loss,), _ = objective.losses(
            alone(encoder), alone(projector), x, None, lambda step=step: torch.Generator().manual_seed(step)
        )
        loss.backward()
        adam.step()
        losses.append(loss.item())
    assert losses[-1] < 0.5 * losses[0]
    with torch.no_grad():
        z = projector(encoder(x[0]))
    assert abs(np.corrcoef(z.numpy().T)[0, 1]) < 0.3


def test_what_is_drawn_is_the_generators():
    """The same state, the same views; another state, others. Nothing is drawn from torch's own generator."""
    objective = OBJECTIVES["barlow twins"]
    encoders, partners = participants(objective)
    x = torch.rand(N, B, *S, dtype=torch.float64)
    state = torch.get_rng_state()
    one = together(objective, encoders, partners, x, None)[0]
    assert torch.equal(one, together(objective, encoders, partners, x, None)[0])
    assert torch.equal(state, torch.get_rng_state())
    for pick in ([2, 0], [1]):  # fewer participants, in another order
        some = together(objective, [encoders[i] for i in pick], [partners[i] for i in pick], x[pick], None)[0]
        torch.testing.assert_close(some, one[pick], rtol=1e-9, atol=0)


@every_objective
def test_partners_can_be_run_in_one_call(objective):
    assert all(has_rule(partner) for partner in participants(objective)[1])


def test_a_decoder_of_ones_own_may_draw_records_of_any_shape(x):
    class Painter(nn.Module):
        def __init__(self, width, shape):
            super().__init__()
            self.layer, self.shape = nn.Linear(width, 6), shape

        def forward(self, h):
            return self.layer(h).view(-1, *self.shape)

    objective = Reconstruction(decoder=Painter)
    encoder = Linear(S, D)
    partner = objective.partner(encoder, S, D)
    (loss,), _ = objective.losses(alone(encoder), alone(partner), x[:1].float(), None, drawing)
    expected = (partner(encoder(x[0].float())) - x[0]).square().mean()
    torch.testing.assert_close(loss, expected.float())


@pytest.mark.parametrize(
    ("build", "fix"),
    [
        (lambda: Reconstruction(nn.Sigmoid, lambda width, shape: nn.Linear(width, 6)), "leave output_activation out"),
        (lambda: Reconstruction().partner(Linear(S, D), S, D), "give the objective a decoder"),
        (lambda: BarlowTwins(projector=()), "projector must have one or more widths >= 1"),
        (lambda: BarlowTwins(projector=(8, 0)), "projector must have one or more widths >= 1"),
        (lambda: BarlowTwins(corruption=1.0), "must be a number above 0 and below 1"),
        (lambda: BarlowTwins(corruption=float("nan")), "must be a number above 0 and below 1"),
        (lambda: BarlowTwins(off_diagonal=-1.0), "must be a finite number of at least 0; got -1.0"),
    ],
)
def test_what_cannot_be_done_is_refused(build, fix):
    with pytest.raises(ConfigurationError, match=fix):
        build()


def test_a_decoder_of_the_wrong_size_is_refused(x):
    encoder, partner = Linear(S, D), Linear(D, 1)  # one number would be broadcast
    with pytest.raises(ConfigurationError, match=r"returns 1 numbers .* make it return 6"):
        Reconstruction().losses(alone(encoder), alone(partner), x[:1].float(), None, drawing)


def test_objectives_are_told_apart_in_print():
    assert repr(Reconstruction(nn.Sigmoid)) == "Reconstruction()"
    assert repr(BarlowTwins((8,), 0.1)) == "BarlowTwins(projector=(8,), off_diagonal=0.1, corruption=0.3)"
