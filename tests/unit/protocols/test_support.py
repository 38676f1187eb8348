"""The tables of what protocols support: merged over bases, printed in the docs, and refused in one line."""

import re
from pathlib import Path
from typing import ClassVar

import pytest

from lightning_vfl import (
    AsyncVFL,
    CascadeVFL,
    DecoupledVFL,
    EnsembleVFL,
    LaserVFL,
    LocalVFL,
    OneShotVFL,
    SplitVFL,
    VFLModule,
)
from lightning_vfl.aggregators import MaskedSum, Mean
from lightning_vfl.callbacks import Audit, FaultInjector
from lightning_vfl.compressors import TopK
from lightning_vfl.errors import ConfigurationError
from lightning_vfl.federation.refusals import refuse_protocol
from lightning_vfl.local_updates import LocalSteps
from lightning_vfl.missing import Zeros
from lightning_vfl.simulation import PartyDropout
from lightning_vfl.support import Part, page, refuse_unsupported, unsupported_by
from lightning_vfl.waiting import Fastest
from tests.subjects import Blobs, trainer

PROTOCOLS = SplitVFL, AsyncVFL, DecoupledVFL, CascadeVFL, LaserVFL, EnsembleVFL, LocalVFL, OneShotVFL
PAGE = Path(__file__).parents[3] / "docs" / "support.md"


class Own(SplitVFL):
    unsupported: ClassVar = {Part.FAULTS: "train without", Part.SUBSETS: "use none"}


def made(protocol, **settings):
    """A protocol with settings that all of them take."""
    given = {} if protocol is DecoupledVFL else {"aggregator": settings.pop("aggregator", Mean())}
    return protocol(**given, width=4, seed=0, **settings)


def test_a_table_extends_those_of_the_bases_and_takes_back():
    assert set(unsupported_by(SplitVFL)) == set()
    assert set(unsupported_by(Own)) == {Part.FAULTS, Part.SUBSETS}
    assert set(unsupported_by(VFLModule)) == {Part.DOWNLINK, Part.SUBSETS, Part.FEDERATION}
    refuse_unsupported(Own, [Part.WAITING])
    with pytest.raises(ConfigurationError, match=r"^Own does not support faults; train without$"):
        refuse_unsupported(Own, [Part.WAITING, Part.FAULTS])


@pytest.mark.parametrize("table", [{"faults": "train without"}, {Part.FAULTS}, {Part.FAULTS: True}])
def test_a_table_that_would_be_overlooked_is_refused(table):
    with pytest.raises(TypeError, match=r"unsupported of Mine must be a dictionary from a Part"):
        type("Mine", (VFLModule,), {"unsupported": table})


def test_an_aggregator_in_the_clear_that_charges_is_refused_with_those_that_hide():
    class Charging(Mean):
        accounting = object()

    with pytest.raises(ConfigurationError, match="AsyncVFL does not support aggregators that hide or charge uploads"):
        AsyncVFL(Charging())


def test_the_page_of_docs_has_the_tables():
    assert page(PROTOCOLS) in PAGE.read_text(encoding="utf-8"), "print(page(PROTOCOLS)) into docs/support.md"


def test_every_remedy_is_a_line_that_names_what_to_do():
    for protocol in PROTOCOLS:
        for remedy in unsupported_by(protocol).values():
            assert any(word in remedy for word in ("use ", "leave out ", "audit ", "federated protocols")), remedy


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_what_a_protocol_is_given_and_does_not_support_is_refused(protocol, tmp_path):
    """Each row of its table, by the setting that a user would give."""

    def fit(*callbacks, devices=1):
        strategy = "ddp_spawn" if devices > 1 else "auto"
        t = trainer(tmp_path, max_epochs=1, callbacks=list(callbacks), devices=devices, strategy=strategy)
        t.fit(made(protocol), datamodule=Blobs(batch_size=10))

    given = {
        Part.FAULTS: lambda: fit(FaultInjector(PartyDropout(0.5, 0.4))),
        Part.WAITING: lambda: made(protocol, waiting=Fastest(2)),
        Part.MISSING: lambda: made(protocol, missing=Zeros()),
        Part.HIDDEN: lambda: made(protocol, aggregator=MaskedSum()),
        Part.PROTECTED_EVALUATION: lambda: made(protocol, evaluate="protocol"),
        Part.GROUPS: lambda: made(
            protocol, party_shapes=[(2,)] * 3, num_classes=2, party_groups=[[0, 1], [2]]
        ).configure_model(),
        Part.FEDERATION: lambda: refuse_protocol(protocol),
        Part.AUDIT: lambda: fit(Audit("server")),
        Part.LOCAL_UPDATE: lambda: made(protocol, local_update=LocalSteps(2)),
        Part.COMPRESSOR: lambda: made(protocol, compressor=TopK(2)),
    }
    if protocol is DecoupledVFL:  # it has no setting for an aggregator
        given.pop(Part.HIDDEN)
    for part in unsupported_by(protocol):
        if part in given:  # of the others, a class without the part has no setting
            with pytest.raises(ConfigurationError, match=re.escape(f"does not support {part.value}; ")):
                given[part]()
