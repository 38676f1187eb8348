"""What the commands of a federation refuse, in one line each, and what never travels."""

import struct

import numpy as np
import pandas as pd
import pytest
import torch
import yaml

from lightning_vfl.commands.program import run_or_exit
from tests.integration.federations import BASE, Federation, cut_digits, prepare, tap
from tests.integration.test_federated import LATE, MASKED, VARYING
from tests.integration.test_federated_walls import apart

pytestmark = [pytest.mark.slow, pytest.mark.processes]

NAMES = ("party0", "party1", "party2", "party3")
MEAN = ("--config", "protocol/mean", *LATE, "--trainer.max_epochs", "2")


@pytest.fixture(scope="module")
def parts(tmp_path_factory):
    return cut_digits(tmp_path_factory.mktemp("parts"))


@pytest.fixture
def federation(parts, tmp_path):
    """Makes a federation of a recipe, and ends what is left of it."""
    made = []

    def make(*recipe, parts=parts, **patience):
        data = ("--config", str(parts / "csv_tables.yaml"), "--data.data_dir", str(parts))
        made.append(Federation(tmp_path, NAMES, (*data, *recipe), **patience))
        return made[-1]

    yield make
    for one in made:
        one.stop()


FEDERATE = "federate --local --config data/digits --trainer.fast_dev_run true"


@pytest.mark.parametrize(
    ("command", "line"),
    [
        (f"{FEDERATE} --config protocol/vafl --model.active 0", "AsyncVFL needs the labels at the server between"),
        (f"{FEDERATE} --config protocol/vafl --data.num_workers 1", "use num_workers: 0, not 1"),
        (f"{FEDERATE} --config protocol/cvfl --model.q 2.0", "CascadeVFL between processes does not take q above 1"),
        (f"{FEDERATE} --config protocol/cvfl --inject", "CascadeVFL between processes does not take --inject"),
        (f"{FEDERATE} --config protocol/one_shot --model.active 0", "OneShotVFL needs the labels at the server"),
        (f"{FEDERATE} --config protocol/local", "LocalVFL does not support parties on hosts (federate)"),
        (
            f"{FEDERATE} --config protocol/lagrange_shared --model.aggregator.execution equivalent",
            "execution: equivalent of LagrangeShared computes all parties' integers in one place",
        ),
        (
            f"{FEDERATE} --config protocol/mean --config faults/unreliable",
            "injects faults in simulations and with federate --inject; here faults happen",
        ),
        (f"{FEDERATE} --config protocol/drop_parties --model.subsets.by round", "with by: round runs simulated only"),
        (f"{FEDERATE} --config protocol/u_shape --model.subsets TaskSampling", "several rows of a record at the cut"),
        (
            f"{FEDERATE} --config protocol/mean --model.faults_in_evaluation true",
            "faults_in_evaluation runs simulated only; leave it out",
        ),
        (
            f"{FEDERATE} --config protocol/laser --model.active 0",
            "LaserVFL needs the labels at the server too, which scores; leave out active",
        ),
        (f"{FEDERATE} --config protocol/mean --trainer.devices 2", "a process of a federation hosts one seat"),
        ("federate --config data/digits --config protocol/mean", "add --local, or use serve and party"),
    ],
)
def test_what_works_in_simulations_only_is_refused(tmp_path, command, line):
    def role():
        prepare()
        run_or_exit([*command.split(), *BASE, "--trainer.default_root_dir", str(tmp_path)])

    with pytest.raises(AssertionError) as failed:
        apart(role, tmp_path / "log.txt")
    said = [one for one in str(failed.value).splitlines() if "error:" in one]
    assert said, str(failed.value)
    assert line in " ".join(said)


def test_data_of_one_file_are_refused_by_hosts_of_their_own(federation, parts):
    one = federation(*MEAN)
    one.recipe = ("--config", "data/digits", *MEAN)
    one.serve()
    assert one.wait()["scorer"] == 1
    assert "Digits is one file that a simulation cuts; run lightning-vfl cut, or federate --local" in one.log("scorer")


def everybody(one, changed, *more):
    """Start all processes, one party with further settings; the statuses at the end."""
    one.serve()
    for name in NAMES:
        one.party(name, *(more if name == changed else ()))
    return one.wait()


