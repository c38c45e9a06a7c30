"""`python -m bench rivals`: an epoch of the doubly robust methods beside base's, ease and ials beside their peers."""

import importlib.util
import logging

import numpy as np
import scipy.linalg.lapack  # noqa: F401  (loads its BLAS before `python -m bench` limits threads)

from bench import _logs
from bench._timing import at_most, measure, skipped, table
from dubnb.data.pattern import Pattern
from dubnb.losses import LOSSES
from dubnb.methods import make
from dubnb.methods.ease import coefficients
from dubnb.objective import als
from dubnb.objective.coupled import CoupledModels, DoublyRobust, Pairwise
from dubnb.objective.item_item import Inputs
from dubnb.train import Fit

RANK, CG_STEPS = 50, 3
ROBUST = ("dr", "mrdr", "stable-dr")


def run(quick=False):
    data = _logs.partition(scale=10 if quick else 1)
    for backbone in ("mf",) if quick else ("mf", "ncf"):
        bench_epochs(data, backbone, 2 if quick else 5)
    bench_ease(data, 2 if quick else 5)
    bench_ials(data, 2 if quick else 5)


def bench_epochs(data, backbone, repeats):
    """Seconds of 100,000 samples, each with what an epoch of its method does for it."""
    contenders, sizes = {}, {}
    for name in ("base", *ROBUST, "bpr"):
        contenders[name], sizes[name] = _epoch(data, name, backbone)
    timings = measure(contenders, repeats)
    timings = {name: [1e5 * t / sizes[name] for t in times] for name, times in timings.items()}
    for name in ROBUST:
        one = {name: timings[name], "base": timings["base"]}
        goals = {"base": at_most(2.5)}
        table(f"100,000 samples of {name} and of base, {backbone}, rank {RANK}", one, name, goals)
    table(
        f"100,000 pairs of bpr and samples of base, {backbone}, rank {RANK}",
        {name: timings[name] for name in ("bpr", "base")},
        "bpr",
    )


def _epoch(data, name, backbone):
    """(a function that trains one epoch, the number of its samples)."""
    own = {"propensity": "logistic"} if name in ROBUST else {}
    method = make(name, rank=RANK, backbone=backbone, **own).resolve(data)
    fit, stage = Fit(data, "auc"), method.stage("M_c")
    terms = method.all_terms(fit, None)
    size = sum(term.size for term in terms)
    if name == "base":
        trainer, epochs = fit.device.training(fit.new(stage), terms, stage)
        return lambda: trainer.epoch(epochs.draw(1), 1, LOSSES["bce"], stage.lr, stage.lam), size
    if name == "bpr":
        S_c = terms[0]
        liked = Pattern.of(S_c.users, S_c.items, data.n_users)
        pairs = Pairwise(fit.new(stage), terms, liked, stage, np.zeros(0))
        return lambda: pairs.epoch(1), size
    stages = stage, method.stage("M_t")
    rule = DoublyRobust(method.KIND, np.float32(1 / terms[1].stands_for), method.LOSS)
    both = CoupledModels(stages, (fit.new(stages[0]), fit.new(stages[1])), terms, rule)
    return lambda: both.epoch(1), size


def bench_ease(data, repeats):
    """The coefficients from the users' items, beside NumPy's inverse of the same matrix."""
    S_c = data.triplets("S_c")
    liked = S_c.take(S_c.labels > 0)
    pairs = Pattern.of(liked.users, liked.items, data.n_users)
    inputs = Inputs(pairs.indptr, pairs.items, np.ones(len(pairs.items), np.float32))
    X = np.zeros((data.n_users, data.n_items), np.float32)
    X[liked.users, liked.items] = 1.0
    G, eye = X.T.astype(np.float64) @ X, np.eye(data.n_items)

    contenders = {
        "ease": lambda: coefficients(inputs, data.n_items, 200.0),
        "numpy.linalg.solve": lambda: np.linalg.solve(G + 200.0 * eye, eye),
    }
    title = f"ease on {data.n_items:,} items, from the log to coefficients"
    table(title, measure(contenders, repeats), "ease", {"numpy.linalg.solve": at_most(2.0)})


def bench_ials(data, repeats):
    """One iteration over users and items beside implicit's, both by conjugate gradients with three steps."""
    if not importlib.util.find_spec("implicit"):
        skipped("implicit", "not installed")
        return
    from implicit.cpu.als import AlternatingLeastSquares
    from scipy.sparse import csr_matrix

    logging.getLogger("implicit").setLevel(logging.ERROR)
    method = make("ials", rank=RANK).resolve(data)
    fit = Fit(data, "auc")
    ready = als.prepare(method.exact_problem(method.all_terms(fit, None)))
    rows = [np.array(side) for side in method.random_rows(fit)]
    S_c = data.triplets("S_c")
    liked = S_c.take(S_c.labels > 0)
    shape = data.n_users, data.n_items
    X = csr_matrix((np.ones(len(liked.users), np.float32), (liked.users, liked.items)), shape)
    # implicit: weight 1 for a missing pair and alpha for a positive
    peer = AlternatingLeastSquares(
        factors=RANK, use_cg=True, iterations=1, num_threads=1, alpha=1 / method.alpha, calculate_training_loss=False
    )
    peer.cg_steps = CG_STEPS
    peer.fit(X, show_progress=False)
    Cui, factors = (X / method.alpha).tocsr(), (peer.user_factors, peer.item_factors)
    Ciu = Cui.T.tocsr()

    def peer_iteration():
        peer.solver(Cui, *factors, peer.regularization, num_threads=1)
        peer.solver(Ciu, *factors[::-1], peer.regularization, num_threads=1)

    contenders = {"ials": lambda: als.sweep_rows(ready, *rows), "implicit ALS, 3 CG steps": peer_iteration}
    title = f"One iteration of ials, rank {RANK}"
    table(title, measure(contenders, repeats), "ials", {"implicit ALS, 3 CG steps": at_most(1.1)})
