"""``lightning-vfl privacy``: the figures of a recipe without training it, against those of the fit."""

import re
from dataclasses import replace

import pytest

from lightning_vfl.cli import main, run
from lightning_vfl.privacy import PoissonBinomialEvent, planned_epsilon, worst_figure

PBM = ["--config", "data/digits", "--config", "protocol/pbm", "--config", "trainer/cpu"]
SIMULATED = "simulated: anyone who knows the seed knows the draws"
QUIET = ["--trainer.logger", "false", "--trainer.enable_checkpointing", "false", "--summary.enabled", "false"]
EVENT = PoissonBinomialEvent(levels=16, beta=0.25, parties=4, coordinates=16)


@pytest.fixture(autouse=True)
def _elsewhere(tmp_path, monkeypatch):
    """A fit without a logger writes its recipe where it stands."""
    monkeypatch.chdir(tmp_path)


def test_the_table_is_what_the_fit_will_have_spent(capsys):
    main(["privacy", *PBM, "--trainer.max_epochs", "2", "--delta", "1e-5"])
    said = capsys.readouterr().out
    few = ["--data.batch_size", "512"]  # what an epoch costs does not depend on it
    done = run(["fit", *PBM, *QUIET, *few, "--trainer.max_epochs", "2", "--trainer.enable_progress_bar", "false"])
    figures = done.model.privacy.figures()
    assert SIMULATED not in said
    for unit, figure in done.model.privacy.tightest().items():
        assert unit in said
        assert str(figure) in said
        assert figure.epsilon <= figures[unit]
    assert said.index("party, its columns") < said.index("party-record, if weights and scaling do")
    for fewer in (3, 2):  # the server and 1 party, and all parties but two
        figure = worst_figure([replace(EVENT, parties=fewer)], 2, 2, 1e-5)
        assert str(figure) in said
        assert figure.epsilon > figures["party-record"]
    assert figures["party-record"] == planned_epsilon(EVENT, 2, 1e-5)


def test_figures_of_seeded_draws_are_said_to_be_simulated(capsys):
    main(["privacy", *PBM, "--trainer.max_epochs", "2", "--delta", "1e-5", "--model.aggregator.draws", "seeded"])
    assert SIMULATED in capsys.readouterr().out


@pytest.mark.parametrize(
    ("solve", "target", "found"),
    [("beta", "8", r"beta = 0\.0\d+"), ("epochs", "500", r"epochs = \d"), ("levels", "100", r"levels = 1 ")],
)
@pytest.mark.slow
def test_what_meets_a_target(capsys, solve, target, found):
    main(["privacy", *PBM, "--trainer.max_epochs", "10", "--solve", solve, "--target-epsilon", target])
    said = capsys.readouterr().out
    assert re.search(rf"ε ≤ {target} of a party-record, if weights .* record, at δ = 1e-05: {found}", said)


@pytest.mark.slow
def test_a_trial_trains_settings_that_meet_the_target_and_recommends_the_best(capsys, tmp_path, monkeypatch):
    """The oracle of a row is the plan of its width, epochs and beta, computed from the formula alone."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "200")
    monkeypatch.setattr("lightning_vfl.commands.trials.ROUNDS", 30)
    main(["privacy", *PBM, "--trainer.max_epochs", "8", "--solve", "beta", "--target-epsilon", "8", "--try"])
    said = capsys.readouterr().out
    rows = re.findall(r"│ +(\d+) │ +(\d+) │ +(\d+) │ +(0\.\d+) │ +(0\.\d+) │ +(0\.\d+) │", said)
    assert [(int(width), int(epochs), rate) for width, _, epochs, rate, *_ in rows[:3]] == [
        (16, 8, "0.001"),
        (16, 2, "0.01"),  # fewer epochs at a higher rate
        (16, 1, "0.01"),
    ]
    assert [int(row[0]) for row in rows[3:5]] == [8, 4]
    assert int(rows[5][1]) == 4 * int(rows[0][1])  # a larger batch
    for width, _, epochs, _, beta, _ in rows:
        event = PoissonBinomialEvent(levels=16, beta=float(beta), parties=4, coordinates=int(width))
        assert planned_epsilon(event, int(epochs), 1e-5) == pytest.approx(8, rel=1e-3)
    best = max(rows, key=lambda row: float(row[5]))
    told = f"--model.width {best[0]} --data.batch_size {best[1]} --trainer.max_epochs {best[2]} "
    told += f"--optimizer.lr {best[3]} " if best[3] != "0.001" else ""
    told += f"--model.aggregator.beta {best[4]} (val/accuracy {best[5]} in its trial"
    recommended = rf"(recommended|the best setting tried is nearer to chance, 0\.\d+, than to 1): {re.escape(told)}"
    assert (
        re.search(recommended, said) or f"(val/accuracy {best[5]} in its trial" in said.partition("no setting tried")[2]
    )
    assert not any(path.suffix in (".ckpt", ".jsonl", ".json") for path in tmp_path.rglob("*"))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--config", "data/digits", "--config", "protocol/mean"], "Mean has no privacy guarantee to account for"),
        (
            ["--config", "data/digits", "--config", "protocol/mean", "--model.downlink", "MaxNorm"],
            "to account for (what MaxNorm costs labels, the summary of fit says); use PoissonBinomial",
        ),
        ([*PBM, "--solve", "beta"], "--solve and --target-epsilon belong together"),
        ([*PBM, "--try"], "--try trains what --solve beta or --solve levels finds; give one of them"),
        ([*PBM, "--solve", "gamma", "--target-epsilon", "1"], "--solve: 'gamma' is none of beta, levels, epochs"),
        ([*PBM, "--trainer.max_epocs", "3"], "max_epocs"),
        (["--config", "protocol/pbm"], "data: no recipe names the data set; add one (--config data/digits)"),
        (
            [*PBM, "--data.normaliser", "StandardiseParty"],
            "StandardiseParty is fitted to the training records; use normaliser: Given",
        ),
        (["--config", "data/breast_cancer", "--config", "protocol/pbm"], "BreastCancer has no known bounds"),
        (["--config", "protocol/pbmm"], "did you mean protocol/pbm"),
    ],
)
def test_mistakes_end_in_one_line(capsys, arguments, message):
    with pytest.raises(SystemExit):
        main(["privacy", *arguments])
    said = capsys.readouterr().err.splitlines()[-1]
    assert said.startswith("lightning-vfl: error: ")
    assert message in said
