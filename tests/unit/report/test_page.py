"""The page of a run is one sound HTML file with everything that the run has recorded, or one line says why not."""

import re
from html.parser import HTMLParser

import numpy as np
import pytest
from sklearn.metrics import roc_auc_score

from lightning_vfl.callbacks import RunRecord
from lightning_vfl.cli import main
from lightning_vfl.errors import ConfigurationError
from lightning_vfl.report import write_report
from lightning_vfl.report.figures import roc
from tests.subjects import Blobs, Values, YesNo, split, trainer

VOID = {"meta", "br", "hr", "img", "link", "input"}


class Sound(HTMLParser):
    """Every element is closed in its turn; ids are unique; nothing is loaded from elsewhere."""

    def __init__(self):
        super().__init__()
        self.open, self.ids, self.headings, self.text, self.figures = [], [], [], [], 0

    def handle_starttag(self, tag, attrs):
        given = dict(attrs)
        self.ids += [given["id"]] if "id" in given else []
        self.figures += tag == "svg"
        assert tag not in ("script", "link", "iframe")
        for name in ("src", "href", "xlink:href"):
            assert str(given.get(name, "#")).startswith(("#", "data:image/png;base64,"))
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag, attrs):
        self.handle_starttag(tag, attrs)
        self.handle_endtag(tag)

    def handle_endtag(self, tag):
        if tag not in VOID:
            assert self.open.pop() == tag

    def handle_data(self, data):
        self.text.append(data)
        if self.open and self.open[-1] == "h2":
            self.headings.append(data)


def parsed(path):
    page = Sound()
    page.feed(path.read_text(encoding="utf-8"))
    assert page.open == []
    assert len(page.ids) == len(set(page.ids))
    return page


slow = pytest.mark.slow


@slow
@pytest.mark.parametrize(
    ("data", "figures", "curves"),
    [
        (YesNo, 2, ("accuracy", "auroc", "auprc", "loss")),
        (Blobs, 1, ("accuracy", "loss")),
        (Values, 1, ("mse", "rmse", "mae", "r2", "loss")),
    ],
)
def test_the_page_has_everything_and_is_sound(tmp_path, data, figures, curves):
    t = trainer(tmp_path, callbacks=[RunRecord()], max_epochs=1)
    t.fit(module := split(), datamodule=data(batch_size=10))
    t.test(module, datamodule=data(batch_size=10), verbose=False)
    (tmp_path / "config.yaml").write_text("data: <b>&amp; 'mine'\n")
    path = write_report(tmp_path)
    assert path == tmp_path / "report.html"
    page = parsed(path)
    assert page.headings == [
        "Result",
        "Learning curves",
        "Predictions of the validation records",
        "Predictions of the test records",
        "Traffic of each party",
        "Attendance",
        "Environment",
        "Recipe",
    ]
    assert page.figures == len(curves) + 2 * figures + 2
    text = "".join(page.text)
    assert "data: <b>&amp; 'mine'" in text
    assert f"test/loss{float(t.callback_metrics['test/loss']):.4f}" in text.replace("\n", "")
    assert not re.search(r'(src|href)="https?:', path.read_text())


def test_the_roc_is_that_of_scikit_learn():
    draw = np.random.default_rng(0)
    y, bins = draw.integers(0, 2, 400), draw.integers(0, 200, 400)
    bins = np.clip(bins + 40 * y, 0, 199)
    counts = np.stack([np.bincount(bins[y == c], minlength=200) for c in (0, 1)]).astype(float)
    assert roc(counts)[2] == pytest.approx(roc_auc_score(y, bins), abs=1e-12)


def test_what_is_no_run_is_refused_in_one_line(tmp_path, capsys):
    with pytest.raises(SystemExit) as stopped:
        main(["report", str(tmp_path)])
    assert stopped.value.code == 1
    said = capsys.readouterr().err
    assert said.startswith(f"lightning-vfl: error: {tmp_path} holds no record-fit.json; give the folder of a run")
    assert said.count("\n") == 1
    (tmp_path / "record-fit.json").write_text("{")
    with pytest.raises(ConfigurationError, match=r"record-fit.json cannot be read \(.*\); run it again"):
        write_report(tmp_path)
