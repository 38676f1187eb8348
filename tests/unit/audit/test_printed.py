"""The table of findings on the terminal."""

import pytest

from lightning_vfl.audit.report import print_findings
from lightning_vfl.audit.verdicts import Finding


def found(attack):
    return Finding(attack, "server", "aggregates", "R²", 0.999, 0.998, 0.999, 0.0, -0.007, None, "leak", 0.1)


@pytest.mark.parametrize(("width", "whole"), [(80, True), (60, False)])
def test_names_of_attacks_are_whole_where_there_is_room_and_never_cut(monkeypatch, capsys, width, whole):
    monkeypatch.setenv("COLUMNS", str(width))
    print_findings([found("FeatureReconstruction(known=280)"), found("SingleUpload(known=280)")])
    lines = capsys.readouterr().out.splitlines()
    assert max(map(len, lines)) <= width
    cells = [line.split("│")[1].strip() for line in lines if line.count("│") > 2]
    assert ("FeatureReconstruction" in cells) == whole
    assert "FeatureReconstruction(known=280)SingleUpload(known=280)" in "".join(cells)


def test_in_a_pipe_each_finding_is_one_line(monkeypatch, capsys):
    monkeypatch.delenv("COLUMNS", raising=False)
    names = ["FeatureReconstruction(known=280)", "CanariesInTraining(canaries=1000, clip=0.5, upload=1)"]
    print_findings([found(name) for name in names])
    lines = capsys.readouterr().out.splitlines()
    assert [sum(name in line and "leak" in line for line in lines) for name in names] == [1, 1]
