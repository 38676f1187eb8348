"""What a worker process does before its first run."""

from importlib import import_module

from lightning_vfl.imports import no_collection
from lightning_vfl.orphans import end_with_parent, leave_interrupts_to_parent


def get_ready(parent: int, lock: str, module: str) -> None:
    """End with the parent process from now on, leave Ctrl-C to it, and import what runs need.

    Args:
        parent: the parent's number.
        lock: file that the parent holds locked as long as it lives.
        module: of the function that carries out a run.
    """
    leave_interrupts_to_parent()
    end_with_parent(parent, lock)
    with no_collection():
        import_module(module)
