"""Every cell on who learns what has a footnote, which is held by a test, an attack or a number."""

import importlib
import re
import sys

import pytest

from lightning_vfl.privacy import gaussian_epsilon, shown
from lightning_vfl.types import Roster
from tests import protection
from tests.attacks import drift
from tests.attacks.__main__ import RESULTS, families, kept, page
from tests.protection import CELL, DOCS, EVIDENCE, PAGES, ROOT, evidence, footnotes, functions, held, made, number, used

ADVERSARIES = ("A party", "A coalition", "An honest server", "A lying server", "An outsider")
ASSETS = ["features", "labels", "weights", "ids", "membership"]
HEAD = ["", "clear", "masked", "segments, groups", "coded", "noisy", "DVFL", "CVFL", "AsyncVFL"]
KNOWN = footnotes()
sys.path.append(str(RESULTS))  # for the files beside it
make_audits = importlib.import_module("make_audits")


def rows(section, text):
    """The cells of the first table of a section, by line."""
    lines = text.partition(f"\n## {section}\n")[2].partition("\n## ")[0].splitlines()
    table = [line for line in lines if line.startswith("|")]
    return [[cell.strip() for cell in line.strip().strip("|").split("|")] for line in table]


@pytest.mark.parametrize("adversary", ADVERSARIES)
def test_every_cell_says_something_and_has_a_footnote(adversary):
    head, _, *body = rows(adversary, PAGES[0].read_text(encoding="utf-8"))
    assert head == HEAD
    assert [row[0] for row in body] == ASSETS
    for row in body:
        assert len(row) == len(HEAD)
        for cell in row[1:]:
            words = CELL.sub("", cell).split()
            assert 1 <= len(words) <= 7, cell
            assert CELL.search(cell), cell


def test_every_cell_of_the_federations_page_has_a_footnote():
    for row in rows("Who learns what", PAGES[1].read_text(encoding="utf-8"))[2:]:
        assert all(CELL.search(cell) for cell in row[1:]), row


def test_every_footnote_is_used_and_held_by_a_test_an_attack_or_a_number():
    names = {name for one in PAGES for name in used(one.read_text(encoding="utf-8"))}
    assert names == set(KNOWN)
    for name, one in KNOWN.items():
        assert one.tests or one.attacks or one.numbers, name
        for test in one.tests:
            path, _, function = test.partition("::")
            assert function in functions(ROOT / "tests" / path), (name, test)
            assert function.startswith("test_")


def test_an_attack_that_finds_nothing_in_the_clear_shows_nothing():
    """A cell may call a success safe only if the same attack succeeds under Concat."""
    weak = set()
    for name, one in KNOWN.items():
        for page_, section, row, column in one.numbers:
            words = [
                protection.cell(page_, section, where, column) for where in ("Concat", row) if page_ == "audits.md"
            ]
            if words and all(word.endswith("not shown") for word in words):
                weak.add(name)
    assert weak
    for page_ in PAGES:
        for line in page_.read_text(encoding="utf-8").partition(protection.BEGIN)[0].splitlines():
            for cell in line.split("|"):
                if weak & {*CELL.findall(cell)}:
                    assert "chance" not in cell
                    assert "not shown" in cell or re.search(r"\bas (masked|a party|a guest)\b", cell)


@pytest.mark.parametrize("one", PAGES, ids=lambda one: one.name)
def test_the_numbers_are_those_of_the_results(one):
    assert made(one) == one.read_text(encoding="utf-8"), "run python -m tests.protection"


def test_the_page_of_evidence_is_that_of_the_results():
    assert evidence() == EVIDENCE.read_text(encoding="utf-8"), "run python -m tests.protection"


def test_the_epsilon_of_the_noise_that_helps():
    text = PAGES[0].read_text(encoding="utf-8")
    for sigma in (1.0, 3.0):
        accounting = drift.noisy(sigma).accounting
        event = accounting.event((0,), (drift.WIDTH,) * drift.PARTIES, Roster.singles(drift.PARTIES))
        epsilon = gaussian_epsilon(event.sigma, event.sensitivity, 1e-5, uploads=drift.EPOCHS)
        assert f"(ε = {shown(epsilon)}" in text


def test_the_guide_recommends_a_narrow_sum_by_the_numbers_of_the_results():
    found = []
    for width in (16, 64):
        said = protection.RANGE.sub("", protection.attack(f"columns from drift: `MaskedSum`, width {width}")[0])
        found.append(re.search(r"(\d+)% of nearest .* validation accuracy 0(\.\d+)", said).groups())
    (near, accuracy), (near_wide, accuracy_wide) = found
    words = (
        f"{near} % of nearest records right in place of {near_wide} %, accuracy {accuracy} in place of {accuracy_wide}"
    )
    assert words in (DOCS / "guides" / "decide.md").read_text(encoding="utf-8")


def test_what_the_page_on_labels_says_of_noise_is_in_the_results_where_the_attack_succeeds_without_it():
    words = (DOCS / "labels.md").read_text(encoding="utf-8").replace("\n", " ")
    weak, strong = (f"GaussianGradients, clip 0.5, σ {sigma}" for sigma in ("0.5", "8"))

    def cell(row, column):
        return float(number("downlinks.md", "CreditDefault", row, column))

    assert min(cell("none", column) for column in ("first epoch", "all epochs", "no label known")) > 0.99
    assert (
        f"at σ = 0.5 the labels of CreditDefault are hidden in each single epoch (AUC {cell(weak, 'first epoch'):.2f})"
        in words
    )
    assert f"no label ({cell(weak, 'no label known'):.2f}, ε = {cell(weak, 'ε of a label'):.0f})" in words
    assert (
        f"at ε = {cell(strong, 'ε of a label')} ten epochs have {cell(strong, 'all epochs'):.2f} ([results](" in words
    )


