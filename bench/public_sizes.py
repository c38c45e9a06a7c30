"""Time and memory of the arena's commands on generated files with the layout and the size of three public data sets.

    python -m bench.public_sizes kuairand --share 1 --folder FOLDER --out bench/records/public-sizes.json

We may not distribute the original files, and have not run the commands on them. Generated files have the same
columns, as many rows, users and items (times `--share`), and labels by a taste of four factors. `dubnb arena` runs in a
process of its own, with the budget smoke and SYSTEMS. Peak memory is that of the largest process of the run.
"""

import argparse
import json
import resource
import subprocess
import sys
import time
from pathlib import Path

import numpy as np

from dubnb._random import generator

SIZES = {  # users, items, rows of the biased log, rows of the unbiased one
    "kuairand": (27_285, 7_583, 1_436_609, 1_186_059),
    "kuairec": (7_176, 10_728, 12_530_806, 4_676_570),
    "open-bandit": (1_000, 80, 12_357_200, 1_374_327),
}
SMALL_MATRIX = (1_411, 3_327)  # users and items of KuaiRec's small matrix
SYSTEMS = "base,dub-x graded,dub-x rates,popularity"
FACTORS, CHUNK = 4, 200_000
RECORD = Path("bench/records/public-sizes.json")


class Tastes:
    """Draws pairs with skewed popularity, and utilities of pairs."""

    def __init__(self, n_users, n_items, seed):
        self.rng = generator(seed, "bench-public", n_users, n_items)
        self.p, self.q = (self.rng.normal(size=(n, FACTORS)) for n in (n_users, n_items))
        self.shares = np.exp(self.rng.normal(0.0, 1.0, n_items))
        self.n_users, self.n_items = n_users, n_items

    def pairs(self, n, uniform=False):
        """Users and items of n impressions."""
        users = self.rng.integers(0, self.n_users, n)
        if uniform:
            return users, self.rng.integers(0, self.n_items, n)
        return users, np.searchsorted(np.cumsum(self.shares), self.rng.random(n) * self.shares.sum())

    def utility(self, users, items):
        """Utilities with logistic noise."""
        return np.einsum("jk,jk->j", self.p[users], self.q[items]) - 2 + self.rng.logistic(size=len(users))


def _write(path, columns, zeros=()):
    """A CSV file. `zeros` names further columns of 0.0; they are added as text, which is much faster than by pandas."""
    import pandas as pd

    path.parent.mkdir(parents=True, exist_ok=True)
    frame, end = pd.DataFrame(columns), ",0.0" * len(zeros) + "\n"
    with path.open("w", encoding="utf-8") as file:
        file.write(",".join([*frame, *zeros]) + "\n")
        for start in range(0, len(frame), CHUNK):
            rows = frame[start : start + CHUNK].to_csv(index=False, header=False, lineterminator="\n")
            file.write(rows.replace("\n", end) if zeros else rows)


