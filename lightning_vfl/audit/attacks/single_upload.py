"""Features of a party from one upload of each record, as the server receives it."""

from dataclasses import dataclass, replace

from lightning_vfl.audit.attack import FromKnownRecords, Guesses, Known, NothingSeen, Seen, Target
from lightning_vfl.audit.attacks.regression import guesses_from_known
from lightning_vfl.audit.transcript import by_record


@dataclass
class SingleUpload(FromKnownRecords):
    """The first upload of every record by one party: an embedding, a noisy one, masked words, or a share.

    The attacker knows all features of some records at this party, and fits a ridge regression from the words of their
    uploads, as real numbers, to the features. A mask that hides an upload leaves R² at 0.

    Args:
        party: the attacked party.
        known: records whose features at this party the attacker knows.
        epoch: 1 for the first.
    """

    target = Target.FEATURES
    epoch: int = 1

    def reads(self, kind: str, way: str, sender: int | None, epoch: int) -> bool:
        return (way, sender, epoch) == ("up", self.party, self.epoch)

    def run(self, seen: Seen, known: Known) -> Guesses:
        uploads = []
        for entry in seen.transcript.find(way="up", sender=self.party, epoch=self.epoch):
            value = entry.value
            if value.dim() == 3 and value.shape[1] == len(entry.ids):  # segments, rows, columns
                value = value.transpose(0, 1).flatten(1)
            if value.dim() == 2 and len(value) == len(entry.ids):
                uploads.append(replace(entry, value=value))
        if not uploads:
            raise NothingSeen("no upload has a row for each record")
        kind = uploads[0].kind
        ids, rows = by_record(entry for entry in uploads if entry.kind == kind)
        return guesses_from_known(seen, known, ids, rows, f"one upload of a record ({kind})")
