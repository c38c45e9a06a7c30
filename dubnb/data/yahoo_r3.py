"""Yahoo! R3, the paper's public dataset: 15,400 users x 1,000 songs, ratings 1-5 (Yahoo! Webscope, on request)."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

from dubnb.data.partition import Partition
from dubnb.data.ratings import find_files, partition_of_ratings, ratings_shape, read_triplets

SOURCE = "the data are handed out by Yahoo! Webscope on request (dataset R3)"


class Layout(NamedTuple):
    """One way in which the two logs are passed around."""

    names: tuple[str, str]
    delimiter: str
    first_id: int


LAYOUTS = (
    Layout(("user.txt", "random.txt"), ",", 0),
    Layout(("ydata-ymusic-rating-study-v1_0-train.txt", "ydata-ymusic-rating-study-v1_0-test.txt"), "\t", 1),
)


def load(data_dir: str | Path, seed: int = 0) -> Partition:
    """The Partition of the files in `data_dir`; seed 0 is the paper's split. Users and items keep their numbers."""
    kind, paths = find_files(data_dir, [layout.names for layout in LAYOUTS], "yahoo-r3", SOURCE)
    layout = LAYOUTS[kind]
    biased, random = (read_triplets(path, layout.delimiter, layout.first_id) for path in paths)
    return partition_of_ratings(
        biased,
        random,
        ratings_shape(biased, random),
        first_id=layout.first_id,
        split_seed=seed,
        name="yahoo-r3" if seed == 0 else f"yahoo-r3, split {seed}",  # only seed 0 compares with the paper
    )
