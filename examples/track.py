"""A run recorded by a tracker, through the callback of `fit`: MLflow where it is installed, else lines of JSON.

    python examples/track.py --out runs.jsonl

Trackers refuse some characters in the names of metrics; `tracked` writes "p@5" as "p_at_5".
"""

import argparse
import json
import math
from pathlib import Path

import dubnb


def tracked(result):
    """The numbers of a result, under names that every tracker accepts."""
    plain = {name.replace("@", "_at_"): value for name, value in result.items() if isinstance(value, int | float)}
    return {name: float(value) for name, value in plain.items() if math.isfinite(value)}


class JsonLines:
    """As much of a tracker as this example needs, with MLflow's names."""

    def __init__(self, path):
        self.path = Path(path)

    def _add(self, document):
        with self.path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(document) + "\n")

    def log_params(self, params):
        self._add({"params": {name: str(value) for name, value in params.items()}})

    def log_metrics(self, metrics, step=None):
        self._add({"step": step, **metrics})


def record(model, data, tracker):
    """Fit with every epoch's row recorded, then the parameters and the judgement on S_te."""
    steps = iter(range(10**9))

    def callback(row):
        tracker.log_metrics(tracked({f"{row['stage']}/{name}": value for name, value in row.items()}), step=next(steps))

    model.fit(data, callback=callback)
    tracker.log_params(model.params_)
    tracker.log_metrics(tracked(model.evaluate(data)))
    return model


def main(out):
    data = dubnb.load_dataset("simulated")
    model = dubnb.make("dub", rank=20)
    try:
        import mlflow
    except ImportError:
        record(model, data, JsonLines(out))
        return
    with mlflow.start_run():
        record(model, data, mlflow)


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--out", default="runs.jsonl")
    main(parser.parse_args().out)
