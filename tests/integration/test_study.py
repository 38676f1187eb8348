"""Studies for real: run, killed, gone on with, and what one run cannot do to the others."""

import json
import os
import pickle
import re
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pandas as pd
import pytest
import yaml
from filelock import FileLock

from lightning_vfl import cli
from lightning_vfl.cli import check, main
from lightning_vfl.configs import packaged
from lightning_vfl.errors import ConfigurationError
from lightning_vfl.orphans import end_with_parent
from lightning_vfl.study import grid, read_study
from lightning_vfl.study.read import find_study
from lightning_vfl.study.worker import work
from tests.further import further

STUDY = """
recipes:
  Mean: [data/digits, protocol/mean]
  Max: {recipes: [data/digits, protocol/max], settings: {model.width: 16}}
common: [trainer/cpu]
settings: {trainer.max_epochs: 2, data.batch_size: 512}
seeds: [0, 1]
baseline: Mean
metrics: [val/accuracy, test/accuracy]
figure: {metric: val/accuracy, against: [rounds, bytes]}
"""
CULPRITS = "tests.integration.culprits"


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """The results of the study, run in this process without interruption."""
    folder = tmp_path_factory.mktemp("whole")
    (folder / "study.yaml").write_text(STUDY)
    main(["study", str(folder / "study.yaml"), "--out", str(folder / "out"), "--jobs", "1", "--threads", "1"])
    return folder / "out"


@pytest.fixture(autouse=True)
def empty_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


@pytest.fixture
def no_figures(monkeypatch):
    """Half a second for each study; the tests of ``whole`` look at them."""
    monkeypatch.setattr("lightning_vfl.study.report.draw", lambda *arguments: [])


def study(text, *options):
    """Exit status of a study of this text, with its results in ``out``."""
    Path("study.yaml").write_text(text)
    try:
        main(["study", "study.yaml", "--out", "out", "--threads", "1", *options])
    except SystemExit as end:
        return end.code
    return 0


def with_callback(name, **arguments):
    """A study of one sound recipe, and of one whose callback this is."""
    Path("culprit.yaml").write_text(
        json.dumps({"trainer": {"callbacks": [{"class_path": f"{CULPRITS}.{name}", "init_args": arguments}]}})
    )
    recipes = "{Sound: [data/digits, protocol/mean], Culprit: [data/digits, protocol/mean, culprit.yaml]}"
    settings = "{trainer.max_epochs: 1, data.batch_size: 128}"
    return f"recipes: {recipes}\ncommon: [trainer/cpu]\nsettings: {settings}\nseeds: [0, 1]\n"


def finished():
    return sorted(path.parent.relative_to("out/runs").as_posix() for path in Path().glob("out/runs/**/result.parquet"))


def descendants(pid):
    found = []
    for task in Path(f"/proc/{pid}/task").glob("*"):
        for child in (task / "children").read_text().split():
            found += [int(child), *descendants(int(child))]
    return found


def is_alive(pid):
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def wait_for(condition, seconds):
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "waited in vain"
        time.sleep(0.02)


def test_the_table_is_tidy_and_everything_is_told(whole):
    table = pd.read_parquet(whole / "table.parquet")
    assert list(table.groupby(["run", "seed"], sort=False).groups) == [
        (r, s) for r in ("Mean", "Max") for s in range(2)
    ]
    assert set(table["metric"]) == {"val/accuracy", "test/accuracy"}
    cells = table.groupby(["run", "seed", "metric"]).size().unstack()
    assert cells["val/accuracy"].eq(2).all()
    assert cells["test/accuracy"].eq(1).all()
    assert (table["bytes"] == table["up_bytes"] + table["down_bytes"] + table["peer_bytes"]).all()
    assert table["step"].max() == 6
    pd.testing.assert_frame_equal(table, pd.read_csv(whole / "table.csv", keep_default_na=False))
    assert "| test/accuracy | Max | 2 |" in (whole / "summary.md").read_text()
    assert {path.name for path in (whole / "figures").iterdir()} >= {
        "val_accuracy-bytes.svg",
        "val_accuracy-rounds.png",
    }


