"""Steps on categories: fill in missing ones, one column of 0 and 1 for each, or their number in an order."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, ClassVar, Self

import numpy as np

from lightning_vfl.errors import ConfigurationError

from .column_encoder import Unseen, tell_unseen
from .column_steps import Reader, Step
from .number_steps import Strategy, describe_fill, nothing_to_impute, refuse_cells
from .one_hot import as_known, one_hot
from .party_tables import by_text

if TYPE_CHECKING:
    import pandas as pd
    from numpy.typing import NDArray


def texts_of(column: "pd.Series[Any]") -> "NDArray[np.str_]":
    """(N,) the cells as text; a whole number has no decimal point, also where a missing cell made the column real."""
    from pandas.api.types import is_float_dtype

    if is_float_dtype(column):
        cells = column.tolist()
        return np.array([str(int(cell)) if cell.is_integer() else str(cell) for cell in cells], dtype=np.str_)
    return by_text(column.astype(str), lambda texts: texts.str.strip().to_numpy(dtype=np.str_))


def different_texts(column: "pd.Series[Any]") -> set[str]:
    """The different cells as text."""
    import pandas as pd

    if column.dtype != object:  # 1 and True are equal, and different texts
        column = pd.Series(column.unique(), dtype=column.dtype, name=column.name)
    return set(texts_of(column).tolist())


def _refuse_missing(column: "pd.Series[Any]", party: str) -> None:
    fix = "fill them in, or use preprocess: auto, or put impute before the step"
    refuse_cells(column, column.isna().to_numpy(), party, "are missing", fix)


@dataclass(frozen=True)
class FillText(Step):
    """Missing cells are replaced by one text before they are read as numbers.

    Args:
        strategy: ``most_frequent`` or ``constant``.
        value: the text of the strategy ``constant``.
        indicator: add a column that is 1 where a cell was missing.
        fitted: the text.
    """

    word: ClassVar[str] = "impute"
    main: ClassVar[str] = "strategy"
    settings: ClassVar[tuple[str, ...]] = ("strategy", "value", "indicator")
    strategy: Strategy
    value: str | None = None
    indicator: bool = False
    fitted: str = ""

    def fit(self, column: "pd.Series[Any]", party: str) -> Self:
        """This step, fitted to the training rows of the column."""
        if self.strategy is Strategy.CONSTANT:
            return replace(self, fitted=str(self.value))
        from sklearn.impute import SimpleImputer  # 0.5 s, where it is used

        if column.isna().all():
            raise nothing_to_impute(self.strategy, str(column.name), party)
        texts = texts_of(column.dropna()).astype(object)[:, None]
        return replace(self, fitted=str(SimpleImputer(strategy="most_frequent").fit(texts).statistics_[0]))

    def fill(self, column: "pd.Series[Any]") -> "pd.Series[Any]":
        """The column without missing cells."""
        import pandas as pd

        missing = column.isna()
        if not missing.any():
            return column
        cells = np.full(len(column), self.fitted, dtype=object)
        cells[~missing.to_numpy()] = texts_of(column[~missing])
        return pd.Series(cells, column.index, name=column.name)

    def describe(self) -> str:
        return describe_fill(self.strategy, self.value, self.indicator)

    def taken(self) -> str:
        return "" if self.strategy is Strategy.CONSTANT else "imputation values"


@dataclass(frozen=True)
class OneHotCategories(Reader):
    """One column of 0 and 1 for each category of the training rows, in sorted order.

    Args:
        unseen: what to do with a category that no training row has; ``own``: a further column, which is 0 in all
            training rows unless ``most`` leaves categories out.
        most: keep at most so many columns: those of the most frequent categories; all others share the column
            ``(other)``. 0: every category has a column.
        categories: the kept categories.
        rare: whether categories of the training rows share the column ``(other)``.
    """

    word: ClassVar[str] = "one_hot"
    main: ClassVar[str] = "unseen"
    settings: ClassVar[tuple[str, ...]] = ("unseen", "most")
    unseen: Unseen = Unseen.OWN
    most: int = 0
    categories: tuple[str, ...] = ()
    rare: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.most and (self.most < 2 or self.unseen is not Unseen.OWN):
            raise ConfigurationError(
                f"one_hot with most: {self.most} and unseen: {self.unseen} is impossible; give most at least 2, with "
                "unseen: own"
            )

    def fit(self, column: "pd.Series[Any]", party: str) -> Self:
        _refuse_missing(column, party)
        if not self.most:
            return replace(self, categories=tuple(sorted(different_texts(column))))
        from sklearn.preprocessing import OneHotEncoder  # 0.5 s, where it is used

        found = OneHotEncoder(max_categories=self.most, handle_unknown="infrequent_if_exist").fit(
            texts_of(column).astype(object)[:, None]
        )
        rare = set() if found.infrequent_categories_[0] is None else set(found.infrequent_categories_[0])
        return replace(self, categories=tuple(str(c) for c in found.categories_[0] if c not in rare), rare=bool(rare))

    def names(self, column: str) -> tuple[str, ...]:
        others = ("(other)",) if self.unseen is Unseen.OWN else ()
        return tuple(f"{column}={category}" for category in (*self.categories, *others))

    def read(self, column: "pd.Series[Any]", party: str) -> "NDArray[np.float64]":
        _refuse_missing(column, party)
        columns = by_text(column, self._columns)
        own = self.unseen is Unseen.OWN
        if not self.rare:
            other = texts_of(column[columns[:, -1] > 0])
            tell_unseen(other, str(column.name), party, self.unseen, "(other)" if own else "zeros")
        return columns if own else columns[:, :-1]

    def _columns(self, cells: "pd.Series[Any]") -> "NDArray[np.float64]":
        """The columns of the categories, and one for all other cells."""
        columns = one_hot(as_known(texts_of(cells), self.categories), self.categories)
        return np.column_stack([columns, columns.sum(1) == 0])

    def describe(self) -> str:
        return f"one-hot of {len(self.categories)} categories{', others share one' * (self.unseen is Unseen.OWN)}"

    def taken(self) -> str:
        return "categories"


@dataclass(frozen=True)
class OrdinalCategories(Reader):
    """The number of the category, counted from 0.

    Args:
        unseen: what to do with a category that no training row has: ``own``: -1; ``ignore``: missing, for ``impute``.
        order: the categories in ascending order; empty: those of the training rows in sorted order.
        categories: the categories that are counted.
    """

    word: ClassVar[str] = "ordinal"
    main: ClassVar[str] = "order"
    settings: ClassVar[tuple[str, ...]] = ("order", "unseen")
    unseen: Unseen = Unseen.OWN
    order: Sequence[str] = ()
    categories: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        super().__post_init__()
        if isinstance(self.order, str) or not isinstance(self.order, Sequence):
            raise ConfigurationError(f"ordinal needs its categories as a list: [low, high]; got {self.order!r}")
        object.__setattr__(self, "order", tuple(str(category) for category in self.order))

    def fit(self, column: "pd.Series[Any]", party: str) -> Self:
        _refuse_missing(column, party)
        from sklearn.preprocessing import OrdinalEncoder  # 0.5 s, where it is used

        if self.order:
            return replace(self, categories=tuple(self.order))
        found = OrdinalEncoder().fit(texts_of(column).astype(object)[:, None]).categories_[0]
        return replace(self, categories=tuple(str(category) for category in found))

    def read(self, column: "pd.Series[Any]", party: str) -> "NDArray[np.float64]":
        _refuse_missing(column, party)
        number = {category: float(place) for place, category in enumerate(self.categories)}
        texts = as_known(texts_of(column), self.categories)
        other = np.array([text not in number for text in texts.tolist()], dtype=bool)
        own = self.unseen is Unseen.OWN
        tell_unseen(texts[other], str(column.name), party, self.unseen, "-1" if own else "missing")
        rest = -1.0 if own else np.nan
        return np.array([number.get(text, rest) for text in texts.tolist()], dtype=np.float64)[:, None]

    def describe(self) -> str:
        return f"number of the category, of {len(self.categories)}"

    def taken(self) -> str:
        return "" if self.order else "categories"
