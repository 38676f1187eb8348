"""What a step of decoupled training costs: DecoupledVFL against SplitVFL, and against the arithmetic alone.

The networks of DVFL's appendix D on FashionMNIST's shape in four strips, B = 64: four guests 196-100-80 and four hosts
320-200-160 with mirrored decoders, every step a communicating one without faults; SplitVFL with the same guests, one
host's encoder and the owner's classifier 160-160-40-10 as its top. Then 32 guests 24-12-10 with the same hosts. Fits of
a few steps each are run in turn in one process; a step is timed from batch to batch.

The floor is a hand-written step with one parameter (n, outputs, inputs) a layer for all n guests or hosts, the same
fused Adam, ready slices of a tensor instead of shuffled batches, no buffers, no books and no trainer. With (n, inputs,
outputs) instead, which is not how ``nn.Linear`` keeps its weight, autograd saves a transposing copy of every gradient.

    python -m benchmarks.dvfl_step [--json FILE] [--turns T]
"""

import time
import warnings
from collections.abc import Callable, Sequence
from functools import partial
from itertools import pairwise
from math import sqrt
from statistics import median

import torch
from torch import Tensor, nn

from benchmarks.harness import Goal, Pairs, arguments, report
from benchmarks.steps import STEPS, WARM, RandomFloats, in_turn, take_steps
from lightning_vfl import DecoupledVFL, SplitVFL
from lightning_vfl.aggregators import Concat
from lightning_vfl.commands.allocator import keep_freed_memory
from lightning_vfl.local_objectives import Reconstruction
from lightning_vfl.networks import MLP, PartyBank

ROWS, HOSTS, JOINED, HOST_HIDDEN, ENCODING = 64, 4, 320, 200, 160
GUESTS = {4: (196, 100, 80), 32: (24, 12, 10)}  # columns, hidden, embedding: 784, 400 and W_g = 320 among them


def bottom_of(parties: int) -> partial[MLP]:
    """Makes a guest's encoder."""
    hidden = GUESTS[parties][1]
    return partial(MLP, hidden=(hidden,), activation=nn.LeakyReLU, output_activation=nn.ReLU)


def split(data: RandomFloats) -> SplitVFL:
    """The guests' encoders, one host's encoder and the owner's classifier, end to end."""
    torch.manual_seed(0)
    top = partial(MLP, hidden=(HOST_HIDDEN, ENCODING, ENCODING, 40), activation=nn.LeakyReLU)
    return SplitVFL(Concat(), bottom_of(data.parties), top, GUESTS[data.parties][2], seed=0)


def decoupled(data: RandomFloats, **banks: int | bool) -> DecoupledVFL:
    """Guests, hosts and owner; ``banks``: how their networks are run, if not as the protocol does."""
    torch.manual_seed(0)
    module = DecoupledVFL(
        bottom=bottom_of(data.parties),
        host=partial(MLP, hidden=(HOST_HIDDEN,), activation=nn.LeakyReLU, output_activation=nn.LeakyReLU),
        top=partial(MLP, hidden=(ENCODING, 40), activation=nn.LeakyReLU),
        width=GUESTS[data.parties][2],
        host_width=ENCODING,
        hosts=HOSTS,
        guest_epochs=1,
        guest_objective=Reconstruction(nn.Sigmoid),
        host_objective=Reconstruction(nn.ReLU),
        seed=0,
        party_shapes=data.party_shapes,
        num_classes=data.num_classes,
    )
    module.configure_model()
    if banks:
        for learners in (module._guests, module._hosts):
            learners.bank = PartyBank(list(learners.bank.parties), **banks)  # type: ignore[arg-type]
            learners.partners = PartyBank(list(learners.partners.parties), **banks)  # type: ignore[arg-type]
    return module