def test_what_a_run_takes_of_the_machine_is_measured_where_the_study_names_it(no_figures):
    """One process makes both runs. The first holds 600 MB, of which nothing counts for the second."""
    large = {"trainer.callbacks": {"class_path": f"{CULPRITS}.Takes", "init_args": {"megabytes": 600}}}
    text = "recipes: {Mean: [data/digits, protocol/mean]}\ncommon: [trainer/cpu]\nseeds: [0]\n"
    text += f"overrides: {json.dumps({'large': large, 'small': {}})}\nsettings: {{trainer.max_epochs: 1}}\n"
    began = time.monotonic()
    assert study(f"{text}metrics: [test/accuracy, machine/cpu_seconds, machine/peak_bytes]\n", "--jobs", "1") == 0
    took = time.monotonic() - began
    table = pd.read_parquet("out/table.parquet").set_index(["override", "metric"])["value"].unstack()
    assert (table["machine/cpu_seconds"] > 0.1).all()
    assert table["machine/cpu_seconds"].sum() < took * (os.cpu_count() or 1)
    assert table["machine/peak_bytes"]["large"] > table["machine/peak_bytes"]["small"] + 5e8
    assert table["machine/peak_bytes"]["small"] > 1e8


def test_finished_runs_are_not_repeated_and_plot_needs_only_the_folder(whole, capfd, no_figures, monkeypatch):
    written = {path: path.stat().st_mtime_ns for path in whole.glob("runs/**/result.parquet")}
    assert len(written) == 4
    table = (whole / "table.parquet").read_bytes()
    main(["study", str(whole / "study.yaml"), "--out", str(whole)])
    assert "4 of 4 runs are finished already" in capfd.readouterr().err
    assert {path: path.stat().st_mtime_ns for path in written} == written
    assert (whole / "table.parquet").read_bytes() == table
    for path in (whole / "figures").iterdir():
        path.unlink()
    monkeypatch.undo()
    main(["plot", str(whole), "--metric", "test/accuracy"])
    assert (whole / "figures/test_accuracy-rounds.svg").is_file()


@pytest.mark.usefixtures("no_figures")
@pytest.mark.slow
def test_what_is_half_written_does_not_count(whole):
    shutil.copytree(whole, "out")
    first, second, third = sorted(Path("out").glob("runs/**/result.parquet"))[:3]
    first.write_bytes(first.read_bytes()[:-100])
    second.rename(second.with_name(".result.123"))
    third.with_name("under_way").touch()
    Path("out/table.parquet").unlink()
    assert study(STUDY, "--jobs", "1") == 0
    for name in ("table.parquet", "table.csv", "summary.md"):
        assert Path("out", name).read_bytes() == (whole / name).read_bytes()


