"""A server that knows the initial bottoms reads every column; with secret initial bottoms this attack reads none."""

from pathlib import Path

import pytest

from tests.attacks.seeded_weights import CASES, federated, simulated


def test_seeded_weights_give_every_column_and_secret_weights_none() -> None:
    assert simulated("MaskedSum", secret=False) > 0.99
    assert simulated("MaskedSum", secret=True) < 0


@pytest.mark.slow
@pytest.mark.processes
@pytest.mark.parametrize("case", CASES)
def test_the_attack_over_real_processes(case: str, tmp_path: Path) -> None:
    for weights in ("seeded", "secret"):
        (tmp_path / weights).mkdir()
        found, records = federated(case, weights, tmp_path / weights)
        print(f"{case}, {weights}: R² {found:.4f} of {records} records")
        assert found > (0.9999 if case == "Mean" else 0.9) if weights == "seeded" else found < 0
