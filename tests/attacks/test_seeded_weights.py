"""A server that knows the initial bottoms reads every column; with secret initial bottoms this attack reads none."""

from pathlib import Path

import pytest

from tests.attacks.seeded_weights import CASES, federated, fedvs, of_groups, simulated


def test_seeded_weights_give_every_column_and_secret_weights_none() -> None:
    assert simulated(CASES["MaskedSum"], secret=False)[0] > 0.99
    assert simulated(CASES["MaskedSum"], secret=True)[0] < 0


@pytest.mark.slow
def test_seeded_weights_give_every_pixel_from_coded_means_as_wide_as_the_columns() -> None:
    assert simulated(fedvs(64), secret=False)[0] > 0.99
    assert 0.4 < simulated(fedvs(48), secret=False)[0] < 0.6
    for width in (64, 48):
        assert simulated(fedvs(width), secret=True)[0] < 0


def test_secret_weights_do_not_hide_the_records_of_a_group_whose_bottom_the_server_holds() -> None:
    assert of_groups(secret=False).cells > 0.97
    secret = of_groups(secret=True)  # draws of the operating system: .68 to .79 of the groups, below .2 of C_0
    assert secret.groups > 0.4
    assert secret.first < 0.6
    assert secret.cells < 0.3


@pytest.mark.slow
@pytest.mark.processes
@pytest.mark.parametrize("case", CASES)
def test_the_attack_over_real_processes(case: str, tmp_path: Path) -> None:
    for weights in ("seeded", "secret"):
        (tmp_path / weights).mkdir()
        found, records = federated(case, weights, tmp_path / weights)
        print(f"{case}, {weights}: R² {found:.4f} of {records} records")
        assert found > (0.9999 if case == "Mean" else 0.9) if weights == "seeded" else found < 0
