"""A norm over the joint embedding that leaves out absent columns."""

import torch
from torch import Tensor, nn
from torch.func import functional_call

from lightning_vfl.errors import ConfigurationError

__all__ = ["JointNorm"]

RUNNING = {"running_mean", "running_var"}
# BatchNorm1d keeps one number of each for every column; ``num_batches_tracked`` is one number for all columns.
PER_COLUMN = RUNNING | {"weight", "bias"}


class JointNorm(nn.Module):
    """A norm over the joint embedding that can leave out absent columns.

    With all columns present, it is the wrapped norm. With absent columns, it is the wrapped norm for a joint embedding
    of only the present columns, and zero in the absent columns. Absent columns may have any values, also NaN.

    Shapes: z (B, D_out); columns (D_out,) bool, on any device, False: absent; output (B, D_out).
    Guarantee: with all columns present, the same bits as the wrapped norm. Running statistics of absent columns do not
        change, bit for bit; gradients of their weight and bias, and of z in these columns, are zero, in training and in
        evaluation. A round with absences does not write into a buffer that autograd may use: it replaces
        ``running_mean`` and ``running_var`` by new tensors. With all columns absent, the output is zero and no state
        changes, not even the count of batches.
    Not guaranteed: an optimiser with momentum or weight decay may change weight and bias of absent columns. There is
        one count of batches for all columns: with ``momentum=None``, the running statistics of a column that has been
        absent are not the mean over its batches, but are biased towards the initial values. With absences, the norm's
        own hooks see only the present columns.

    Args:
        norm: a norm of D_out columns. Only ``torch.nn.BatchNorm1d`` itself can leave out columns (``by_columns``):
            other norms mix columns, and ``SyncBatchNorm`` needs the same columns in all processes, which is not
            checked.

    Raises:
        ConfigurationError: in a round with absent columns, if the norm cannot leave out columns.

    Examples:
        >>> norm = JointNorm(nn.BatchNorm1d(3, affine=False))
        >>> norm(torch.tensor([[1.0, 2.0, 3.0], [3.0, 2.0, 1.0]]), torch.tensor([True, False, True])).round()
        tensor([[-1.,  0.,  1.],
                [ 1.,  0., -1.]])
        >>> norm.norm.running_var
        tensor([1.1000, 1.0000, 1.1000])

    References:
        vFedSec, section 3.3: after the BatchNorm, the fields of absent groups are zeros.
    """

    def __init__(self, norm: nn.Module) -> None:
        super().__init__()
        self.norm = norm

    @property
    def by_columns(self) -> bool:
        """Whether the norm can leave out absent columns."""
        return type(self.norm) is nn.BatchNorm1d  # a subclass may have other state for each column

    def forward(self, z: Tensor, columns: Tensor | None = None) -> Tensor:
        """(B, D_out) to (B, D_out); ``columns`` None: all are present."""
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
                f"the joint embedding must have {self.norm.num_features} columns, as the norm; got {z.shape[1]}"
            )
        present = columns.nonzero().flatten().to(z.device)
        if len(present) == 0:
            return torch.where(columns.to(z.device), z, z.new_zeros(()))
        part = _of_present(self.norm, z, present)
        return part.new_zeros(z.shape).index_copy(1, present, part)


def _of_present(norm: nn.BatchNorm1d, z: Tensor, present: Tensor) -> Tensor:
    """The norm of only the present columns, (B, present); their updated statistics are in new buffers."""
    kept = {name: value for name in PER_COLUMN if (value := getattr(norm, name)) is not None}
    part = {name: value.index_select(0, present) for name, value in kept.items()}
    out: Tensor = functional_call(norm, part, (z.index_select(1, present),))
    if norm.training:
        # torch has updated the copies; a buffer made in inference mode could not be used in training later
        with torch.inference_mode(False), torch.no_grad():
            for name in RUNNING & part.keys():
                setattr(norm, name, kept[name].index_copy(0, present, part[name]))
    return out


def _require_one_flag_a_column(columns: Tensor, z: Tensor) -> None:
    if columns.dtype != torch.bool or z.dim() != 2 or columns.shape != z.shape[1:]:
        raise ValueError(
            f"columns must have one bool for each column of a (B, D_out) embedding; got {columns.dtype} of shape "
            f"{tuple(columns.shape)} for an embedding of shape {tuple(z.shape)}"
        )
