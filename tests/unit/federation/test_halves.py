"""A top in halves between processes: the label holder alone has labels and predictions, and the bits are those of one.

The processes are threads of this one, whose requests go to the server's desk without a network.
"""

import re
import warnings
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from threading import RLock
from time import sleep
from types import SimpleNamespace

import pytest
import torch
from lightning.fabric.utilities.data import _replace_dunder_methods

from lightning_vfl import SplitVFL
from lightning_vfl.aggregators import Concat, MaskedSum, Mean
from lightning_vfl.callbacks import ExperimentRecord
from lightning_vfl.errors import ConfigurationError
from lightning_vfl.federation.agreed import Agreed
from lightning_vfl.federation.at_party import join
from lightning_vfl.federation.attendance import Form
from lightning_vfl.federation.frames import Frame
from lightning_vfl.federation.hub import At, Hub, Key, Request
from lightning_vfl.federation.link import Link, Transport
from lightning_vfl.federation.reception import Reception
from lightning_vfl.federation.refusals import refuse_unfederated
from lightning_vfl.federation.rounds_at_party import RoundsAtParty
from lightning_vfl.federation.rounds_at_server import RoundsAtServer
from lightning_vfl.networks import MLP, Linear
from lightning_vfl.types import Seat
from lightning_vfl.waiting import Deadline
from lightning_vfl.wire import Message
from tests.subjects import Blobs, same, trainer

WIDTH = 4
HALVES = {"server": MLP, "active": Linear}
ACTIVE = 1
PARTIES = 3
LATE = 60.0  # seconds after which a test has failed


class Desk(Transport):
    """Calls the server's desk without a network."""

    def __init__(self, hub, party):
        self.hub, self.party, self.process = hub, party, bytes([party]) * 16
        hub.joined(party, self.process)

    def exchange(self, frame, read):
        return read([self.hub.call(self.party, frame)])

    def close(self):
        self.hub.left(self.party, self.process)


def model(aggregator, **settings):
    torch.manual_seed(0)
    return SplitVFL(aggregator, **{"top": HALVES, "width": WIDTH, "active": ACTIVE, "seed": 0, **settings})


def points(record, name):
    return record.state_dict()["points"][name]


@contextmanager
def loaders_in_turn() -> Iterator[None]:
    """Let the trainers of several threads make their loaders one after the other.

    Lightning changes torch's class of loaders for the moment in which one is made; two threads at once undo it twice.
    """
    lock = RLock()

    @contextmanager
    def alone(*what):
        with lock, _replace_dunder_methods(*what):
            yield

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("lightning.pytorch.trainer.connectors.data_connector._replace_dunder_methods", alone)
        yield


class InMemory:
    """The processes of a federation, with seeded weights.

    Args:
        folder: of the trainers.
        make: makes the model of a process.
        reconnect: seconds that the server waits for parties.
        active: the party with the labels; None: the server has them.
        places: of the server and of a party.
    """

    def __init__(self, folder, make, reconnect=5.0, active=ACTIVE, places=(RoundsAtServer, RoundsAtParty)):
        self.hub = Hub(PARTIES, Agreed(("shop", "bank", "telco"), active))
        reception = Reception(("shop", "bank", "telco"), {}, lambda party, hello: None)
        self.hub.greet = reception.answer
        self.desks = {party: Desk(self.hub, party) for party in range(PARTIES)}

        def place(seat):
            if seat is None:
                return places[0](self.hub, False, reconnect)
            hello = {"rounds": 0}
            return join(
                places[1],
                Link(self.desks[seat], self.hub.agreed),
                seat,
                b"",
                hello,
                False,
                lambda _: b"",
                lambda *_: None,
            )

        with ThreadPoolExecutor(PARTIES + 1) as pool:
            seated = list(pool.map(place, (None, *range(PARTIES))))
        self.models, self.data, self.trainers, self.points = {}, {}, {}, {}
        for seat, own in zip((None, *range(PARTIES)), seated, strict=True):
            data = self.data[seat] = Blobs(batch_size=10)
            module = self.models[seat] = make()
            data.take_seat(Seat(seat), None, active, module.labels_everywhere)
            module.place = own
            module.build_for(data)
            self.points[seat] = ExperimentRecord()
            self.trainers[seat] = trainer(folder / str(seat), callbacks=[self.points[seat]])

    def run(self, method, seats=(None, 0, 1, 2)):
        """What a method of all trainers gives, by seat; an error of a process is given as it is, and it hangs up."""

        def role(seat):
            try:
                return getattr(self.trainers[seat], method)(self.models[seat], datamodule=self.data[seat])
            except Exception as error:
                if seat is not None and self.hub.present(seat):
                    self.desks[seat].close()
                return error
            finally:
                if seat is None:
                    self.hub.end({"outcome": "over", "why": "the server has ended"})

        with loaders_in_turn(), ThreadPoolExecutor(PARTIES + 1) as pool:
            waiting = {seat: pool.submit(role, seat) for seat in seats}
            found = {seat: one.result(LATE) for seat, one in waiting.items()}
        self.hub._over = None
        return found

    def weights(self):
        together = {}
        for module in self.models.values():
            together |= dict(module.state_dict())
        return together


