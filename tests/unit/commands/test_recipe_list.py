import pytest

from lightning_vfl.cli import run
from lightning_vfl.commands.recipe_list import KINDS, about, lines
from lightning_vfl.configs import packaged


def test_every_packaged_recipe_has_a_line_with_a_sentence():
    said = dict(line.split(maxsplit=1) for line in lines(None))
    assert list(said) == list(packaged())
    assert all(sentence.endswith(".") and "\n" not in sentence for sentence in said.values())
    assert said["data/digits"] == "Handwritten digits that ship with scikit-learn: 4 parties, two rows of pixels each."


@pytest.mark.parametrize("kind", KINDS)
def test_a_kind_has_its_recipes_alone(kind):
    assert [line.split()[0] for line in lines(kind)] == [name for name in packaged() if name.startswith(f"{kind}/")]


@pytest.mark.parametrize(
    ("comment", "sentence"),
    [
        ("# One\n# sentence over lines. Another.\ndata: X\n# A later comment.", "One sentence over lines."),
        ("# DVFL appendix D.2: a rate of 0.3.", "DVFL appendix D.2: a rate of 0.3."),
        ("data: X", ""),
    ],
)
def test_the_line_is_the_first_sentence_of_the_comment(comment, sentence):
    assert about(comment) == sentence


def test_the_list_from_python(capsys):
    run(["list", "policy"])
    assert capsys.readouterr().out.splitlines() == lines("policy")