def test_another_recipe_is_refused_on_all_sides(federation):
    one = federation(*MEAN)
    assert set(everybody(one, "party1", "--data.batch_size", "64").values()) == {1}
    line = "party party1 has data.batch_size 64, the server 32; use the same recipe"
    for name in ("scorer", *NAMES):
        assert line in one.log(name)


def test_parties_that_come_after_another_was_refused_are_told_why(federation):
    one = federation(*MEAN)
    one.serve()
    one.party("party1", "--data.batch_size", "64")
    assert one.wait(names=["party1"]) == {"party1": 1}
    for name in NAMES:
        if name != "party1":
            one.party(name)
    assert set(one.wait().values()) == {1}
    for name in ("scorer", *NAMES):
        assert "party party1 has data.batch_size 64, the server 32; use the same recipe" in one.log(name)


def test_a_name_that_is_not_in_the_federation_is_refused(federation, tmp_path):
    one = federation(*MEAN)
    (tmp_path / "party9.yaml").write_text(yaml.safe_dump({"key": "keys/party1.key"}))
    one.party("party9")
    assert one.wait() == {"party9": 1}
    assert "no party of trial has the name 'party9'" in one.log("party9")


def test_a_missing_table_is_named(federation):
    one = federation(*MEAN, join=3, reconnect=3)
    statuses = everybody(one, "party2", "--data.data_dir", "/nowhere")
    assert set(statuses.values()) == {1}
    assert "party2" in one.log("party2").splitlines()[-1]
    assert "/nowhere" in one.log("party2")
    assert "party2" in one.log("scorer")


def test_ids_that_do_not_overlap_are_refused_on_all_sides(federation, parts, tmp_path):
    other = tmp_path / "other"
    other.mkdir()
    for path in parts.glob("*.*"):
        (other / path.name).write_bytes(path.read_bytes())
    table = pd.read_parquet(parts / "party2.parquet")
    table["id"] += 10**6
    table.to_parquet(other / "party2.parquet")
    one = federation(*MEAN, parts=other)
    assert set(everybody(one, None).values()) == {1}
    for name in ("scorer", *NAMES):
        assert "common" in one.log(name).splitlines()[-1]


def test_a_checkpoint_of_a_later_round_than_the_server_is_refused(federation):
    one = federation(*MEAN)
    one.everybody()
    assert set(one.wait().values()) == {0}
    assert set(everybody(one, "party3", "--ckpt_path", "last").values()) == {1}
    for name in ("scorer", "party3"):
        assert "party party3 stands at round 80, the server at 0" in one.log(name)


def test_an_evaluation_in_the_clear_needs_the_consent_of_every_party(federation, tmp_path):
    one = federation("--config", "protocol/mean", *MASKED, *LATE, "--model.evaluate", "plain")
    (tmp_path / "party1.yaml").write_text(yaml.safe_dump({"key": "keys/party1.key"}))
    one.party("party1")
    assert one.wait() == {"party1": 1}
    assert "evaluate: plain would send every embedding of MaskedSum in the clear" in one.log("party1")


def test_a_party_refuses_to_be_summed_with_fewer_than_it_allows(federation, tmp_path):
    one = federation(*MEAN)
    said = {"key": "keys/party1.key", "evaluate": "plain", "least_members": 5}
    (tmp_path / "party1.yaml").write_text(yaml.safe_dump(said))
    one.everybody()
    statuses = one.wait()
    assert statuses.pop("party1") == 1
    assert "least_members: 5" in one.log("party1")
    assert set(statuses.values()) == {0}  # the others go on


# ---- messages of another form


def bent(change):
    """What a process does whose uploads are changed after round 20."""

    def before():
        from lightning_vfl.federation import link
        from lightning_vfl.federation.frames import pack

        def changed(header, tensors=(), bits=None):
            if header.get("part") == "upload" and header["at"][0] >= 20 and header["at"][1] == 2:
                header, tensors, bits = change(dict(header), list(tensors), bits)
            return pack(header, tensors, bits)

        link.pack = changed

    return before


