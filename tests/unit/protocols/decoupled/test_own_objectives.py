"""A local objective of one's own by which nobody would learn ends in one line before training."""

import re

import pytest
import torch
from torch import nn

from lightning_vfl import DecoupledVFL
from lightning_vfl.errors import ConfigurationError
from lightning_vfl.local_objectives import BarlowTwins, Reconstruction
from tests.subjects import Blobs


class Own(Reconstruction):
    """Returns what ``change`` makes of losses and embeddings."""

    def __init__(self, change=lambda losses, h: (losses, h), beside=lambda made: made):
        super().__init__()
        self.change, self.beside = change, beside

    def partner(self, encoder, shape, width):
        return self.beside(super().partner(encoder, shape, width))

    def losses(self, encode, partner, x, weight, generator):
        return self.change(*super().losses(encode, partner, x, weight, generator))


class Unweighted(Reconstruction):
    def losses(self, encode, partner, x, weight, generator):
        return super().losses(encode, partner, x, weight.view(-1) if weight is not None else None, generator)


WRONG = {
    "losses without a graph": (
        Own(lambda losses, h: (losses.detach(), h)),
        "losses of Own returns losses without a graph, so nobody would learn; do not detach them",
    ),
    "one loss for all": (Own(lambda losses, h: (losses.sum(), h)), "and their embeddings, (N, 2, 5); got () and (N, 2"),
    "no embeddings": (
        Own(lambda losses, h: (losses, None)),
        "a loss for each of N participants, (N,), and their embed",
    ),
    "a row too few": (Own(lambda losses, h: (losses, h[:, :-1])), "got (N,) and (N, 1, 5)"),
    "embeddings with a graph": (Own(lambda losses, h: (losses, h + losses.sum())), "with a graph; return h.detach()"),
    "losses alone": (Own(lambda losses, h: losses), "got (N,) and None"),
    "nothing": (Own(lambda losses, h: None), "got None and None"),
    "no network": (
        Own(beside=lambda made: None),
        "partner of Own must return a network; got None; return torch.nn.Ide",
    ),
    "another partner": (Own(beside=lambda made: nn.Linear(3, 3)), "losses of Own cannot take records ("),
    "wrong with weights": (Unweighted(), "losses of Unweighted cannot take records (N, 2, "),
}


def decoupled(**objectives):
    module = DecoupledVFL(width=5, host_width=5, seed=0, **objectives)
    torch.manual_seed(0)
    module.build_for(Blobs())
    return module


@pytest.mark.parametrize(("who", "together"), [("guest_objective", "2"), ("host_objective", "1")])
@pytest.mark.parametrize("name", WRONG)
def test_a_wrong_objective_is_refused(name, who, together):
    objective, message = WRONG[name]
    with pytest.raises(
        ConfigurationError, match=re.escape(message.replace("(N", f"({together}").replace("of N", f"of {together}"))
    ) as error:
        decoupled(**{who: objective})
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("objective", [Own, BarlowTwins])
def test_the_trial_draws_nothing_and_changes_no_network(objective):
    made = decoupled(guest_objective=objective())
    after = torch.rand(3)
    torch.manual_seed(0)
    again = DecoupledVFL(width=5, host_width=5, seed=0, guest_objective=objective())
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("lightning_vfl.protocols.decoupled.learners.try_objective", lambda *_: None)
        again.build_for(Blobs())
    assert torch.equal(torch.rand(3), after)
    states = made.state_dict(), again.state_dict()
    assert all(torch.equal(states[0][name], states[1][name]) for name in states[1])
    assert all(module.training for module in made.modules())