LABELS = "CreditDefault, labels"
FEATURES = "CreditDefault, features"
CLAIMS = [
    (
        "results/audits.md",
        "a party that knows no label has an AUC of {} on CreditDefault under `MaskedSum`, {} under `vFedSec`, {} under "
        "`LagrangeCoded`, {} under `LocalGaussian` with ε = 5 and {} under `PoissonBinomial` with 2 levels",
        [
            (LABELS, row, "all epochs, 0 known")
            for row in (
                "MaskedSum",
                "vFedSec",
                "LagrangeCoded",
                "LocalGaussian, ε = 5",
                "PoissonBinomial (2, .05)",
            )
        ],
    ),
    (
        "results/audits.md",
        "R² is {} under `MaskedSum`, {} under `vFedSec` and {} under `LagrangeCoded`, and {} in the clear",
        [(FEATURES, row, "one upload, R²") for row in ("MaskedSum", "vFedSec", "LagrangeCoded", "Concat")],
    ),
    (
        "results/audits.md",
        "The aggregates of all epochs have {}, {} and {}",
        [(FEATURES, row, "aggregates, R²") for row in ("MaskedSum", "vFedSec", "LagrangeCoded")],
    ),
    (
        "results/audits.md",
        "accuracy on Digits is {} under `LocalGaussian` with ε = 5 and {} under `PoissonBinomial` with 2 levels, in "
        "place of {}",
        [
            ("Digits, features", row, "test accuracy")
            for row in ("LocalGaussian, ε = 5", "PoissonBinomial (2, .05)", "Concat")
        ],
    ),
    (
        "labels.md",
        "a party that knows no label has an AUC of {} without a downlink, {} under `GaussianGradients` with σ = 0.5, "
        "{} with σ = 8, {} under `RandomizedResponse` with ε = 3, {} with ε = 1, {} under `LaplaceLabels` with ε = 1",
        [
            (LABELS, row, "all epochs, 0 known")
            for row in (
                "Concat",
                "GaussianGradients, σ 0.5",
                "GaussianGradients, σ 8",
                "RandomizedResponse, ε 3",
                "RandomizedResponse, ε 1",
                "LaplaceLabels, ε 1",
            )
        ],
    ),
    (
        "guides/decide.md",
        "R² {} from one masked upload, {} from the masked sums of all epochs",
        [(FEATURES, "MaskedSum", "one upload, R²"), (FEATURES, "MaskedSum", "aggregates, R²")],
    ),
    (
        "protection.md",
        "R² {} under `LocalGaussian` with ε = 5 of one upload, at an accuracy of {} for {}",
        [
            (FEATURES, "LocalGaussian, ε = 5", "aggregates, R²"),
            (FEATURES, "LocalGaussian, ε = 5", "test accuracy"),
            (FEATURES, "Concat", "test accuracy"),
        ],
    ),
]


def test_every_aggregator_that_sends_gradients_leaks_labels_as_the_guide_says():
    link = "[matrix](../results/audits.md#creditdefault-labels)"
    assert f"in the {link} they leak under every aggregator that sends gradients" in " ".join(
        (DOCS / "guides" / "decide.md").read_text(encoding="utf-8").split()
    )
    aggregators = [row for row in make_audits.ROWS if "--model.downlink" not in " ".join(make_audits.ROWS[row])]
    for row in aggregators:
        leaks = protection.cell("audits.md", LABELS, row, "all epochs, 0 known").endswith("**leak**")
        assert leaks == (row != "DVFL"), row


@pytest.mark.parametrize(("page_", "sentence", "cells"), CLAIMS, ids=range(len(CLAIMS)))
def test_a_claim_of_protection_has_the_numbers_of_the_matrix_and_leads_to_it(page_, sentence, cells):
    text = " ".join((DOCS / page_).read_text(encoding="utf-8").split())
    before, found, _ = text.partition(sentence.format(*(number("audits.md", *where) for where in cells)))
    assert found
    section = cells[0][0].lower().replace(", ", "-")
    assert page_ == "results/audits.md" or f"results/audits.md#{section})" in before[-400:]


def test_a_name_that_no_result_has_is_refused():
    missing = protection.Footnote("", attacks=("no such attack",))
    with pytest.raises(ValueError, match=r"0 rows of docs/results/tables/attacks\.json are named 'no such attack'"):
        held(missing)
    nowhere = protection.Footnote("", numbers=(("audits.md", FEATURES, "Median", "aggregates, R²"),))
    with pytest.raises(ValueError, match="no row 'Median'"):
        held(nowhere)


def test_the_page_of_attacks_has_the_rows_that_are_kept_of_families_that_exist():
    assert (RESULTS / "attacks.md").read_text(encoding="utf-8") == page(kept())
    assert set(kept()) <= set(families())


def test_the_page_can_be_read_in_minutes():
    text = (DOCS / "protection.md").read_text(encoding="utf-8").partition(protection.BEGIN)[0]
    assert len(text.splitlines()) < 200
    assert len(re.sub(r"\[\^[a-z-]+\]|\|", " ", text).split()) < 2100
