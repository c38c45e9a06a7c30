"""Popularity: items by their positives in the biased log (a baseline)."""

from dataclasses import dataclass

from dubnb.backbones.extended import Extended
from dubnb.data.partition import Partition
from dubnb.evaluation import popularity
from dubnb.methods._baseline import Baseline


@dataclass(kw_only=True, repr=False, eq=False)
class Popularity(Baseline):
    """s = the share of all users with a positive of the item in S_c: the list that everyone gets without a model."""

    name = "popularity"

    def rows(self, data: Partition) -> Extended:
        return self.same_for_all(popularity(data) / data.n_users, data.n_users)
