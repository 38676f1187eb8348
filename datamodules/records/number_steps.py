"""Steps on numbers: read them, fill in missing ones, logarithm, quantiles."""

from dataclasses import dataclass, replace
from enum import StrEnum
from typing import TYPE_CHECKING, Any, ClassVar, Self

import numpy as np

from lightning_vfl.errors import ConfigurationError

from .column_steps import NumberStep, Reader
from .party_tables import TRUTHS, as_numbers
from .written_numbers import DECIMALS, MARKS, written_numbers

if TYPE_CHECKING:
    import pandas as pd
    from numpy.typing import NDArray


_NO_NUMBERS = "correct them, list the column under categorical, or use preprocess: auto, or numbers: {text: missing}"


class Texts(StrEnum):
    """What to do with text among numbers: refuse it, treat it as missing, or refuse it only if it has digits."""

    ERROR = "error"
    MISSING = "missing"
    WORDS = "words"


class Strategy(StrEnum):
    """Which value replaces missing ones."""

    MEAN = "mean"
    MEDIAN = "median"
    MOST_FREQUENT = "most_frequent"
    CONSTANT = "constant"


class Output(StrEnum):
    """The distribution that quantiles are mapped to."""

    UNIFORM = "uniform"
    NORMAL = "normal"


@dataclass(frozen=True)
class ReadNumbers(Reader):
    """Cells that are numbers.

    Args:
        text: what to do with cells that are not; ``words``: those without a digit are missing, others are an error.
        decimal: the decimal mark of numbers as people write them, see ``read_number``; empty: numbers of Python alone.
    """

    word: ClassVar[str] = "numbers"
    main: ClassVar[str] = "text"
    settings: ClassVar[tuple[str, ...]] = ("text", "decimal")
    text: Texts = Texts.ERROR
    decimal: str = ""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.decimal and self.decimal not in DECIMALS:
            raise ConfigurationError(f"{self.word}: decimal must be '.' or ','; got '{self.decimal}'")

    def read(self, column: "pd.Series[Any]", party: str) -> "NDArray[np.float64]":
        numbers: NDArray[np.float64]
        if self.decimal:
            numbers = written_numbers(column, self.decimal)
        else:
            numbers = as_numbers(column).to_numpy(dtype=np.float64, na_value=np.nan)
        texts = np.isnan(numbers) & column.notna().to_numpy()
        if self.text is Texts.WORDS and texts.any():
            cells = column.astype(str).str.strip().str.lower()
            texts &= (cells.str.contains(r"\d") & ~cells.isin(MARKS)).to_numpy(dtype=np.bool_)
        if self.text is not Texts.MISSING:
            refuse_cells(column, texts, party, "are not numbers", _NO_NUMBERS)
        refuse_cells(column, np.isinf(numbers), party, "are infinite", "correct or remove them")
        return numbers[:, None]

    def describe(self) -> str:
        mark = f" (decimal {self.decimal})" if self.decimal else ""
        return f"numbers{mark}{'' if self.text is Texts.ERROR else ', text is missing'}"


@dataclass(frozen=True)
class ReadBooleans(Reader):
    """Cells that are true or false, yes or no, t or f, y or n, 1 or 0, in upper or lower case: 1 and 0."""

    word: ClassVar[str] = "boolean"

    def read(self, column: "pd.Series[Any]", party: str) -> "NDArray[np.float64]":
        truths = column.astype(str).str.strip().str.lower().map(TRUTHS)
        numbers: NDArray[np.float64] = np.asarray(truths, dtype=np.float64)
        other = np.isnan(numbers) & column.notna().to_numpy()
        refuse_cells(column, other, party, "are neither true nor false", "correct them, or use one_hot")
        return numbers[:, None]

    def describe(self) -> str:
        return "true is 1, false is 0"


