"""How many examples a property test tries."""

from hypothesis import settings

EXAMPLES = 50  # of a test that does not say how many; profile ci tries half of them, profile fuzz ten times as many


def examples(number: int) -> settings:
    """``@settings`` with this number of examples: half of them in profile ``ci``, ten times as many in ``fuzz``.

    ``@settings(max_examples=...)`` would give the same number in every profile.
    """
    return settings(max_examples=max(1, number * settings().max_examples // EXAMPLES))
