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