@dataclass(frozen=True)
class Fill(NumberStep):
    """Missing numbers are replaced by a number that was fitted to the training rows, as by scikit-learn's imputer.

    Args:
        strategy: which number.
        value: the number of the strategy ``constant``.
        indicator: add a column that is 1 where a number was missing.
        fitted: the K numbers.
    """

    word: ClassVar[str] = "impute"
    main: ClassVar[str] = "strategy"
    settings: ClassVar[tuple[str, ...]] = ("strategy", "value", "indicator")
    strategy: Strategy
    value: float | None = None
    indicator: bool = False
    fitted: tuple[float, ...] = ()

    def fit(self, numbers: "NDArray[np.float64]", column: str, party: str) -> Self:
        if self.strategy is Strategy.CONSTANT:
            return replace(self, fitted=(float(self.value or 0.0),) * numbers.shape[1])
        if np.isnan(numbers).all(0).any():
            raise nothing_to_impute(self.strategy, column, party)
        if self.strategy is Strategy.MEDIAN:  # as scikit-learn, which sorts masked arrays for it
            return replace(self, fitted=tuple(np.nanmedian(numbers, axis=0).tolist()))
        from sklearn.impute import SimpleImputer  # 0.5 s, where it is used

        filled = SimpleImputer(strategy=str(self.strategy)).fit(numbers).statistics_
        return replace(self, fitted=tuple(float(number) for number in filled))

    def apply(self, numbers: "NDArray[np.float64]") -> "NDArray[np.float64]":
        return np.where(np.isnan(numbers), np.array(self.fitted), numbers)

    def marks(self, numbers: "NDArray[np.float64]") -> "list[NDArray[np.float64]]":
        return [np.any(np.isnan(numbers), axis=1).astype(np.float64)] if self.indicator else []

    def describe(self) -> str:
        return describe_fill(self.strategy, self.value, self.indicator)

    def taken(self) -> str:
        return "" if self.strategy is Strategy.CONSTANT else "imputation values"


@dataclass(frozen=True)
class Log(NumberStep):
    """sign(x) log(1 + |x|), which is defined for all numbers."""

    word: ClassVar[str] = "log"

    def apply(self, numbers: "NDArray[np.float64]") -> "NDArray[np.float64]":
        return np.copysign(np.log1p(np.abs(numbers)), numbers)


@dataclass(frozen=True)
class Quantile(NumberStep):
    """Numbers are replaced by their quantile among the training rows, as by scikit-learn's ``QuantileTransformer``.

    Args:
        output: ``uniform``: quantiles from 0 to 1; ``normal``: those of the standard normal distribution.
        quantiles: how many quantiles are kept, at most the number of training rows.
        fitted: the kept quantiles of each column, in ascending order.
    """

    word: ClassVar[str] = "quantile"
    main: ClassVar[str] = "output"
    settings: ClassVar[tuple[str, ...]] = ("output", "quantiles")
    output: Output = Output.UNIFORM
    quantiles: int = 100
    fitted: tuple[tuple[float, ...], ...] = ()

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.quantiles < 2:
            raise ConfigurationError(f"quantiles must be at least 2; got {self.quantiles}")

    def fit(self, numbers: "NDArray[np.float64]", column: str, party: str) -> Self:
        from sklearn.preprocessing import QuantileTransformer

        kept = min(self.quantiles, len(numbers))
        found = QuantileTransformer(n_quantiles=kept, output_distribution=str(self.output), subsample=None).fit(numbers)
        return replace(self, fitted=tuple(tuple(column) for column in found.quantiles_.T.tolist()))

    def apply(self, numbers: "NDArray[np.float64]") -> "NDArray[np.float64]":
        from sklearn.preprocessing import QuantileTransformer

        kept = np.array(self.fitted).T
        again = QuantileTransformer(n_quantiles=len(kept), output_distribution=str(self.output), subsample=None)
        again.n_quantiles_ = len(kept)
        again.quantiles_ = kept
        again.n_features_in_ = kept.shape[1]
        again.references_ = np.linspace(0, 1, len(kept), endpoint=True)
        changed: NDArray[np.float64] = again.transform(numbers)
        return changed

    def describe(self) -> str:
        return f"quantile ({self.output})"

    def taken(self) -> str:
        return "quantiles"


def nothing_to_impute(strategy: Strategy, column: str, party: str) -> ConfigurationError:
    """The error for a column without a value in any training record."""
    return ConfigurationError(
        f"column '{column}' of party '{party}' has no value in any training record, so impute: {strategy} has nothing "
        "to use; leave it out (drop), or use impute: constant"
    )


def describe_fill(strategy: Strategy, value: object, indicator: bool) -> str:
    """``impute median + indicator``."""
    what = f"constant {value}" if strategy is Strategy.CONSTANT else str(strategy)
    return f"impute {what}{' + indicator' if indicator else ''}"


def refuse_cells(column: "pd.Series[Any]", wrong: "NDArray[np.bool_]", party: str, what: str, fix: str) -> None:
    """Accept a column without wrong cells.

    Args:
        column: the cells; the index is the ids.
        wrong: (N,) which cells are wrong.
        party: the name of the party.
        what: what is wrong with them: ``are not numbers``.
        fix: what to do about it.

    Raises:
        ConfigurationError: if there are wrong cells; it says how many and shows the first.
    """
    if wrong.any():
        raise ConfigurationError(
            f"{int(wrong.sum())} values of column '{column.name}' of party '{party}' {what}, first "
            f"'{column[wrong].iloc[0]}' of record {column.index[wrong][0]}; {fix}"
        )
