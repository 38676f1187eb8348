"""What each role of each protocol receives, and what gradients tell outside of synchronous rounds."""

from functools import partial

import pytest
import torch

from lightning_vfl import AsyncVFL, CascadeVFL
from lightning_vfl.aggregators import Concat, Mean
from lightning_vfl.audit import LabelsByDirection, MembershipByLoss
from lightning_vfl.callbacks import Audit
from tests.unit.audit.test_attacks import ADAM, Many, audited
from tests.unit.audit.test_transcript import QUICK, SLOW, fitted

SHARES = {"data shares", "model shares", "zero shares"}
# case: (what a passive party receives, what the server receives, or the hosts and the owner, or the collaborator)
RECEIVED = {
    "Concat": ({"gradients"}, {"embeddings"}),
    "MaskedSum": ({"gradients", "public keys"}, {"masked embeddings"}),
    "MaskedSum, segments": ({"gradients", "public keys", "record ids"}, {"masked embeddings", "labels"}),
    "groups, MaskedSum": (
        {"gradients", "public keys", "record ids", "shared bottoms"},
        {"masked embeddings", "labels", "model updates"},
    ),
    "LagrangeCoded, T = 1": ({"gradients", *SHARES}, {"products"}),
    "LagrangeShared": ({"gradients", "embedding shares"}, {"sums"}),
    "PoissonBinomial": ({"gradients", "public keys"}, {"masked embeddings"}),
    "LocalGaussian": ({"gradients"}, {"embeddings"}),
    "DecoupledVFL": (set(), {"embeddings", "final embeddings", "final encodings"}),
    "CascadeVFL": ({"embeddings", "gradients", "record ids", "top"}, {"top gradients"}),
    "CascadeVFL, MaskedSum": (
        {"masked embeddings", "public keys", "gradients", "record ids", "top"},
        {"top gradients"},
    ),
    "AsyncVFL": ({"gradients"}, {"embeddings"}),
}


@pytest.mark.parametrize("name", RECEIVED)
def test_what_a_party_and_the_server_receive(name, tmp_path):
    audits = Audit("party:1", []), Audit("server", [])
    fitted(name, {**QUICK, **SLOW}[name], tmp_path, *audits)
    for audit, receiver, kinds in zip(audits, (1, None), RECEIVED[name], strict=True):
        messages = [one for one in audit.transcript.entries if one.way in ("up", "down", "peer")]
        assert {one.kind for one in messages if one.receiver == receiver and one.sender != receiver} == kinds


@pytest.mark.parametrize("protocol", [partial(AsyncVFL, Mean()), partial(CascadeVFL, Concat())])
def test_gradients_tell_labels_and_losses_no_membership_outside_of_synchronous_rounds(protocol, tmp_path):
    torch.manual_seed(0)
    module = protocol(width=8, seed=0, optimizer=ADAM)
    attacks = [LabelsByDirection(), MembershipByLoss()]
    labels, membership = audited(module, Many(batch_size=32), "party:1", attacks, tmp_path)
    assert labels.success > 0.99
    assert 0.4 < membership.success < 0.6
