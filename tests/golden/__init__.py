"""Golden runs: small seeded trainings whose bits are committed. A change that moves a bit has to say so.

``python -m tests.golden`` trains every case and compares it with golden.json; ``--write`` makes the file anew.
"""