CASES = {
    "mean": (Mean(), {}),
    "concat with a norm": (Concat(), {"norm": torch.nn.BatchNorm1d}),
    "masked": (MaskedSum(), {}),
    "dropout in both halves": (
        Mean(),
        {
            "top": {
                "server": partial(MLP, activation=torch.nn.Dropout),
                "active": partial(MLP, activation=torch.nn.Dropout),
            }
        },
    ),
    "recovery": (MaskedSum(recovery="auto"), {"waiting": Deadline(30.0), "allow_embeddings_by_subtraction": True}),
}


SLOW = ("masked", "recovery")


@pytest.mark.parametrize("case", [pytest.param(c, marks=pytest.mark.slow) if c in SLOW else c for c in CASES])
def test_weights_metrics_bytes_and_predictions_are_those_of_the_simulation(case, tmp_path):
    aggregator, settings = CASES[case]
    one = model(aggregator, **settings)
    record = ExperimentRecord()
    alone = trainer(tmp_path / "one", callbacks=[record])
    alone.fit(one, datamodule=Blobs(batch_size=10))
    many = InMemory(tmp_path, lambda: model(aggregator, **settings))
    assert many.run("fit") == dict.fromkeys((None, 0, 1, 2))
    assert same(many.weights(), dict(one.state_dict()))
    loss = "train/loss_epoch"
    assert torch.equal(many.trainers[ACTIVE].callback_metrics[loss], alone.callback_metrics[loss])
    for seat in (None, 0, 1, 2):
        assert points(many.points[seat], "val/loss") == points(record, "val/loss")
        assert same(many.models[seat].books.meter.state_dict(), one.books.meter.state_dict())
    tested = many.run("test")
    assert tested[None] == tested[0] == tested[ACTIVE] == alone.test(one, datamodule=Blobs(batch_size=10))
    predicted = many.run("predict")
    expected = alone.predict(one, datamodule=Blobs(batch_size=10))
    assert same([p.values for p in predicted[ACTIVE]], [p.values for p in expected])
    assert all(len(p.values) == 0 for seat in (None, 0, 2) for p in predicted[seat])


def at_the_cut(many, monkeypatch, number, before):
    """Let the label holder call ``before`` when it is to send its gradient at the cut of a round."""
    tell_cut = RoundsAtParty._tell_cut

    def later(self, module, gradient, names, at):
        if names.round == number:
            before()
        return tell_cut(self, module, gradient, names, at)

    monkeypatch.setattr(RoundsAtParty, "_tell_cut", later)


def test_without_a_label_holder_that_is_lost_at_the_cut_the_round_is_given_up_and_the_run_ends_in_a_line(
    tmp_path, monkeypatch
):
    many = InMemory(tmp_path, lambda: model(Mean()), reconnect=0.2)

    def hang_up():
        many.desks[ACTIVE].close()
        raise RuntimeError("killed")

    at_the_cut(many, monkeypatch, 2, hang_up)
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        ended = many.run("fit")
    lines = [str(one.message) for one in told]
    assert "round 2 is given up: the label holder has not answered at the cut" in lines
    assert "round 3 waits for parties that are away; present are parties [0, 2]" in lines
    assert "round 3 has waited 0.2 s for parties that are away (present: [0, 2])" in str(ended[None])
    for seat in (0, 2):
        assert str(ended[seat]).startswith("the server has ended")
    assert [many.models[seat].books.given_up for seat in (None, 0, 2)] == [1, 1, 1]
    assert same(many.models[None].books.meter.state_dict(), many.models[0].books.meter.state_dict())


@pytest.mark.slow
def test_a_round_whose_label_holder_is_late_at_the_cut_is_given_up_and_the_others_follow(tmp_path, monkeypatch):
    many = InMemory(tmp_path, lambda: model(Mean(), waiting=Deadline(3.0)))

    def wait_for_the_end_of_the_round():
        while many.models[None].books.given_up == 0:
            sleep(0.01)

    at_the_cut(many, monkeypatch, 2, wait_for_the_end_of_the_round)
    with pytest.warns(UserWarning, match="round 2 is given up"):
        assert many.run("fit") == dict.fromkeys((None, 0, 1, 2))
    assert [module.books.given_up for module in many.models.values()] == [1] * 4
    assert many.models[None].books.rounds["fit"] == 12


