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
