"""Kill points of a fit, enumerated: the server never sees a release that is not charged."""

import pytest

from lightning_vfl.aggregators import LocalGaussian
from lightning_vfl.privacy import PrivacyLedger
from tests.attacks import ledger
from tests.attacks.ledger import POINTS, charged, fit_killed, true_epsilon
from tests.further import further

pytestmark = pytest.mark.filterwarnings("ignore:Checkpoint directory .* exists and is not empty")


@pytest.mark.parametrize("step", [further(1), 3, 4])
def test_releases_seen_are_at_most_releases_charged_over_every_kill_point(tmp_path, step):
    """One run, killed at every point in turn; a checkpoint is saved every third round."""
    module, server = fit_killed(tmp_path, [(point, step) for point in POINTS])
    assert (server.seen <= charged(module)).all()
    (path,) = tmp_path.glob("privacy-*.jsonl")
    assert (server.seen <= PrivacyLedger.read(path)[1].state_dict()["counts"].sum(0).numpy()).all()
    # only a kill between the charge and the uploads charges what was never seen, a batch of at most 10 records
    assert charged(module).sum() <= server.seen.sum() + 10
    assert server.rounds > module.books.rounds["fit"]


def test_the_uploads_of_single_parties_are_charged_too(tmp_path, monkeypatch):
    make = ledger.private
    monkeypatch.setattr(ledger, "private", lambda **settings: make(LocalGaussian(), **settings))
    module, server = fit_killed(tmp_path, [("after decoding", 5), ("between uploads and decoding", 2)])
    assert (server.seen == charged(module)).all()


def test_a_budget_holds_over_repeated_kills(tmp_path):
    kills = [("after decoding", step) for step in (6, 3, 3, 3)]
    module, server = fit_killed(tmp_path, kills, budget=12.0, max_epochs=20)
    assert 0 < true_epsilon(server) <= module.privacy.epsilon() <= 12.0


def test_without_the_ledger_the_attack_succeeds(tmp_path):
    module, server = fit_killed(tmp_path, [("after decoding", 5)] * 2, lose=True)
    assert charged(module).sum() < server.seen.sum()
