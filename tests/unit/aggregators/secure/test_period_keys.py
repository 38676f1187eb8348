"""Public keys of a period: signed for one session by identity keys; swapped and replayed keys are refused."""

from dataclasses import replace

import pytest
import torch

from lightning_vfl.aggregators import MaskedSum, PoissonBinomial
from lightning_vfl.aggregators.secure.layer import SecureLayer
from lightning_vfl.aggregators.secure.opening import LayerOpening
from lightning_vfl.aggregators.secure.period_keys import COMMITMENTS, KEYS, Keys
from lightning_vfl.crypto import Identities, KeyPair
from lightning_vfl.errors import ConfigurationError
from lightning_vfl.rounds.exchange import open_round
from lightning_vfl.types import Roster, RoundNames, Rows, Stage
from lightning_vfl.wire import Message, PartyView
from tests.attacks.keys import Parties, replaced_public_keys

ROWS = Rows(torch.arange(4), 0, 4)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return str(Identities.make(tmp_path_factory.mktemp("identities"), 4).folder)


def view_of(parties, party, round=0, stage="fit", memory=None):
    names = RoundNames(0, stage, round)
    return PartyView(names, Roster.singles(parties), (party,), torch.ones(parties).bool(), ROWS, memory or Keys())


class Recorded:
    """What is sent, by (kind, sender); replaced by what is said."""

    def __init__(self, **replaced):
        self.sent, self.replaced = {}, replaced

    def __call__(self, kind, sender, receiver, sent):
        self.sent[kind, sender] = sent
        return self.replaced.get(f"{kind.split()[-1]}_{sender}", sent)


@pytest.mark.parametrize("settings", [{}, {"recovery": "auto"}], ids=["sum", "recovery"])
def test_signed_keys_are_accepted_and_have_their_size(folder, settings):
    heard = Recorded()
    run = Parties(4, heard, identities=folder, **settings)
    assert {kind for kind, _ in heard.sent} >= {KEYS, COMMITMENTS}
    for m in range(4):
        assert len(heard.sent[COMMITMENTS, m]) == 32
        assert len(heard.sent[KEYS, m]) == 32 + 64
        assert run.views[m].memory.publics == run.views[0].memory.publics
    assert len({heard.sent[COMMITMENTS, m] for m in range(4)}) == 4
    legs = {leg.kind: leg for leg in run.aggregator.opening.legs(4, run.roster, torch.ones(4).bool(), 0, -1)}
    assert legs[KEYS].bytes.tolist() == [3 * 96] * 4
    assert legs[COMMITMENTS].bytes.tolist() == [3 * 32] * 4


def test_a_swapped_key_is_refused_and_its_party_named(folder):
    with pytest.raises(ValueError, match="the public key of party 2 is refused"):
        Parties(4, Recorded(keys_2=KeyPair().public + bytes(64)), identities=folder)
    assert replaced_public_keys(None) == 1.0  # nobody signs: the server reads the embedding
    with pytest.raises(ValueError, match="the public key of party 1 is refused"):
        replaced_public_keys(folder)


def test_a_key_signed_by_another_party_is_refused(folder):
    """Signed as party 3's own, and sent in the name of party 2."""
    heard = Recorded()

    def tamper(kind, sender, receiver, sent):
        heard(kind, sender, receiver, sent)
        return heard.sent[KEYS, 3] if (kind, sender) == (KEYS, 2) and (KEYS, 3) in heard.sent else sent

    with pytest.raises(ValueError, match="the public key of party 2 is refused"):
        Parties(4, tamper, identities=folder)


@pytest.mark.parametrize("of", ["run", "period", "stage"])
def test_a_replayed_key_is_refused(folder, of):
    """All that party 1 has sent at another occasion, its commitment too."""
    aggregator = MaskedSum(identities=folder).among(Roster.singles(4))
    memories = [Keys() for _ in range(4)]
    views = [view_of(4, m, memory=memories[m]) for m in range(4)]
    old = {}

    def opened(views, replayed):
        for sent in zip(*(aggregator.opening.open(view.memory, view) for view in views), strict=True):
            kind, pieces = sent[0].kind, [message.pieces[0] for message in sent]
            if replayed:
                pieces[1] = old[kind]
            old.setdefault(kind, pieces[1])
            aggregator.opening.accept(views[0].memory, Message(kind, "peers", (0, 1, 2, 3), tuple(pieces)), views[0])
            honest = Message(kind, "peers", (0, 1, 2, 3), tuple(message.pieces[0] for message in sent))
            for view in views[1:]:
                aggregator.opening.accept(view.memory, honest, view)

    opened(views, False)
    if of == "run":
        views = [view_of(4, m) for m in range(4)]
    elif of == "period":
        views = [replace(view, names=RoundNames(0, Stage.FIT, 5)) for view in views]
    else:
        views = [replace(view, names=RoundNames(0, Stage.VALIDATION, 0)) for view in views]
    with pytest.raises(ValueError, match=r"the public key of party \d is refused"):
        opened(views, True)