def form(rows=6):
    module = model(Mean(), party_shapes=[(3,), (3,), (2,)], num_classes=3)
    module.configure_model()
    module._trainer = SimpleNamespace(precision="32-true")
    leg = module.costs.cut(rows)[-1]
    return Form(module, Agreed(("shop", "bank", "telco"), ACTIVE), rows, clear=True), leg


def cut_request(gradient, party=ACTIVE, part="cut", kind="cut gradients"):
    letter = {"kind": kind, "to": "server", "senders": [party], "pieces": 1, "receivers": None, "round": None}
    header = {"part": part, "message": {**letter, "relayed": False}}
    return Request(party, 0, Key(At(0, 2, 0), 2**16), "tell", Frame(header, (gradient,)), 0.0)


@pytest.mark.parametrize(
    ("request_", "line"),
    [
        (cut_request(torch.zeros(6, WIDTH)), None),
        (cut_request(torch.zeros(6 * WIDTH)), r"of shape \(24,\), \(6, 4\) was planned"),
        (cut_request(torch.zeros(WIDTH, 6)), r"of shape \(4, 6\), \(6, 4\) was planned"),
        (cut_request(torch.zeros(6, WIDTH, dtype=torch.int64)), "real numbers were planned"),
        (cut_request(torch.zeros(6, WIDTH, dtype=torch.float64)), "of torch.float64"),
        (cut_request(torch.full((6, WIDTH), torch.nan)), "NaN or infinite"),
        (cut_request(torch.full((6, WIDTH), 1e30)), "limits.value"),
        (cut_request(torch.zeros(6, WIDTH), part="upload"), "'cut gradients' was planned"),
        (cut_request(torch.zeros(6, WIDTH), kind="embeddings"), "'cut gradients' to server was planned"),
    ],
)
def test_gradients_at_the_cut_have_the_form_of_the_batch(request_, line):
    planned, leg = form()
    wrong = planned.misfit(request_, leg)
    assert wrong is None if line is None else re.search(line, wrong)


@pytest.mark.parametrize(
    "message",
    [
        Message("cut activations", "parties", (), (torch.zeros(5, WIDTH),)),
        Message("cut activations", "parties", (), (torch.zeros(6, WIDTH, dtype=torch.int64),)),
        Message("cut activations", "parties", (), (torch.full((6, WIDTH), torch.inf),)),
        Message("embeddings", "parties", (), (torch.zeros(6, WIDTH),)),
        Message("cut activations", "parties", (), ()),
    ],
)
def test_a_server_that_sends_other_activations_ends_the_label_holder_in_a_line(message):
    module = model(Mean(), party_shapes=[(3,), (3,), (2,)], num_classes=3)
    module.configure_model()
    module._trainer = SimpleNamespace(precision_plugin=None)
    place = RoundsAtParty(SimpleNamespace(agreed=Agreed(("shop", "bank", "telco"), ACTIVE)), ACTIVE, None, False)
    with pytest.raises(ConfigurationError, match=r"the server has sent .*activations at the cut"):
        place.crossed(module, message, 6)


@pytest.mark.parametrize("header", [{}, {"batches": 2, "metrics": {}}, {"batches": 3}])
def test_metrics_of_a_label_holder_that_has_missed_batches_end_the_run_in_a_line(header):
    hub = Hub(PARTIES, Agreed(("shop", "bank", "telco"), ACTIVE))
    server = RoundsAtServer(hub, False)
    server.evaluated = 3
    at = At(0, 1, 3)
    hub._desks[ACTIVE].waiting = Request(ACTIVE, 0, Key(at, 0), "metrics", Frame(header, ()), 0.0)
    module = SimpleNamespace(roster=SimpleNamespace(active=ACTIVE))
    with pytest.raises(ConfigurationError, match=r"party bank, which has the labels, has predicted .* of 3 batches"):
        server._of_label_holder(module, at)


def test_predictions_at_all_parties_are_refused_in_a_line(tmp_path):
    module = model(Mean(), party_shapes=[(3,), (3,), (2,)], num_classes=3)
    callbacks = [SimpleNamespace(at="parties")]
    run = SimpleNamespace(
        model=module, data=Blobs(), trainer=SimpleNamespace(callbacks=callbacks, precision_plugin=None), injected=False
    )
    with pytest.raises(ConfigurationError, match="the label holder alone predicts; leave it out"):
        refuse_unfederated(run)
