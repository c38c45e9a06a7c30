"""Do the ladder's candidates end trained? Every candidate of a system, as the ladder searches it, on several logs.

    python -m bench.trained --systems autodebias,"bridge exact","dub exact" --seeds 5 --out autodebias-ladder.json
    python -m bench.trained --out autodebias-ladder.json --show

For each fit: the epoch that was kept (the one with the model's own AUC on S_va), the first from which on the factors
have grown (the share of the ranking that is a user's own is at least ALIVE), the last one and the most there could have
been; of the model that share, and the AUC on S_te. A fit has ended *trained* if its factors have grown and the epoch
that was kept comes after they had. Finished fits are kept in `--out`, so that the command goes on where it stopped.
"""

import argparse
import itertools
import json
import time
import warnings
from pathlib import Path

import numpy as np

from dubnb.methods.autodebias import ALIVE

SYSTEMS = "autodebias,bridge exact,dub exact"


def candidates(system, data):
    """The points of the ladder's search."""
    from bench.ladder import BUDGET
    from dubnb.experiments import budgets

    axes = budgets.search_of(system, BUDGET, data).axes
    return [dict(zip(axes, values, strict=True)) for values in itertools.product(*axes.values())]


def fitted(system, data, point):
    """A summary of a fit's history."""
    start = time.process_time()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model = system.model().set_params(**point).fit(data)
        seconds = time.process_time() - start
        found, own = model.evaluate(data, truth=False), model.evaluate(data, part="S_va", truth=False)["auc"]
    epochs = model.history_[model.history_["stage"] == "refine"].set_index("epoch")
    down, last = epochs.index[epochs["personal"] < ALIVE], int(epochs.index[-1])
    awake = int(down[-1]) + 1 if len(down) else 1
    return {
        "kept": int((epochs["va_auc"] - own).abs().idxmin()),
        "awake": awake if awake <= last else None,
        "epochs": last,
        "cap": int(model.params_["epochs"]),
        "personal": float(found["personal"]),
        "auc": float(found["auc"]),
        "seconds": seconds,
    }


def run(args):
    """Every candidate of every system on every log, as far as they are not in the record."""
    import dubnb
    from dubnb.experiments.systems import Choice

    kept = json.loads(args.out.read_text()) if args.out.exists() else {}
    for seed in range(args.seeds):
        data = dubnb.load_dataset(args.data, seed=seed)
        for system in Choice(args.systems.split(","), ["mf"]).checked().systems(data):
            for point in candidates(system, data):
                key = f"{args.data} {seed} {system.name}: " + ", ".join(f"{n} {v:g}" for n, v in point.items())
                if key not in kept:
                    kept[key] = fitted(system, data, point)
                    args.out.write_text(json.dumps(kept, indent=1) + "\n")
                    print(key, kept[key], flush=True)
    return kept


def table(kept):
    """Markdown: a row for each system on each kind of log."""
    groups: dict[tuple[str, str], list] = {}
    for key, fit in kept.items():
        log, _, system = key.split(":")[0].split(" ", 2)
        groups.setdefault((log, system), []).append(fit)
    lines = ["| log | system | fits | trained | epoch kept | factors grown from epoch | stopped by the cap | AUC |"]
    lines.append("|---|---|---:|---:|---|---|---:|---|")
    for (log, system), fits in groups.items():
        trained = [fit for fit in fits if is_trained(fit)]
        capped = sum(fit["epochs"] == fit["cap"] for fit in fits)
        cells = [log, system, len(fits), len(trained), _range([fit["kept"] for fit in fits], ".0f")]
        cells += [_range([fit["awake"] for fit in fits if fit["awake"]], ".0f"), capped]
        cells.append(_range([fit["auc"] for fit in fits], ".4f"))
        lines.append("| " + " | ".join(map(str, cells)) + " |")
    return "\n".join(lines)


def is_trained(fit):
    """Whether the factors have grown, and the kept epoch is not a chance peak before that."""
    return fit["awake"] is not None and fit["kept"] >= fit["awake"] and fit["personal"] >= ALIVE


def _range(values, digits):
    low, middle, high = np.percentile(values, (0, 50, 100))
    return f"{low:{digits}} to {high:{digits}} (median {middle:{digits}})"


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", default="yahoo-like")
    parser.add_argument("--systems", default=SYSTEMS)
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--show", action="store_true", help="show what is kept, fit nothing")
    args = parser.parse_args()
    print(table(json.loads(args.out.read_text()) if args.show else run(args)))


if __name__ == "__main__":
    main()
