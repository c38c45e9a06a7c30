"""Mutated logs: whatever a file holds, reading it ends in a Partition or in an InputError of one line.

`python -m tests.fuzz_logs [cases] [seed]` is the long run; tests/test_logs.py has a short one.
"""

import gzip
import io
import random
import sys
import tempfile
import warnings
from pathlib import Path

import pandas as pd

from dubnb import Partition
from dubnb._check import InputError

PIECES = [
    b",",
    b"\t",
    b'"',
    b'""',
    b"\n",
    b"\r",
    b"\0",
    b"\xff",
    b"\xef\xbb\xbf",
    b"1_0",
    b"nan",
    b"inf",
    b"-",
    b"1e999",
    b"#",
]
PIECES += [b" ", b"007", b"9" * 25, b"x" * 600, "é☃".encode(), b"True", b"2020-01-01", b"-0", b"label", b"1" * 70_000]
OPTIONS = [{}, {"threshold": 3}, {"timestamp": "time"}, {"weight": "w"}, {"duplicates": "mean", "threshold": 2}]
OPTIONS += [
    {"timestamp": "time", "split": "time"},
    {"split": "user"},
    {"user_type": "int"},
    {"grade": "w"},
    {"sep": ";"},
]


def logs():
    """A sound biased and randomized log."""
    rng = random.Random(0)
    rows = [(u, f"i{k % 7}", rng.randint(0, 1), rng.randint(0, 99), 1.5) for k, u in enumerate([*range(10)] * 6)]
    frame = pd.DataFrame(rows, columns=["user", "item", "label", "time", "w"]).drop_duplicates(["user", "item"])
    return frame[:40], frame[40:]


def mutated(content: bytes, rng: random.Random) -> bytes:
    """A few bytes or pieces changed, cut out, doubled or put in."""
    data = bytearray(content)
    for _ in range(rng.randint(1, 4)):
        place = rng.randrange(len(data) + 1)
        length = rng.choice([0, 1, 1, 5, 50])
        kind = rng.random()
        if kind < 0.4:
            data[place : place + length] = rng.choice(PIECES)
        elif kind < 0.7:
            data[place : place + 1] = bytes([rng.randrange(256)])
        elif kind < 0.85:
            del data[place : place + rng.choice([1, 10, 100, 1000])]
        else:
            data[place:place] = data[place : place + 60]
    return bytes(data)


def sound_files() -> dict[str, bytes]:
    """A sound randomized log in every form."""
    random_log = logs()[1]
    text = random_log.to_csv(index=False).encode()
    files = {"r.csv": text, "r.tsv": text.replace(b",", b"\t"), "r.csv.gz": gzip.compress(text, mtime=0)}
    try:
        import pyarrow  # noqa: F401
    except ImportError:
        return files
    for compression in ("none", "snappy"):
        buffer = io.BytesIO()
        random_log.to_parquet(buffer, compression=None if compression == "none" else compression)
        files[f"{compression}.parquet"] = buffer.getvalue()
    return files


def run(cases: int, seed: int) -> dict[str, int]:
    """Reads that many mutated files; returns how many were read and refused, and fails at anything else."""
    biased, files, counts = logs()[0], sound_files(), {"read": 0, "refused": 0}
    with tempfile.TemporaryDirectory() as folder, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for case in range(cases):
            rng = random.Random(f"{seed}/{case}")
            name = rng.choice(list(files))
            path = Path(folder) / name
            path.write_bytes(mutated(files[name], rng))
            options = rng.choice(OPTIONS)
            try:
                Partition.from_frames(biased, path, **options)
                counts["read"] += 1
            except InputError as error:
                assert "\n" not in str(error), f"seed {seed}, case {case}: {error!r}"
                counts["refused"] += 1
            except Exception as error:
                raise AssertionError(f"seed {seed}, case {case}, {name}, {options}: {error!r}") from error
    return counts


if __name__ == "__main__":
    print(run(int((sys.argv[1:] or [10_000])[0]), int((sys.argv[2:] or [0])[0])))
