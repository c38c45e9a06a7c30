"""Write a simulated log as two CSV files, such as a company has: user, item, rating.

    python examples/write_logs.py DIRECTORY [--data simulated] [--seed 0]

log.csv is the ordinary log, random.csv the randomized one; ratings are 1 to 5, and above 3 means liked.
"""

import argparse
from pathlib import Path

import numpy as np
import pandas as pd

import dubnb


def frame(data: dubnb.Partition, parts: tuple[str, ...]) -> pd.DataFrame:
    """Some parts of a graded log as one table."""
    logs = [data.triplets(part) for part in parts]
    users, items, grades = (
        np.concatenate([getattr(log, name) for log in logs]) for name in ("users", "items", "grades")
    )
    return pd.DataFrame({"user": users + 1, "item": items + 1, "rating": np.round(1 + 4 * grades).astype(int)})


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("directory", type=Path)
    parser.add_argument("--data", default="simulated")
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    data = dubnb.load_dataset(args.data, seed=args.seed)
    for name, parts in (("log.csv", ("S_c",)), ("random.csv", ("S_t", "S_va", "S_te"))):
        frame(data, parts).to_csv(args.directory / name, index=False)


if __name__ == "__main__":
    main()
