"""Two parties find the records that openmined-psi finds, which runs in an environment of its own."""

import json
import os
import random
import subprocess

import pytest

from lightning_vfl.align.session import Session
from tests.unit.align.plays import Play

PYTHON = os.environ.get("LIGHTNING_VFL_OPENMINED_PYTHON")
CODE = """
import json, sys
import private_set_intersection.python as psi
one, other = json.load(sys.stdin)
client, server = psi.client.CreateWithNewKey(True), psi.server.CreateWithNewKey(True)
setup = server.CreateSetupMessage(1e-12, len(one), other, psi.DataStructure.RAW)
print(json.dumps(client.GetIntersection(setup, server.ProcessRequest(client.CreateRequest(one)))))
"""


@pytest.mark.slow
@pytest.mark.skipif(PYTHON is None, reason="LIGHTNING_VFL_OPENMINED_PYTHON names no Python with openmined-psi")
@pytest.mark.parametrize("number", range(5))
def test_the_records_are_those_of_openmined_psi(number):
    draw = random.Random(number)
    pool = [f"{draw.choice(['', 'é', '🜁', ' '])}{i}" for i in range(400)]
    tables = {party: draw.sample(pool, draw.randint(50, 300)) for party in ("bank", "shop")}
    given = json.dumps(list(tables.values()))
    done = subprocess.run([PYTHON, "-c", CODE], input=given, capture_output=True, text=True, check=True, timeout=120)
    expected = {tables["bank"][place] for place in json.loads(done.stdout)}
    play = Play(Session("openmined", ("bank", "shop")), tables, number, {"bank": 320})
    assert {tables["bank"][record] for record in play.taken("bank").values()} == expected
    assert {tables["shop"][record] for record in play.taken("shop").values()} == expected