@pytest.mark.slow
@pytest.mark.processes
@pytest.mark.skipif(sys.platform != "linux", reason="looks for orphans in /proc")
def test_killed_in_the_middle_and_started_again_it_is_the_same_table(whole, tmp_path):
    Path("study.yaml").write_text(STUDY)
    command = [sys.executable, "-m", "lightning_vfl", "study", "study.yaml", "--out", "out", "--threads", "1"]
    with subprocess.Popen([*command, "--jobs", "2"], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as process:
        wait_for(finished, 120)
        workers = descendants(process.pid)
        process.send_signal(signal.SIGKILL)
    assert len(workers) >= 2
    wait_for(lambda: not any(map(is_alive, workers)), 10)
    kept = finished()
    assert 0 < len(kept) < 4
    written = {name: Path("out/runs", name, "result.parquet").stat().st_mtime_ns for name in kept}
    assert study(STUDY, "--jobs", "2") == 0
    assert {name: Path("out/runs", name, "result.parquet").stat().st_mtime_ns for name in kept} == written
    for name in ("table.parquet", "table.csv", "summary.md"):
        assert Path("out", name).read_bytes() == (whole / name).read_bytes()


@pytest.mark.slow
@pytest.mark.processes
@pytest.mark.usefixtures("no_figures")
def test_the_number_of_processes_does_not_change_the_table(whole):
    assert study(STUDY, "--jobs", "2") == 0
    for name in ("table.parquet", "table.csv", "summary.md"):
        assert Path("out", name).read_bytes() == (whole / name).read_bytes()


def test_a_process_can_be_handed_a_run(whole):
    runs = list(grid(read_study(whole / "study.yaml"), Path("out")))
    handed = pickle.loads(pickle.dumps((work, runs, cli.run, end_with_parent)))
    assert handed == (work, runs, cli.run, end_with_parent)


@pytest.mark.usefixtures("no_figures")
@pytest.mark.slow
def test_a_run_that_leaves_or_fails_is_recorded_and_the_others_go_on(capfd):
    text = with_callback("Leaves").replace("seeds: [0, 1]", "seeds: [0]")
    empty = "Empty: {recipes: [data/digits, protocol/mean], settings: {model.width: 0}}, "
    assert study(text.replace("Sound: ", f"{empty}Sound: "), "--jobs", "1") == 1
    assert finished() == ["Sound/seed-0"]
    said = capfd.readouterr().err
    assert "failed: Empty, seed 0: width must be at least 1; got 0" in said
    assert "failed: Culprit, seed 0: ended by sys.exit(0) (log: out/runs/Culprit/seed-0/log.txt)" in said
    assert "2 of 3 runs failed; the same command tries them again" in said
    assert "SystemExit" in Path("out/runs/Culprit/seed-0/log.txt").read_text()
    assert json.loads(Path("out/runs/Empty/seed-0/failed.json").read_text())["reason"].startswith("width must")


@pytest.mark.slow
@pytest.mark.processes
@pytest.mark.parametrize("backend", ["loky", "dask", "ray"])
def test_runs_of_a_dead_worker_are_tried_again(backend, tmp_path, monkeypatch):
    pytest.importorskip({"dask": "distributed", "loky": "joblib"}.get(backend, backend))
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(sys.path))
    culprit = with_callback("Dies", tally=str(tmp_path / "tally"), times=1)
    assert study(culprit, "--jobs", "2", "--backend", backend) == 0
    assert len(finished()) == 4
    assert (tmp_path / "tally").read_text() == "x"


@pytest.mark.slow
@pytest.mark.processes
def test_a_run_that_always_dies_fails_alone(tmp_path, capfd):
    assert study(with_callback("Dies", tally=str(tmp_path / "tally"), times=99), "--jobs", "2") == 1
    assert finished() == ["Sound/seed-0", "Sound/seed-1"]
    assert "failed: Culprit, seed 1: its process died 3 times" in capfd.readouterr().err


@pytest.mark.usefixtures("no_figures")
@pytest.mark.slow
def test_the_tasks_of_the_array_that_slurm_is_given_make_the_table_of_the_study(whole, capfd):
    settings = "{partition: short, time: '00:10:00'}"
    assert study(STUDY, "--backend", "slurm", "--jobs", "2", "--backend-options", settings) == 0
    script = capfd.readouterr().out
    asked = dict(re.findall(r"^#SBATCH --([a-z-]+)=(.*)$", script, re.M))
    assert asked.keys() == {"job-name", "array", "cpus-per-task", "chdir", "output", "partition", "time"}
    assert (asked["array"], asked["cpus-per-task"], asked["time"]) == ("0-3%2", "1", "00:10:00")
    Path("job.sh").write_text(script)
    subprocess.run(["bash", "-n", "job.sh"], check=True)
    for task in ("0", "3", "1"):
        subprocess.run(["bash", "job.sh"], env={**os.environ, "SLURM_ARRAY_TASK_ID": task}, check=True, timeout=120)
    assert finished() == ["Max/seed-1", "Mean/seed-0", "Mean/seed-1"]
    assert study(STUDY, "--backend", "slurm") == 0
    assert "#SBATCH --array=2\n" in capfd.readouterr().out
    Path("job.sh").write_text(script)
    tasks = [{**os.environ, "SLURM_ARRAY_TASK_ID": task} for task in ("2", "3")]
    assert [subprocess.run(["bash", "job.sh"], env=task, timeout=120).returncode for task in tasks] == [0, 0]
    assert "finished already: Max, seed 1" in capfd.readouterr().out
    assert study(STUDY) == 0
    pd.testing.assert_frame_equal(pd.read_parquet("out/table.parquet"), pd.read_parquet(whole / "table.parquet"))
    assert study(STUDY, "--backend", "slurm") == 1
    assert "all 4 runs in out are finished; leave --backend out for the table" in capfd.readouterr().err


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--only", "4"], "--only 4: the study has runs 0 to 3"),
        (["--backend", "slurm", "--backend-options", "{array: '0-9'}"], "array: '0-9' is not a setting of sbatch that"),
        further(["--backend", "slurm", "--backend-options", '{wrap: "a\\nb"}'], "is not a setting of sbatch that"),
    ],
)
def test_mistakes_with_arrays_end_in_one_line(options, message, capsys):
    assert study(STUDY, *options) == 1
    said = capsys.readouterr().err
    assert said.count("\n") == 1
    assert message in said


