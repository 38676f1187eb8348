"""The privacy account of a training: checks, planned releases, charges, accountant and ledger."""