def write_kuairand(folder, sizes, seed=0):
    """Two standard logs and a random one with the columns of KuaiRand-Pure."""
    n_users, n_items, rows, random_rows = sizes
    tastes = Tastes(n_users, n_items, seed)
    parts = {
        "log_standard_4_08_to_4_21_pure": (rows - rows // 5, False),
        "log_standard_4_22_to_5_08_pure": (rows // 5, False),
    }
    parts["log_random_4_22_to_5_08_pure"] = random_rows, True
    for name, (n, uniform) in parts.items():
        users, items = tastes.pairs(n, uniform)
        v = tastes.utility(users, items)
        lasts = 5_000 + tastes.rng.integers(0, 60_000, n)
        played = np.clip(lasts / (1 + np.exp(-v)), 0, None).astype(np.int64)
        zero = np.zeros(n, np.int64)
        columns = {"user_id": users, "video_id": items, "date": zero + 20220422, "hourmin": zero + 1200}
        columns |= {"time_ms": 1650600000000 + np.arange(n), "is_click": (v > -1).astype(int), "is_like": zero}
        columns |= {each: zero for each in ("is_follow", "is_comment", "is_forward", "is_hate")}
        columns |= {"long_view": (v > 0).astype(int), "play_time_ms": played, "duration_ms": lasts}
        columns |= {each: zero for each in ("profile_stay_time", "comment_stay_time", "is_profile_enter")}
        _write(Path(folder) / f"{name}.csv", columns | {"is_rand": zero + uniform, "tab": zero + 1})


def write_kuairec(folder, sizes, seed=0, small=SMALL_MATRIX):
    """big_matrix.csv and small_matrix.csv with the columns of KuaiRec; in the small one nearly every pair is there."""
    n_users, n_items, rows, random_rows = sizes
    tastes = Tastes(n_users, n_items, seed)
    for name, n in (("big_matrix", rows), ("small_matrix", random_rows)):
        if name == "big_matrix":
            users, items = tastes.pairs(n)
        else:
            users, items = np.divmod(tastes.rng.permutation(small[0] * small[1])[:n], small[1])
        lasts = 5_000 + tastes.rng.integers(0, 60_000, len(users))
        ratio = np.round(np.exp(0.7 + 0.5 * tastes.utility(users, items)), 4)
        columns = {"user_id": users, "video_id": items, "play_duration": (lasts * ratio).astype(np.int64)}
        columns |= {"video_duration": lasts, "time": "2020-07-05 00:08:23.438", "date": 20200705}
        _write(Path(folder) / f"{name}.csv", columns | {"timestamp": 1593878903.438, "watch_ratio": ratio})


def write_open_bandit(folder, sizes, seed=0, affinities=80):
    """bts/all/all.csv and random/all/all.csv with the columns of the Open Bandit data; every row has its own time."""
    import pandas as pd

    n_users, n_items, rows, random_rows = sizes
    tastes, values = Tastes(n_users, n_items, seed), [f"{k:032x}" for k in range(10)]
    zeros = [f"user-item_affinity_{k}" for k in range(affinities)]
    for policy, n in (("bts", rows), ("random", random_rows)):
        users, items = tastes.pairs(n, policy == "random")
        v, numbers = tastes.utility(users, items) - 2, np.arange(n)
        times = pd.Timestamp("2019-11-24 00:00:19.365123", tz="UTC") + pd.to_timedelta(48_960 * numbers, unit="us")
        columns = {"Unnamed: 0": numbers, "timestamp": times, "item_id": items, "position": 1 + numbers % 3}
        columns |= {"click": (v > 0).astype(int), "propensity_score": np.full(n, 1 / n_items)}
        for k in range(4):
            columns[f"user_feature_{k}"] = pd.Categorical.from_codes(users // 10**k % 10, values)
        _write(Path(folder) / policy / "all" / "all.csv", columns, zeros)


WRITERS = {"kuairand": write_kuairand, "kuairec": write_kuairec, "open-bandit": write_open_bandit}


def measure(name, share, folder):
    """Write the files, run the command, and return what it took."""
    sizes = tuple(max(1, round(share * size)) if k > 1 else size for k, size in enumerate(SIZES[name]))
    if not folder.exists():
        WRITERS[name](folder, sizes)
    out = folder.with_name(f"{folder.name}-arena")
    words = ["arena", "--data", name, "--data-dir", str(folder), "--budget", "smoke", "--systems", SYSTEMS]
    start, cpu = time.perf_counter(), _children_cpu()
    command = [sys.executable, "-m", "dubnb", *words, "--quiet", "--json", "--out", str(out)]
    text = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    document = json.loads(text)
    (data,) = document["data"].values()
    fields = ("system", "training_cpu_seconds", "search_cpu_seconds", "peak_mb", "candidates")
    return {
        "data": name,
        "share": share,
        "files_mb": round(sum(path.stat().st_size for path in folder.rglob("*.csv")) / 1e6),
        "users": data["users"],
        "items": data["items"],
        "pairs": data["pairs"],
        "seconds": round(time.perf_counter() - start, 1),
        "cpu_seconds": round(_children_cpu() - cpu, 1),
        "peak_mb": round(resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss / 1024),
        "systems": [{field: row[field] for field in fields} for row in document["leaderboard"]],
        "command": " ".join(["dubnb", *words[:3], "--data-dir DIR", *words[5:7], f"--systems '{SYSTEMS}'"]),
    }


def _children_cpu():
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def table(record):
    """The table of docs/datasets.md."""
    head = ["generated files", "share of the rows", "S_c", "randomized", "CPU s", "peak memory", "CPU s of one fit"]
    lines = [f"| {' | '.join(head)} |", "|---|" + "---:|" * (len(head) - 1)]
    for each in record:
        pairs = each["pairs"]
        fits = ", ".join(
            f"{row['system']} {row['training_cpu_seconds']:.1f}"
            for row in each["systems"]
            if row["training_cpu_seconds"]
        )
        numbers = [f"{each['share']:g}", f"{pairs['S_c']:,}", f"{sum(pairs.values()) - pairs['S_c']:,}"]
        # a worker that the run did not wait for is only in the systems' own peaks
        peak = max([each["peak_mb"], *(row["peak_mb"] or 0 for row in each["systems"])])
        numbers += [f"{each['cpu_seconds']:.0f}", f"{peak / 1024:.1f} GB", fits]
        lines.append(f"| {each['data']} ({each['files_mb']:,} MB) | {' | '.join(numbers)} |")
    return "\n".join(lines)


def main():
    """Measure one data set, and keep it in the record."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", choices=tuple(SIZES))
    parser.add_argument("--share", type=float, default=1.0, help="share of the rows")
    parser.add_argument("--folder", type=Path, required=True, help="where the files go; used again if it exists")
    parser.add_argument("--out", type=Path, default=RECORD)
    args = parser.parse_args()
    found = measure(args.data, args.share, args.folder)
    record = json.loads(args.out.read_text()) if args.out.exists() else []
    record = [each for each in record if each["data"] != args.data] + [found]
    args.out.write_text(json.dumps(record, indent=1) + "\n")
    print(table([found]))


if __name__ == "__main__":
    main()
