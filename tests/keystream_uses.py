"""Which blocks of keystream a run masks with: recorded from outside, and searched for blocks that are used twice."""

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from hashlib import sha256
from itertools import pairwise
from typing import Any, NamedTuple
from unittest.mock import patch

from lightning_vfl.aggregators.secure.recovery import Vault, unmask
from lightning_vfl.crypto import PairKeystream, PairMasks
from lightning_vfl.crypto.keystream import BLOCK
from lightning_vfl.crypto.pair_masks import ROUNDS


class Use(NamedTuple):
    """Blocks ``start`` to ``stop`` (exclusive) of a keystream, handed out to a party.

    Args:
        party: who has masked with them.
        key: a name of the key that does not give it away; equal for equal keys.
        start: the counter block as a number: round · 2^64 + number of the block.
        stop: the first counter block behind.
    """

    party: int
    key: str
    start: int
    stop: int


def reused(uses: Iterable[Use]) -> list[tuple[Use, Use]]:
    """Where a party has used some block twice, or a third party a pair's key: empty if and only if nobody has.

    The two ends of a pair use the same blocks by design, once each.

    Examples:
        >>> first, second = Use(0, "key", 0, 4), Use(0, "key", 3, 5)
        >>> reused([first, second]) == [(first, second)], reused([first, second._replace(party=1)])
        (True, [])
    """
    by_key: dict[str, dict[int, list[Use]]] = defaultdict(lambda: defaultdict(list))
    for use in uses:
        by_key[use.key][use.party].append(use)
    found = []
    for by_party in by_key.values():
        if len(by_party) > 2:
            strangers = [own[0] for own in by_party.values()]
            found += [(strangers[0], stranger) for stranger in strangers[2:]]
        for own in by_party.values():  # if any two overlap, then two neighbours do
            found += [(one, other) for one, other in pairwise(sorted(own)) if other.start < one.stop]
    return found


@contextmanager
def recorded(party: int | None = None) -> Iterator[list[Use]]:
    """The blocks of keystream that parties use to mask, in order.

    What the server uses to remove masks is not recorded.

    Args:
        party: the party to record for keystreams that are used directly; None: these are not recorded.
    """
    uses: list[Use] = []
    masking: list[int | None] = [party]
    names: dict[int, str] = {}  # by the keystream's identity
    owners: dict[int, int] = {}  # the same
    kept: list[PairKeystream] = []  # so that no identity is given twice

    def as_party(whose: Callable[..., int | None], method: Callable[..., Any]) -> Callable[..., Any]:
        def masked(self: Any, *arguments: Any) -> Any:
            masking.append(None if masking[-1] is None and len(masking) > 1 else whose(self, *arguments))
            try:
                return method(self, *arguments)
            finally:
                masking.pop()

        return masked

    def undoing(*arguments: Any) -> Any:
        masking.append(None)
        try:
            return undo(*arguments)
        finally:
            masking.pop()

    def made(self: PairKeystream, key: bytes, *arguments: Any) -> None:
        make(self, key, *arguments)
        names[id(self)] = sha256(b"lightning_vfl ledger" + key).hexdigest()[:16]
        kept.append(self)

    def handed_out(self: PairMasks, *arguments: Any) -> dict[int, PairKeystream]:
        streams = keystreams(self, *arguments)
        owners.update({id(stream): self.keys.party for stream in streams.values()})
        return streams

    def note(stream: PairKeystream, values: Any, round: int) -> None:
        user = owners.get(id(stream)) if masking == [None] else masking[-1]
        if user is not None and values.nbytes:
            start = round * ROUNDS
            uses.append(Use(user, names[id(stream)], start, start + (values.nbytes + BLOCK - 1) // BLOCK))

    def added(self: PairKeystream, values: Any, round: int, sign: int = 1) -> None:
        add(self, values, round, sign)
        note(self, values, round)

    def added_between(self: PairKeystream, plus: Any, minus: Any, round: int, twin: PairKeystream) -> None:
        between(self, plus, minus, round, twin)
        note(self, plus, round)
        note(twin, minus, round)

    make, add, undo = PairKeystream.__init__, PairKeystream.add_to, unmask
    between, keystreams = PairKeystream.add_between, PairMasks.keystreams
    pairs = as_party(lambda masks, *_: masks.keys.party, PairMasks.add_to)
    own = as_party(lambda vault, party, *_: party, Vault.mask)
    with (
        patch.object(PairKeystream, "__init__", made),
        patch.object(PairKeystream, "add_to", added),
        patch.object(PairKeystream, "add_between", added_between),
        patch.object(PairMasks, "keystreams", handed_out),
        patch.object(PairMasks, "add_to", pairs),
        patch.object(Vault, "mask", own),
        patch("lightning_vfl.aggregators.secure.ring_sums.unmask", undoing),
    ):
        yield uses
