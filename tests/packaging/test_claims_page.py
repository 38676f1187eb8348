"""The page of claims: intervals and verdicts beside scipy, and the committed page."""

import importlib.util
import shutil
import sys
from dataclasses import replace
from pathlib import Path
from statistics import fmean, stdev

import numpy as np
import pytest
from scipy import stats

RESULTS = Path(__file__).parents[2] / "docs" / "results"
sys.path.append(str(RESULTS))  # for the files beside it
SPEC = importlib.util.spec_from_file_location("make_claims", RESULTS / "make_claims.py")
assert SPEC is not None
assert SPEC.loader is not None
make_claims = importlib.util.module_from_spec(SPEC)
sys.modules["make_claims"] = make_claims
SPEC.loader.exec_module(make_claims)

ONE = [0.91, 0.93, 0.90, 0.95]
OTHER = [0.90, 0.91, 0.90, 0.92]
CLAIM = make_claims.Claim("A", "Table 1", "one is ahead", "some", "one", "other")


def tables(folder, single, diverged=()):
    (folder / "tables" / "seeds").mkdir(parents=True, exist_ok=True)
    runs = {"one": ONE, "other": OTHER, "alone": [0.5]}
    lines = [
        f"test/accuracy,{run},{len(v)},{'' if run in diverged else fmean(v)},{stdev(v) if len(v) > 1 else ''}"
        for run, v in runs.items()
    ]
    (folder / "tables" / "some.csv").write_text("\n".join(["quantity,run,seeds,mean,sd", *lines]) + "\n")
    if single:
        lines = [f"test/accuracy,{run},{seed},{x}" for run, v in runs.items() for seed, x in enumerate(v)]
        lines += [
            f'test/accuracy,"{p}, cut {c}",{s},{x}' for c in (1, 2) for p in ("a", "b") for s, x in enumerate(ONE[c:])
        ]
        (folder / "tables" / "seeds" / "some.csv").write_text("\n".join(["quantity,run,seed,value", *lines]) + "\n")
    return folder


@pytest.mark.parametrize("single", [True, False])
def test_intervals_are_those_of_scipy(single, tmp_path):
    test = stats.ttest_rel(ONE, OTHER) if single else stats.ttest_ind(ONE, OTHER, equal_var=False)
    known = test.confidence_interval(0.95)
    for smaller, sign in ((False, 1), (True, -1)):
        found = make_claims.interval(replace(CLAIM, smaller=smaller), tables(tmp_path, single))
        expected = sorted([sign * 100 * known.low, sign * 100 * known.high])
        assert [found.low, found.high] == pytest.approx(expected)
        assert found.mean == pytest.approx(sign * 100 * (fmean(ONE) - fmean(OTHER)))
        assert found.size == 4
    known = stats.ttest_1samp(np.array(ONE) * 100, 91.0).confidence_interval(0.95)
    found = make_claims.interval(replace(CLAIM, than=91.0), tmp_path)
    assert [found.low, found.high] == pytest.approx([known.low - 91, known.high - 91])


def test_a_star_pairs_by_what_stands_in_its_place(tmp_path):
    found = make_claims.interval(replace(CLAIM, run="a, cut *", than="b, cut *"), tables(tmp_path, True))
    assert found == (0.0, 0.0, 0.0, 2)


@pytest.mark.parametrize(
    ("margin", "low", "high", "said"),
    [
        (None, 0.1, 2, "confirmed"),
        (None, -2, -0.1, "refuted"),
        (None, -1, 1, "open"),
        (1.0, -0.9, 0.9, "confirmed"),
        (1.0, 1.1, 3, "refuted"),
        (1.0, -3, -1.1, "refuted"),
        (1.0, -0.5, 1.5, "open"),
    ],
)
def test_the_interval_decides(margin, low, high, said):
    found = make_claims.Interval((low + high) / 2, low, high, 3)
    assert make_claims.verdict(replace(CLAIM, margin=margin), found) == said


@pytest.mark.parametrize(("low", "high"), [(0.1, 2), (-2, -0.1), (-1, 1)])
def test_a_claim_at_another_setting_is_not_tested_whatever_its_interval(low, high):
    claim = replace(CLAIM, other="5 epochs for 40")
    assert make_claims.verdict(claim, make_claims.Interval((low + high) / 2, low, high, 3)) == "not tested"


def test_what_a_study_has_otherwise_is_read_for_each_of_its_claims_and_every_study_must_say_it(tmp_path):
    claims = "claims: {A: [{where: W, says: S, study: some, run: one, than: other}]}"
    (tmp_path / "claims.yaml").write_text(f'settings: {{some: {{other: "5 epochs for 40"}}}}\n{claims}')
    (claim,) = make_claims.read_claims(tables(tmp_path, True))
    assert claim.other == "5 epochs for 40"
    page = make_claims.make(tmp_path)
    assert "**Of 1 claims, 0 confirmed, 0 refuted, 0 open, 1 not tested.**" in page
    assert "| **not tested**: 5 epochs for 40 |" in page
    (tmp_path / "claims.yaml").write_text(f"settings: {{some: {{ours: Adam}}}}\n{claims}")
    assert make_claims.read_claims(tmp_path)[0].other == ""
    assert "- `some`: Adam." in make_claims.make(tmp_path)
    (tmp_path / "claims.yaml").write_text(f"settings: {{}}\n{claims}")
    with pytest.raises(make_claims.Mistake, match="settings: nothing about some"):
        make_claims.read_claims(tmp_path)


def test_one_seed_is_open_and_divergence_refutes(tmp_path):
    claim = replace(CLAIM, run="alone")
    assert make_claims.verdict(claim, make_claims.interval(claim, tables(tmp_path, False))) == "open"
    tables(tmp_path, False, diverged=["one"])
    assert make_claims.verdict(CLAIM, make_claims.interval(CLAIM, tmp_path)) == "refuted"
    with pytest.raises(make_claims.Mistake, match="'other' has no finite mean"):
        make_claims.interval(CLAIM, tables(tmp_path, False, diverged=["other"]))


def test_the_committed_page_and_mistakes(tmp_path, capsys):
    assert make_claims.main(["--check"]) == 0
    shutil.copytree(RESULTS / "tables", tmp_path / "tables")
    text = (RESULTS / "claims.yaml").read_text(encoding="utf-8")
    for before, after, said in (
        ("study: fedvs_figure1,", "study: fedvs_figure7,", "settings: nothing about fedvs_figure7"),
        ("  vfedsec_figure2: {other", "  vfedsec_figure2: {others", "unexpected keyword argument 'others'"),
        ('run: "VAFL, mean"', 'run: "VAFL, means"', "no test/accuracy of 'VAFL, means'"),
        ("where: ", "wheer: ", "'wheer' is no key"),
        ('where: "Figure 1", ', "", "missing 1 required positional argument: 'where'"),
    ):
        (tmp_path / "claims.yaml").write_text(text.replace(before, after, 1), encoding="utf-8")
        assert make_claims.main([], tmp_path) == 1
        assert said in capsys.readouterr().err
    (tmp_path / "claims.yaml").write_text(text, encoding="utf-8")
    assert make_claims.main(["--check"], tmp_path) == 1
    assert make_claims.main([], tmp_path) == 0
    assert make_claims.main(["--check"], tmp_path) == 0
