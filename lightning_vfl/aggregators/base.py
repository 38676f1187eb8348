"""What an aggregator is: how the embeddings of M parties become one tensor at the server, and who sends what.

An aggregator is plain configuration and arithmetic: no parameters, no autograd, no Lightning, nothing kept between
rounds on ``self``. It states the two halves of a round apart. The party half (``encode``, ``respond``) reads nothing
but its arguments and a ``PartyView``; the server half (``decode``) reads nothing but messages and a ``ServerView``.
What one half needs from the other has to travel in a message, so the code cannot leak what is not sent.

Laws, held by ``tests/unit/aggregators/test_contract.py`` for every subclass:

1. decode(encode(c)) == clear(c), bit for bit, for every roll the aggregator accepts.
2. every message fits the leg that announced it: same kind, destination and number of elements.
3. ``pullback`` is the adjoint of ``plain``: <grad, J v> == <pullback(grad), v>.
4. a party that is not counted gets a gradient of exactly zero and changes no bit of the aggregate.
5. encoding P parties at once equals encoding each alone, bit for bit.
6. the capabilities declared as class data are what the code does.
"""

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, ClassVar, NamedTuple, Self

import torch
from torch import Tensor

from lightning_vfl.aggregators.coded.blocks import Blocks
from lightning_vfl.aggregators.messages import check_message, only, refuse_infinite
from lightning_vfl.errors import ConfigurationError
from lightning_vfl.privacy.events import PrivacyEvent
from lightning_vfl.types import PartyRecords, Roll, Roster, Stage
from lightning_vfl.wire import Aggregate, Contribution, Embeddings, Leg, LinearForms, Message, PartyView, ServerView

FLOAT_BITS = 32  # embeddings and gradients in the clear travel as float32


class _Saved(NamedTuple):
    """The real aggregate with its autograd graph, for the default pullback."""

    h: tuple[Tensor, ...]
    z: Tensor


