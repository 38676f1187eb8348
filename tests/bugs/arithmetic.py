"""Bugs of the exact arithmetic, of keys and masks, of aggregators and of privacy figures."""

from tests.bugs.bug import Bug

ARITHMETIC = (
    # field
    Bug(
        "lightning_vfl/field/lagrange.py",
        "difference = difference * (xj - xi) % p",
        "difference = difference * (xi - xj) % p",
        "the sign of a Lagrange weight is wrong for an even number of points",
        "unit/field/test_lagrange.py",
    ),
    Bug(
        "lightning_vfl/field/fixed_point.py",
        "return below.to(torch.int64) + (scaled - below >= 0.5)",
        "return below.to(torch.int64) + (scaled - below > 0.5)",
        "data that lie halfway between two integers are rounded down",
        "unit/field/test_fixed_point.py",
    ),
    Bug(
        "lightning_vfl/field/fixed_point.py",
        "bound = self.field.half // summands\n        if reach > bound:",
        "bound = -(-self.field.half // summands)\n        if reach > bound:",
        "the largest part of a sum that may not wrap around is rounded up",
        "unit/field/test_fixed_point.py unit/aggregators/test_lagrange_coded.py",
    ),
    Bug(
        "lightning_vfl/field/reed_solomon.py",
        "correctable = (n - size) // 2",
        "correctable = (n - size + 1) // 2",
        "the decoder corrects one wrong upload more than the code allows",
        "unit/field/test_reed_solomon.py",
    ),
    Bug(
        "lightning_vfl/field/code.py",
        "return degree * (self.blocks + self.privacy - 1) + 1",
        "return degree * (self.blocks + self.privacy - 1) + 2",
        "the server waits for one share more than the polynomial's degree asks for",
        "unit/field/test_code.py",
    ),
    # crypto
    Bug(
        "lightning_vfl/crypto/pair_masks.py",
        "1 if party < other else -1",
        "1 if party < other else 1",
        "both parties of a pair add the keystream, and masks do not cancel",
        "unit/crypto/test_pair_masks.py",
    ),
    Bug(
        "lightning_vfl/crypto/pair_masks.py",
        "if round <= progress.last:",
        "if round < progress.last:",
        "the same round may be masked twice with the same keystream",
        "unit/crypto/test_pair_masks.py",
    ),
    Bug(
        "lightning_vfl/crypto/keys.py",
        'pair = ("lightning_vfl pair", low, high, self.publics[low], self.publics[high])',
        'pair = ("lightning_vfl pair", low, high)',
        "derived keys do not depend on the public keys of the pair",
        "unit/crypto/test_keys.py",
    ),
    # aggregators
    Bug(
        "lightning_vfl/aggregators/plain.py",
        "return total / _there(present, counted).sum(1, keepdim=True).clamp(min=1)",
        "return total / present.sum(1, keepdim=True).clamp(min=1)",
        "the mean is divided by the holders of a record, also by those who are absent",
        "unit/aggregators/test_contract.py",
    ),
    Bug(
        "lightning_vfl/aggregators/coded/products.py",
        "mean = codec.dequantise(wanted) / len(view.roll.included_parties)",
        "mean = codec.dequantise(wanted) / view.roster.parties",
        "the decoded sum is divided by all parties, not by those in the sum",
        "unit/aggregators/test_lagrange_coded.py",
    ),
    Bug(
        "lightning_vfl/aggregators/poisson_binomial.py",
        "return PoissonBinomialEvent(self.codec.levels, self.codec.beta, min(members), width * segments)",
        "return PoissonBinomialEvent(self.codec.levels, self.codec.beta, min(members), width)",
        "of several segments, the event counts the coordinates of one",
        "unit/callbacks/test_privacy_budget.py",
    ),
    Bug(
        "lightning_vfl/aggregators/secure/recovery.py",
        "own_mask(secrets.seeds[1], names)",
        "own_mask(secrets.seeds[0], names)",
        "a party's own mask is made from the secret that is revealed when the party is lost",
        "unit/aggregators/secure/test_recovery.py",
    ),
    # privacy
    Bug(
        "lightning_vfl/privacy/rdp.py",
        "return tuple(up(fsum(up(curve[i] * count) for curve, count in some)) for i in orders)",
        "return tuple(up(fsum(curve[i] * count for curve, count in some)) for i in orders)",
        "a product of a privacy figure is rounded to the nearest number, not up",
        "unit/privacy/test_rdp.py",
    ),
    Bug(
        "lightning_vfl/privacy/accountant.py",
        "self._rows(np.concatenate(self._log[upto:]))",
        "self._rows(np.concatenate(self._log[-1:]))",
        "of several rounds since the last figure, only the records of the last round are priced",
        "unit/privacy/test_accountant.py",
    ),
    Bug(
        "lightning_vfl/privacy/solve.py",
        "while high <= most and met(high):",
        "while high < most and met(high):",
        "the largest setting that is allowed is never found",
        "unit/privacy/test_solve.py",
    ),
    Bug(
        "lightning_vfl/privacy/loss_distribution.py",
        "poisson_binomial_profiles(*kind, losses).max(axis=0)",
        "poisson_binomial_profiles(*kind, losses).min(axis=0)",
        "other parties' values are those that cost least",
        "unit/privacy/test_loss_distribution.py",
    ),
    Bug(
        "lightning_vfl/privacy/loss_distribution.py",
        "several = [one.self_compose(count) for one, count in parts]",
        "several = [one.self_compose(count) for one, count in parts[:1]]",
        "of several kinds of releases, only the first is charged",
        "unit/privacy/test_loss_distribution.py",
    ),
    Bug(
        "lightning_vfl/rounds/exchange.py",
        "return value.clone()",
        "return value",
        "a top writes into what an audit keeps",
        "unit/audit/test_transcript.py",
    ),
    Bug(
        "lightning_vfl/audit/attacks/model_completion.py",
        "with torch.no_grad(), evaluating(bottom):",
        "with torch.no_grad():",
        "an audit changes the running statistics of the trained model",
        "unit/audit/test_attacks.py",
    ),
)
