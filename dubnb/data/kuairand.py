"""KuaiRand-Pure (Gao et al., CIKM 2022): a video app's feed, with 1.2 M impressions of random videos among it.

27,285 users x 7,583 videos. The label is `long_view` (watched for 18 s, or to the end if shorter) or `is_click`. Beside
it stands a grade from the watch ratio r = play_time_ms / duration_ms, clipped to [0, 1]. A label is not a threshold on
r, and grades must lie on their label's side, so each side has its own stretch, as ratings up to 3 and above have:

    grade = r / 2 for a negative,    3/4 + r / 4 for a positive.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from dubnb import _check
from dubnb._check import InputError
from dubnb.data.log import read_log
from dubnb.data.partition import Partition
from dubnb.data.split import PERMUTATION

if TYPE_CHECKING:
    import pandas as pd

SOURCE = "the data are on the KuaiRand project's page"
STANDARD, RANDOM = "log_standard_*.csv", "log_random_*.csv"
LABELS = ("long_view", "is_click")
COLUMNS = ("user_id", "video_id", "time_ms", "play_time_ms", "duration_ms")


def load(data_dir: str | Path, seed: int = 0, label: str = "long_view", quiet: bool = True) -> Partition:
    """The Partition of the files in `data_dir`, or in `data` within; of a repeated pair the last impression counts."""
    _check.choice("label", label, LABELS)
    biased, random = (_graded(_read(data_dir, pattern, label, quiet), label) for pattern in (STANDARD, RANDOM))
    return Partition.from_frames(
        biased,
        random,
        user="user_id",
        item="video_id",
        label=label,
        grade="grade",
        timestamp="time_ms",
        duplicates="last",
        split=PERMUTATION,
        split_seed=seed,
        name="kuairand",
    )


def _read(data_dir: str | Path, pattern: str, label: str, quiet: bool) -> pd.DataFrame:
    for folder in (Path(data_dir), Path(data_dir) / "data"):
        if any(folder.glob(pattern)):
            columns = (*COLUMNS, label)
            return read_log(folder / pattern, user="user_id", item="video_id", columns=columns, quiet=quiet)
    raise InputError(f"kuairand: {data_dir} holds no {pattern}: expected {STANDARD} and {RANDOM} there; {SOURCE}")


def _graded(log: pd.DataFrame, label: str) -> pd.DataFrame:
    try:
        played, lasts, positive = (
            log[name].to_numpy(dtype=np.float64) for name in ("play_time_ms", "duration_ms", label)
        )
    except ValueError as error:
        raise InputError(f"{log.attrs['source']}: {' '.join(str(error).split())}: check the file") from None
    ratio = np.clip(np.divide(played, lasts, out=np.zeros(len(log)), where=lasts > 0), 0, 1)
    return log.assign(grade=np.where(positive > 0, 0.75 + ratio / 4, ratio / 2))
