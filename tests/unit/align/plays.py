"""Alignments without files: all parties and the comparer in one process, with randomness that a seed fixes."""

from collections.abc import Callable, Mapping, Sequence
from hashlib import shake_256

from lightning_vfl.align.ids import messages_of
from lightning_vfl.align.matching import Rows, matched
from lightning_vfl.align.ring import PointList, Secret, masked, passed
from lightning_vfl.align.session import COMPARER, Session


def seeded(*names: object) -> Callable[[int], bytes]:
    """Random bytes that depend on names alone, in place of those of the system."""
    drawn = 0

    def entropy(size: int) -> bytes:
        nonlocal drawn
        drawn += 1
        return shake_256(repr((names, drawn)).encode()).digest(size)

    return entropy


class Play:
    """An alignment, with all that anybody has seen.

    Args:
        session: what the parties agree upon.
        tables: party -> the ids of its records; with several keys a tuple of ids for each record, None: missing.
        seed: of keys, orders and random points.
        pads: party -> the length of its list.
    """

    def __init__(
        self,
        session: Session,
        tables: Mapping[str, Sequence[object]],
        seed: object = 0,
        pads: Mapping[str, int] | None = None,
    ) -> None:
        self.session = session
        self.secrets: dict[str, Secret] = {}
        self.seen: dict[str, list[PointList]] = {party: [] for party in (*session.parties, COMPARER)}
        for party in session.parties:
            records = [one if isinstance(one, tuple) else (one,) for one in tables[party]]
            columns = [[[None if row[k] is None else str(row[k]) for row in records]] for k in range(len(session.keys))]
            messages = messages_of(columns, session.normalise, party)
            secret = Secret.make(session, party, len(messages), (pads or {}).get(party), seeded(seed, party))
            self.secrets[party] = secret
            travelling = masked(secret, messages)
            self.seen[travelling.receiver].append(travelling)
        for _ in session.parties[1:]:
            for party in session.parties:
                for given in [one for one in self.seen[party] if one.receiver == party]:
                    done = passed(self.secrets[party], given)
                    if not any((done.owner, done.used) == (o.owner, o.used) for o in self.seen[done.receiver]):
                        self.seen[done.receiver].append(done)
        self.told: dict[str, Rows] = matched(self.seen[COMPARER])

    def taken(self, party: str) -> dict[int, int]:
        """Row number -> record of the party's table."""
        secret, told = self.secrets[party], self.told[party]
        records = secret.order[told.places]
        pairs = zip(told.rows.tolist(), records.tolist(), strict=True)
        return {row: record for row, record in pairs if record < secret.records}
