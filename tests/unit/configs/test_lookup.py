import pytest

from lightning_vfl.configs import find_recipe, packaged
from lightning_vfl.errors import ConfigurationError


@pytest.mark.parametrize(
    "name", ["data/digits", "data/digits.yaml", "configs/data/digits.yaml", "./configs/data/digits"]
)
def test_one_rule_finds_a_packaged_recipe(name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert find_recipe(name) == str(packaged()["data/digits"])


def test_a_file_of_that_name_comes_first(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "data").mkdir()
    (tmp_path / "data/digits").write_text("data: Digits")
    assert find_recipe("data/digits") == "data/digits"


def test_a_typo_is_told_the_nearest_recipes():
    with pytest.raises(ConfigurationError, match="did you mean data/digits"):
        find_recipe("data/digit")


def test_a_typo_in_the_name_of_an_own_file_is_told_the_nearest_one(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name in ("loans.yaml", "study.yml", "loans.csv"):
        (tmp_path / name).touch()
    for given, right in (("loan.yaml", "loans.yaml"), (str(tmp_path / "stdy.yml"), str(tmp_path / "study.yml"))):
        with pytest.raises(ConfigurationError, match=f"did you mean {right}[?]"):
            find_recipe(given)


def test_long_texts():
    recipe = '{"model": {"class_path": "' + "x" * 400 + '"}}'
    assert find_recipe(recipe) == recipe
    with pytest.raises(ConfigurationError, match="n… has 400 characters, too many for the name of a file; give a file"):
        find_recipe("n" * 400)
