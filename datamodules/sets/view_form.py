"""Form of data sets whose records come in several views."""

from abc import ABC
from functools import cached_property
from typing import ClassVar

import numpy as np
from lightning.pytorch.utilities import rank_zero_info

from ..partitioners.partition import Partitioner, Views
from ..records.labelled import Labelled
from .published import PublishedWhole


class ViewFiles(PublishedWhole, ABC):
    """Records in several views, by default one for each party. A subclass implements ``read`` and ``num_classes``.

    Arguments are those of ``PublishedWhole``.

    Guarantee: the splits are stratified by class. A record's id is its position in the files, and column i of a view is
        called ``view.i``.

    Raises:
        ConfigurationError: for impossible shares; in ``setup``, if the files are not there, cannot be read, or do not
            hold these views.
    """

    usual_partitioner: ClassVar[Partitioner] = Views()

    @cached_property
    def _data(self) -> Labelled:
        data = self.read()
        sizes = np.bincount(data.labels)
        rank_zero_info(
            f"{type(self).__name__}: {len(data)} records in {len(data.views)} views "
            f"({', '.join(data.views)}), {len(sizes)} classes of {sizes.min()} to {sizes.max()}"
        )
        return data
