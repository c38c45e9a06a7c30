"""Popularity-t: items by their rate of positives in the randomized log (a baseline)."""

from dataclasses import dataclass

from dubnb.backbones.extended import Extended
from dubnb.data.partition import Partition
from dubnb.methods._baseline import Baseline
from dubnb.objective.exposure import item_rates
from dubnb.objective.teachers import randomized


@dataclass(kw_only=True, repr=False, eq=False)
class PopularityT(Baseline):
    """s = the item's rate of positives in S_t, drawn towards the base rate by empirical Bayes.

    See `dubnb.objective.exposure.item_rates`.
    """

    name = "popularity-t"
    TERMS = "e"

    def rows(self, data: Partition) -> Extended:
        return self.same_for_all(item_rates(randomized(data), data.n_items)[0], data.n_users)
