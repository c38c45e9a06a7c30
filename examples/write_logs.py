"""Write a simulated log as two files, such as a company has.

    python examples/write_logs.py DIRECTORY [--data simulated] [--seed 0]

log.csv is the ordinary log, random.csv the randomized one: user, item, rating. Ratings are 1 to 5; above 3 means liked.

    python examples/write_logs.py --world world-niche --labels stars --seed 0 --out DIRECTORY [--parquet]

The same from an invented company, with a row per impression: user, item, label, position, timestamp. The last line of
the output has the options that read the files. `dubnb.data.worlds` describes the worlds and has their truth.
"""

import argparse
from pathlib import Path

import numpy as np
import pandas as pd

import dubnb
from dubnb.data import worlds


def frame(data: dubnb.Partition, parts: tuple[str, ...]) -> pd.DataFrame:
    """Some parts of a graded log as one table."""
    logs = [data.triplets(part) for part in parts]
    users, items, grades = (
        np.concatenate([getattr(log, name) for log in logs]) for name in ("users", "items", "grades")
    )
    return pd.DataFrame({"user": users + 1, "item": items + 1, "rating": np.round(1 + 4 * grades).astype(int)})


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("directory", type=Path, nargs="?")
    parser.add_argument("--out", type=Path, help="the same as DIRECTORY")
    parser.add_argument("--data", default="simulated", help="a simulated dataset with ratings")
    parser.add_argument("--world", choices=tuple(worlds.WORLDS), help="an invented company instead of --data")
    parser.add_argument("--labels", choices=tuple(worlds.LABELS), default="clicks", help="of --world (default clicks)")
    parser.add_argument("--parquet", action="store_true", help="write a world as Parquet instead of CSV")
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    directory = args.out or args.directory
    if directory is None:
        parser.error("say where to write: DIRECTORY or --out DIRECTORY")
    if args.world is None:
        data = dubnb.load_dataset(args.data, seed=args.seed)
        directory.mkdir(parents=True, exist_ok=True)
        for name, parts in (("log.csv", ("S_c",)), ("random.csv", ("S_t", "S_va", "S_te"))):
            frame(data, parts).to_csv(directory / name, index=False)
        return
    form = "parquet" if args.parquet else "csv"
    biased, random, options = worlds.write_world(directory, args.world, args.labels, args.seed, form)
    options = {"biased": biased, "random": random, **options}
    print(*(f"--{name} {value}" for name, value in options.items()))


if __name__ == "__main__":
    main()
