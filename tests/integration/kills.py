"""What tests that kill and freeze processes of a federation do and look at."""

import torch

NAMES = ("party0", "party1", "party2", "party3")


def differing(federation, without=()):
    """The weights in which the replay of the record is not the federation."""
    weights, replayed = federation.states(), federation.replay()
    assert weights.keys() == replayed.keys()
    left = [name for name in weights if not name.startswith(tuple(f"bottoms.parties.{m}." for m in without))]
    return [name for name in left if not torch.equal(weights[name], replayed[name])]


def included(federation, name):
    """The rounds that a party is in."""
    return [int(row["round"]) for row in federation.rounds() if row["name"] == name and row["included"] == "1"]


def kill_and_resume_server(federation, names, seconds):
    """Kill the server and start it again; the parties end within some seconds, are told why, and are started again."""
    federation.kill("scorer")
    federation.serve("--ckpt_path", "last")
    assert federation.wait(seconds, names) == dict.fromkeys(names, 1)
    for name in names:
        assert "the server has been started again; start this party again too" in federation.log(name)
        federation.party(name, "--ckpt_path", "last")
