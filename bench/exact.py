"""An epoch with term d over all of S_u by Gram matrices against an epoch that samples it (loss squared, mf)."""

from bench import _logs, _models
from bench._timing import at_most, measure, table
from dubnb import losses
from dubnb.backbones import MF
from dubnb.objective import all_pairs
from dubnb.objective import terms as bound

OURS, SAMPLED, GOAL, GAMMA = "exact, all of S_u", "sampled, as many pairs as S_c", 1.0, 0.05
SQUARED = losses.LOSSES["squared"]


def run(quick=False):
    data = _logs.partition(scale=10 if quick else 1)
    S_c, S_t = data.triplets("S_c"), data.triplets("S_t")
    for rank in (50, 100):
        weights = MF.new(data.n_users, data.n_items, rank, 0, "c")
        teacher = bound.Teacher(data, None, SQUARED, shrink=1.0)
        terms = [
            bound.term_a(data),
            bound.term_c(data),
            bound.term_d(data, GAMMA, teacher),
            bound.term_e2(data, teacher),
        ]
        sampled = _models.Ours(weights, terms, 1024, loss=SQUARED)
        pairs = [(S_c, S_c.labels), (S_t, S_t.labels), (S_t, S_t.labels - teacher.mean)]
        streams = [(part.users, part.items, targets, 1.0) for part, targets in pairs]
        shape = (data.n_users, data.n_items)
        problem = all_pairs.exact_problem(shape, streams, strength=GAMMA, teacher=teacher.mean, wd_u=15.0, wd_i=15.0)
        P, Q = weights.extended()
        contenders = {OURS: lambda p=problem, P=P, Q=Q: all_pairs.descend(p, P, Q), SAMPLED: sampled.epoch}
        title = f"Epoch with exact against sampled term d, rank {rank}"
        table(title, measure(contenders, 5 if quick else 9), OURS, {SAMPLED: at_most(GOAL)})
