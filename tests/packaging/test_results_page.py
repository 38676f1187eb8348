import importlib.util
import os
import re
import shutil
import sys
from statistics import fmean, stdev

import pytest

from tests.readme_commands import check, commands

from .checkout import ROOT

RESULTS = ROOT / "docs" / "results"
sys.path.append(str(RESULTS))  # for the files beside it
SPEC = importlib.util.spec_from_file_location("make_page", RESULTS / "make_page.py")
assert SPEC is not None
assert SPEC.loader is not None
make_page = importlib.util.module_from_spec(SPEC)
SPEC.loader.exec_module(make_page)


@pytest.fixture
def folder(tmp_path):
    """A copy of what the page is made from, and of the page."""
    shutil.copytree(RESULTS / "tables", tmp_path / "tables")
    for name in ("page.yaml", "README.md", "all_tables.md"):
        shutil.copy(RESULTS / name, tmp_path / name)
    return tmp_path


def edit(path, before, after):
    text = path.read_text()
    assert before in text
    path.write_text(text.replace(before, after, 1))


def refused(folder, capsys, arguments=()):
    """The one line that is said instead of writing the page."""
    before = (folder / "README.md").read_text()
    assert make_page.main(list(arguments), folder) == 1
    assert (folder / "README.md").read_text() == before
    said = capsys.readouterr().err.splitlines()
    assert len(said) == 1
    return said[0]


def test_the_committed_page_is_what_its_tables_make(folder, capsys):
    assert make_page.main(["--check"], folder) == 0
    assert make_page.main([], folder) == 0
    for name in ("README.md", "all_tables.md"):
        assert (folder / name).read_bytes() == (RESULTS / name).read_bytes()
    assert len((folder / "README.md").read_text(encoding="utf-8").splitlines()) < 300


def test_a_changed_number_changes_the_page(folder, capsys):
    table = folder / "tables" / "dvfl_table2.csv"
    table.write_text(re.sub('(?<="DVFL, 512 labels",3,)[^,]+', "0.5", table.read_text()))
    assert "make results" in refused(folder, capsys, ["--check"])
    make_page.main([], folder)
    assert re.search(r"\| 512 \| 50\.0 ± \S+ \*\(85\.18\)\* \|", (folder / "all_tables.md").read_text())
    assert make_page.main(["--check"], folder) == 0


@pytest.mark.parametrize(
    ("before", "after", "said"),
    [
        (
            "study: fedvs_table1",
            "study: fedvs_tabel1",
            r"'FedVS, Table 1.*'fedvs_tabel1' is no packaged study; did.*1\?",
        ),
        ("columns: [MLP, CNN, PN]", "columns: [MPL, CNN, PN]", "'MPL 1' is no run of studies/fedvs_table1; .*MLP 1"),
        ("corner: layers", "conrer: layers", r"'FedVS, Table 1.*': 'conrer' is no key; did you mean corner\?"),
        ("- {name: 1, paper:", "- {name: 1, papre:", "a row of 'FedVS, Table 1.*': 'papre' is no key"),
        ("metric: test/auroc}", "metric: tets/auroc}", "'tets/auroc' is no metric of studies/fedvs_figure2_credit"),
        ("unit: GB}", "unit: GiB}", "'GiB' is no unit; did you mean GB?"),
        ("paper: [88.35, 90.48, 88.19]", "paper: [88.35, 90.48]", "2 numbers of the paper for 3 columns"),
        ("said: {long: not run,", "said: {lang: not run,", "said: 'lang' is no column; did you mean long?"),
        ("{name: Gbit, metric: ", "{name: Gbit, metric: said} # ", "b=8 β=0.1: says nothing for 'Gbit'"),
        ("        setting: MNIST, 4 guests; test accuracy in %\n", "", "'DVFL, Table 2.*': has no setting"),
        ("title: Results", "title: [Results", "expected"),
    ],
    ids=["study", "run", "key", "key of a row", "metric", "unit", "paper", "said", "not said", "nothing said", "YAML"],
)
def test_a_mistake_in_the_page_is_one_clear_line(folder, capsys, before, after, said):
    edit(folder / "page.yaml", before, after)
    assert re.search(said, refused(folder, capsys))


def test_an_optional_entry_is_checked_before_its_table_is_there(folder, capsys):
    text = (folder / "page.yaml").read_text()
    assert "study: overall" in text
    (folder / "tables" / "overall.csv").unlink(missing_ok=True)
    edit(folder / "page.yaml", "study: overall", "study: overalls")
    assert "'overalls' is no packaged study; did you mean overall?" in refused(folder, capsys)


def test_a_missing_table_and_a_missing_line_are_told(folder, capsys):
    table = folder / "tables" / "fedvs_table1.csv"
    lines = table.read_text().splitlines(keepends=True)
    table.write_text("".join(line for line in lines if "CNN 2" not in line))
    assert "tables/fedvs_table1.csv: no test/accuracy of 'CNN 2'" in refused(folder, capsys, ["--check"])
    table.unlink()
    assert "tables/fedvs_table1.csv: no such table" in refused(folder, capsys, ["--check"])


