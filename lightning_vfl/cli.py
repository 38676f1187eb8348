"""The entry point of ``lightning-vfl``."""

from collections.abc import Sequence

from lightning_vfl.commands.program import check, run

__all__ = ["check", "main", "run"]


def main(args: Sequence[str] | None = None) -> None:
    """The program: ``run`` without a result.

    Args:
        args: arguments of ``lightning-vfl``; default: those of the process.
    """
    run(args)
