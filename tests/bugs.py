"""Bugs to plant: what ``tests/planted_bugs.py`` demands that the tests catch."""

from typing import NamedTuple


class Bug(NamedTuple):
    """One planted bug.

    Args:
        file: from the root of the checkout.
        text: code that occurs once in the file.
        instead: what stands there when the bug is planted.
        wrong: what the bug does.
        tests: files or tests below ``tests`` of which one has to fail, separated by spaces.
    """

    file: str
    text: str
    instead: str
    wrong: str
    tests: str


BUGS = (
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
        "bound = self.field.half // summands\n        if reach <= bound:",
        "bound = -(-self.field.half // summands)\n        if reach <= bound:",
        "the largest part of a sum that may not wrap around is rounded up",
        "unit/field/test_fixed_point.py unit/aggregators/test_lagrange_coded.py",
    ),
    Bug(
        "lightning_vfl/field/gao.py",
        "correctable = (n - size) // 2",
        "correctable = (n - size + 1) // 2",
        "the decoder corrects one wrong upload more than the code allows",
        "unit/field/test_gao.py",
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
        "mean = self.scale.codec(field, view.agreed).dequantise(wanted) / len(view.roll.included_parties)",
        "mean = self.scale.codec(field, view.agreed).dequantise(wanted) / m",
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
        "self.seed = secrets.seeds[1]",
        "self.seed = secrets.seeds[0]",
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
        "lightning_vfl/privacy/loss_blocks.py",
        "every[:, 2 * self._half : 2 * self._half + last.size].max(axis=0)",
        "every[:, 2 * self._half : 2 * self._half + last.size].min(axis=0)",
        "other parties' values are those that cost least",
        "unit/privacy/test_loss_distribution.py",
    ),
    Bug(
        "lightning_vfl/privacy/loss_distribution.py",
        "parts += [(_block(kinds, spacing, longest, rest), 1)] if rest else []",
        "parts += [(_block(kinds, spacing, longest, rest), 1)] if not times else []",
        "numbers beyond whole blocks are not charged",
        "unit/privacy/test_loss_distribution.py",
    ),
    # protocols
    Bug(
        "lightning_vfl/protocols/training.py",
        "            self.bottoms.withhold(set(range(self.roster.parties)).difference(step.learners))\n",
        "            pass\n",
        "an absent party's optimiser takes a step with the gradients of zeros",
        "unit/protocols/test_faulty_rounds.py",
    ),
    Bug(
        "lightning_vfl/rounds/plan.py",
        "learners = included & backward.receives & backward.links[:, 0]",
        "learners = included & backward.receives",
        "a party learns from an answer that its connection has lost",
        "unit/rounds/test_plan.py",
    ),
    Bug(
        "lightning_vfl/protocols/training.py",
        'seed_torch(self.device, self.seed, "networks", stage, number, self.global_rank)',
        'seed_torch(self.device, self.seed, "networks", stage, number)',
        "dropout inside the networks is the same in every process",
        "unit/protocols/test_split.py",
    ),
    Bug(
        "lightning_vfl/protocols/cascade/protocol.py",
        "scale = message.amplification * self._weights[party]",
        "scale = message.amplification",
        "the loss of an active party is not weighted by its share of the labels",
        "unit/protocols/cascade/test_cascade.py",
    ),
    Bug(
        "lightning_vfl/protocols/cascade/protocol.py",
        "self.memory.replicas.refresh(party, returned)",
        "self.memory.replicas.refresh(party, True)",
        "an active party whose answer was lost begins with the new top all the same",
        "unit/protocols/cascade/test_cascade_faults.py",
    ),
    Bug(
        "lightning_vfl/protocols/cascade/counts.py",
        "    sent_back: dict[int, bool] = field(default_factory=dict)\n",
        "    sent_back = dict[int, bool]()\n",
        "a resumed run has forgotten to which active parties the top was sent back",
        "unit/protocols/cascade/test_cascade_resume.py",
    ),
    Bug(
        "lightning_vfl/protocols/decoupled/learners.py",
        "return None if known is None else known.to(x.dtype)",
        "return None if known is None else torch.ones_like(known, dtype=x.dtype)",
        "hosts learn from records of which they have been told nothing",
        "unit/protocols/decoupled/test_decoupled.py unit/protocols/decoupled/test_decoupled_faults.py",
    ),
    Bug(
        "lightning_vfl/protocols/decoupled/replay.py",
        "known[own[:rows]] = True",
        "known[own] = True",
        "records behind the end of a stale register count as known",
        "unit/protocols/decoupled/test_replay.py",
    ),
    Bug(
        "lightning_vfl/protocols/asynchronous.py",
        "back = self.faults.at(2 * event.request + 1, self.roster)",
        "back = self.faults.at(2 * event.request, self.roster)",
        "the way back has the faults of the way there",
        "unit/protocols/test_asynchronous.py",
    ),
    # simulation
    Bug(
        "lightning_vfl/simulation/crashes.py",
        "odd = (dies & revives & later).sum(0) % 2 == 1",
        "odd = (dies & revives).sum(0) % 2 == 1",
        "exchanges of states before the last settling draw are counted too",
        "unit/simulation/test_crashes.py",
    ),
    Bug(
        "lightning_vfl/simulation/party_dropout.py",
        "floor(self.proportion * len(passive) + 0.5 + 1e-9)",
        "round(self.proportion * len(passive))",
        "halves of a party are rounded to the even number",
        "unit/simulation/test_party_dropout.py",
    ),
    Bug(
        "lightning_vfl/schedules/arrivals.py",
        "self.faults.hosts_at(2 * number + 1, self.roster)[0]",
        "self.faults.hosts_at(2 * request + 1, self.roster)[0]",
        "the server's crashes are looked up by the party's events, not by the server's",
        "unit/schedules/test_arrivals.py",
    ),
    # waiting and missing
    Bug(
        "lightning_vfl/waiting.py",
        "n = min(self.n, _called(arrivals))",
        "n = min(self.n, len(arrivals))",
        "the server waits for parties that it has not called",
        "unit/test_waiting.py",
    ),
    Bug(
        "lightning_vfl/protocols/cascade/memory.py",
        "                self.latest.write(message.ids, message.party, message.h)\n",
        "                pass\n",
        "an embedding that comes late is not remembered",
        "unit/protocols/cascade/test_cascade_faults.py",
    ),
    # data
    Bug(
        "datamodules/batched.py",
        "            if self.trainer is not None and self.trainer.ckpt_path is not None:",
        "            if self.trainer is None:",
        "a queue of events begins anew when a fit is resumed from the end of an epoch",
        "integration/test_resume.py",
    ),
    Bug(
        "datamodules/split.py",
        "cut(rest, val / (1 - test),",
        "cut(rest, val,",
        "the validation share is one of what the test has left",
        "unit/datamodules/test_split.py",
    ),
    Bug(
        "datamodules/partitioners/importance.py",
        "(count - 1) / (2 * records)",
        "(count - 1) / records",
        "mutual information is corrected by twice its bias",
        "unit/datamodules/partitioners/test_importance.py",
    ),
    Bug(
        "datamodules/records/normalise.py",
        "values = torch.arange(256).float().div_(255).double()",
        "values = torch.arange(256).float().div_(256).double()",
        "pixels are counted as parts of 256",
        "unit/datamodules/records/test_normalise.py",
    ),
    Bug(
        "datamodules/loader.py",
        "if self.offset > 0 and not self._restored:",
        "if self.offset > 0:",
        "a resumed run begins with the next epoch, not in the middle of its own",
        "unit/datamodules/test_loader.py",
    ),
    # callbacks
    Bug(
        "callbacks/privacy_budget.py",
        "return max((accountant.reserve(event, ids, self.delta, self.unit) for event in events), default=0.0)",
        "return min((accountant.reserve(event, ids, self.delta, self.unit) for event in events), default=0.0)",
        "a budget asks for the event that may cost least",
        "unit/callbacks/test_privacy_budget.py",
    ),
    Bug(
        "callbacks/history.py",
        "learnt, self._given_up = given_up == self._given_up, given_up",
        "learnt, self._given_up = True, given_up",
        "a round that was given up is recorded with the loss of the round before",
        "unit/callbacks/test_history.py",
    ),
    # studies
    Bug(
        "lightning_vfl/study/targets.py",
        "points[values <= goal if target.falls else values >= goal]",
        "points[values <= goal if target.falls else values > goal]",
        "a value that is just at its target does not reach it",
        "unit/study/test_targets.py",
    ),
    Bug(
        "lightning_vfl/study/bands.py",
        'side="right") - 1',
        'side="left") - 1',
        "at a point of a curve, the value before that point is drawn",
        "unit/study/test_bands.py",
    ),
    # exported models
    Bug(
        "lightning_vfl/export/programs.py",
        "        _copy_numbers(program)\n",
        "",
        "the file of a party has the scaling of all parties",
        "integration/test_export.py::test_no_half_has_the_weights_or_the_scaling_of_another",
    ),
    Bug(
        "lightning_vfl/export/halves.py",
        "((features.flatten(1) - self.shift) / self.scale).float()",
        "(features.flatten(1).float() - self.shift.float()) / self.scale.float()",
        "an exported half scales in float32",
        "unit/export/test_halves.py",
    ),
    Bug(
        "lightning_vfl/export/manifest.py",
        "if hash_of(path) != program.sha256:",
        "if not program.sha256:",
        "a program that was changed after the export is run",
        "integration/test_export.py::test_files_that_do_not_belong_together_are_refused",
    ),
    Bug(
        "lightning_vfl/export/score.py",
        "own.features(places[there])",
        "own.features(np.flatnonzero(there))",
        "the tables of the parties are joined by position",
        "integration/test_export.py::test_score_is_predict_on_tables_with_categories",
    ),
    # recipes
    Bug(
        "configs/studies/all_data.yaml",
        "FashionMNIST, vfedsec: {recipes: [data/fashion_mnist, protocol/vfedsec], settings: {data.batch_size: 256,",
        "FashionMNIST, vfedsec: {recipes: [data/fashion_mnist, protocol/vfedsec], settings: {data.batchsize: 256,",
        "one of 35 cells of a study has an option that does not exist",
        "integration/test_study.py::test_what_is_packaged_and_what_the_docs_show_can_be_run",
    ),
    Bug(
        "configs/studies/dvfl_table1.yaml",
        "guests, rejoin 0.1: {trainer.callbacks+: {class_path: Crashes, init_args: {what: guests,",
        "guests, rejoin 0.1: {trainer.callbacks+: {class_path: Crashes, init_args: {who: guests,",
        "an override of a study gives a fault a setting that it does not have",
        "integration/test_study.py::test_what_is_packaged_and_what_the_docs_show_can_be_run",
    ),
    Bug(
        "configs/faults/dvfl_host_crashes.yaml",
        "down: 0.3",
        "down: 0.0",
        "a recipe of crashes in which nothing crashes",
        "integration/test_recipes.py::test_fault_recipes",
    ),
    # federation
    Bug(
        "lightning_vfl/federation/attendance.py",
        "lambda: began + closing[0] if isfinite(closing[0]) else None",
        "lambda end=began + closing[0]: end if isfinite(end) else None",
        "a party that stays silent delays a round beyond the deadline of the waiting rule",
        "unit/federation/test_attendance.py",
    ),
    Bug(
        "lightning_vfl/federation/calls.py",
        "self.holds = True",
        "self.holds = False",
        "a party behind a slow link always asks too late whether it is called",
        "unit/federation/test_calls.py",
    ),
    Bug(
        "lightning_vfl/federation/hub.py",
        "return self.present(party) and desk.called in (None, self.process(party))",
        "return self.present(party)",
        "a process that is started again takes the place of the one that was called, without its keys",
        "unit/federation/test_calls.py unit/federation/test_attendance.py",
    ),
    # sums over the batch
    Bug(
        "lightning_vfl/crypto/paillier.py",
        "mine = buckets[w < 0]",
        "mine = buckets[0]",
        "negative columns count as positive ones in encrypted sums",
        "unit/crypto/test_paillier.py",
    ),
    Bug(
        "lightning_vfl/rounds/exchange.py",
        "if leaves[m].requires_grad and self.sends_gradients:",
        "if leaves[m].requires_grad:",
        "an audit hears gradients that are not sent",
        "unit/downlinks/test_summed_gradients.py",
    ),
    # another device
    Bug(
        "lightning_vfl/protocols/base.py",
        'with nullcontext() if torch.get_default_device().type == "cpu" else torch.device("cpu"):',
        "with nullcontext():",
        "masks of parties and initial weights are made on the trainer's device",
        "integration/test_another_device.py",
    ),
    Bug(
        "lightning_vfl/whole_files.py",
        'part = path.with_name(f".{path.name}.part")',
        "part = path",
        "a process that is killed leaves half a file in place of the old one",
        "unit/test_whole_files.py",
    ),
)
