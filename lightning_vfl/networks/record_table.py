"""A table of the latest embedding of every record from every party."""

from collections.abc import Sequence
from typing import Any, Literal, get_args

import torch
from torch import Tensor, nn

from lightning_vfl.checks import one_of
from lightning_vfl.errors import ConfigurationError
from lightning_vfl.types import Tensors

LIMIT_BYTES = 2e9
TableDtype = Literal["float32", "float16"]


class RecordTable(nn.Module):
    """The latest embedding of every record, zeros before the first.

    Shapes: rows (N, Σ D_m), record-major: the embeddings of one record are side by side, so reading a batch is one
        gather.
    Guarantee: reading gives the values written last, bit for bit in ``float32`` and rounded to half precision in
        ``float16``. The rows are a buffer that is not in state_dict: ``state`` puts them into checkpoints for resuming.

    Args:
        records: N.
        widths: (M,) embedding widths.
        dtype: ``float16`` halves the memory.
        limit_bytes: the largest allowed table.

    Raises:
        ConfigurationError: if the table would be larger.

    Examples:
        >>> table = RecordTable(4, (2, 1))
        >>> table.write(torch.tensor([3, 1]), 1, torch.tensor([[5.0], [6.0]]))
        >>> [h.tolist() for h in table.read(torch.tensor([1, 2]))]
        [[[0.0, 0.0], [0.0, 0.0]], [[6.0], [0.0]]]
    """

    rows: Tensor

    def __init__(
        self,
        records: int,
        widths: Sequence[int],
        dtype: TableDtype = "float32",
        limit_bytes: float = LIMIT_BYTES,
    ) -> None:
        super().__init__()
        self.widths = tuple(widths)
        one_of("table_dtype", dtype, get_args(TableDtype))
        needed = table_bytes(records, widths, dtype)
        if needed > limit_bytes:
            raise ConfigurationError(
                f"the latest embeddings of {records} records, {sum(self.widths)} numbers each, take "
                f"{needed / 1e6:,.0f} MB, more than limit_bytes = {limit_bytes:.0f}; "
                "raise limit_bytes, lower width, or use table_dtype float16"
            )
        self._starts = [sum(self.widths[:m]) for m in range(len(self.widths))]
        self.register_buffer(
            "rows", torch.zeros(records, sum(self.widths), dtype=getattr(torch, dtype)), persistent=False
        )

    def write(self, ids: Tensor, party: int, h: Tensor) -> None:
        """Write one party's embeddings, (B, D_m)."""
        start = self._starts[party]
        columns = self.rows[:, start : start + self.widths[party]]
        columns.index_copy_(0, ids.to(self.rows.device), h.detach().to(self.rows.dtype))

    def write_all(self, ids: Tensor, h: Sequence[Tensor]) -> None:
        """Write the embeddings of all parties, (B, D_m) each, with one copy instead of M."""
        side_by_side = torch.cat([x.detach().to(self.rows.dtype) for x in h], 1)
        self.rows.index_copy_(0, ids.to(self.rows.device), side_by_side)

    def joined(self, ids: Tensor) -> Tensor:
        """The latest embeddings side by side, float32 (B, Σ D_m)."""
        return self.rows.index_select(0, ids.to(self.rows.device)).float()

    def read(self, ids: Tensor) -> Tensors:
        """The latest embeddings, float32 (B, D_m) for each party: views of one gathered tensor."""
        return torch.split(self.joined(ids), list(self.widths), dim=1)

    def state(self) -> dict[str, Any]:
        """The rows, for a checkpoint for resuming."""
        return {"rows": self.rows}

    def load_state(self, state: dict[str, Any]) -> None:
        """Restore the table from a checkpoint.

        Raises:
            ConfigurationError: if the checkpoint has another number of records or other widths.
        """
        if state["rows"].shape != self.rows.shape:
            raise ConfigurationError(
                f"the checkpoint has latest embeddings of shape {tuple(state['rows'].shape)}, but this run has "
                f"{tuple(self.rows.shape)}; resume with the same data and width"
            )
        self.rows.copy_(state["rows"])


def table_bytes(records: int, widths: Sequence[int], dtype: TableDtype = "float32") -> int:
    """The memory of a table in bytes.

    Examples:
        >>> table_bytes(60_000, (64,) * 28)
        430080000
    """
    return records * sum(widths) * (2 if dtype == "float16" else 4)
