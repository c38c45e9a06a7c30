"""Open Bandit (Saito et al., NeurIPS 2021): a shop's banner, filled at random or by Bernoulli Thompson sampling (bts).

Users are anonymous: people with the same four user features are one user here. An impression is a row; repeated pairs
are merged as impressions (docs/logs.md): the first one's label, and the share of clicks as the grade. Where on the
banner an item stood is the column `position` of `read`.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from dubnb import _check
from dubnb._check import InputError
from dubnb.data.log import read_log
from dubnb.data.partition import Partition
from dubnb.data.split import PERMUTATION

if TYPE_CHECKING:
    import pandas as pd

SOURCE = "the data are on ZOZO Research's page of the Open Bandit project"
CAMPAIGNS = ("all", "men", "women")
POLICIES = ("bts", "random")
FEATURES = tuple(f"user_feature_{k}" for k in range(4))
COLUMNS = ("timestamp", "item_id", "position", "click", "propensity_score")


def load(data_dir: str | Path, seed: int = 0, campaign: str = "all", quiet: bool = True) -> Partition:
    """The Partition of one campaign's files in `data_dir`."""
    biased, random = (read(data_dir, policy, campaign, quiet) for policy in POLICIES)
    return Partition.from_frames(
        biased,
        random,
        item="item_id",
        label="click",
        timestamp="timestamp",
        split=PERMUTATION,
        split_seed=seed,
        name=f"open-bandit ({campaign})",
    )


def read(data_dir: str | Path, policy: str, campaign: str = "all", quiet: bool = True) -> pd.DataFrame:
    """The impressions of one policy: user, timestamp, item_id, position, click, propensity_score."""
    _check.choice("policy", policy, POLICIES)
    _check.choice("campaign", campaign, CAMPAIGNS)
    path = Path(data_dir) / policy / campaign / f"{campaign}.csv"
    if not path.is_file():
        wanted = " and ".join(f"{each}/{campaign}/{campaign}.csv" for each in POLICIES)
        raise InputError(f"open-bandit: {data_dir} holds no {path.relative_to(data_dir)}: expected {wanted}; {SOURCE}")
    log = read_log(path, user="", item="item_id", columns=(*COLUMNS, *FEATURES), quiet=quiet)
    users = log.groupby(list(FEATURES), observed=True, sort=False).ngroup()
    first = ~users.duplicated()
    names = log.loc[first, list(FEATURES)].astype(str).agg("|".join, axis=1)
    log["user"] = names.to_numpy()[users.to_numpy()]
    return log.drop(columns=list(FEATURES))
