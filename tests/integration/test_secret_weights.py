"""Between processes initial weights are secret; a replay that has the secrets of all has the same bits."""

import csv
import re
import shlex
import shutil

import pytest
import torch

from lightning_vfl.commands.program import run_or_exit
from lightning_vfl.protocols.owner_keys import read_key
from lightning_vfl.protocols.trusted_classes import BOOKS
from tests.further import few
from tests.integration.federations import BASE, prepare
from tests.integration.injected import DIGITS, _finish, _outcome, simulated
from tests.integration.kills import NAMES, differing

SHORT = ("--trainer.max_epochs", "1", "--trainer.limit_train_batches", "3", "--trainer.limit_val_batches", "1")
DRAWS = ("--model.bottom.activation", "torch.nn.Dropout", "--model.top.activation", "torch.nn.Dropout")
RECIPES = {
    "mean": ("--config", "protocol/mean", *DRAWS),
    "noise": ("--config", "protocol/vafl", "--model.noise", "0.5", *DRAWS),
}


@pytest.mark.processes
@pytest.mark.parametrize("name", few(RECIPES, "noise"))
def test_a_replay_has_the_bits_of_secret_weights_and_the_simulation_has_not(tmp_path, name):
    parties = ("--data.partitioner.parties", "2")
    recipe = (*DIGITS, *RECIPES[name], *SHORT, *parties, *BASE)

    def federate():
        prepare()
        run_or_exit(["federate", "--local", *recipe, "--trainer.default_root_dir", str(tmp_path / "fed")])

    def replay():
        prepare()
        (told,) = re.findall("replay it: lightning-vfl (.*)", (tmp_path / "fed.txt").read_text())
        run_or_exit([*shlex.split(told), "--trainer.default_root_dir", str(tmp_path / "replay")])

    _finish(federate, tmp_path / "fed.txt")
    (own,) = (tmp_path / "fed").glob("federation-*")
    federation = _outcome([own / "party0", own / "party1", own / "server"]).weights
    for process in ("party0", "party1", "server"):
        (secret,) = (own / process).rglob("secret.key")
        (checkpoint,) = (own / process).rglob("*.ckpt")
        assert secret.stat().st_mode & 0o777 == 0o600
        assert checkpoint.stat().st_mode & 0o777 == 0o600  # the key is in it, for a process that resumes
        books = torch.load(checkpoint, weights_only=True)[BOOKS]
        assert bytes.fromhex(books["secret key"]) == read_key(secret)
    assert (tmp_path / "fed.txt").read_text().count("initial weights are secret") == 3  # all processes say it
    assert (tmp_path / "fed.txt").read_text().count("can compute every column approximately") == 3
    _finish(replay, tmp_path / "replay.txt")
    replayed = _outcome([tmp_path / "replay"]).weights
    assert replayed.keys() == federation.keys()
    assert [name for name, value in federation.items() if not torch.equal(value, replayed[name])] == []
    alone = simulated(tmp_path, *DIGITS, *RECIPES[name], *SHORT, *parties).weights
    assert all(not torch.equal(value, alone[name]) for name, value in federation.items())
    shutil.rmtree(next(own.glob("party1/**/secret.key")).parent)
    with pytest.raises(RuntimeError, match=r"the secret\.key of party1 is missing; give --secrets"):
        _finish(replay, tmp_path / "refused.txt")


@pytest.mark.slow
@pytest.mark.processes
@pytest.mark.parametrize("saved", [True, False], ids=["with its checkpoint", "anew"])
@pytest.mark.parametrize(
    "recipe", [("--config", "protocol/vafl", "--model.noise", "0.5"), ("--config", "policy/stale")]
)
def test_a_party_that_comes_back_is_replayed(federation, recipe, saved):
    protocol = ("--config", "protocol/mean") if "policy/stale" in recipe else ()
    one = federation((*protocol, *recipe), epochs=8, weights="secret")
    one.everybody()
    one.await_round(200)
    one.kill("party2")
    one.party("party2", *(("--ckpt_path", "last") if saved else ()))
    assert set(one.wait(150).values()) == {0}
    files = [path.read_text() for path in (one.folder / "runs" / "party2").rglob("secret.key")]
    assert len(files) == 2
    assert len(set(files)) == (1 if saved else 2)
    with one.events.open(newline="") as file:
        back = [row["restored"] for row in csv.DictReader(file) if row["restored"]]
    assert len(back) == 1
    assert (back[0] == "0") != saved
    assert set(NAMES) == set(one.names)
    assert differing(one) == []