class Aggregator(ABC):
    """How M embeddings become one aggregate; subclass it for a protocol of your own.

    The defaults describe embeddings sent in the clear: one leg of float32, decode by ``plain``, pullback by autograd
    of ``plain``. So a new aggregator of that kind implements ``plain`` and ``out_width`` and nothing else. One that
    hides something overrides ``legs``, ``encode``, ``decode``, ``clear`` and ``pullback``, and says
    ``visible = False``.

    Class data:
        form: what the protocol must bring into the round, ``Embeddings`` or ``LinearForms``.
        visible: the server can read one party's upload (so it can reuse a stale one).
        partly_held: records that not every party holds can be joined.
        private_evaluation: validation and test run through the protocol by default instead of in the clear.
        incidental: settings that change no result: a checkpoint trained with others may be loaded.
        everybody_called: parties that hold none of a batch's records take part all the same, so that nobody can tell.
        in_the_clear: derived, not declared: all steps of a round are the defaults, so the round is ``plain`` itself.
        sets_up: derived: there is something to do before the first round of a stage.
        accounts: derived: ``event`` is stated, so the privacy of training is accounted for.
        opens: derived: parties send each other something at the beginning of a round.
        any_will_do: derived: ``min_responses`` is stated, so second answers beyond these are not computed.
    """

    form: ClassVar[type[Contribution]] = Embeddings
    visible: ClassVar[bool] = True
    partly_held: ClassVar[bool] = True
    private_evaluation: ClassVar[bool] = False
    incidental: ClassVar[tuple[str, ...]] = ()
    everybody_called: ClassVar[bool] = False
    in_the_clear: ClassVar[bool] = True
    sets_up: ClassVar[bool] = False
    opens: ClassVar[bool] = False
    accounts: ClassVar[bool] = False
    any_will_do: ClassVar[bool] = False

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()

        def own(*steps: str) -> bool:
            return any(getattr(cls, step) is not getattr(Aggregator, step) for step in steps)

        cls.in_the_clear = not own("encode", "respond", "decode", "clear", "pullback")
        cls.any_will_do = own("min_responses")
        cls.sets_up = own("agree", "setup_legs", "offer")
        cls.opens = own("open")
        cls.accounts = own("event")

    # ---- shapes, before anything is computed

    @abstractmethod
    def out_width(self, width: int, roster: Roster) -> int:
        """D_out, the width of the aggregate when every bottom is asked for ``widths(width, roster)``."""

    @property
    def equivalent(self) -> bool:
        """Whether rounds run ``clear`` instead of the messages: the same value, bytes and seconds, no secrets."""
        return False

    def check(self, parties: int) -> None:
        """Refuse a number of parties that cannot work, before anything is built; default: any can."""
        return

    def among(self, roster: Roster) -> Self:
        """This aggregator for these parties, refused if it cannot work for them; default: it needs not know them."""
        return self

    def refuse_partly_held(self, present: Tensor | None, roster: Roster) -> None:
        """Refuse records (N, M) that not every party holds, where these cannot be joined; default: ``partly_held``."""
        if present is not None and not self.partly_held:
            raise ConfigurationError(
                f"{type(self).__name__} needs every party to hold every record; use overlap: inner, or an aggregator "
                "that joins partly held records (Concat, Sum, Mean, Max)"
            )

    @property
    def loses_quietly(self) -> bool:
        """Whether the others' uploads still mean something when one that was expected is lost; default: yes."""
        return True

    def takes_part(self, called: Tensor, arrived: Tensor, roster: Roster) -> Tensor:
        """(M,) bool: of those whose first upload has arrived, whose enters the aggregate; default: everybody's.

        Asked before a round too, with those who could be called in both places: whoever is then left is called.
        """
        return arrived

    def arrangement(self, records: int, parties: int, seed: int, stage: Stage) -> Blocks | None:
        """How N records are stacked in coded rows, so that schedules offer cheap batches; default: every batch is."""
        return None

    def widths(self, width: int, roster: Roster) -> tuple[int, ...]:
        """The embedding width each of the M bottoms must give; default: ``width`` for everybody."""
        return (width,) * roster.parties

    def legs(self, rows: int, widths: tuple[int, ...], basis: tuple[int, ...], roster: Roster) -> tuple[Leg, ...]:
        """The traffic of the parties in a round of ``rows`` records, from shapes alone.

        Args:
            rows: rows of the joint batch; coded rows where there is an ``arrangement``.
            widths: (M,) embedding widths.
            basis: (M,) widths of the expanded features for ``LinearForms``, empty for ``Embeddings``.
            roster: who takes part.
        """
        return (
            Leg("embeddings", "server", rows * torch.tensor(widths), FLOAT_BITS, torch.zeros(len(widths)).double()),
        )

    def min_responses(self, parties: int) -> int:
        """The fewest answers of M parties that can be decoded, whoever gives them; default: one.

        To state it is to say that any so many answers of a second leg give the same aggregate.
        """
        return 1

    def downlink(self, rows: int, widths: tuple[int, ...], roster: Roster) -> Leg:
        """The server's answer: the gradient of each party's embedding, float32, (rows, D_m)."""
        return Leg("gradients", "parties", rows * torch.tensor(widths), FLOAT_BITS, torch.zeros(len(widths)).double())

    @property
    def corrects(self) -> int:
        """How many wrong answers are corrected in a round; default: none."""
        return 0

    def protection(self, uploads: int) -> str | None:
        """What was hidden of a record after so many uploads, in words for the summary; None: nothing is claimed."""
        return None

    def released(self, roll: Roll, sent: Tensor, roster: Roster) -> Tensor:
        """(M,) bool, whose uploads the server can read something of in the end; default: of all that can be used.

        ``sent`` (M,) bool put their first upload on the wire, in time or late: a curious server reads what comes too
        late for the round all the same.
        """
        return self.takes_part(roll.called, sent, roster)

    @property
    def simulated(self) -> str | None:
        """Why the privacy figures are those of a simulation, in words for the summary; default, None: they are not."""
        return None

    def event(self, included: tuple[int, ...], widths: tuple[int, ...], roster: Roster) -> PrivacyEvent | None:
        """What a round with these parties releases about every record in it; default: None, nothing is claimed.

        To state it is to have every round of the training charged to its records.
        """
        return None

    # ---- set-up, before the first round of a stage

    def agree(self, records: PartyRecords, weights: Sequence[Tensor], roster: Roster) -> Mapping[str, Any]:
        """Public settings that parties settle among themselves, plain values; kept in checkpoints. Default: none."""
        return {}

    def setup_legs(self, records: int, basis: tuple[int, ...], roster: Roster) -> tuple[Leg, ...]:
        """The traffic of set-up, from shapes alone; default: none."""
        return ()

    def empty_memory(self, records: int, basis: tuple[int, ...], view: PartyView) -> Any:
        """What the P hosted parties have before anything arrives; default: nothing."""
        return None

    def offer(self, records: PartyRecords, memory: Any, view: PartyView) -> Iterator[Message]:
        """What the P hosted parties send each other, one message after the other so that nothing large exists twice."""
        yield from ()

    def accept(self, memory: Any, message: Message, view: PartyView) -> Any:
        """The memory of the P hosted parties after a message has come in."""
        return memory

    # ---- the beginning of a round

    def opening_legs(self, rows: int, roster: Roster, called: Tensor, round: int, last: int) -> tuple[Leg, ...]:
        """What parties send each other at the beginning of a round of so many rows; default: nothing.

        Args:
            rows: of the joint batch.
            roster: who there is.
            called: (M,) bool, who takes part in it.
            round: its number in its stage.
            last: the number of the last one that began; -1: there was none.
        """
        return ()

    def open(self, memory: Any, view: PartyView) -> Iterator[Message]:
        """These messages of the P hosted parties, each of which is then accepted; default: none."""
        yield from ()

    # ---- one round: the parties' half

    def encode(self, contribution: Contribution, view: PartyView) -> tuple[Message, Any]:
        """First leg of the P hosted parties, and what they keep for the second."""
        return Message("embeddings", "server", view.parties, contribution.leaves, round=view.names), None

    def respond(self, kept: Any, received: Message, included: Tensor, view: PartyView) -> Message:
        """Second leg of the P hosted parties; called only when the first leg goes to the peers."""
        raise TypeError(f"{type(self).__name__} sends its first leg to the peers and must say how they respond")

    def consent(self, kept: Any, included: Tensor, view: PartyView) -> Message | None:
        """What the P hosted parties sign of whose uploads, (M,) bool, the server says are in; default: nothing.

        The server hands the message on to all of them unchanged, before they ``reveal``. Called when the first leg goes
        to the server.
        """
        return None

    def reveal(self, kept: Any, included: Tensor, view: PartyView, signed: Message | None = None) -> Message | None:
        """What the P hosted parties send once the server has said whose uploads, (M,) bool, are in; default: nothing.

        Called when the first leg goes to the server. ``signed`` is what the server has handed on of ``consent``.
        """
        return None

    # ---- one round: the server's half

    def decode(self, messages: tuple[Message, ...], view: ServerView) -> Aggregate:
        """The aggregate from the messages of the last leg; default: ``plain`` of what arrived.

        Raises:
            MalformedMessage: for a message that does not fit the round, naming the party that sent it; an aggregator of
                your own calls ``check_message`` of ``lightning_vfl.aggregators.messages``.
        """
        message, rows = only(messages), len(view.rows.ids)
        due = message.kind if self.form is LinearForms else self.legs(rows, view.widths, (), view.roster)[-1].kind
        shapes = {m: (rows, view.widths[m]) for m in view.roll.counted}
        check_message(message, due, "server", shapes, None, view.names, view.roll.included_parties)
        refuse_infinite(message)
        like = message.pieces[0] if message.pieces else view.rows.ids.new_zeros((), dtype=torch.get_default_dtype())
        arrived = dict(zip(message.senders, message.pieces, strict=True))
        h = tuple(arrived[m] if m in arrived else like.new_zeros(rows, width) for m, width in enumerate(view.widths))
        return self._real(h, view.roll, view.present)

    def clear(self, contribution: Contribution, view: PartyView, roll: Roll) -> Aggregate:
        """The same aggregate without secrets, bit for bit what ``decode`` gives; all M parties hosted."""
        return self._real(contribution.leaves, roll, view.present)

    @abstractmethod
    def plain(self, h: tuple[Tensor, ...], roll: Roll, present: Tensor | None = None) -> Tensor:
        """The aggregate in real arithmetic, differentiable.

        Args:
            h: M embeddings, (B, D_m).
            roll: only the parties in ``roll.counted`` enter.
            present: (B, M) bool, which party holds which row; None: all.

        Returns:
            (B, D_out).
        """

    def columns(self, widths: tuple[int, ...], roll: Roll) -> Tensor:
        """(D_out,) bool, False where a segment of the joint embedding is absent; default: nothing is."""
        return torch.ones(self.out_width(widths[0], Roster.singles(len(widths))), dtype=torch.bool)

    def pullback(
        self, grad: Tensor, aggregate: Aggregate, contribution: Contribution, view: ServerView
    ) -> tuple[Tensor, ...]:
        """The adjoint of the round: one gradient a leaf. grad (B, D_out) = dL/dz."""
        saved = aggregate.saved
        if not saved.z.requires_grad:  # nobody counted
            return tuple(torch.zeros_like(h) for h in saved.h)
        grads = torch.autograd.grad(saved.z, saved.h, grad, allow_unused=True)
        return tuple(torch.zeros_like(h) if g is None else g for g, h in zip(grads, saved.h, strict=True))

    # ---- groups of several parties, which share one bottom

    @property
    def update_bits(self) -> int:
        """Wire size of one number of a party's model update; default: float32."""
        return FLOAT_BITS

    def join_updates(self, updates: Mapping[int, Tensor], view: PartyView) -> Tensor:
        """The server's sum (W,) of the updates that the parties of one group send; default: sent in the clear."""
        return torch.stack([updates[party] for party in sorted(updates)]).sum(0)

    def _real(self, h: tuple[Tensor, ...], roll: Roll, present: Tensor | None) -> Aggregate:
        with torch.enable_grad():
            leaves = tuple(x.detach().requires_grad_() for x in h)
            z = self.plain(leaves, roll, present)
        widths = tuple(x.shape[1] for x in h)
        return Aggregate(z.detach(), self.columns(widths, roll), saved=_Saved(leaves, z))

    def __repr__(self) -> str:
        return self._printed(())

    @property
    def identity(self) -> str:
        """The aggregator in words that compare: what a checkpoint is held to."""
        return self._printed(self.incidental)

    def _printed(self, without: tuple[str, ...]) -> str:
        settings = {k: v for k, v in vars(self).items() if not k.startswith("_") and k not in without}
        return f"{type(self).__name__}({', '.join(f'{k}={v!r}' for k, v in settings.items())})"
