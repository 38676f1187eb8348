import pytest

from tests.readme_commands import Broken, check


@pytest.fixture
def readme(tmp_path):
    (tmp_path / "docs").mkdir()
    (tmp_path / "docs" / "guide.md").touch()

    def write(block="", language="bash", prose=""):
        path = tmp_path / "README.md"
        path.write_text(f"# Title\n\n{prose}\n\n```{language}\n{block}\n```\n")
        return path

    return write


def test_commands_that_hold_are_told_one_by_one(readme):
    block = """\
make -s check PYTHON=python3.13 && make demo   # two targets
.venv/bin/lightning-vfl fit --config data/digits --config protocol/mean \\
    --model.optimizer=torch.optim.Adam --trainer.max_epochs 1
X=1 python -m lightning_vfl test --config data/digits --config=protocol/sum --ckpt_path runs/none.ckpt | tail -1
lightning-vfl fit --help
pip install lightning-vfl"""
    told = list(check(readme(block, prose="[guide](docs/guide.md#top) [web](https://example.org/x) [here](#title)")))
    assert [line.split(" --")[0] for line in told] == [
        "make -s check PYTHON=python3.13",
        "make demo",
        "lightning-vfl fit",
        "python -m lightning_vfl test",
        "lightning-vfl fit",
        "link to docs/guide.md",
    ]


@pytest.mark.parametrize(
    ("block", "said"),
    [
        ("make tea", "no target tea"),
        ("lightning-vfl fit --config data/digit --config protocol/mean", "did you mean data/digits"),
        ("lightning-vfl fit --config data/digits --config protocol/mean --data.batchsize 4", "batchsize"),
        ("lightning-vfl fit --config data/digits --config protocol/mean --data.batch_size many", "batch_size"),
        ("lightning-vfl fit --config data/digits", "model"),
        ("lightning-vfl train", "train"),
        ("$ lightning-vfl --version\nlightning-vfl 0.0.0\n$ make tea", "no target tea"),
        ("lightning-vfl fit --config 'data/digits", "No closing quotation"),
    ],
)
def test_the_first_command_that_does_not_hold_is_named(readme, block, said):
    with pytest.raises(Broken, match=said) as broken:
        list(check(readme(block)))
    assert "\n" not in str(broken.value)


@pytest.mark.parametrize(
    "prose", ["[a](docs/gone.md)", "![a](docs/gone.svg)", '<img src="docs/gone.png">', "[a]: gone"]
)
def test_a_link_to_nothing_is_named(readme, prose):
    with pytest.raises(Broken, match="gone"):
        list(check(readme(prose=prose)))


def test_blocks_of_other_languages_are_not_commands(readme):
    assert list(check(readme("make tea", language="text"))) == []
