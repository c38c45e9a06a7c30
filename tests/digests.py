"""Digests of fitted models, to show that a change of the code's shape leaves results as they were, to the bit.

    python -m tests.digests record before.json     # at the old commit
    python -m tests.digests compare before.json    # at the new one, on the same machine

Every method, backbone and solver, with the options that have code of their own, on a small simulated log. The digests
are of M_c's and M_t's arrays, and hold for one machine and one set of versions.
"""

import argparse
import hashlib
import json
import sys
import warnings

QUICK = {"rank": 8, "epochs": 3, "patience": 3, "batch_size": 256}
SQUARED = {"loss": "squared", "solver": "exact", "rank": 8, "epochs": 4}
FITS = [
    *((method, {"backbone": backbone}) for method in ("base", "unif", "combine", "ips") for backbone in ("mf", "ncf")),
    *(("base", {"loss": loss}) for loss in ("mse", "squared", "mae")),
    ("base", {"weighting": "theory"}),
    ("base", {"backbone": "ncf", "hidden": (12, 6), "activation": "relu"}),
    ("ips", {"clip": 20.0, "normalise": False}),
    *(("cause", {"backbone": backbone}) for backbone in ("mf", "ncf")),
    ("cause", {"side": "both", "norm": "frobenius"}),
    *((method, {"backbone": backbone}) for method in ("bridge", "dub") for backbone in ("mf", "ncf")),
    *(("bridge", {"teacher": "joint", "loss": loss}) for loss in ("bce", "mse")),
    ("bridge", {"shrink": 0.5, "exposure_power": 0.5}),
    *(("dub", {"terms": terms}) for terms in ("acd", "cd", "ade", "ace")),
    *(("dub", {"loss": loss}) for loss in ("mse", "squared", "mae")),
    ("dub", {"loss": "mae", "terms": "acd"}),
    ("dub", {"weighting": "theory"}),
    ("dub", {"monitor": "ndcg"}),
    *((method, SQUARED | own) for method in ("bridge", "dub") for own in ({}, {"shrink": 0.5, "exposure_power": 0.5})),
    ("dub", SQUARED | {"terms": "cd"}),
    ("autodebias", {"epochs": 30}),
    ("autodebias", {"epochs": 30, "imputation": "sigmoid", "lam": 20.0, "exposure_power": 0.5}),
    ("autodebias", {"backbone": "ncf", "epochs": 1}),
    ("autodebias", {"loss": "mse", "epochs": 1}),
    *(("dub-x", {"teacher": teacher, "epochs": 4}) for teacher in ("constant", "item", "model")),
    ("dub-x", {"terms": "acde", "exposure_power": (0.5, 1.0), "epochs": 4}),
]


def digests():
    """{method and options: digest}."""
    import dubnb

    data = dubnb.load_dataset("simulated", seed=0)
    found = {}
    for method, options in FITS:
        model = dubnb.make(method, **(QUICK | options)).fit(data)
        digest = hashlib.sha256()
        for weights in filter(None, (model.weights_, model.teacher_)):
            for name, array in weights.arrays().items():
                digest.update(name.encode() + array.tobytes())
        found[f"{method} {json.dumps(options)}"] = digest.hexdigest()
        print(f"{digest.hexdigest()[:12]}  {method} {options}", file=sys.stderr)
    return found


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("record", "compare"))
    parser.add_argument("file")
    args = parser.parse_args()
    warnings.simplefilter("ignore")
    found = digests()
    if args.what == "record":
        with open(args.file, "w") as file:
            json.dump(found, file, indent=1)
        return 0
    with open(args.file) as file:
        before = json.load(file)
    changed = [name for name in before if found.get(name) != before[name]]
    print("\n".join([f"{len(before) - len(changed)} of {len(before)} fits are the same to the bit", *changed]))
    return bool(changed)


if __name__ == "__main__":
    sys.exit(main())
