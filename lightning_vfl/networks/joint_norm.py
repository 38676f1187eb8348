"""The norm over the joint embedding, which absent columns neither enter nor move."""

import torch
from torch import Tensor, nn
from torch.func import functional_call

from lightning_vfl.errors import ConfigurationError

__all__ = ["JointNorm"]

RUNNING = {"running_mean", "running_var"}
# What BatchNorm1d keeps one number a column of; ``num_batches_tracked`` is one for all.
PER_COLUMN = RUNNING | {"weight", "bias"}


class JointNorm(nn.Module):
    """A norm over the joint embedding that can be told which columns have arrived.

    With all columns it is the norm it wraps. With some absent, it is that norm for a joint embedding of the present
    columns alone, and zero in the absent ones. Absent columns may hold anything, NaN included.

    Shapes: z (B, D_out); columns (D_out,) bool, on any device, False: absent; output (B, D_out).
    Guarantee: with all columns present the same bits as the norm alone. Running statistics of absent columns do not
        move by a bit, gradients of their weight and bias, and of z there, are zero, in training and in evaluation. A
        round with absences writes into no buffer that autograd may hold: it replaces ``running_mean`` and
        ``running_var`` by new tensors. With all columns absent the output is zeros and nothing moves, nor the count.
    Not guaranteed: that an optimiser with momentum or weight decay leaves weight and bias of absent columns alone. The
        count of batches is one for all columns: under ``momentum=None`` a column that has been absent is no plain mean
        of the batches it was in, but leans towards what it started from. With absences the norm's own hooks see the
        present columns only.

    Args:
        norm: made for D_out columns. Only ``torch.nn.BatchNorm1d`` itself can be told columns (``by_columns``): other
            norms mix columns, and ``SyncBatchNorm`` needs the same columns in all processes, which nothing here checks.

    Raises:
        ConfigurationError: in a round with absent columns, if the norm cannot be told of them.

    Examples:
        >>> norm = JointNorm(nn.BatchNorm1d(3, affine=False))
        >>> norm(torch.tensor([[1.0, 2.0, 3.0], [3.0, 2.0, 1.0]]), torch.tensor([True, False, True])).round()
        tensor([[-1.,  0.,  1.],
                [ 1.,  0., -1.]])
        >>> norm.norm.running_var
        tensor([1.1000, 1.0000, 1.1000])

    References:
        vFedSec, section 3.3: behind the BatchNorm the fields of absent groups are zeros.
    """

    def __init__(self, norm: nn.Module) -> None:
        super().__init__()
        self.norm = norm

    @property
    def by_columns(self) -> bool:
        """Whether the norm can be told that columns are absent."""
        return type(self.norm) is nn.BatchNorm1d  # a subclass may keep more than one number a column

    def forward(self, z: Tensor, columns: Tensor | None = None) -> Tensor:
        """(B, D_out) to (B, D_out); ``columns`` None: all have arrived."""
        if columns is not None:
            _require_one_flag_a_column(columns, z)
        if columns is None or bool(columns.all()):
            whole: Tensor = self.norm(z)
            return whole
        if type(self.norm) is not nn.BatchNorm1d:
            raise ConfigurationError(
                f"{type(self.norm).__name__} over the joint embedding cannot leave out the columns of absent parties; "
                "use torch.nn.BatchNorm1d itself (trainer.sync_batchnorm off), or missing: Skip"
            )
        if self.norm.num_features != z.shape[1]:
            raise ValueError(
                f"the norm was made for {self.norm.num_features} columns, the joint embedding has {z.shape[1]}"
            )
        present = columns.nonzero().flatten().to(z.device)
        if len(present) == 0:
            return torch.where(columns.to(z.device), z, z.new_zeros(()))
        part = _of_present(self.norm, z, present)
        return part.new_zeros(z.shape).index_copy(1, present, part)


def _of_present(norm: nn.BatchNorm1d, z: Tensor, present: Tensor) -> Tensor:
    """What the norm makes of these columns alone, (B, present); their statistics go on in new buffers."""
    kept = {name: value for name in PER_COLUMN if (value := getattr(norm, name)) is not None}
    part = {name: value.index_select(0, present) for name, value in kept.items()}
    out: Tensor = functional_call(norm, part, (z.index_select(1, present),))
    if norm.training:
        # torch has moved the copies; a buffer made in inference mode could not be trained with later
        with torch.inference_mode(False), torch.no_grad():
            for name in RUNNING & part.keys():
                setattr(norm, name, kept[name].index_copy(0, present, part[name]))
    return out


def _require_one_flag_a_column(columns: Tensor, z: Tensor) -> None:
    if columns.dtype != torch.bool or z.dim() != 2 or columns.shape != z.shape[1:]:
        raise ValueError(
            f"columns must be one bool a column of a (B, D_out) embedding; got {columns.dtype} of shape "
            f"{tuple(columns.shape)} for an embedding of shape {tuple(z.shape)}"
        )