def test_malformed_and_repeated_key_messages_are_refused_and_the_sender_named(folder):
    for settings, size in (({}, 32), ({"recovery": "auto"}, 64), ({"identities": folder}, 96)):
        aggregator = MaskedSum(**settings).among(Roster.singles(4))
        view = view_of(4, 0)
        said = aggregator.opening.open(view.memory, view)
        while next(said).kind == COMMITMENTS:
            view.memory.commitments = dict.fromkeys(range(4), bytes(32))
        right = torch.zeros(4, size, dtype=torch.uint8)
        for piece in (right[:, 1:], right[:3], right.to(torch.int64), right.reshape(-1)):
            with pytest.raises(ValueError, match="'public keys' of party 1"):
                aggregator.opening.accept(view.memory, Message(KEYS, "peers", (1,), (piece,)), view)
        with pytest.raises(ValueError, match="party 4 sent 'public keys', which only parties 0, 1, 2, 3 may send"):
            aggregator.opening.accept(view.memory, Message(KEYS, "peers", (4,), (right,)), view)
    run = Parties(4)
    again = Message(KEYS, "peers", (1,), (torch.zeros(4, 32, dtype=torch.uint8),))
    with pytest.raises(ValueError, match="party 1 has sent public keys twice in one key period"):
        run.aggregator.opening.accept(run.views[0].memory, again, run.views[0])


def test_a_second_commitment_is_refused_and_without_all_of_them_no_key_is_sent(folder):
    aggregator = MaskedSum(identities=folder).among(Roster.singles(4))
    view = view_of(4, 0)
    said = aggregator.opening.open(view.memory, view)
    own = next(said)
    with pytest.raises(ValueError, match="'key commitments' of parties 1, 2, 3 have not come"):
        next(said)
    aggregator.opening.accept(view.memory, own, view)
    other = Message(COMMITMENTS, "peers", (0,), (torch.zeros(4, 32, dtype=torch.uint8),))
    with pytest.raises(ValueError, match="party 0 sent 'key commitments' a second time"):
        aggregator.opening.accept(view.memory, other, view)


def test_identities_change_no_result_and_no_checkpoint_is_held_to_them(folder):
    with_them, without = MaskedSum(identities=folder), MaskedSum()
    assert with_them.identity == without.identity
    assert PoissonBinomial(with_them).identity == PoissonBinomial().identity
    assert folder in repr(with_them)
    assert isinstance(PoissonBinomial(with_them).among(Roster.singles(4))._layer.identities, Identities)


def test_missing_identities_are_refused_before_training(tmp_path):
    with pytest.raises(ConfigurationError, match=r"party-0\.pub\.pem cannot be read .*--parties 4"):
        MaskedSum(identities=str(tmp_path)).among(Roster.singles(4))
    Identities.make(tmp_path, 4)
    with pytest.raises(ConfigurationError, match=r"party-4\.pub\.pem cannot be read .*--parties 5"):
        MaskedSum(identities=str(tmp_path)).among(Roster.singles(5))


def test_the_summary_says_that_unsigned_keys_could_be_replaced(folder):
    roster = Roster.singles(4)
    words = "it is trusted not to replace public keys, which nobody signs (identities)"
    for inner in (MaskedSum(), MaskedSum(recovery="auto")):
        assert words in inner.among(roster).wire.protection(1)
        assert words in PoissonBinomial(inner).among(roster).wire.protection(1)
    assert "identities" not in MaskedSum(identities=folder).among(roster).wire.protection(1)


def test_signing_keys_are_identities_or_fresh_every_period(folder):
    for identities, count in ((None, 2 * 3), (folder, 3)):
        layer = SecureLayer(recovery=MaskedSum(recovery="auto").recovery, identities=identities and Identities(folder))
        memory, seen = Keys(), set()
        for round in (0, 4, 5):
            view = replace(view_of(3, 0, round), parties=(0, 1, 2))
            open_round_of(layer, memory, view)
            assert set(memory.signers) == set(memory.verify) == {0, 1, 2}
            assert all(memory.signers[m].public == memory.verify[m] for m in range(3))
            seen |= set(memory.verify.values())
        assert len(seen) == count


def open_round_of(layer, memory, view):
    for message in LayerOpening(layer).open(memory, view):
        LayerOpening(layer).accept(memory, message, view)


def test_seeded_secrets_are_the_same_in_every_process(folder):
    """As masks are: what P hosted parties draw is what all M would."""
    for settings in ({"recovery": "auto"}, {"identities": folder}, {"recovery": "auto", "identities": folder}):
        aggregator = MaskedSum(insecure_seeded_secrets=True, **settings).among(Roster.singles(4))
        first, second = (
            open_round(aggregator.opening, Keys(), replace(view_of(4, 0), parties=tuple(range(4)))) for _ in range(2)
        )
        assert (first.publics, first.commitments, first.verify) == (second.publics, second.commitments, second.verify)
