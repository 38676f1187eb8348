"""Made-up people in two tables, with typing errors: nothing here is a real name."""

from dataclasses import dataclass

import numpy as np

CONSONANTS, VOWELS = "bdfgklmnprstvz", "aeiou"
LETTERS = "abcdefghijklmnopqrstuvwxyz"


@dataclass(frozen=True)
class People:
    """Two tables: columns of texts, and the person of each record.

    Args:
        first: columns of the first party.
        second: columns of the second party.
        first_person: (n,) the number of each person.
        second_person: (m,) as above.
        surnames: all surnames, the most frequent first.
    """

    first: list[list[str]]
    second: list[list[str]]
    first_person: np.ndarray
    second_person: np.ndarray
    surnames: list[str]


def names(draw, count, syllables):
    """Different made-up names."""
    found = {}
    while len(found) < count:
        parts = [draw.choice(list(CONSONANTS)) + draw.choice(list(VOWELS)) for _ in range(syllables)]
        found["".join(parts) + draw.choice(["", "n", "r", "s"])] = None
    return list(found)


def zipf(draw, values, count):
    """Draws in which the k-th value is k times as rare as the first."""
    weights = 1 / np.arange(1, len(values) + 1)
    return [values[place] for place in draw.choice(len(values), count, p=weights / weights.sum())]


def mistyped(draw, text):
    """The text with one error: a letter left out, doubled, changed, or two that change places."""
    place = int(draw.integers(0, len(text) - 1))
    kind = int(draw.integers(0, 4))
    if kind == 0:
        return text[:place] + text[place + 1 :]
    if kind == 1:
        return text[:place] + text[place] + text[place:]
    if kind == 2:
        return text[:place] + LETTERS[int(draw.integers(0, 26))] + text[place + 1 :]
    return text[:place] + text[place + 1] + text[place] + text[place + 2 :]


def people(records=1000, common=500, seed=0, errors=0.4):
    """Two tables of so many records, so many people in both; that share of the second table's records has errors.

    A record is a first name, a surname, a day of birth and an address. One in five errors is a second error.
    """
    draw = np.random.default_rng(seed)
    persons = 2 * records - common
    given, surnames, streets = names(draw, 150, 2), names(draw, 400, 3), names(draw, 200, 4)
    days = draw.integers(0, 365 * 60, persons)
    born = [str(np.datetime64("1945-01-01") + int(day)) for day in days]
    columns = [zipf(draw, given, persons), zipf(draw, surnames, persons), born]
    columns.append([f"{street} {draw.integers(1, 90)}" for street in zipf(draw, streets, persons)])
    one, other = draw.permutation(records), draw.permutation(np.arange(persons - records, persons))
    second = [[column[person] for person in other] for column in columns]
    for record in range(records):
        while draw.random() < errors:
            column = int(draw.integers(0, 4))
            second[column][record] = mistyped(draw, second[column][record])
            if draw.random() < 0.8:
                break
    return People([[column[person] for person in one] for column in columns], second, one, other, surnames)


def scores(found, first_person, second_person):
    """Recall and precision of pairs (places, places)."""
    right = sum(first_person[i] == second_person[j] for i, j in zip(*found, strict=True))
    common = len(set(first_person) & set(second_person))
    return right / common, right / max(1, len(found[0]))
