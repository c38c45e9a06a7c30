"""Digests of fitted models, to show that a change of the code's shape leaves results as they were, to the bit.

    python -m tests.digests compare OLD             # a checkout of an earlier commit: git worktree add OLD HEAD~9
    python -m tests.digests record before.json      # or in two steps: at the old commit,
    python -m tests.digests compare before.json     # and at the new one, on the same machine

Every method on every backbone with every solver, as the registry lists them, and the options that have code of their
own, on a small simulated log. The digests are of M_c's and M_t's arrays, and hold for one machine and one set of
versions. `--only dub-x` takes the fits whose names contain that text.
"""

import argparse
import hashlib
import json
import os
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


def digests(only=""):
    """{method and options: digest}."""
    import dubnb

    data = dubnb.load_dataset("simulated", seed=0)
    by_fit = {}
    for method, options in [*registered(), *OPTIONS]:
        name = f"{method} {json.dumps(options)}"
        if only in name:
            by_fit[name] = digest_of(dubnb.make(method, **(QUICK | options)).fit(data))
            print(f"{by_fit[name][:12]}  {name}", file=sys.stderr)
    return by_fit


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
    print("\n".join([f"{len(common) - len(changed)} of {len(common)} fits are the same to the bit", *changed]))
    print("".join(f"only in one of the two: {name}\n" for name in only_one), end="")
    return bool(changed or only_one)


if __name__ == "__main__":
    sys.exit(main())
