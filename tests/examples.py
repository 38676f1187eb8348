"""How many examples a property test tries."""

from hypothesis import settings

EXAMPLES = 50  # of a test that does not say how many


def examples(number: int) -> settings:
    """``@settings`` with this number of examples, ten times as many in profile ``fuzz``.

    ``@settings(max_examples=...)`` would give the same number in every profile.
    """
    return settings(max_examples=number * settings().max_examples // EXAMPLES)
