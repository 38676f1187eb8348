"""What vFedSec reports in its Tables 1, 2, 4 and 5: 1 set-up and 5 rounds, mean of 10 experiments.

Qiu et al., "Secure Vertical Federated Learning Under Unreliable Connectivity".
"""

from typing import NamedTuple


class Entry(NamedTuple):
    """Training total and overhead, testing total and overhead."""

    training: float
    training_overhead: float
    testing: float
    testing_overhead: float


OURS, SEAL, PHE = "ours", "SEAL", "PHE"
ACTIVE, PASSIVE = "active", "passive"

# (data, method, party) -> seconds
CPU: dict[tuple[str, str, str], Entry] = {
    # Table 1
    ("Bank", OURS, ACTIVE): Entry(1.044, 0.1881, 0.3057, 0.1864),
    ("Bank", OURS, PASSIVE): Entry(0.1633, 0.1089, 0.1363, 0.1075),
    ("Bank", SEAL, ACTIVE): Entry(1.075e3, 1.075e3, 1.075e3, 1.075e3),
    ("Bank", SEAL, PASSIVE): Entry(1.113e2, 1.113e2, 1.113e2, 1.113e2),
    ("Bank", PHE, ACTIVE): Entry(1.565e4, 1.565e4, 1.565e4, 1.565e4),
    ("Bank", PHE, PASSIVE): Entry(1.993e3, 1.993e3, 1.993e3, 1.993e3),
    ("Income", OURS, ACTIVE): Entry(0.7379, 0.1909, 0.2738, 0.1889),
    ("Income", OURS, PASSIVE): Entry(0.1588, 0.1143, 0.1413, 0.1124),
    ("Income", SEAL, ACTIVE): Entry(5.093e2, 5.092e2, 5.093e2, 5.092e2),
    ("Income", SEAL, PASSIVE): Entry(3.885e2, 3.884e2, 3.884e2, 3.884e2),
    ("Income", PHE, ACTIVE): Entry(7.413e3, 7.413e3, 7.413e3, 7.413e3),
    ("Income", PHE, PASSIVE): Entry(6.853e3, 6.853e3, 6.853e3, 6.853e3),
    ("EMNIST, CNN", OURS, ACTIVE): Entry(1.040, 0.3334, 0.6671, 0.3300),
    ("EMNIST, CNN", OURS, PASSIVE): Entry(0.8538, 0.2314, 0.5386, 0.2314),
    ("Fashion, CNN", OURS, ACTIVE): Entry(1.016, 0.3240, 0.6286, 0.3189),
    ("Fashion, CNN", OURS, PASSIVE): Entry(0.8504, 0.2301, 0.5282, 0.2300),
    # Table 4
    ("EMNIST, MLP", OURS, ACTIVE): Entry(0.5551, 0.3282, 0.4786, 0.3277),
    ("EMNIST, MLP", OURS, PASSIVE): Entry(0.4000, 0.1949, 0.3423, 0.1949),
    ("Fashion, MLP", OURS, ACTIVE): Entry(0.5438, 0.3304, 0.4723, 0.3301),
    ("Fashion, MLP", OURS, PASSIVE): Entry(0.3947, 0.2003, 0.3338, 0.2003),
}
# (data, method, party) -> "MB", which are 2^20 bytes: 5 embeddings of 256 x 64 float32 are its 0.31
MIB: dict[tuple[str, str, str], Entry] = {
    # Table 2
    ("Bank", OURS, ACTIVE): Entry(0.88, 0.14, 0.57, 0.14),
    ("Bank", OURS, PASSIVE): Entry(0.79, 0.13, 0.44, 0.13),
    ("Bank", SEAL, ACTIVE): Entry(8.41, 7.67, 8.10, 7.67),
    ("Bank", SEAL, PASSIVE): Entry(8.32, 7.57, 7.97, 7.57),
    ("Bank", PHE, ACTIVE): Entry(68.70, 67.95, 68.38, 67.95),
    ("Bank", PHE, PASSIVE): Entry(68.60, 67.85, 68.26, 67.85),
    ("Income", OURS, ACTIVE): Entry(0.88, 0.14, 0.57, 0.14),
    ("Income", OURS, PASSIVE): Entry(0.85, 0.13, 0.44, 0.13),
    ("Income", SEAL, ACTIVE): Entry(8.41, 7.67, 8.10, 7.67),
    ("Income", SEAL, PASSIVE): Entry(8.39, 7.57, 7.97, 7.57),
    ("Income", PHE, ACTIVE): Entry(68.70, 67.95, 68.38, 67.95),
    ("Income", PHE, PASSIVE): Entry(68.67, 67.85, 68.26, 67.85),
}
for _data in ("EMNIST", "Fashion"):  # the paper prints the same figures for both
    for _party in (ACTIVE, PASSIVE):
        CPU[f"{_data}, CNN", SEAL, _party] = Entry(7.918e4, 7.918e4, 7.918e4, 7.918e4)
        CPU[f"{_data}, CNN", PHE, _party] = Entry(1.153e6, 1.153e6, 1.153e6, 1.153e6)
        CPU[f"{_data}, MLP", SEAL, _party] = Entry(1.207e3, 1.207e3, 1.207e3, 1.207e3)
        CPU[f"{_data}, MLP", PHE, _party] = Entry(1.757e4, 1.757e4, 1.757e4, 1.757e4)
    # Table 2
    MIB[f"{_data}, CNN", OURS, ACTIVE] = Entry(6.24, 0.21, 3.31, 0.21)
    MIB[f"{_data}, CNN", OURS, PASSIVE] = Entry(5.99, 0.05, 3.06, 0.05)
    MIB[f"{_data}, CNN", SEAL, ACTIVE] = Entry(76.85, 70.82, 73.92, 70.82)
    MIB[f"{_data}, CNN", SEAL, PASSIVE] = Entry(76.60, 70.66, 73.67, 70.66)
    MIB[f"{_data}, CNN", PHE, ACTIVE] = Entry(641.98, 635.95, 639.05, 635.95)
    MIB[f"{_data}, CNN", PHE, PASSIVE] = Entry(641.73, 635.79, 638.80, 635.79)
    # Table 5
    MIB[f"{_data}, MLP", OURS, ACTIVE] = Entry(1.63, 0.21, 1.01, 0.21)
    MIB[f"{_data}, MLP", OURS, PASSIVE] = Entry(1.38, 0.05, 0.75, 0.05)
    MIB[f"{_data}, MLP", SEAL, ACTIVE] = Entry(16.70, 15.27, 16.07, 15.27)
    MIB[f"{_data}, MLP", SEAL, PASSIVE] = Entry(16.44, 15.12, 15.82, 15.12)
    MIB[f"{_data}, MLP", PHE, ACTIVE] = Entry(137.26, 135.83, 136.63, 135.83)
    MIB[f"{_data}, MLP", PHE, PASSIVE] = Entry(137.01, 135.68, 136.38, 135.68)
