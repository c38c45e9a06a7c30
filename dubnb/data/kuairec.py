"""KuaiRec (Gao et al., CIKM 2022): a video app's feed, and a matrix in which nearly every pair was watched.

The small matrix (1,411 users x 3,327 videos, 99.6 % observed) has no exposure bias: it is the unbiased part; the big
one (7,176 x 10,728) is the biased log. A pair is positive if its watch ratio is above 2, the authors' own proposal; the
grade is the ratio clipped to [0, 4], over 4, so that the threshold lies at one half. Of a repeated pair the largest
ratio counts.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np

from dubnb._check import InputError
from dubnb.data.log import read_log
from dubnb.data.partition import Partition
from dubnb.data.split import PERMUTATION

SOURCE = "the data are on the KuaiRec project's page"
BIG, SMALL = "big_matrix.csv", "small_matrix.csv"
POSITIVE_ABOVE = 2.0


def load(data_dir: str | Path, seed: int = 0, quiet: bool = True) -> Partition:
    """The Partition of the files in `data_dir`, or in `data` within."""
    from dubnb.data.ratings import find_files

    folder = Path(data_dir)
    if not (folder / BIG).is_file() and (folder / "data" / BIG).is_file():
        folder /= "data"
    _, paths = find_files(folder, [(BIG, SMALL)], "kuairec", SOURCE)
    logs = []
    for path in paths:
        log = read_log(
            path, user="user_id", item="video_id", columns=("user_id", "video_id", "watch_ratio"), quiet=quiet
        )
        try:
            ratio = log["watch_ratio"].to_numpy(dtype=np.float64)
        except ValueError as error:
            raise InputError(f"{path}: {' '.join(str(error).split())}: check the file") from None
        grade = np.clip(ratio, 0, 2 * POSITIVE_ABOVE) / (2 * POSITIVE_ABOVE)
        logs.append(log.assign(grade=grade))
    return Partition.from_frames(
        *logs,
        user="user_id",
        item="video_id",
        label="watch_ratio",
        grade="grade",
        threshold=POSITIVE_ABOVE,
        duplicates="max",
        split=PERMUTATION,
        split_seed=seed,
        name="kuairec",
    )