def test_commands_name_packaged_studies_and_links_hold():
    assert list(check(RESULTS / "all_tables.md"))
    text = "".join((RESULTS / name).read_text(encoding="utf-8") for name in ("all_tables.md", "README.md"))
    named = list(commands(text))
    assert len(named) > 20
    for words in named:
        assert words[:2] == ["lightning-vfl", "study"]
        assert (ROOT / "configs" / f"{words[2]}.yaml").is_file(), words
    for path, anchor in re.findall(r"\]\(([^)#\s]+)#([^)\s]+)\)", text):
        headings = re.findall(r"^#+ (.+)$", (RESULTS / path).read_text(encoding="utf-8"), re.MULTILINE)
        assert anchor in {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}, anchor


PAGE = """
title: Small
intro: Intro.
expect: [[a, b], [c, d]]
sections:
  - title: Part
    entries:
      - title: Costs
        study: pbm_phishing_5
        setting: Three of them
        corner: run
        rows:
          - no privacy
          - PBM b=8 β=0.1
          - {name: PBM b=64 β=0.25, label: PBM, said: {ε: "9,400"}, paper: ["", 2, 1|2, ""]}
        columns:
          - {name: AUPRC, metric: val/average_precision}
          - {name: epochs, metric: step to val/average_precision 0.9, unit: number, divide: 89, digits: 1}
          - {name: ε, metric: bytes of val/accuracy, unit: MB}
          - {name: early, metric: val/accuracy at 89}
      - title: Grid
        study: all_data
        setting: One of them
        run: "{row}, {column}"
        rows: [MNIST, Adult]
        columns: [mean, dvfl]
        optional: true
"""


@pytest.fixture
def small(tmp_path):
    (tmp_path / "tables").mkdir()
    (tmp_path / "page.yaml").write_text(PAGE)
    return tmp_path


def table(path, *lines):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("\n".join(lines) + "\n")


def outputs(out):
    """What `lightning-vfl study` leaves of two seeds: one run converges, one never gets there, one diverges."""
    runs = ["no privacy", "PBM b=8 β=0.1", "PBM b=64 β=0.25"]
    table(
        out / "summary.csv",
        "metric,run,seeds,outliers,mean,sd,low,high,step,passes,virtual_seconds,bytes",
        *(f"val/average_precision,{run},2,0,0.87250000238,0.01,0,0,178,2,1,3e6" for run in runs),
        *(f"val/accuracy,{run},2,0,0.5,0.01,0,0,178,2,1,3e6" for run in runs),
    )
    values = {runs[0]: "0.9", runs[1]: "0.8", runs[2]: ""}
    table(
        out / "table.csv",
        "run,recipe,override,seed,step,metric,value",
        *(
            f"{run},{run},,{seed},{step},val/{metric},{value if step == 178 and seed else 0.25}"
            for run, value in values.items()
            for metric in ("average_precision", "accuracy")
            for seed in (0, 1)
            for step in (89, 178)
        ),
    )
    steps = {runs[0]: ("89", "178"), runs[1]: ("178", ""), runs[2]: ("89", "89")}
    table(
        out / "targets.csv",
        "recipe,override,seed,metric,target,step,passes,virtual_seconds,bytes",
        *(
            f"{run},,{seed},val/average_precision,0.9,{step},1,1,1"
            for run, both in steps.items()
            for seed, step in enumerate(both)
        ),
    )


def test_tables_are_collected_from_what_a_study_has_written(small, tmp_path, capsys):
    out = tmp_path / "out" / "pbm_phishing_5"
    outputs(out)
    assert make_page.main(["--collect", str(tmp_path / "out")], small) == 0
    assert "tables/pbm_phishing_5.csv: 12 lines" in capsys.readouterr().out
    assert (small / "tables" / "pbm_phishing_5.csv").read_text().splitlines()[:4] == [
        "quantity,run,seeds,mean,sd",
        "val/average_precision,no privacy,2,0.8725000024,0.01",
        "val/average_precision,PBM b=8 β=0.1,2,0.8725000024,0.01",
        "val/average_precision,PBM b=64 β=0.25,2,,",
    ]
    assert make_page.make(small).splitlines()[-7:] == [
        "Three of them. Mean ± 2 sd of 2 seeds.",
        "",
        "| run | AUPRC | epochs | ε | early |",
        "| --- | --- | --- | --- | --- |",
        "| no privacy | 87.3 ± 2.0 | 1.5 ± 1.4 | 3.00 | 25.0 ± 0.0 |",
        "| PBM b=8 β=0.1 | 87.3 ± 2.0 | ∞ | 3.00 | 25.0 ± 0.0 |",
        "| PBM | diverged | 1.0 ± 0.0 *(2)* | 9,400 *(1\\|2)* | 25.0 ± 0.0 |",
    ]


