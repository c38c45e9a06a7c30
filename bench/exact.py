"""An epoch with term d over all of S_u by Gram matrices against an epoch that samples it (loss squared, mf)."""

from bench import _logs, _models
from bench._timing import at_most, measure, table
from dubnb import losses
from dubnb.backbones import MF
from dubnb.objective import all_pairs
from dubnb.objective import terms as bound
from dubnb.objective.terms import shrunk_teacher

OURS, SAMPLED, GOAL, GAMMA = "exact, all of S_u", "sampled, as many pairs as S_c", 1.0, 0.05
SQUARED = losses.LOSSES["squared"]


def run(quick=False):
    data = _logs.partition(scale=10 if quick else 1)
    for rank in (50, 100):
        weights = MF.new((data.n_users, data.n_items), rank, 0, "c")
        teacher = shrunk_teacher(data, None, SQUARED, shrink=1.0)
        d = bound.term_d(data, GAMMA, teacher)
        observed = [bound.term_a(data), bound.term_c(data), bound.term_e2(data, teacher)]
        sampled = _models.Ours(weights, [*observed, d], 1024, loss=SQUARED)
        problem = all_pairs.exact_problem(observed, d, decays=(15.0, 15.0))
        P, Q = weights.extended()
        contenders = {OURS: lambda p=problem, P=P, Q=Q: all_pairs.descend(p, P, Q), SAMPLED: sampled.epoch}
        title = f"Epoch with exact against sampled term d, rank {rank}"
        table(title, measure(contenders, 5 if quick else 9), OURS, {SAMPLED: at_most(GOAL)})
