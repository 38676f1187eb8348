"""Networks for texts whose words are numbered."""

from torch import Tensor, nn

from lightning_vfl.types import Shape


class WordMean(nn.Module):
    """The mean of the vectors of a text's words, and a linear layer; the order of the words does not matter.

    Shapes: input (B, L) numbers of words as ``CSVTables`` makes them of ``texts``; output (B, outputs).

    Args:
        inputs: (L,).
        outputs: width of the embedding.
        words: how many numbers there are, with 0 (padding, which does not count) and 1 (unknown).
        width: of the vector of a word.

    Examples:
        >>> import torch
        >>> WordMean((64,), 8, words=100)(torch.zeros(5, 64)).shape
        torch.Size([5, 8])
    """

    def __init__(self, inputs: Shape, outputs: int, words: int = 10_002, width: int = 32) -> None:
        super().__init__()
        self.words = nn.Embedding(words, width, padding_idx=0)
        self.linear = nn.Linear(width, outputs)

    def forward(self, x: Tensor) -> Tensor:
        """(B, L) to (B, outputs)."""
        numbers = x.long()
        lengths = (numbers > 0).sum(1, keepdim=True).clamp(min=1)
        # the vector of padding is zero, so that the sum is one of words
        out: Tensor = self.linear(self.words(numbers).sum(1) / lengths)
        return out
