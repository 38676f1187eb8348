"""How messages that hide numbers are run: as they are, or by the same integers without secrets."""

from enum import StrEnum

from lightning_vfl.checks import one_of


class Execution(StrEnum):
    """With the messages of the protocol, or by the same integers without secrets. It equals its string in recipes."""

    CODED = "coded"
    MASKED = "masked"
    EQUIVALENT = "equivalent"

    def __repr__(self) -> str:
        return repr(self.value)  # the printed form of an aggregator is the text of a recipe

    @classmethod
    def of(cls, text: str, protected: "Execution") -> "Execution":
        """The execution of a recipe, ``protected`` or ``equivalent``.

        Raises:
            ConfigurationError: for another text.
        """
        return cls(one_of("execution", text, (str(protected), str(cls.EQUIVALENT))))

    @property
    def equivalent(self) -> bool:
        """Whether nothing is hidden: the integers of the protocol are computed in one place."""
        return self is Execution.EQUIVALENT
