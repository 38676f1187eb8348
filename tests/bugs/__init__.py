"""Bugs to plant: what ``tests/planted_bugs.py`` demands that the tests catch."""

from tests.bugs.arithmetic import ARITHMETIC
from tests.bugs.authors import AUTHORS
from tests.bugs.bug import Bug
from tests.bugs.trainings import TRAININGS
from tests.bugs.use import USE

__all__ = ["BUGS", "Bug"]

BUGS = (*ARITHMETIC, *AUTHORS, *TRAININGS, *USE)
