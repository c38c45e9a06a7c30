"""What several parts share: an epoch of ours with its samples drawn, and the check that a peer does the same work."""

import numpy as np

from bench._timing import figure
from dubnb import losses
from dubnb.objective import terms as bound
from dubnb.objective.terms import EpochStreams

BCE = losses.LOSSES["bce"]
LR = 1e-3
SAME_START = 1e-5  # relative difference of the objective before an epoch
# ... and after one: dense Adam also moves the rows that a batch does not touch, and so gets further in an epoch.
SAME_END = {"SparseAdam": 0.02, "Adam": 0.1, "Adam(fused)": 0.1}


class Ours:
    """A trainer and the streams it is fed with; `epoch` draws, shuffles and trains, as a fit does."""

    def __init__(self, weights, terms, batch_size, loss=BCE):
        self.trainer, self.streams = weights.trainer(batch_size), EpochStreams(terms, 0, "bench")
        self.loss, self.done = loss, 0

    def epoch(self):
        self.done += 1
        samples = self.streams.draw(self.done)
        self.trainer.epoch(samples, len(self.streams.terms), self.loss, LR, 0.0)

    def mean_loss(self, triplets):
        """The objective over all samples at the current weights."""
        s = self.trainer.score_pairs(triplets.users, triplets.items).astype(np.float64)
        return float(np.mean(np.logaddexp(0.0, s) - triplets.labels * s))


def base(backbone, data, rank, batch_size, **options):
    """Ours on S_c alone, and the weights it started from."""
    weights = backbone.new((data.n_users, data.n_items), rank, 0, "c", **options)
    return Ours(weights, [bound.term_c(data)], batch_size), weights


def check_same_objective(title, optimizer, ours, peer, triplets):
    """Both sides start at the same objective and are still close to each other after an epoch; else no ratio counts."""
    before = ours.mean_loss(triplets), peer.mean_loss()
    ours.epoch()
    peer.epoch()
    after = ours.mean_loss(triplets), peer.mean_loss()
    start, end = (abs(a - b) / b for a, b in (before, after))
    if start > SAME_START or end > SAME_END[optimizer]:
        raise SystemExit(
            f"{title}, {optimizer}: objectives differ, {before} before and {after} after an epoch: no ratio counts"
        )
    figure(f"{title}, {optimizer}", "relative difference of the objective after an epoch", end, "")
