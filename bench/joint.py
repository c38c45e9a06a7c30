"""Joint training (M_c and M_t side by side) against base epochs of as many samples as both streams have together."""

from bench import _logs, _models
from bench._timing import at_most, measure, table
from dubnb import make
from dubnb.backbones import BACKBONES
from dubnb.losses import LOSSES
from dubnb.objective.coupled import BothModels
from dubnb.train import Fit

OURS, BASE, GOAL, RANK = "both models", "base, as many samples", 2.5, 50
KINDS = {
    "Eq. 1": ("dub", {"loss": "mae"}),
    "joint bridge, bce": ("bridge", {"teacher": "joint"}),
    "joint bridge, mse": ("bridge", {"teacher": "joint", "loss": "mse"}),
    "cause": ("cause", {}),
}


class Caught(Exception):
    """Raised in place of joint training, to carry its models out of the fit."""


class Catching(Fit):
    """A fit that trains nothing: it hands over what it was about to train."""

    def run_epochs(self, stage, one_epoch, scorer, weights, *rest):
        if isinstance(scorer, BothModels):
            raise Caught(scorer)
        return weights()


def both_models(data, method, backbone, batch_size, **options):
    """The two models that a method would train jointly, as they are before the first epoch."""
    settled = make(method, backbone=backbone, rank=RANK, batch_size=batch_size, **options).resolve(data)
    try:
        settled.recipe(Catching(data, settled.monitor))
    except Caught as caught:
        return caught.args[0], LOSSES[settled.loss]
    raise SystemExit(f"{method} does not train jointly with {options}")


def run(quick=False):
    data = _logs.partition(scale=10 if quick else 1)
    for backbone, batch_size in (("mf", 1024), ("mf", 32), ("ncf", 1024)):
        for kind, (method, options) in KINDS.items():
            both, loss = both_models(data, method, backbone, batch_size, **options)
            base, _ = _models.base(BACKBONES[backbone], data, RANK, batch_size)
            base.loss, number = loss, iter(range(1, 1000))
            seconds = measure({OURS: lambda: both.epoch(next(number)), BASE: base.epoch}, 3 if quick else 5)  # noqa: B023
            share = _samples(both) / len(base.streams.source.users)
            seconds[BASE] = [share * each for each in seconds[BASE]]
            title = f"Joint training, {kind}, {backbone}, rank {RANK}, batch {batch_size}"
            table(title, seconds, OURS, {BASE: at_most(GOAL)})


def _samples(both):
    """Samples of an epoch of both streams."""
    n, (n_c, n_t) = len(both.epochs.source.users), both.sides.batch_sizes
    sizes = dict(zip(both.epochs.names, (term.size for term in both.epochs.terms), strict=True))
    in_round = both.cycle.epochs.terms[0].size
    e1 = -(-n // n_c) * in_round / -(-in_round // n_t)
    return n + e1 + (sizes.get("d", 0) if both.sides.symmetric else 0)
