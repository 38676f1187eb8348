"""Bugs of data, callbacks, studies, exported models, recipes and federations."""

from tests.bugs.bug import Bug

USE = (
    # data
    Bug(
        "lightning_vfl/protocols/loading.py",
        "    if position and len(loaders) == 1:",
        "    if position and len(loaders) > 1:",
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
        "rounded_up(max((accountant.reserve(event, ids, self.delta, self.unit) for event in events), default=0.0))",
        "rounded_up(min((accountant.reserve(event, ids, self.delta, self.unit) for event in events), default=0.0))",
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
        "flat = ((flat - self.shift) / self.scale).float()",
        "flat = (flat.float() - self.shift.float()) / self.scale.float()",
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
)
