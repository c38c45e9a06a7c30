"""What baselines share: scores that need no training, in the form of every other model."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from dubnb.backbones import MF, Weights
from dubnb.backbones.extended import Extended
from dubnb.data.partition import Partition
from dubnb.methods._method import Method
from dubnb.methods._params import required
from dubnb.methods._settings import Settings
from dubnb.train import Fit

SETTINGS = Settings(
    defaults={"rank": 1, "lam": 0.0, "loss": "squared", "epochs": 1}, paper={}, wide={}, even={}, near={}
)


@dataclass(kw_only=True, repr=False, eq=False)
class Baseline(Method):
    """A method without training: mf whose factors are 0, or random, and whose biases are the scores.

    It is saved, loaded, judged and listed like the rest; parameters of training change nothing.
    """

    TERMS = "c"
    SETTINGS = {("mf", "sampled"): SETTINGS}
    is_baseline = True
    folds_in = False

    def rows(self, data: Partition) -> Extended:
        """The scores of all pairs."""
        raise NotImplementedError

    def recipe(self, fit: Fit) -> tuple[Weights, Weights | None]:
        rows = self.rows(fit.data)
        stage = self.stage("M_c", epochs=1)
        return fit.run_epochs(stage, lambda epoch: {}, rows, lambda: MF.from_extended(rows)), None

    def same_for_all(self, values: np.ndarray, n_users: int) -> Extended:
        """Every user's score of item i is values[i]; the factors, of which there are `rank`, are 0."""
        rows = Extended.of_items(n_users, values.astype(np.float32))
        P, Q = (np.hstack([np.zeros((len(side), required(self.rank)), np.float32), side]) for side in rows)
        return Extended(P, Q)

    def learns_from(self) -> tuple[str, ...]:
        return ()

    def _check_personal(self, personal: float) -> None:
        """A baseline is meant to rank alike for everyone."""
