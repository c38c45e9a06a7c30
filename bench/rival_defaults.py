"""Defaults of the rivals on mf: some settings of each on 13 logs, and the best ones on 16 others, by S_va alone.

    python -m bench.rival_defaults run --coat DIR       # writes bench/records/rival-defaults.json
    python -m bench.rival_defaults others --coat DIR    # the best and the former setting on the logs of bench.defaults

Data seeds are below 1000, and S_te is not read. lam is that of batches of 1,024 samples, see `lam_of_S_c`. Finished
fits are kept, so that the same command goes on where it stopped. A setting becomes the default if its AUC on S_va is
better by LEAST in the mean over all 29 logs. The first 13 also chose the setting, so that their mean flatters it.
"""

import argparse
import json
import warnings
from pathlib import Path

import numpy as np

LOGS = {
    "simulated": (900, 901, 902),
    "coat": (900, 901),
    "bias-none": (900, 902),
    "bias-selection": (900,),
    "bias-loop": (900, 901),
    "bias-popularity": (901,),
    "bias-conformity": (901,),
    "bias-position": (901,),
}
LAMS = (1e-5, 3e-5, 1e-4, 3e-4)
LONG = {"patience": 40, "epochs": 400}
GRIDS = {
    "dr": [{"lam": lam} for lam in LAMS],
    "mrdr": [{"lam": lam} for lam in (3e-6, *LAMS[:3])],
    "stable-dr": [{"lam": lam} for lam in (3e-5, 9e-5, 3e-4, 9e-4)],
    "relmf": [{"lam": lam, "gamma": gamma} for lam in LAMS[1:] for gamma in (3.0, 10.0, 30.0)],
    "bpr": [{"lam": lam, **more} for lam in (9e-6, 3e-5, 9e-5) for more in ({"patience": 20}, LONG, {"rank": 20})],
    "pda": [{"lam": lam, "power": power} for lam in (9e-6, 3e-5, 9e-5) for power in (0.02, 0.05, 0.2)],
    "refine": [{"lam": lam, "alpha": alpha} for lam in LAMS for alpha in (0.3, 0.5)],
    "weigh": [{"lam": lam} for lam in LAMS],
    "transfer": [{"lam": lam} for lam in LAMS],
    "dib": [{"lam": lam} for lam in LAMS],
    "base": [{"lam": lam} for lam in LAMS],
    "ials": [{"cutoff": cutoff, "alpha": alpha} for cutoff in (0.18, 0.25, 0.35) for alpha in (0.01, 0.03, 0.1)],
    "ease": [{"cutoff": cutoff} for cutoff in (1.4, 2.0, 2.8, 4.0, 5.6)],
}
BEFORE = {
    **dict.fromkeys(("dr", "mrdr", "weigh", "transfer", "dib", "base"), "lam=0.0001"),
    "stable-dr": "lam=0.0003",
    "relmf": "lam=0.0001 gamma=10",
    "bpr": "lam=3e-05 patience=20",
    "pda": "lam=3e-05 power=0.05",
    "refine": "lam=0.0001 alpha=0.5",
    "ials": "cutoff=0.25 alpha=0.03",
    "ease": "cutoff=2.8",
}
OTHERS = ("dr", "mrdr", "stable-dr", "relmf", "bpr", "refine", "weigh", "transfer", "dib", "ials")
LEAST = 0.005
METRICS = ("auc", "ndcg", "percentile")


def fitted(data, method, setting):
    """A model with a setting, whose lam is that of batches of 1,024."""
    import dubnb

    model = dubnb.make(method, **setting)
    if "lam" in setting:
        model.lam = setting["lam"] * 1024 / model.resolve(data).batch_size
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return model.fit(data)


def run(coat, record, keep):
    """Fill record["fits"], {"log seed method setting": metrics on S_va}; `keep` writes it after every fit."""
    import dubnb
    from dubnb.evaluation import judge

    for log, seeds in LOGS.items():
        for seed in seeds:
            data = dubnb.load_dataset(log, seed=seed, data_dir=coat if log == "coat" else None)
            for method, grid in GRIDS.items():
                for setting in grid:
                    key = f"{log} {seed} {method} {text_of(setting)}"
                    if key not in record["fits"]:
                        score = fitted(data, method, setting).decision_function
                        found = judge(score, data, truth=False, part="S_va").result
                        record["fits"][key] = [round(found[name], 4) for name in METRICS]
                        keep()


def others(coat, record, keep):
    """Fill record["others"], {"log seed method": AUC on S_va with the former and with the best setting}."""
    from bench import defaults

    best = best_settings(record["fits"])
    for log in defaults.LOGS:
        for seed in range(1 if log == "yahoo-like" else 3):
            data = defaults.load(log, seed, coat)
            for method in OTHERS:
                key = f"{log} {seed} {method}"
                if key not in record["others"]:
                    by_text = {text_of(setting): setting for setting in GRIDS[method]}
                    settings = by_text[BEFORE[method]], by_text[best[method]]
                    models = [fitted(data, method, setting) for setting in settings]
                    found = [model.evaluate(data, part="S_va", truth=False)["auc"] for model in models]
                    record["others"][key] = [round(auc, 4) for auc in found]
                    keep()


def text_of(setting):
    """A setting as text, such as "lam=1e-05 gamma=3"."""
    return " ".join(f"{name}={value:g}" for name, value in setting.items())


def means_by_setting(fits):
    """{method: {setting: means of METRICS over logs}}."""
    rows = {}
    for key, values in fits.items():
        _, _, method, setting = key.split(" ", 3)
        rows.setdefault(method, {}).setdefault(setting, []).append(values)
    return {m: {setting: np.mean(own, axis=0) for setting, own in settings.items()} for m, settings in rows.items()}


def best_settings(fits):
    """{method: the setting with the largest sum of the three means}."""
    return {m: max(means, key=lambda setting: means[setting].sum()) for m, means in means_by_setting(fits).items()}


def table(record):
    """Each method of OTHERS: its best setting on LOGS beside its former default, and whether that changed."""
    head = ["method", "best on 13 logs", "instead of", "AUC, 13 logs", "nDCG, 13 logs", "AUC, 16 others", "AUC, all"]
    lines = [f"| {' | '.join([*head, 'default'])} |", "|---|---|---|---:|---:|---:|---:|---|"]
    best, n = best_settings(record["fits"]), sum(map(len, LOGS.values()))
    for method, means in means_by_setting(record["fits"]).items():
        gain = means[best[method]] - means[BEFORE[method]]
        own = [after - before for key, (before, after) in record["others"].items() if key.split(" ")[2] == method]
        if own:
            mean = (n * gain[0] + sum(own)) / (n + len(own))
            numbers = [f"{x:+.4f}" for x in (*gain[:2], np.mean(own), mean)]
            cells = [method, best[method], BEFORE[method], *numbers, "changed" if mean >= LEAST else "kept"]
            lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("action", choices=("run", "others", "show"))
    parser.add_argument("--coat", required=True, help="where Coat's files are")
    parser.add_argument("--out", type=Path, default=Path("bench/records/rival-defaults.json"))
    args = parser.parse_args()
    record = json.loads(args.out.read_text()) if args.out.exists() else {"fits": {}, "others": {}}
    steps = {"run": run, "others": others}
    if args.action in steps:
        steps[args.action](args.coat, record, lambda: args.out.write_text(json.dumps(record, indent=0) + "\n"))
    print(table(record))


if __name__ == "__main__":
    main()
