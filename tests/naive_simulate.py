"""Plain NumPy twins of the simulator's kernels: every pair at once, nothing skipped."""

import numpy as np


def uniform(key, counters):
    """splitmix64 of key + counter * golden ratio, as a number in [0, 1)."""
    z = np.uint64(key) + np.asarray(counters).astype(np.uint64) * np.uint64(0x9E3779B97F4A7C15)
    z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return ((z ^ (z >> np.uint64(31))) >> np.uint64(11)) / 2.0**53


def pairs(world):
    """The number u * n_items + i of every pair, (n_users, n_items)."""
    return np.arange(len(world.p) * len(world.q)).reshape(len(world.p), len(world.q))


def taste(world):
    return world.p.astype(float) @ world.q.astype(float).T


def logit_truth(world):
    return world.mu + world.a[:, None] + world.c[None, :] + taste(world)


def probability(world):
    return 1 / (1 + np.exp(-logit_truth(world)))


def label(world):
    return uniform(world.label_key, pairs(world)) < probability(world)


def liked_under_policy(world):
    return uniform(world.label_key, pairs(world)) < 1 / (1 + np.exp(-(logit_truth(world) + world.h)))


def policy_label(world):
    return liked_under_policy(world) & (uniform(world.pseudo_key, pairs(world)) >= world.nu)


def draw(world, plan):
    """Per user: the items of S_c and those of the randomized log, in the order drawn."""
    log_weight = world.pop + world.beta * taste(world)
    log_weight += (world.kappa + world.sk * world.z[:, None] - world.tau * world.pop) * liked_under_policy(world)
    race = -np.log(1 - uniform(plan.race_key, pairs(world))) / np.exp(log_weight)
    free = uniform(plan.random_key, pairs(world))
    biased, random = [], []
    for user in range(len(world.p)):
        biased.append(np.argsort(race[user])[: plan.activity[user]])
        free[user, biased[-1]] = np.inf
        random.append(np.argsort(free[user])[: plan.exposure[user]])
    return biased, random


def utility(world):
    """logit R^t - logit U, U the hash that decides the label."""
    u = uniform(world.label_key, pairs(world))
    return logit_truth(world) - np.log(u) + np.log1p(-u)


def parameters(config, streams):
    """The arrays of a world by their formulas; `streams(name)` is a parameter's own generator."""
    spread = np.array([(k + 1) ** -config.decay for k in range(config.K)])
    spread = spread / np.linalg.norm(spread)
    q = streams("q").standard_normal((config.n_items, config.K))
    q = np.array([row / np.linalg.norm(spread * row) for row in q])  # every item's taste has one spread over users
    p = streams("p").standard_normal((config.n_users, config.K), dtype=np.float32) * config.sx * spread
    e = streams("e").standard_exponential(config.n_items)
    hits = np.where(e > 1.5, e - 1.5, 0.0)
    c = config.si * streams("c").standard_normal(config.n_items) + config.cq * hits
    return {
        "p": p,
        "q": q,
        "a": streams("a").laplace(size=config.n_users) * config.su / np.sqrt(2),
        "z": streams("z").standard_normal(config.n_users),
        "c": c,
        "h": config.sh * streams("h").standard_normal(config.n_items) - config.eta * c,
        "pop": config.pop_n * streams("pop").standard_normal(config.n_items) + config.pop_e * e,
    }


def bisected(function, target, low, high, steps):
    """Where an increasing function reaches `target`, to 2^-(steps + 1) of the interval."""
    for _ in range(steps):
        middle = (low + high) / 2
        low, high = (middle, high) if function(middle) < target else (low, middle)
    return (low + high) / 2


def activity(config, noise):
    """Pairs of S_c per user: those that rounding took most from, or gave most to, make the sum come out."""
    median = np.array(
        [config.med_random if u < config.random_users else config.med_rest for u in range(config.n_users)]
    )
    extra = median * np.exp(config.act_sd * noise)
    most = config.n_items - config.random_each - config.act_min
    wanted = config.n_biased - config.n_users * config.act_min
    k = bisected(lambda k: sum(min(int(k * x), most) for x in extra), wanted + 0.5, 0.0, (most + 1) / min(extra), 60)
    n, lost = [min(int(k * x), most) for x in extra], [k * x - int(k * x) for x in extra]
    while sum(n) < wanted:
        user = max((u for u in range(len(n)) if n[u] < most and lost[u] is not None), key=lambda u: lost[u])
        n[user], lost[user] = n[user] + 1, None
    while sum(n) > wanted:
        user = min((u for u in range(len(n)) if n[u] > 0 and lost[u] is not None), key=lambda u: lost[u])
        n[user], lost[user] = n[user] - 1, None
    return [config.act_min + each for each in n]


def ratio(labels):
    return labels.sum() / max((labels == 0).sum(), 1)


def calibrated(world, config, plan):
    """(mu, kappa) of a world so small that all of its users take part: in turn, ever closer."""

    def pairs_of(draws, first):
        return np.repeat(np.arange(first), [len(own) for own in draws[:first]]), np.concatenate(draws[:first])

    def with_mu(world, exposure):
        drawn = pairs_of(draw(world, plan._replace(exposure=exposure))[1], config.random_users)
        found = bisected(lambda mu: ratio(label(world._replace(mu=mu))[drawn]), config.ratio_random, -25.0, 15.0, 24)
        return world._replace(mu=found)

    def with_kappa(world, reach, steps):
        def ratio_at(kappa):
            trial = world._replace(kappa=kappa)
            return ratio(policy_label(trial)[pairs_of(draw(trial, plan)[0], config.n_users)])

        ends = world.kappa - reach, world.kappa + reach
        return world._replace(kappa=bisected(ratio_at, config.ratio_biased, *ends, steps))

    for reach, steps in ((10.0, 11), (3.0, 9), (1.0, 7)):
        world = with_kappa(with_mu(world, np.minimum(20, config.n_items - plan.activity)), reach, steps)
    world = with_kappa(with_mu(world, plan.exposure), 0.3, 6)
    return world.mu, world.kappa


def grades(utilities, labels, shares):
    """Levels 0 to 4 over 4: the lowest of the negatives have level 0 ..., the highest of the positives level 4."""
    found = np.empty(len(labels))
    for y, levels in ((0, (0, 1, 2)), (1, (3, 4))):
        own = [shares[level] / sum(shares[each] for each in levels) for level in levels]
        cuts = [np.quantile(utilities[labels == y], sum(own[: k + 1])) for k in range(len(levels) - 1)]
        for row in np.flatnonzero(labels == y):
            found[row] = levels[sum(utilities[row] > cut for cut in cuts)] / 4
    return found
