"""What all hosts of a federation have agreed upon, for the checks of a process. It imports no torch, as its reader."""

from dataclasses import dataclass, field

MEBIBYTE = 2**20


@dataclass(frozen=True)
class Limits:
    """Sizes that all hosts have agreed upon: ``limits`` of ``federation.yaml``.

    Args:
        frame: MiB of the largest message of a party, as it travels and in memory. A server's answer can have the
            messages of all parties.
        columns: the largest number of values of a record at a party.
        value: the largest magnitude of a number of an embedding, a gradient or a real label.
        server_ids: how many ids of its own the server may have compared under ``alignment: psi``; 0: 1,000, or twice
            as many as the party has.
    """

    frame: int = 64
    columns: int = 2**18
    value: float = 1e9
    server_ids: int = 0

    @property
    def frame_bytes(self) -> int:
        """The largest message of a party, in bytes."""
        return self.frame * MEBIBYTE


@dataclass(frozen=True)
class Agreed:
    """What the checks of a process need to know of its federation.

    Args:
        names: of the parties.
        labels: the number of the party that has the labels; None: the server has them.
        limits: as agreed.
    """

    names: tuple[str, ...]
    labels: int | None = None
    limits: Limits = field(default_factory=Limits)

    @classmethod
    def of(cls, parties: int, limits: Limits | None = None) -> "Agreed":
        """M parties that are named by their numbers, with the labels at the server."""
        return cls(tuple(map(str, range(parties))), None, limits or Limits())

    def party(self, number: int) -> str:
        """A party by its name, for a line.

        Examples:
            >>> Agreed(("bank", "telco")).party(1)
            'party telco'
        """
        return f"party {self.names[number]}"