class Stacked(nn.Module):
    """n autoencoders with two layers each way, one parameter a layer for all of them."""

    def __init__(
        self,
        n: int,
        widths: tuple[int, int, int],
        embedding: Callable[[Tensor], Tensor],
        output: Callable[[Tensor], Tensor],
        inputs_first: bool,
    ) -> None:
        super().__init__()
        there_and_back = (*widths, *widths[1::-1])
        shapes = list(pairwise(there_and_back))
        weights = [torch.randn(n, i, o) / sqrt(3 * i) for i, o in shapes]
        self.weights = nn.ParameterList([w if inputs_first else w.mT.contiguous() for w in weights])
        self.biases = nn.ParameterList([torch.zeros(n, 1, o) for _, o in shapes])
        self.activations = (nn.functional.leaky_relu, embedding, nn.functional.leaky_relu, output)
        self.inputs_first = inputs_first

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """The sum of the n losses, and the embeddings of x (n, B, d)."""
        h = [x]
        for weight, bias, activation in zip(self.weights, self.biases, self.activations, strict=True):
            h.append(activation(torch.baddbmm(bias, h[-1], weight if self.inputs_first else weight.mT)))
        return nn.functional.mse_loss(h[-1], x) * len(x), h[2].detach()


def floor(data: RandomFloats, inputs_first: bool = False) -> float:
    """Median seconds of a hand-written step."""
    torch.manual_seed(0)
    guests = Stacked(data.parties, GUESTS[data.parties], torch.relu, torch.sigmoid, inputs_first)
    hosts = Stacked(HOSTS, (JOINED, HOST_HIDDEN, ENCODING), nn.functional.leaky_relu, torch.relu, inputs_first)
    adam = torch.optim.Adam([*guests.parameters(), *hosts.parameters()], lr=1e-3, fused=True)
    x = torch.cat(data.records("train").rows(torch.arange(STEPS * ROWS)), dim=1)
    strips = x.view(STEPS, ROWS, data.parties, -1).transpose(1, 2).contiguous()
    times = []
    for own in strips:
        began = time.perf_counter()
        adam.zero_grad()
        learning, h = guests(own)
        joining, _ = hosts(h.transpose(0, 1).flatten(1).expand(HOSTS, -1, -1))
        (learning + joining).backward()
        adam.step()
        times.append(time.perf_counter() - began)
    return median(times[WARM:])


def rows_of(guests: int, taken: dict[str, list[float]], others: Sequence[str]) -> list[dict[str, object]]:
    """A row a kind, with its ratio to each of the others."""
    return [
        {"guests": guests, "step": kind, "ms": 1e3 * median(own)}
        | {f"/ {other}": Pairs(own, taken[other]).ratio for other in others}
        | {f"spread, {other}": Pairs(own, taken[other]).spread for other in others}
        for kind, own in taken.items()
    ]


def main() -> None:
    parser = arguments(__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--turns", type=int, default=15, help="how often each kind of step is fitted")
    chosen = parser.parse_args()
    warnings.filterwarnings("ignore")
    keep_freed_memory()
    torch.set_num_threads(2)
    four, many = (RandomFloats(n, 60_000, ROWS, columns) for n, (columns, _, _) in GUESTS.items())
    short = RandomFloats(4, WARM * ROWS, ROWS, GUESTS[4][0])  # the owner's phase begins where the warm steps end
    for data in (four, many, short):
        data.setup("fit")

    taken = in_turn(
        {
            "SplitVFL": lambda: take_steps(split(four), four).step,
            "DecoupledVFL": lambda: take_steps(decoupled(four), four).step,
            "floor": lambda: floor(four),
            "floor, inputs first": lambda: floor(four, inputs_first=True),
            "looped networks": lambda: take_steps(decoupled(four, batch_from=10**6), four).step,
            "owner's phase": lambda: take_steps(decoupled(short), short).step,
        },
        chosen.turns,
    )
    wide = in_turn(
        {
            "SplitVFL": lambda: take_steps(split(many), many).step,
            "DecoupledVFL": lambda: take_steps(decoupled(many), many).step,
            "floor": lambda: floor(many),
            "floor, inputs first": lambda: floor(many, inputs_first=True),
            "looped networks": lambda: take_steps(decoupled(many, batch_from=10**6), many).step,
        },
        chosen.turns,
    )
    own, others = "DecoupledVFL", ("SplitVFL", "floor")
    goals = [
        Goal("step of DecoupledVFL over that of SplitVFL, 4 guests", Pairs(taken[own], taken["SplitVFL"]).ratio, 3.3),
        Goal("step of DecoupledVFL over the floor, 4 guests", Pairs(taken[own], taken["floor"]).ratio, 1.1),
        Goal("step of DecoupledVFL over the floor, 32 guests", Pairs(wide[own], wide["floor"]).ratio, 1.25),
    ]
    report([*rows_of(4, taken, others), *rows_of(32, wide, others)], goals, chosen.json)


if __name__ == "__main__":
    main()
