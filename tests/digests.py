"""Digests of what dubnb computes and writes, to show that a refactoring changes no result.

    python -m tests.digests compare OLD             # a checkout of an earlier commit: git worktree add OLD HEAD~9
    python -m tests.digests record before.json      # or in two steps: at the old commit,
    python -m tests.digests compare before.json     # and at the new one, on the same machine

Fits: every method on every backbone with every solver, as the registry lists them, and the options that have code of
their own, on a small simulated log; the digests are of the arrays of M_c and M_t. Beside them: fingerprints of logs,
keys of a sweep's trials, members of model files, and the keys and numbers that commands print with `--json`.
Digests hold for one machine and one set of versions. `--only dub-x` takes the entries whose names contain that text.
"""

import argparse
import contextlib
import hashlib
import io
import json
import os
import sqlite3
import subprocess
import sys
import tempfile
import warnings
from pathlib import Path

QUICK = {"rank": 8, "epochs": 3, "patience": 3, "batch_size": 256}
SQUARED = {"loss": "squared", "solver": "exact", "epochs": 4}
OPTIONS = [
    *(("base", {"loss": loss}) for loss in ("mse", "squared", "mae")),
    ("base", {"weighting": "theory"}),
    ("base", {"backbone": "ncf", "hidden": (12, 6), "activation": "relu"}),
    ("base", {"negatives": 2, "targets": "graded"}),
    ("ips", {"clip": 20.0, "normalise": False}),
    ("cause", {"side": "both", "norm": "frobenius"}),
    *(("bridge", {"teacher": "joint", "loss": loss}) for loss in ("bce", "mse")),
    ("bridge", {"shrink": 0.5, "exposure_power": 0.5}),
    *(("dub", {"terms": terms}) for terms in ("acd", "cd", "ade", "ace")),
    *(("dub", {"loss": loss}) for loss in ("mse", "squared", "mae")),
    ("dub", {"loss": "mae", "terms": "acd"}),
    ("dub", {"weighting": "theory"}),
    ("dub", {"monitor": "ndcg"}),
    *((method, SQUARED | {"shrink": 0.5, "exposure_power": 0.5}) for method in ("bridge", "dub")),
    ("dub", SQUARED | {"terms": "cd"}),
    ("autodebias", {"epochs": 30}),
    ("autodebias", {"epochs": 30, "imputation": "sigmoid", "lam": 20.0, "exposure_power": 0.5}),
    ("autodebias", {"loss": "mse", "epochs": 1}),
    *(("dub-x", {"teacher": teacher, "epochs": 4}) for teacher in ("item", "model")),
    ("dub-x", {"terms": "acde", "exposure_power": (0.5, 1.0), "epochs": 4}),
]


def registered():
    """(method, options) of every method, backbone and solver."""
    from dubnb.methods import METHODS

    for name, method in METHODS.items():
        for backbone, solver in method.SETTINGS:
            own = {"solver": solver} if "solver" in method().get_params() else {}
            slow = {"epochs": 1} if (name, backbone) == ("autodebias", "ncf") else {}
            yield name, {"backbone": backbone} | own | slow


def digest_of(model):
    """Of the arrays of M_c, and of M_t where there is one."""
    digest = hashlib.sha256()
    for weights in filter(None, (model.weights_, model.teacher_)):
        for name, array in weights.arrays().items():
            digest.update(name.encode() + array.tobytes())
    return digest.hexdigest()


def fits():
    """(name, function that gives the digest) of every fit."""
    import dubnb

    data = dubnb.load_dataset("simulated", seed=0)
    for method, options in [*registered(), *OPTIONS]:
        model = dubnb.make(method, **(QUICK | options))
        yield f"{method} {json.dumps(options)}", lambda model=model: digest_of(model.fit(data))


# ---- what is written beside weights ---------------------------------------------------------------------------------


def small_log():
    """A biased and a randomized log with times, ratings, text ids and repeated pairs, as plain columns."""
    biased = {"user": [f"u{k * 7 % 40}" for k in range(900)], "item": [f"i{k * k % 31}" for k in range(900)]}
    random = {"user": [f"u{k * 11 % 40}" for k in range(400)], "item": [f"i{k * 13 % 31}" for k in range(400)]}
    for log, step in ((biased, 3), (random, 5)):
        log["rating"] = [1 + k * step % 7 % 5 for k in range(len(log["user"]))]
        log["time"] = list(range(len(log["user"])))
    return biased, random


def fingerprints():
    """Of built-in datasets, and of one's own frames read in several ways."""
    import pandas as pd

    import dubnb

    for name in ("simulated", "indifferent"):
        yield f"fingerprint {name}", lambda name=name: dubnb.load_dataset(name, seed=1).fingerprint
    biased, random = (pd.DataFrame(log) for log in small_log())
    for options in ({}, {"timestamp": "time"}, {"duplicates": "mean"}, {"split": "user"}, {"shares": (0.2, 0.2, 0.6)}):
        read = {"label": "rating", "threshold": 3} | options
        yield (
            f"fingerprint of frames {json.dumps(options)}",
            lambda read=read: dubnb.Partition.from_frames(biased, random, **read).fingerprint,
        )