def test_a_star_pools_runs_and_every_seed_is_kept(small, tmp_path):
    page = PAGE.replace('run: "{row}, {column}"', 'run: "*, {column}"\n        over: data sets').replace(
        "        optional: true\n", ""
    )
    (small / "page.yaml").write_text(page.replace("rows: [MNIST, Adult]", "rows: [all]"))
    outputs(tmp_path / "out" / "pbm_phishing_5")
    values = {"MNIST": (0.8, 0.9), "Adult": (0.7, 0.7), "Phishing": (0.6, 0.8)}
    table(
        (out := tmp_path / "out" / "all_data") / "table.csv",
        "run,recipe,override,seed,step,metric,value",
        *(
            f'"{data}, {protocol}",{data},{protocol},{seed},9,test/accuracy,{value}'
            for data, both in values.items()
            for protocol in ("mean", "dvfl")
            for seed, value in enumerate(both)
        ),
    )
    table(out / "summary.csv", "metric,run,seeds,outliers,mean,sd,low,high,step,passes,virtual_seconds,bytes")
    assert make_page.main(["--collect", str(tmp_path / "out")], small) == 0
    means = [fmean(both) for both in values.values()]
    (line,) = [one for one in (small / "tables" / "all_data.csv").read_text().splitlines() if "mean" in one][1:]
    assert line.startswith('test/accuracy,"*, mean",3,')
    assert [float(x) for x in line.split(",")[-2:]] == pytest.approx([fmean(means), stdev(means)])
    assert "Mean ± 2 sd of 3 data sets." in make_page.make(small)
    seeds = (small / "tables" / "seeds" / "all_data.csv").read_text().splitlines()
    assert seeds[:3] == [
        "quantity,run,seed,value",
        'test/accuracy,"MNIST, mean",0,0.8',
        'test/accuracy,"MNIST, mean",1,0.9',
    ]
    never = (small / "tables" / "seeds" / "pbm_phishing_5.csv").read_text()
    assert "step to val/average_precision 0.9,PBM b=8 β=0.1,1,inf\n" in never
    assert "val/average_precision,PBM b=64 β=0.25,1,nan\n" in never
    edit(small / "page.yaml", '"*, {column}"', '"*, {column}s"')
    assert make_page.main([], small) == 1


def test_a_folder_of_another_name_and_the_time_of_the_runs(small, tmp_path, capsys):
    out = tmp_path / "elsewhere"
    outputs(out)
    shutil.copy(ROOT / "configs" / "studies" / "pbm_phishing_5.yaml", out / "study.yaml")
    for recipe in make_page.runs_of("pbm_phishing_5").values():
        for seed in (0, 1, 2):
            run = out / "runs" / recipe / f"seed-{seed}"
            for name, when in (("config.yaml", 1000), ("result.parquet", 1060)):
                table(run / name, "")
                os.utime(run / name, (when, when))
    assert make_page.main(["--collect", f"pbm_phishing_5={out}"], small) == 0
    assert capsys.readouterr().out == "tables/pbm_phishing_5.csv: 13 lines\n"
    assert "studies/pbm_phishing_5    # 87 runs, 87 min\n" in make_page.make(small)
    assert make_page.main(["--collect", f"pbm_phishing_10={out}"], small) == 1
    assert "is no study that the page shows; did you mean pbm_phishing_5?" in capsys.readouterr().err
    assert make_page.main(["--collect", str(small / "tables")], small) == 1
    assert "no summary.csv" in capsys.readouterr().err


def test_a_grid_of_one_seed_is_there_as_soon_as_its_table_is(small, tmp_path):
    outputs(tmp_path / "out" / "pbm_phishing_5")
    make_page.main(["--collect", str(tmp_path / "out")], small)
    assert "Grid" not in make_page.make(small)
    lines = [
        f'test/accuracy,"{one}, {protocol}",1,0.9{n},'
        for n, one in enumerate(("MNIST", "Adult"))
        for protocol in ("mean", "dvfl")
    ]
    table(small / "tables" / "all_data.csv", "quantity,run,seeds,mean,sd", *lines)
    page = make_page.make(small)
    assert "LIGHTNING_VFL_DATA=DIR lightning-vfl study studies/all_data\n" in page
    assert "One of them. One seed.\n\n|  | mean | dvfl |\n| --- | --- | --- |\n| MNIST | 90.0 | 90.0 |" in page


def test_the_readme_has_the_costs_of_the_table_of_all_protocols():
    """Accuracy, virtual seconds and GB, rounded, each in the row of its recipe."""
    rows = (RESULTS / "all_tables.md").read_text(encoding="utf-8").partition("| SplitVFL, waits ")[2].split("\n\n")[0]
    rows = [line.split("|")[1:5] for line in ("| SplitVFL, waits " + rows).splitlines()]
    readme = (RESULTS.parents[1] / "README.md").read_text(encoding="utf-8")
    for name, *cells in rows:
        accuracy, seconds, size = (float(cell.split(" ± ")[0].replace(",", "")) for cell in cells)
        assert f"{accuracy:.1f} %, {seconds:.0f} s, {size:.2f} GB" in readme, name
