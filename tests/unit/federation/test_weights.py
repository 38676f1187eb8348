"""``weights`` of ``federation.yaml``: how it is read, who must agree, and what it refuses."""

from types import SimpleNamespace

import pytest
import yaml

from lightning_vfl.aggregators import LocalGaussian, MaskedSum
from lightning_vfl.errors import ConfigurationError
from lightning_vfl.federation.charter import Charter, Weights
from lightning_vfl.federation.hub import Hub
from lightning_vfl.federation.identity import make_identity
from lightning_vfl.federation.refusals import refuse_seeded
from lightning_vfl.federation.run import Run
from lightning_vfl.federation.session import _wrong


def charter(folder, **more):
    names = ("scorer", "bank")
    for name in names:
        if not (folder / f"{name}.key").exists():
            make_identity(name, folder)
    hosts = [{"name": name, "certificate": f"{name}.crt"} for name in names]
    said = {"federation": "trial", "server": {**hosts[0], "address": "127.0.0.1:1"}, "parties": hosts[1:], **more}
    (folder / "federation.yaml").write_text(yaml.safe_dump(said))
    return Charter.read(folder / "federation.yaml")


def test_weights_are_secret_unless_the_file_says_seeded(tmp_path):
    assert charter(tmp_path).weights == Weights.SECRET
    assert charter(tmp_path, weights="secret").digest == charter(tmp_path).digest
    seeded = charter(tmp_path, weights="seeded")
    assert seeded.weights == Weights.SEEDED
    assert seeded.digest != charter(tmp_path).digest
    with pytest.raises(ConfigurationError, match=r"weights must be .*secret.*seeded.*; got 'public'|got public"):
        charter(tmp_path, weights="public")


@pytest.mark.parametrize("said", ["seeded", None])
def test_a_party_with_other_weights_is_refused_in_one_line(tmp_path, said):
    model = SimpleNamespace(books=SimpleNamespace(training_rounds=0), place=None)
    own = Run(charter(tmp_path), None, None, None, None, model, None, "fit", {})
    hello = {**own.about(), "recipe": {}, "process": "", "rounds": 0}
    assert _wrong(own, Hub(1), 0, hello) is None
    line = f"party bank has weights: {said}, the server secret; use the same federation.yaml"
    assert _wrong(own, Hub(1), 0, {**hello, "weights": said}) == line


@pytest.mark.parametrize(
    ("part", "setting"),
    [
        (lambda: LocalGaussian(draws="seeded"), "draws: seeded of LocalGaussian"),
        (lambda: MaskedSum(insecure_seeded_secrets=True), "insecure_seeded_secrets: true of MaskedSum"),
        (lambda: SimpleNamespace(inner=LocalGaussian(draws="seeded")), "draws: seeded of SimpleNamespace"),
    ],
)
def test_secrets_from_the_seed_are_refused_also_inside_of_other_parts(part, setting):
    refuse_seeded(LocalGaussian(), MaskedSum(), None)
    with pytest.raises(ConfigurationError, match=f"{setting}.*; leave it out, or use weights: seeded"):
        refuse_seeded(part())