def model_files():
    """The members of model files: names, types and shapes of arrays, and the keys of the JSON header."""
    import numpy as np

    import dubnb

    def described(member):
        if isinstance(member, bytes):
            return ",".join(sorted(json.loads(member)))
        return f"{member.dtype}{member.shape}"

    def members(model):
        with tempfile.TemporaryDirectory() as directory:
            path = Path(directory, "m.npz")
            model.fit(dubnb.load_dataset("simulated", seed=0)).save(path)
            with np.load(path) as file:
                return " ".join(f"{name}={described(file[name])}" for name in sorted(file.files))

    for method in ("base", "dub", "dub-x", "autodebias"):
        model = dubnb.make(method, **QUICK)
        yield f"members of a {method} file", lambda model=model: members(model)
    yield "members of a popularity file", lambda: members(dubnb.make("popularity"))


def commands():
    """The keys and numbers that commands print with --json, and the keys of a sweep's trials."""

    def printed(*words):
        from dubnb.cli import main

        with contextlib.redirect_stdout(io.StringIO()) as out, contextlib.redirect_stderr(io.StringIO()):
            code = main([*words, "--json", "--quiet"])
        return code, out.getvalue()

    def flat(value, at=""):
        """Lines `key.key = number`; times and paths are left out."""
        if isinstance(value, dict | list):
            pairs = value.items() if isinstance(value, dict) else enumerate(value)
            return [line for key, own in pairs for line in flat(own, f"{at}.{key}")]
        timed = any(word in at for word in ("seconds", "path", "out", "model", "report", "version"))
        return [f"{at} = {'' if timed or isinstance(value, str) else value}"]

    def document(*words):
        code, text = printed(*words)
        return "\n".join([str(code), *flat(json.loads(text))])

    def of_model(command):
        with tempfile.TemporaryDirectory() as directory:
            path = str(Path(directory, "m.npz"))
            fitted = ["fit", "--data", "simulated", "--method", "dub", "--set", "epochs=2", "--out", path]
            return "\n".join([document(*fitted), document(command, "--data", "simulated", "--model", path)])

    def keys():
        with tempfile.TemporaryDirectory() as directory:
            Path(directory, "grid.toml").write_text("lam = [1e-4, 1e-3]\nepochs = [1]\n")
            words = ["sweep", "--data", "simulated", "--method", "base", "--grid", f"{directory}/grid.toml"]
            printed(*words, "--seeds", "2", "--out", f"{directory}/x")
            with contextlib.closing(sqlite3.connect(f"{directory}/x/ledger.sqlite")) as ledger:
                return " ".join(sorted(key for (key,) in ledger.execute("select key from trials")))

    yield "json of evaluate", lambda: of_model("evaluate")
    yield "json of bound", lambda: of_model("bound")
    yield "json of audit", lambda: document("audit", "--data", "simulated")
    yield "keys of a sweep's trials", keys


def digests(only=""):
    """{name: digest} of everything."""
    found = {}
    for part in (fingerprints, commands, model_files, fits):
        for name, make in part():
            if only in name:
                found[name] = made = make()
                if len(made) > 64:  # a text: its digest, and the text itself where someone wants to see it
                    found[name] = hashlib.sha256(made.encode()).hexdigest()
                print(f"{found[name][:12]}  {name}", file=sys.stderr)
    return found


def digests_of_checkout(directory, only):
    """Those that this file's fits have with the dubnb of another checkout."""
    with tempfile.TemporaryDirectory() as there:
        record = Path(there, "digests.json")
        command = [sys.executable, "-P", __file__, "record", str(record), "--only", only]
        subprocess.run(command, check=True, cwd=there, env=os.environ | {"PYTHONPATH": str(Path(directory).resolve())})
        return json.loads(record.read_text())


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("record", "compare"))
    parser.add_argument("file", help="digests in JSON; to compare with, also a checkout")
    parser.add_argument("--only", default="", help="take the fits whose names contain this")
    args = parser.parse_args()
    warnings.simplefilter("ignore")
    now = digests(args.only)
    if args.what == "record":
        Path(args.file).write_text(json.dumps(now, indent=1))
        return 0
    is_checkout = Path(args.file).is_dir()
    before = digests_of_checkout(args.file, args.only) if is_checkout else json.loads(Path(args.file).read_text())
    common = [name for name in before if name in now]
    changed = [name for name in common if now[name] != before[name]]
    only_one = sorted(name for name in before.keys() ^ now.keys() if args.only in name)
    print("\n".join([f"{len(common) - len(changed)} of {len(common)} are the same to the bit", *changed]))
    print("".join(f"only in one of the two: {name}\n" for name in only_one), end="")
    return bool(changed or only_one)


if __name__ == "__main__":
    sys.exit(main())
