"""FedVS: the server learns the sum of all embeddings from the uploads of any R parties, who compute on shares."""

from typing import ClassVar, Literal

from lightning_vfl.aggregators.coded.coding import CodedMean, Scale
from lightning_vfl.aggregators.coded.data_shares import DataShares
from lightning_vfl.aggregators.coded.products import DEGREE, ProductWire
from lightning_vfl.checks import within
from lightning_vfl.field import FixedPoint, PrimeField
from lightning_vfl.wire import Contribution, LinearForms


class LagrangeCoded(CodedMean):
    r"""The mean of the embeddings of polynomial bottoms, computed on Lagrange-coded shares of data and weights.

    Before training, party m cuts its N expanded, rounded training rows into K blocks, adds T uniform masks and gives
    party j the value at :math:`\alpha_j` of the polynomial through them. In a round it shares its rounded weights in
    the same way, :math:`G_m(\beta_k) = W_m` for every k. Party j uploads

    .. math:: \sum_{m \in S} F_m(\alpha_j)[B] \cdot G_m(\alpha_j) \bmod p,

    a value of a polynomial of degree 2(K + T - 1). Any R = 2(K + T - 1) + 1 uploads give it, and its values at
    :math:`\beta_1..\beta_K` are the summed embeddings of K|B| records; divided by |S|, the mean. Any record can be
    asked for: the coded rows that hold the wanted records are computed, and these picked out afterwards; K records of
    one coded row together are the cheap batch, and the schedule offers those.

    S are the parties whose data and weights have reached the others (footnote 2 of the paper). Gradients are taken in
    the clear by each party, on its own rounded data (section 5.2), straight through the rounding of the weights.

    Shapes: basis_m (N, W_m), weight_m (W_m, D); coded rows |B| = ⌈B / K⌉; upload (|B|, D); value (B, D).
    Units: data in 2^-l_x, weights in 2^-l_w; everything sent in field elements of ⌈log2 p⌉ bits, gradients in float32.
    Guarantee: any T colluding parties learn nothing of others' data and weights (theorem 5.2) but the gradient that all
        are sent. The server learns nothing from one upload (theorem 5.3); with ``rerandomise``, nothing from all
        uploads together but the sums of the embeddings of the records in the coded rows that were computed, also if it
        holds the shares of up to T parties. The decoded sum is that of the rounded integers exactly, whoever answers.
        Against ``plain``, an embedding is off by at most |x̃ - x||w| + |x̃||w̃ - w| summed over its terms, where |x̃ - x|
        ≤ 2^-(l_x+1) and |w̃ - w| < 2^-l_w, the second 0 on average. No sum wraps around: every party checks its own
        part in every round and raises before anything is sent. With ``wrong`` = A, any A wrong uploads are corrected
        and their parties named.
    Not guaranteed: privacy against T + 1 colluding parties, or against parties that deviate from the protocol.
        Protection of the information in the sums and in the gradient. ``scale: auto`` makes the scale bits public,
        which depend on the data; so does a round that is broken off for overflow. Without ``rerandomise``, the server
        sees R uploads, whose polynomial carries cross terms of data, weights and masks (the tests enumerate cases with
        K = 2, and with K = 1 where a sum is zero). More than A wrong uploads, if coordinated, may be corrected to a
        wrong result; wrong shares of data or weights are not noticed at all. With ``privacy`` = 0 nothing is hidden
        from any party.

    Args:
        blocks: K, or ``auto``: the largest that leaves ⌊M/4⌋ parties unneeded, fewer if K would be 0. Larger K: cheaper
            rows, more answers needed.
        privacy: T ≥ 0 colluding parties tolerated.
        wrong: A, wrong uploads that are corrected; the server then waits for R + 2A.
        rerandomise: hide the cross terms of the uploads' polynomial, at |B| D elements to every peer a round.
        execution: ``coded`` does all of this; ``equivalent`` computes the same integers without shares, to the same
            bits, with the same bytes and virtual seconds in the books: for large sweeps.
        l_x: scale bits of the data.
        scale: l_w, scale bits of the weights, or ``auto``: agreed on before training so that weights may grow by
            ``headroom``.
        headroom: how many times larger than at the beginning the products |X||W| may become, for ``scale: auto``.
        field: the modulus; None: ``PrimeField()``, 2^31 - 1.
        insecure_seeded_secrets: masks from a named stream instead of the operating system; for tests only.

    Raises:
        ConfigurationError: before training, if R + 2A > M or the data do not fit the field; in a round, if a sum could
            wrap around.

    Examples:
        >>> LagrangeCoded(blocks=2, privacy=1).wire.needed(8)
        5
        >>> LagrangeCoded().wire.needed(28)  # blocks: auto leaves a quarter of the parties unneeded
        21

    References:
        Li, Yao, Liu, "FedVS: Straggler-Resilient and Privacy-Preserving Vertical Federated Learning for Split Models",
        ICML 2023, algorithm 1, sections 4 and 5.
    """

    form: ClassVar[type[Contribution]] = LinearForms
    incidental: ClassVar[tuple[str, ...]] = ("execution", "insecure_seeded_secrets", "scale", "headroom")

    def __init__(
        self,
        blocks: int | Literal["auto"] = "auto",
        privacy: int = 1,
        wrong: int = 0,
        rerandomise: bool = True,
        execution: Literal["coded", "equivalent"] = "coded",
        l_x: int = 8,
        scale: int | Literal["auto"] = "auto",
        headroom: float = 16.0,
        field: PrimeField | None = None,
        insecure_seeded_secrets: bool = False,
    ) -> None:
        if scale != "auto":
            within("scale", scale, 0, whole=True, advice="or use auto")
        within("headroom", headroom, 1)
        super().__init__(DEGREE, blocks, privacy, wrong, execution, field, insecure_seeded_secrets)
        self.wrong = wrong
        self.rerandomise = rerandomise
        self.l_x = l_x
        self.scale = scale
        self.headroom = headroom
        self._scale = Scale(l_x, scale, headroom)
        FixedPoint(self.field, l_x, 0 if scale == "auto" else scale)  # refuses scale bits that are not possible

    @property
    def wire(self) -> ProductWire:
        return ProductWire(self._coding, self._equivalent, self._scale, self.rerandomise)

    @property
    def setup(self) -> DataShares:
        return DataShares(self._coding, self._scale, self._equivalent)
