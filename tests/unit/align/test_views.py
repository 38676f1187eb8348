"""What each role sees does not depend on ids that are not in common; smoke tests of the distribution, not proofs."""

from collections import Counter
from functools import cache
from itertools import permutations

import numpy as np
import pytest
from scipy.stats import chi2, chisquare

from lightning_vfl.align.group import check_points, mask, new_key
from lightning_vfl.align.ring import Secret
from lightning_vfl.align.session import COMPARER, Session
from tests.further import few
from tests.unit.align.plays import Play, seeded

SESSION = Session("views", ("bank", "shop"))
RUNS, RARE = 120, 1e-6  # five for each of the 24 views of the comparer
WORLDS = {  # the same ids in common, and others beside them
    "one": {"bank": ["c", "x"], "shop": ["c", "y"]},
    "other": {"bank": ["c", "u"], "shop": ["v", "c"]},
}


def ranks(*lists):
    """The lists with each point replaced by its rank among all: all that can be said of random points."""
    points = sorted({point for one in lists for point in one})
    return tuple(tuple(points.index(point) for point in one) for one in lists)


@cache
def views(world):
    """How often each role has seen what, in many runs with keys and orders of their own."""
    found = {"comparer": Counter(), "relay shop": Counter(), "told bank": Counter(), "told shop": Counter()}
    for run in range(RUNS):
        play = Play(SESSION, WORLDS[world], (world, run))
        final = {one.owner: [p.tobytes() for p in one.points] for one in play.seen[COMPARER]}
        found["comparer"][ranks(final["bank"], final["shop"])] += 1
        relayed = next(one for one in play.seen["shop"] if one.owner == "bank")
        found["relay shop"][ranks([p.tobytes() for p in relayed.points])] += 1
        for party in SESSION.parties:
            place, secret = play.told[party].places.tolist(), play.secrets[party]
            assert [WORLDS[world][party][secret.order[at]] for at in place] == ["c"]
            found[f"told {party}"][(tuple(place), tuple(play.told[party].rows.tolist()))] += 1
    return found


def expected():
    """The views of each role, all equally likely: ranks and orders are uniform, and independent of the ids."""
    of_comparer = set()
    for c, x, y in permutations(range(3)):
        of_comparer |= {(bank, shop) for bank in ((c, x), (x, c)) for shop in ((c, y), (y, c))}
    told = {((place,), (0,)) for place in range(2)}
    return {"comparer": of_comparer, "relay shop": {((0, 1),), ((1, 0),)}, "told bank": told, "told shop": told}


@pytest.mark.parametrize("role", ["comparer", "relay shop", "told bank", "told shop"])
@pytest.mark.parametrize("world", few(WORLDS, "other"))
def test_the_view_of_a_role_has_the_exact_distribution_whatever_the_other_ids(world, role):
    counted, possible = views(world)[role], expected()[role]
    assert counted.keys() <= possible
    assert chisquare([counted[view] for view in sorted(possible)]).pvalue > RARE


def test_random_points_in_front_of_a_relay_look_like_ids():
    """Of a padded list every place is a random point equally often, and the number of places is all that is seen."""
    at = Counter()
    for run in range(300):
        secret = Secret.make(SESSION, "bank", 2, 5, seeded("pads", run))
        at.update(np.flatnonzero(secret.order >= secret.records).tolist())
    # 3 of 5 places a run, without replacement: the statistic is chi-squared after the factor 4 / (5 - 3)
    counts = np.array([at[place] for place in range(5)])
    statistic = ((counts - 180) ** 2 / 180).sum() * 4 / 2
    assert chi2.sf(statistic, 4) > RARE


def test_no_bit_of_an_id_is_seen_without_the_key():
    """Every id has points of the same group, and each bit of them is as often 1 as with any other id."""
    keys, ids = 300, [b"4111", b"4112"]
    points = np.stack([mask(ids, bytes, new_key(seeded("bits", run)), b"tag") for run in range(keys)])
    check_points(points)
    assert len(np.unique(points.reshape(-1, 32), axis=0)) == keys * len(ids)
    ones = np.unpackbits(points, axis=2, bitorder="little").sum(0)
    fixed = [0, 255]  # the sign, and the number is below 2^255: the same for every point of the group
    assert not ones[:, fixed].any()
    free = np.delete(ones, fixed, axis=1)
    deviation = 5.5 * np.sqrt(keys) / 2  # 1e-5 for all 508 counts together
    assert np.abs(free - keys / 2).max() < deviation
    assert np.abs(free[0].astype(int) - free[1].astype(int)).max() < deviation * np.sqrt(2)
