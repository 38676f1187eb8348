"""What an ε is worth, in words."""

STRONG = 1.0
WEAK = 10.0  # the largest ε of each


def verdict(epsilon: float) -> str:
    """``strong``, ``weak`` or ``protects nothing``.

    The bounds are this project's own convention. No theorem stands behind them: what an ε protects depends on its unit,
    its δ and the data.

    Examples:
        >>> verdict(1.0), verdict(8.0), verdict(94.4)
        ('strong', 'weak', 'protects nothing')
    """
    if epsilon <= STRONG:
        return "strong"
    return "weak" if epsilon <= WEAK else "protects nothing"
