"""Random: items in an order drawn for every user (a baseline)."""

from dataclasses import dataclass

from dubnb.backbones.extended import Extended
from dubnb.backbones.mf import rows_of
from dubnb.data.partition import Partition
from dubnb.methods._baseline import SETTINGS, Baseline


@dataclass(kw_only=True, repr=False, eq=False)
class Random(Baseline):
    """s = p_u . q_i with factors drawn by the seed: what ranking without any knowledge gives."""

    name = "random"
    SETTINGS = {("mf", "sampled"): SETTINGS.__class__({**SETTINGS.defaults, "rank": 32, "loss": "bce"}, {}, {}, {}, {})}

    def rows(self, data: Partition) -> Extended:
        return rows_of(self.stage("M_c").new(data))
