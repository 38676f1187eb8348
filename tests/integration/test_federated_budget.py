"""A party of a federation that its budget has stopped, over real processes: its seat has one ledger for all runs."""

import json

import pytest
import yaml

from lightning_vfl.privacy import PrivacyLedger

pytestmark = [pytest.mark.slow, pytest.mark.processes]

RECIPE = (
    *("--config", "protocol/wait_dp", "--data.normaliser", "Unchanged", "--model.evaluate", "protocol"),
    *(
        "--trainer.num_sanity_val_steps",
        "0",
        "--model.aggregator.noise",
        "Budget",
        "--model.aggregator.noise.epsilon",
        "4",
    ),
)


def test_a_stopped_party_stays_stopped_through_ten_fits_and_predictions(federation):
    one = federation(RECIPE, epochs=1, join=40, reconnect=3)
    seat = one.folder / "party1.yaml"
    seat.write_text(yaml.safe_dump({**yaml.safe_load(seat.read_text()), "budget": {"epsilon": 8.0, "delta": 1e-5}}))
    ledger = one.folder / "party1.privacy.jsonl"

    def run(method):
        """A run of all processes, until party 1 has ended."""
        more = ("--do", method) if method == "fit" else ("--do", method, "--ckpt_path", "last")
        one.serve(*more)
        for name in one.names:
            one.party(name, *more)
        one.wait(120, ["party1"])
        said = one.log("party1")
        one.stop()
        return said

    run("fit")
    first = json.loads(ledger.read_bytes().split(b"\n")[0])["run"]
    said = run("fit")
    assert f"privacy ledger {ledger} (run {first}): knows 1,257 of these 1,257 records; ε = " in said
    spent = PrivacyLedger.read(ledger)[1]
    assert 0 < spent.epsilon(1e-5) <= 8.0
    for number in range(10):
        said = run("predict" if number % 2 else "fit")
    found, after = PrivacyLedger.read(ledger)
    assert found.run == first
    assert after.epsilon(1e-5) <= 8.0
    assert after.epsilon(1e-5, "party") >= spent.epsilon(1e-5, "party")
    before = ledger.read_bytes()
    for method in ("fit", "predict"):
        said = run(method)
    assert "has no room for the predict of" in said
    assert ledger.read_bytes() == before
