"""An MF epoch beside one of other libraries, where installed: different algorithms, so that no ratio is a verdict."""

import importlib.util
import logging
from functools import partial

from bench import _logs, _models
from bench._timing import measure, skipped, table
from dubnb.backbones import MF

OURS, RANK, MORE = "dubnb, bce with lazy Adam", 50, 5


def run(quick=False):
    data = _logs.partition(scale=10 if quick else 1)
    ours, _ = _models.base(MF, data, RANK, 1024)
    contenders = {OURS: ours.epoch}
    for library, peers in (("implicit", _implicit), ("cornac", _cornac)):
        if not importlib.util.find_spec(library):
            skipped(library, "not installed; a different algorithm")
            continue
        for name, fit in peers(data.triplets("S_c"), (data.n_users, data.n_items)).items():
            contenders |= {(name, epochs): partial(fit, epochs) for epochs in (1, 1 + MORE)}
    seconds = measure(contenders, 5)
    timings = {OURS: seconds.pop(OURS)}
    for name in dict.fromkeys(name for name, _ in seconds):  # what each further epoch adds to a fit of one
        start = min(seconds[name, 1])
        timings[name] = [(whole - start) / MORE for whole in seconds[name, 1 + MORE]]
    table(f"MF epoch beside different algorithms, rank {RANK}, one thread", timings, OURS)


def _implicit(S_c, shape):
    """ALS over all pairs with weights, and BPR by plain SGD on triples."""
    import implicit
    from scipy.sparse import csr_matrix

    logging.getLogger("implicit").setLevel(logging.ERROR)
    positive = S_c.labels > 0
    matrix = csr_matrix((S_c.labels[positive], (S_c.users[positive], S_c.items[positive])), shape)

    def fit(model):
        return lambda epochs: model(factors=RANK, iterations=epochs, num_threads=1, use_gpu=False).fit(
            matrix, show_progress=False
        )

    return {
        "implicit ALS (normal equations)": fit(implicit.als.AlternatingLeastSquares),
        "implicit BPR (plain SGD, positives only)": fit(implicit.bpr.BayesianPersonalizedRanking),
    }


def _cornac(S_c, shape):
    """Squared loss by plain SGD, without Adam's state."""
    from cornac.data import Dataset
    from cornac.models import MF as Cornac

    triples = zip(S_c.users.tolist(), S_c.items.tolist(), S_c.labels.tolist(), strict=True)
    dataset = Dataset.from_uir(list(triples))

    def fit(epochs):
        Cornac(k=RANK, max_iter=epochs, learning_rate=0.01, num_threads=1, verbose=False).fit(dataset)

    return {"cornac MF (plain SGD)": fit}
