"""One row of the table of attacks in docs/results/attacks.md."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Row:
    """The result of one attack.

    Args:
        attack: what the attacker does, in a few words.
        sees: the messages and knowledge that the attacker has.
        before: the success without the protection, with its unit.
        now: the success with the protection, or ``refused: `` and the setting that is refused.
        chance: the success of an attacker who sees nothing, with the same unit.
    """

    attack: str
    sees: str
    before: str
    now: str
    chance: str

    def markdown(self) -> str:
        """The row of a Markdown table."""
        return f"| {self.attack} | {self.sees} | {self.before} | {self.now} | {self.chance} |"