CHANGES = {
    "shape": lambda header, tensors, bits: (header, [tensors[0][:, :-1]], bits),
    "dtype": lambda header, tensors, bits: (header, [tensors[0].to(torch.uint8)], bits),
    "no tensor": lambda header, tensors, bits: (header, [], []),
    "sender": lambda header, tensors, bits: (
        {**header, "message": {**header["message"], "senders": [0]}},
        tensors,
        bits,
    ),
    "kind": lambda header, tensors, bits: ({**header, "message": {**header["message"], "kind": "x"}}, tensors, bits),
    "no message": lambda header, tensors, bits: ({**header, "message": 3}, tensors, bits),
    "no round": lambda header, tensors, bits: ({**header, "message": {**header["message"], "round": 3}}, tensors, bits),
    "no flag": lambda header, tensors, bits: ({**header, "message": {"kind": "embeddings"}}, tensors, bits),
}


@pytest.mark.parametrize("change", CHANGES)
def test_a_party_whose_messages_have_another_form_is_left_out(federation, change):
    one = federation(*MEAN)
    one.before["party1"] = bent(CHANGES[change])
    one.everybody()
    statuses = one.wait()
    assert {name: statuses[name] for name in ("scorer", "party0", "party2", "party3")} == dict.fromkeys(
        ("scorer", "party0", "party2", "party3"), 0
    ), one.log("scorer")[-2000:]
    assert "party party1" in one.log("scorer")
    assert max(int(row["round"]) for row in one.rounds() if row["name"] == "party1" and row["included"] == "1") < 20


# ---- a tap


SCALED = ("--data.normaliser", "Unchanged")  # the tables are scaled; the protocol's recipe asks for known bounds
TAPPED = {
    "mean": MEAN,
    "concat": ("--config", "protocol/concat", *LATE),
    "masked": ("--config", "protocol/mean", *MASKED, "--model.aggregator.recovery", "auto", *LATE, *VARYING),
    "pbm": ("--config", "protocol/pbm", *SCALED),
    "lagrange_shared": ("--config", "protocol/lagrange_shared", *LATE, *VARYING),
    "fedvs": ("--config", "protocol/fedvs"),
    "wait_dp": ("--config", "protocol/wait_dp", *LATE, *SCALED),
}


def keeping(path):
    """What a process does whose frames are kept in two files: those that it sends, and the answers."""

    def keep(frame, answer):
        for kind, content in (("sent", frame), ("heard", answer)):
            with path.with_suffix(f".{kind}").open("ab") as file:
                file.write(content)

    return tap(keep)


@pytest.mark.parametrize("name", TAPPED)
def test_no_feature_row_and_no_weight_of_a_party_is_in_a_frame(federation, parts, tmp_path, name):
    own = tmp_path / "own"
    own.mkdir()
    (own / "csv_tables.yaml").write_bytes((parts / "csv_tables.yaml").read_bytes())
    tables = {who: pd.read_parquet(parts / f"{who}.parquet") for who in (*NAMES, "labels")}
    for table in tables.values():
        table["id"] = 7_000_000_000_001 + 1_000_003 * table["id"]
    left_out = tables["party2"]["id"][::50].to_numpy()
    tables["party2"] = tables["party2"][~tables["party2"]["id"].isin(left_out)]
    for who, table in tables.items():
        table.to_parquet(own / f"{who}.parquet")
    one = federation(*TAPPED[name], "--trainer.max_epochs", "1", parts=own)
    for who in NAMES:
        one.before[who] = keeping(tmp_path / who)
    one.everybody()
    assert set(one.wait().values()) == {0}
    sent = {who: (tmp_path / f"{who}.sent").read_bytes() for who in NAMES}
    heard = {who: (tmp_path / f"{who}.heard").read_bytes() for who in NAMES}
    frames = b"".join([*sent.values(), *heard.values()])
    assert len(frames) > 10**5
    patterns = []
    for who in NAMES:
        rows = tables[who].drop(columns="id").to_numpy()
        rows = rows[(rows != rows[:, :1]).any(1)]
        for dtype in (np.float32, np.float64):
            patterns += [row.tobytes() for row in rows[::10].astype(dtype)]
    for key, weight in one.states().items():
        if key.startswith("bottoms.") and weight.dim() == 2:
            patterns += [row.numpy().astype(dtype).tobytes() for row in weight for dtype in (np.float32, np.float64)]
    assert len(patterns) > 1000
    assert sum(pattern in frames for pattern in patterns) == 0
    answers = b"".join(heard.values())
    assert sum(struct.pack("<q", int(number)) in answers for number in left_out) == 0
    kept = tables["party2"]["id"].to_numpy()[:20]
    assert all(struct.pack("<q", int(number)) in answers for number in kept)  # the search finds what is there
