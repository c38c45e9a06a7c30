"""A refinement epoch of dub (terms a, c, d, e.2) against a base epoch (term c), per sample, drawing included."""

from bench import _logs, _models
from bench._timing import at_most, measure, table
from dubnb.backbones import MF, NCF
from dubnb.objective import terms as bound
from dubnb.objective.terms import shrunk_teacher

OURS, BASE, GOAL, RANK, BATCH = "dub, four terms", "base, term c", 1.15, 50, 1024


def run(quick=False):
    data = _logs.partition(scale=10 if quick else 1)
    for backbone in (MF, NCF):
        base, weights = _models.base(backbone, data, RANK, BATCH)
        teacher = shrunk_teacher(data, backbone.new((data.n_users, data.n_items), RANK, 0, "t"), _models.BCE)
        d, e = bound.term_d(data, 1.0, teacher), bound.term_e2(data, teacher)
        refine = _models.Ours(weights, [bound.term_a(data), bound.term_c(data), d, e], BATCH)
        seconds = measure({OURS: refine.epoch, BASE: base.epoch}, 5 if quick else 9)
        sizes = {name: len(each.streams.source.users) for name, each in ((OURS, refine), (BASE, base))}
        per_sample = {name: [t / sizes[name] for t in times] for name, times in seconds.items()}
        title = f"{backbone.name} refinement against base, rank {RANK}, batch {BATCH}, per sample"
        table(title, per_sample, OURS, {BASE: at_most(GOAL)}, unit="us")
