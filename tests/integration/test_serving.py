"""Law: predictions in production are those of ``predict``, to 1e-5, from a model that was trained and exported."""

import asyncio

import numpy as np
import pandas as pd
import pytest
import torch

from lightning_vfl.absence import PredictWithout
from lightning_vfl.absence.stand_ins import Exclude
from lightning_vfl.aggregators import LagrangeCoded, LagrangeShared, LocalGaussian, MaskedSum, Mean, PoissonBinomial
from lightning_vfl.callbacks import PredictionWriter
from lightning_vfl.errors import ConfigurationError
from lightning_vfl.export.write import export_model
from lightning_vfl.federation.charter import Consent, SeatFile
from lightning_vfl.federation.local import found
from lightning_vfl.networks import PolynomialNetwork
from lightning_vfl.privacy import Sigma
from lightning_vfl.serving.endpoint import Endpoint
from lightning_vfl.serving.gateway import Gateway
from lightning_vfl.serving.party_half import Records, ServedParty
from lightning_vfl.serving.server_half import ServedServer
from tests.exported import built, one_registry, predictions
from tests.integration.test_new_records import IDS, NEW, tables, write_tables
from tests.served import running
from tests.subjects import trainer

pytestmark = pytest.mark.slow  # torch.export and ONNX take 5 s in every process that imports them
PARTIES = ("bank", "shop")
CLOSE = 1e-5


@pytest.fixture(autouse=True, scope="module")
def quick_exports():
    with one_registry():
        yield


class Exported:
    """The exported halves of a bank and a shop, with the tables of new records."""

    def __init__(self, folder, aggregator, protected=False):
        self.folder = folder
        self.evaluate = Consent.PROTOCOL  # of all seats
        write_tables(folder, IDS)
        write_tables(folder / "new", NEW, seed=1, cities=("Paris", "Berlin", "Oslo"), label=False)
        torch.manual_seed(0)
        bottom = {"bottom": PolynomialNetwork} if isinstance(aggregator, LagrangeCoded) else {}
        self.module = built(aggregator, data=tables(folder), **bottom)[0]
        self.module.protected_evaluation = protected
        export_model(self.module, folder / "halves")
        self.charter = found("production", PARTIES, folder)

    def seat(self, name):
        ledger = self.folder / f"{name}.privacy.jsonl"
        return SeatFile(self.folder / "keys" / f"{name}.key", ledger=ledger, evaluate=self.evaluate)

    def endpoint(self, name):
        records = Records(self.folder / "new" / f"{name}.csv")
        return Endpoint(ServedParty(self.folder / "halves" / name, records), self.charter, self.seat(name))

    def gateway(self, deadline):
        servers = [ServedServer(self.folder / "halves" / "server")]
        return Gateway(servers, self.charter, self.seat("server"), deadline)


def served(exported, ids, parties=PARTIES):
    async def ask():
        async with running(exported, parties) as (gateway, _):
            joined = await gateway.predict(np.array(ids))
            return pd.DataFrame(gateway.server.rows(ids, joined, slice(0, len(ids))))

    return asyncio.run(ask())


def assert_same(entries, expected, close=CLOSE):
    """The same decisions, and the same probabilities; of several classes each."""
    names = [name for name in expected if name.startswith("probability_")]
    probabilities = [list(one.values()) if isinstance(one, dict) else [one] for one in entries["probability"]]
    if close == CLOSE:
        assert entries["decision"].tolist() == expected["decision"].tolist()
    np.testing.assert_allclose(probabilities, expected[names], atol=close)


@pytest.mark.parametrize("aggregator", [Mean(), MaskedSum()], ids=["clear", "masked"])
def test_production_predicts_what_predict_writes(aggregator, tmp_path):
    exported = Exported(tmp_path, aggregator)
    expected = predictions(exported.module, tables(tmp_path / "new"), tmp_path)
    assert len(expected) == len(NEW)
    assert_same(served(exported, expected["record"].tolist()), expected)


def test_production_without_a_party_predicts_what_predict_without_it_writes(tmp_path):
    exported = Exported(tmp_path, Mean())
    data = tables(tmp_path / "new")
    callbacks = [PredictWithout(lambda: (1,), Exclude()), PredictionWriter(str(tmp_path / "p.csv"))]
    trainer(tmp_path, callbacks=callbacks).predict(exported.module, datamodule=data)
    expected = pd.read_csv(tmp_path / "p.csv")
    assert_same(served(exported, expected["record"].tolist(), PARTIES[:1]), expected)


@pytest.mark.parametrize(
    ("aggregator", "close"),
    [(LocalGaussian(Sigma(1e-7)), CLOSE), (PoissonBinomial(levels=2**14, clip_outside=True), 0.05)],
    ids=["noise", "draws"],
)
def test_production_with_little_noise_predicts_what_predict_writes(aggregator, close, tmp_path):
    exported = Exported(tmp_path, aggregator, protected=True)
    expected = predictions(exported.module, tables(tmp_path / "new"), tmp_path)
    assert_same(served(exported, expected["record"].tolist()), expected, close)


SHARES = {"shared": LagrangeShared(), "coded": LagrangeCoded(privacy=0)}


@pytest.mark.parametrize("aggregator", SHARES.values(), ids=SHARES)
def test_a_model_with_shares_is_refused_in_one_line(aggregator, tmp_path):
    exported = Exported(tmp_path, aggregator, protected=True)
    for start in (lambda: exported.endpoint("bank"), lambda: exported.gateway(1.0)):
        with pytest.raises(ConfigurationError, match=rf"{type(aggregator).__name__} .* production does not") as error:
            start()
        assert "\n" not in str(error.value)


@pytest.mark.parametrize("aggregator", SHARES.values(), ids=SHARES)
def test_a_model_with_shares_answers_in_the_clear_if_every_seat_agrees(aggregator, tmp_path):
    exported = Exported(tmp_path, aggregator)  # evaluate: plain
    for name in PARTIES:
        with pytest.raises(ConfigurationError, match=r"set evaluate: plain in seat\.yaml to agree"):
            exported.endpoint(name)
    exported.evaluate = Consent.PLAIN
    assert "in the clear" in exported.endpoint("bank").in_the_clear
    expected = predictions(exported.module, tables(tmp_path / "new"), tmp_path)
    assert_same(served(exported, expected["record"].tolist()), expected)
