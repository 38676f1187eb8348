"""Labels from counts: a party subtracts the counts of labels in its bins from each other, and solves for the labels.

Every column of a party divides the same records anew. So each count is a sum of unknown labels, and with more counts
than records the labels follow from them.
"""

import numpy as np

from lightning_vfl.datamodules.records.weight_of_evidence import LabelCounts

BINS = 10


def recovered(release: float | str, records: int, columns: int, seed: int = 0) -> float:
    """The share of the labels of training records that a party with so many columns finds; half of them are 1."""
    generator = np.random.default_rng(seed)
    labels = generator.permutation(np.arange(records) % 2)
    counts = LabelCounts("bank", release, columns)
    equations = []
    told = []
    for column in range(columns):
        bins = generator.permutation(np.arange(records) * BINS // records)
        equations.append(np.arange(BINS)[:, None] == bins)
        told.append(counts.of("telco", str(column), labels, bins, BINS))
    matrix = np.concatenate(equations).astype(np.float64)
    solution = np.linalg.lstsq(matrix, np.concatenate(told) - matrix.sum(1) / 2)[0]
    return float(((solution > 0) == labels).mean())