@pytest.mark.usefixtures("no_figures")
@pytest.mark.slow
def test_a_changed_setting_runs_again(capfd):
    text = with_callback("Leaves").replace(", Culprit: [data/digits, protocol/mean, culprit.yaml]", "")
    text = text.replace("seeds: [0, 1]", "seeds: [0]\ntest: false")
    assert study(text, "--jobs", "1") == 0
    assert study(text.replace("max_epochs: 1", "max_epochs: 2"), "--jobs", "1") == 0
    assert "1 of 1 results are of other recipes, settings or versions: run again" in capfd.readouterr().err
    assert pd.read_parquet("out/table.parquet")["step"].max() == 20


@pytest.mark.parametrize(
    ("arguments", "status", "message"),
    [
        (["study", "gone.yaml"], 1, "gone.yaml: no such file, and no packaged recipe of that name"),
        (["study", "study.yaml", "--jobs", "0"], 2, "--jobs: 0 is none of whole number above 0, null"),
        (["study", "study.yaml", "--backend", "threads"], 2, "--backend: 'threads' is none of loky, dask, ray"),
        (["study", "study.yaml", "--jos", "x"], 2, "unknown option --jos x; did you mean --jobs"),
        (["study", "study.yaml", "--backend-options", "x"], 2, "--backend-options: 'x' is not a mapping"),
        (["study"], 2, "study needs STUDY; see study --help"),
        (["study", "study.yaml", "more"], 2, "unexpected argument more"),
        (["plot"], 2, "plot needs RESULTS"),
        (["plot", "nowhere"], 1, "nowhere/study.yaml"),
    ],
)
def test_mistakes_end_in_one_line(arguments, status, message, capsys):
    Path("study.yaml").write_text(STUDY)
    with pytest.raises(SystemExit) as end:
        main(arguments)
    said = capsys.readouterr().err
    assert end.value.code == status
    assert said.count("\n") == 1
    assert message in said


def test_a_setting_that_does_not_exist_is_refused_before_anything_runs(capsys):
    assert study(STUDY.replace("max_epochs", "max_epocs")) == 1
    assert "study.yaml: Mean: unknown option --trainer.max_epocs" in capsys.readouterr().err
    assert not Path("out").exists()


def without_numbers(argument):
    """``--seeds=[25, 0.5]`` as ``--seeds=[0, 0.0]``; names keep their digits."""
    return argument if argument.startswith("--config=") else re.sub(r"(?<!\w)\d+", "0", argument)


def named(value, owner):
    """The classes in the value of an option, and every setting by the class, or the option, that it belongs to."""
    if isinstance(value, list):
        return {one for part in value for one in named(part, owner)}
    if not isinstance(value, dict):
        return set()
    owner = value.get("class_path", owner)
    return {(owner, key) for key in value} | {one for part in value.values() for one in named(part, owner)}


def options(run):
    """The protocol of a cell, its options, and the settings of the classes that they name."""
    found = set()
    for argument in run.arguments[1:]:
        option, _, value = argument.partition("=")
        if option == "--config":
            found |= {value} if Path(value).parent.name == "protocol" else set()
        else:
            found |= {option, *named(yaml.safe_load(value), option)}
    return found


