"""Mutated logs, for tests/fuzz.py: whatever a file holds, reading it ends in a Partition or in one line."""

import gzip
import io
import random
from pathlib import Path

import numpy as np
import pandas as pd

from dubnb import Partition
from dubnb.data.partition import PARTS
from tests import fuzz

PIECES = [b",", b"\t", b'"', b'""', b"\n", b"\r", b"\0", b"\xff", b"\xef\xbb\xbf", b"1_0", b"nan", b"inf", b"-"]
PIECES += [b"#", b" ", b"007", b"9" * 25, b"x" * 600, "é☃".encode(), b"True", b"2020-01-01", b"-0", b"label"]
PIECES += [b"1e999", b"1" * 70_000]
OPTIONS = [{}, {"threshold": 3}, {"timestamp": "time"}, {"weight": "w"}, {"duplicates": "mean", "threshold": 2}]
OPTIONS += [
    {"timestamp": "time", "split": "time"},
    {"split": "user"},
    {"user_type": "int"},
    {"grade": "w"},
    {"sep": ";"},
    {"drop_bad": True, "timestamp": "time", "weight": "w"},
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


class Logs:
    """Bytes of a randomized log changed, in one of the forms it is read in."""

    forms: tuple[str, ...]

    def __init__(self, directory):
        self.biased, self.directory = logs()[0], Path(directory)
        self.files = {name: content for name, content in sound_files().items() if name.endswith(self.forms)}

    def case(self, chance):
        name = chance.choice(sorted(self.files))
        path = self.directory / name
        path.write_bytes(mutated(self.files[name], chance))
        was_refused, data = fuzz.refused(Partition.from_frames, self.biased, path, **chance.choice(OPTIONS))
        for part in () if was_refused else PARTS:
            rows = data.triplets(part)
            if not np.isin(rows.labels, (0, 1)).all() or not np.isfinite(rows.weights).all():
                raise AssertionError(f"{part}: a label or a weight was let through")
        return was_refused


@fuzz.register("text")
class TextLogs(Logs):
    """CSV, TSV, compressed or not."""

    forms = ("csv", "tsv", "gz")


@fuzz.register("parquet")
class ParquetLogs(Logs):
    """Parquet, compressed or not."""

    forms = ("parquet",)
