"""What the comparer does: it finds equal points in lists that have all keys, and numbers them. No files, no network."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import reduce
from typing import TYPE_CHECKING

import numpy as np

from lightning_vfl.align.group import SIZE, NoPoint, check_points
from lightning_vfl.align.ring import PointList, Used
from lightning_vfl.align.session import COMPARER, Reveal, Session
from lightning_vfl.errors import ConfigurationError

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from lightning_vfl.align.group import Points


@dataclass(frozen=True, eq=False)
class Rows:
    """What the comparer tells one party.

    Args:
        session: what the parties agree upon.
        owner: the party.
        used: the keys that all lists were raised to, in the order of the parties.
        size: how many records are in common: of all parties, or with the party with the labels.
        places: (n,) int64, places of the party's list; none if only the size is told.
        rows: (n,) int64, the common number of the record at each of these places, ascending.
    """

    session: Session
    owner: str
    used: tuple[Used, ...]
    size: int
    places: "NDArray[np.int64]"
    rows: "NDArray[np.int64]"


def matched(lists: Sequence[PointList]) -> dict[str, Rows]:
    """The common records of all parties, numbered in the order of their points.

    The points have the keys of all parties, so their order follows from the ids by a permutation that nobody knows.

    Args:
        lists: of all parties, raised to all keys.

    Raises:
        ConfigurationError: for lists that are missing, not raised to all keys, of several sessions, raised to different
            keys of one party, or that have a point twice.
    """
    session, used = _one_session(lists)
    by_owner = {one.owner: one for one in lists}
    ordered = [by_owner[party] for party in session.parties]
    for one in ordered:
        refuse_bad_points(one.points, one.owner)
    if session.reveal is Reveal.LABEL_PARTY:
        found = _with_label_party(session, by_owner)
    else:
        common = common_places([one.points for one in ordered])
        numbers = np.arange(len(common[0]))
        found = {one.owner: (own, numbers) for one, own in zip(ordered, common, strict=True)}
    told = {}
    for party, (places, rows) in found.items():
        size = len(places)
        hidden = session.reveal is Reveal.SIZE
        places, rows = (places[:0], rows[:0]) if hidden else (places, rows)
        told[party] = Rows(session, party, used, size, places, rows)
    return told


def empty(told: Mapping[str, Rows]) -> str | None:
    """The error if a party has no record in common; None: all have some."""
    lone = next((one for one in told.values() if not one.size), None)
    if lone is None:
        return None
    who = (
        "all parties have"
        if lone.session.reveal is not Reveal.LABEL_PARTY
        else f"{lone.owner} and {lone.session.label_party} have"
    )
    return (
        f"{who} no record in common; check that all parties gave the same kind of id, written in the same form "
        "(--normalise)"
    )


def _one_session(lists: Sequence[PointList]) -> tuple[Session, tuple[Used, ...]]:
    """The session and the keys of all lists, in the order of the parties."""
    if not lists:
        raise ConfigurationError("there is no list to compare; give those of all parties")
    first = lists[0]
    session = first.session
    for one in lists:
        if one.session != session:
            raise ConfigurationError(
                f"the lists of {first.owner} and {one.owner} are of two sessions: {session.difference(one.session)} as "
                f"with {first.owner}; all parties need the same settings"
            )
        one.refuse_wrong_order()
        if one.receiver != COMPARER:
            raise ConfigurationError(f"the list of {one.owner} has not been raised by {one.receiver} yet; pass it on")
    owners = [one.owner for one in lists]
    if missing := [party for party in session.parties if party not in owners]:
        raise ConfigurationError(f"the list of {missing[0]} is missing; it has to be raised by all parties first")
    if len(owners) > len(session.parties):
        raise ConfigurationError("a party has two lists; give one of each")
    marks: dict[str, str] = {}
    for one in lists:
        for used in one.used:
            if marks.setdefault(used.party, used.mark) != used.mark:
                raise ConfigurationError(
                    f"the lists of {first.owner} and {one.owner} were raised to two keys of {used.party}, which has "
                    "begun again in between; let all parties begin again in a new folder"
                )
    return session, tuple(Used(party, marks[party]) for party in session.parties)


def refuse_bad_points(points: "Points", owner: str) -> None:
    """Accept the points of a list.

    Args:
        points: (n, K, 32).
        owner: whose list, for the error.

    Raises:
        ConfigurationError: for bytes that are no point, the identity, and a point that is there several times.
    """
    try:
        check_points(points)
    except NoPoint as error:
        raise ConfigurationError(f"the list of {owner}: {error}; ask for the list again") from None
    for key in range(points.shape[1]):
        (numbers,) = _numbered([points[:, key]])
        if twice := int((np.bincount(numbers) > 1).sum()):
            raise ConfigurationError(f"duplicate points in the list of {owner}: {twice}; keep one record of each id")


def _numbered(points: "Sequence[Points]") -> "list[NDArray[np.int64]]":
    """The number of each point among the different points of all lists, in the order of their bytes."""
    texts = np.ascontiguousarray(np.concatenate(points)).view(f"S{SIZE}")
    numbers = np.unique(texts.ravel(), return_inverse=True)[1]
    return np.split(numbers, np.cumsum([len(one) for one in points])[:-1])


_Found = tuple["NDArray[np.int64]", "NDArray[np.int64]"]


def common_places(lists: "Sequence[Points]") -> "list[NDArray[np.int64]]":
    """For each list the places of the records that are in all lists, in the order of their points.

    Args:
        lists: (n, K, 32) each; the first of K keys is compared first, then the second of the records that are left.
    """
    free = [np.arange(len(points)) for points in lists]
    found: list[list[NDArray[np.int64]]] = [[] for _ in lists]
    for key in range(lists[0].shape[1]):
        numbers = _numbered([points[places, key] for points, places in zip(lists, free, strict=True)])
        common = reduce(np.intersect1d, numbers[1:], np.unique(numbers[0]))
        for m, one in enumerate(numbers):
            by_number = np.argsort(one, kind="stable")
            at = by_number[np.searchsorted(one, common, sorter=by_number)]
            found[m].append(free[m][at])
            free[m] = np.delete(free[m], at)
    return [np.concatenate(parts) for parts in found]


def _with_label_party(session: Session, lists: Mapping[str, PointList]) -> "dict[str, _Found]":
    """Party -> places and rows of the records that the party with the labels has, of whose list all places are rows."""
    label = lists[str(session.label_party)]
    order = np.argsort(_numbered([label.points[:, 0]])[0], kind="stable")
    row_at = np.empty(len(order), np.int64)
    row_at[order] = np.arange(len(order))
    told = {label.owner: (order, np.arange(len(order)))}
    for party, one in lists.items():
        if party == label.owner:
            continue
        at_label, at_party = common_places([label.points, one.points])
        rows = row_at[at_label]
        ascending = np.argsort(rows, kind="stable")
        told[party] = at_party[ascending], rows[ascending]
    return {party: told[party] for party in session.parties}
