"""SummedGradients: no gradient of a record leaves the server; a party gets the gradient of its weights over a batch."""

from math import inf
from typing import Literal

from torch import Tensor

from lightning_vfl.aggregators.execution import Execution
from lightning_vfl.crypto.paillier import KEY_BITS, check_installed
from lightning_vfl.downlinks.base import GradientDownlink
from lightning_vfl.downlinks.batch_sums import BatchSums, EncryptedSums, SumsInTheClear, SumSizes
from lightning_vfl.errors import ConfigurationError
from lightning_vfl.types import RoundNames


class SummedGradients(GradientDownlink):
    r"""A party with a linear bottom gets the gradient of its weights over the batch, and no gradient of a record.

    The server encrypts the gradients g_b of the batch with Paillier's scheme and keeps the key. The party, whose bottom
    is :math:`h_b = x_b W`, computes encryptions of

    .. math:: \sum_b x_{bf} \, g_b \qquad (f = 1, \dots, F),

    adds a uniform random number modulo n to each, and sends them back. The server decrypts, and returns what it has
    found. The party subtracts its random numbers. Both work with integers: gradients are rounded to steps of 2^-20 and
    columns to steps of 2^-10.

    Shapes: gradients (B, D); columns (B, F), with a column of ones for a bias; sums (F, D).
    Units: ``gradient_range`` is that of the gradient of ONE record's loss, before the mean over the batch.
    Guarantee: a party learns the F · D sums of a round and, if Paillier's scheme is secure, nothing else. These
        messages tell the server nothing about the columns, however much it computes. The sums are exact for the rounded
        numbers, and equal in both executions.
    Not guaranteed: that uploads say nothing about columns: they change by gradients that the server knows. That sums
        say nothing about labels. They are F equations for the B labels of a batch, and after about B / F epochs a party
        has as many equations as labels; see ``LabelsFromSums``. A column that is zero for all records of a batch but
        one, such as a rare category, gives the gradient of this record; a party that does not keep to the protocol can
        choose such columns. A server that makes a bad key can learn columns. Times of computation may tell sizes of
        columns.

    Args:
        key_bits: 2,048 (112 bits of security), 3,072 (128) or 4,096.
        gradient_range: the largest size of a number in the gradient of one record; a larger one ends the training.
        column_range: the largest size of a number in a party's columns; a larger one is refused before training.
        execution: ``encrypted``: with the messages. ``equivalent``: the same integers without encryption, to the same
            bits, for studies; the books count the same bytes.
        allow_solvable_batches: accept batches of at most F records, whose gradients follow from their sums at once, and
            data of which a party may hold so few records in a batch.

    Raises:
        ConfigurationError: for ranges that are not above 0, an unknown execution or length of the key, and if the
            packages of the encryption are not installed.

    Examples:
        >>> SummedGradients(execution="equivalent").event is None
        True

    References:
        Paillier, "Public-Key Cryptosystems Based on Composite Degree Residuosity Classes", EUROCRYPT 1999.
        Hardy, Henecka, Ivey-Law, Nock, Patrini, Smith, Thorne, "Private federated learning on vertically partitioned
        data via entity resolution and additively homomorphic encryption", 2017 (masked sums of encrypted gradients).
    """

    def __init__(
        self,
        key_bits: int = 2048,
        gradient_range: float = 8.0,
        column_range: float = 128.0,
        execution: Literal["encrypted", "equivalent"] = "encrypted",
        allow_solvable_batches: bool = False,
    ) -> None:
        for name, number in (("gradient_range", gradient_range), ("column_range", column_range)):
            if not 2.0**-10 <= number < inf:
                raise ConfigurationError(f"{name} of SummedGradients must be at least 2^-10; got {number}")
        if key_bits not in KEY_BITS:
            raise ConfigurationError(f"key_bits must be one of {', '.join(map(str, KEY_BITS))}; got {key_bits}")
        self.execution = Execution.of(execution, Execution.ENCRYPTED)
        self._sizes = SumSizes(key_bits, gradient_range, column_range, allow_solvable_batches)
        if not self.execution.equivalent:
            check_installed()

    def prepare(self, num_classes: int | None, outputs: int) -> None:
        return

    def protect(self, grad: Tensor, labels: Tensor, names: RoundNames, first: int) -> Tensor:
        return grad

    @property
    def event(self) -> None:
        return None

    @property
    def sum_sizes(self) -> SumSizes:
        return self._sizes

    def batch_sums(self) -> BatchSums:
        return SumsInTheClear(self._sizes) if self.execution.equivalent else EncryptedSums(self._sizes)

    def claim(self) -> str:
        said = "no gradient of a record leaves the server, only encrypted; parties learn sums over a batch, which are "
        said += "equations for its labels"
        return f"{said}; simulated: nothing is encrypted" if self.execution.equivalent else said
