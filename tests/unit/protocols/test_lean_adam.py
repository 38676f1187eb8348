"""The default optimiser has the bits of torch's."""

from copy import deepcopy

import pytest
import torch
from torch import nn

from lightning_vfl.protocols._lean_adam import Adam

SHAPES = [(7, 5), (5,), (3, 3), (1,), (64, 17)]


def parameters(dtype=torch.float32):
    generator = torch.Generator().manual_seed(0)
    return [nn.Parameter(torch.randn(shape, generator=generator, dtype=dtype)) for shape in SHAPES]


def give(owned, step, lacking=()):
    generator = torch.Generator().manual_seed(100 + step)
    for number, parameter in enumerate(owned):
        drawn = torch.randn(parameter.shape, generator=generator, dtype=parameter.dtype)
        parameter.grad = None if number in lacking else drawn


def assert_equal(own, torchs):
    for mine, other in zip(own.param_groups, torchs.param_groups, strict=True):
        assert {k: v for k, v in mine.items() if k != "params"} == {k: v for k, v in other.items() if k != "params"}
        assert all(torch.equal(a, b) for a, b in zip(mine["params"], other["params"], strict=True))
    mine, other = own.state_dict()["state"], torchs.state_dict()["state"]
    assert mine.keys() == other.keys()
    for number, state in mine.items():
        assert state.keys() == other[number].keys()
        assert all(torch.equal(value, other[number][name]) for name, value in state.items())


def both(dtype=torch.float32, **settings):
    mine, other = parameters(dtype), parameters(dtype)
    torchs = torch.optim.Adam(other, fused=True, **settings)
    own = Adam.of(torch.optim.Adam(mine, fused=True, **settings))
    assert type(own) is Adam
    return own, torchs, (mine, other)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("settings", [{}, {"lr": 0.1, "betas": (0.5, 0.9), "eps": 1e-3, "weight_decay": 0.1}])
def test_any_steps_have_the_bits_of_torch(dtype, settings):
    """With parameters that have no gradient, late first gradients, a schedule, and everything stopped and loaded."""
    own, torchs, owned = both(dtype, **settings)
    for step in range(30):
        lacking = {0: (4,), 1: (4,), 2: (4,), 8: (0, 2), 9: (1,), 10: (1,), 20: range(5)}.get(step, ())
        for optimizer, parameters in zip((own, torchs), owned, strict=True):
            give(parameters, step, lacking)
            optimizer.param_groups[0]["lr"] *= 0.9
            optimizer.step()
        if step == 12:
            own.load_state_dict(deepcopy(torchs.state_dict()))
        if step == 16:
            torchs.load_state_dict(deepcopy(own.state_dict()))
        assert_equal(own, torchs)


def test_lists_are_kept_as_long_as_the_same_parameters_have_gradients():
    own, _, (mine, _) = both()
    steps = [(), (), (2,), (2,), ()]
    lists = []
    for step, lacking in enumerate(steps):
        give(mine, step, lacking)
        own.step()
        lists += own._kept
    assert lists[0] is lists[1] is not lists[2] is lists[3] is not lists[4]
    assert lists[4].counts.tolist() == [5.0, 5.0, 3.0, 5.0, 5.0]
    own.load_state_dict(own.state_dict())
    assert not own._kept
    assert not deepcopy(own)._kept


@pytest.mark.parametrize("name", ["amsgrad", "maximize"])
def test_other_settings_take_the_step_of_torch(name):
    own, torchs, owned = both(**{name: True})
    for step in range(4):
        for optimizer, parameters in zip((own, torchs), owned, strict=True):
            give(parameters, step)
            optimizer.step()
    assert_equal(own, torchs)


def test_a_copy_and_a_further_group_go_on():
    own, torchs, owned = both()
    more = [nn.Parameter(torch.ones(3)), nn.Parameter(torch.ones(3))]
    for step in range(6):
        if step == 2:
            own, torchs = deepcopy(own), deepcopy(torchs)
            owned = own.param_groups[0]["params"], torchs.param_groups[0]["params"]
        if step == 4:
            for optimizer, parameter in zip((own, torchs), more, strict=True):
                optimizer.add_param_group({"params": [parameter], "lr": 0.5})
        for optimizer, parameters, one in zip((own, torchs), owned, more, strict=True):
            give(parameters, step)
            one.grad = torch.full((3,), 2.0)
            optimizer.step()
        assert_equal(own, torchs)


def test_hooks_and_the_closure_run_once_a_step():
    own, _, (mine, _) = both()
    called = []
    own.register_step_pre_hook(lambda *given: called.append("before"))
    own.register_step_post_hook(lambda *given: called.append("after"))

    def closure():
        called.append(torch.is_grad_enabled())
        give(mine, 0)
        return 0.5

    assert [own.step(closure), own.step(closure)] == [0.5, 0.5]
    assert called == ["before", True, "after"] * 2


def test_which_optimisers_are_replaced():
    for made in (torch.optim.Adam(parameters()), torch.optim.SGD(parameters()), torch.optim.AdamW(parameters())):
        assert Adam.of(made) is made
    hooked = torch.optim.Adam(parameters(), fused=True)
    hooked.register_step_pre_hook(print)
    assert Adam.of(hooked) is hooked