@pytest.fixture(scope="module")
def cells(tmp_path_factory):
    """Cells of the packaged studies and of that in the docs, by study; of those that differ in numbers alone, one."""
    folder = tmp_path_factory.mktemp("cells")
    printed = (Path(__file__).parents[2] / "docs/studies.md").read_text(encoding="utf-8")
    (folder / "docs.yaml").write_text(re.search(r"```yaml\n(.*?)```", printed, re.DOTALL)[1])
    names = [*(name for name in packaged() if name.startswith("studies/")), str(folder / "docs.yaml")]
    runs = {name: grid(read_study(find_study(name)), folder) for name in names}
    return {name: list({tuple(map(without_numbers, r.arguments)): r for r in runs[name]}.values()) for name in names}


def refusals(runs):
    """What ``check`` says against runs, by study and run."""
    said = {}
    for name, run in runs:
        try:
            check(run.arguments)
        except ConfigurationError as error:
            said[name, run.name] = str(error)
    return said


@pytest.mark.slow
def test_what_is_packaged_and_what_the_docs_show_can_be_run(cells):
    """In as few cells as have every protocol, option and setting in them: an eighth of all."""
    left = [(name, run, options(run)) for name, runs in cells.items() for run in runs]
    seen, chosen = set(), []
    while any(found - seen for _, _, found in left):
        name, run, found = max(left, key=lambda cell: len(cell[2] - seen))
        seen |= found
        chosen.append((name, run))
    assert refusals(chosen) == {}


@pytest.mark.slow
def test_every_cell_of_what_is_packaged_can_be_run(cells):
    assert refusals((name, run) for name, runs in cells.items() for run in runs) == {}


@pytest.mark.slow
def test_two_studies_do_not_share_a_folder(capsys):
    Path("out").mkdir()
    with FileLock("out/.lock"):
        assert study(STUDY) == 1
    assert (
        "another process is running a study in out; wait for its end, or give another --out" in capsys.readouterr().err
    )


SEARCH = """
recipes: {Mean: [data/digits, protocol/mean]}
common: [trainer/cpu]
settings: {trainer.max_epochs: 1}
seeds: [0]
test: false
search: {optuna: {metric: val/accuracy, trials: 2, at_once: 2, ranges: {model.width: [4, 32]}}}
"""


@pytest.mark.slow
@pytest.mark.processes
def test_a_search_writes_trials_and_the_best_setting_and_goes_on(capfd):
    pytest.importorskip("optuna")
    assert study(SEARCH, "--jobs", "2") == 0
    table, best = pd.read_csv("out/search.csv"), yaml.safe_load(Path("out/best.yaml").read_text())
    line = table.loc[table["val/accuracy"].idxmax()]
    assert best["Mean"]["trial"] == line["trial"]
    assert best["Mean"]["val/accuracy"] == pytest.approx(line["val/accuracy"])
    assert str(best["Mean"]["settings"]["model.width"]) == str(line["model.width"])
    assert study(SEARCH, "--jobs", "2") == 0
    assert "2 of 2 runs are finished already" in capfd.readouterr().err
    assert "Mean, trial 00" in Path("out/summary.md").read_text()


@pytest.mark.slow
@pytest.mark.processes
@pytest.mark.parametrize("backend", ["dask", "ray"])
def test_a_backend_starts_its_own_workers_and_gives_the_same_table_without_warnings(backend, tmp_path):
    pytest.importorskip({"dask": "distributed"}.get(backend, backend))
    text = SEARCH.split("search:")[0].replace("seeds: [0]", "seeds: [0, 1]")
    Path("study.yaml").write_text(text)
    tables = {}
    for name in ("loky", backend):
        command = [sys.executable, "-m", "lightning_vfl", "study", "study.yaml", "--out", name, "--jobs", "2"]
        done = subprocess.run([*command, "--backend", name], capture_output=True, text=True, timeout=300, check=True)
        told = [line for line in done.stderr.splitlines() if line and not line.startswith(("finished: ", "runs "))]
        assert told == []
        tables[name] = pd.read_parquet(f"{name}/table.parquet")
    pd.testing.assert_frame_equal(*tables.values())
