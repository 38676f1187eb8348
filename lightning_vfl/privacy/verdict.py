"""What an ε is worth, in words."""

STRONG, WEAK = 1.0, 10.0  # the largest ε of each


def verdict(epsilon: float) -> str:
    """``strong``, ``weak`` or ``protects nothing``.

    References:
        Ponomareva et al., "How to DP-fy ML", JAIR 2023, https://arxiv.org/abs/2303.00654, section 5.2.1: strong formal
        guarantees up to 1, reasonable ones up to 10, above that weak to none.

    Examples:
        >>> verdict(1.0), verdict(8.0), verdict(94.4)
        ('strong', 'weak', 'protects nothing')
    """
    if epsilon <= STRONG:
        return "strong"
    return "weak" if epsilon <= WEAK else "protects nothing"
