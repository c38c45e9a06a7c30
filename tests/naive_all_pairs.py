"""Plain NumPy twins of dubnb.objective.all_pairs and .autodebias: every user x item array is formed, in float64."""

import numpy as np

SCALE = 5.0


def free_coordinates(P, Q):
    """1 where a coordinate of P = [p, b_u, 1] and of Q = [q, 1, b_i] may move."""
    free_P, free_Q = np.ones_like(P), np.ones_like(Q)
    free_P[:, -1] = 0
    free_Q[:, -2] = 0
    return free_P, free_Q


def exact_problem(shape, streams, strength, teacher=0.0, A=None, C=None, decays=(0.0, 0.0), dtype=np.float64):
    """dubnb's problem from plain streams (users, items, targets, weights); S_u is what none of them has."""
    from dubnb.data.pattern import Pattern, UnobservedPairs
    from dubnb.objective import all_pairs
    from dubnb.objective.terms import ConstantTeacher, Observed, Unobserved

    class Rows:
        def low_rank(self, shape):
            return teacher

    observed = []
    for users, items, targets, weights in streams:
        columns = np.asarray(users, np.int32), np.asarray(items, np.int32), np.asarray(targets, np.float64)
        observed.append(Observed("c", *columns, np.broadcast_to(np.float64(weights), len(users))))
    users, items = (np.concatenate([np.asarray(stream[side], np.int64) for stream in streams]) for side in (0, 1))
    users, items = np.divmod(np.unique(users * shape[1] + items), shape[1])
    pairs = UnobservedPairs(*shape, Pattern.of(users, items.astype(np.int32), shape[0]))
    weights = None if A is None else (A, C)
    d = Unobserved(pairs, 1, strength, Rows() if isinstance(teacher, tuple) else ConstantTeacher(teacher), weights)
    return all_pairs.exact_problem(observed, d, decays=decays, dtype=dtype)


def extend(p, b_u, q, b_i):
    """The extended rows P = [p, b_u, 1] and Q = [q, 1, b_i]."""
    P = np.hstack([p, np.reshape(b_u, (-1, 1)), np.ones((len(p), 1))])
    return P, np.hstack([q, np.ones((len(q), 1)), np.reshape(b_i, (-1, 1))])


def dense_terms(shape, streams, strength, t, A, C):
    """A list of (weight, target) matrices whose quadratics add up to the objective without its decay."""
    terms, observed = [], np.zeros(shape, bool)
    for users, items, targets, weights in streams:
        weight, target = np.zeros(shape), np.zeros(shape)
        for u, i, y, w in zip(users, items, targets, np.broadcast_to(weights, len(users)), strict=True):
            weight[u, i], target[u, i] = w, y
            observed[u, i] = True
        terms.append((weight, target))
    everywhere = strength * np.outer(A, C)
    everywhere[observed] = 0.0
    return [*terms, (everywhere, np.broadcast_to(t, shape))]


def loss(terms, P, Q, wd_u, wd_i):
    scores = P @ Q.T
    quadratics = sum((weight * (scores - target) ** 2).sum() for weight, target in terms)
    return quadratics + 0.5 * (wd_u * (P[:, :-2] ** 2).sum(1)).sum() + 0.5 * (wd_i * (Q[:, :-2] ** 2).sum(1)).sum()


def gradient(terms, P, Q, wd_u, wd_i):
    scores = P @ Q.T
    errors = sum(2 * weight * (scores - target) for weight, target in terms)
    dP, dQ = errors @ Q, errors.T @ P
    dP[:, :-2] += np.reshape(wd_u, (-1, 1)) * P[:, :-2]
    dQ[:, :-2] += np.reshape(wd_i, (-1, 1)) * Q[:, :-2]
    free_P, free_Q = free_coordinates(P, Q)
    return dP * free_P, dQ * free_Q


def step_sizes(terms, P, Q, wd_u, wd_i, rho=1.0):
    """rho / (sum over all pairs of 2 weight (|other row|^2 + 1) + wd)."""
    total = sum(weight for weight, _ in terms)
    norm_P, norm_Q = (P[:, :-2] ** 2).sum(1) + 1, (Q[:, :-2] ** 2).sum(1) + 1
    return rho / (2 * total @ norm_Q + wd_u), rho / (2 * total.T @ norm_P + wd_i)


def activate(mu, activation):
    return np.tanh(mu) if activation == "tanh" else 1 / (1 + np.exp(-mu))


def autodebias_terms(shape, S_c, phi, alpha, activation):
    """The base objective's two terms: w1 and r on S_c, alpha w2 and m on every pair."""
    w1, r = np.zeros(shape), np.zeros(shape)
    M = activate(phi.mu, activation)
    w2 = alpha * np.exp((phi.a_prime[:, None] + phi.b_prime + phi.c_prime[0]) / SCALE)
    m = np.full(shape, M[0])
    for u, i, label, v in zip(*S_c, strict=True):
        y = int(label > 0)
        w1[u, i], r[u, i] = v * np.exp((phi.a[u] + phi.b[i] + phi.c[y]) / SCALE), label
        w2[u, i] = alpha * np.exp((phi.a_prime[u] + phi.b_prime[i] + phi.c_prime[1]) / SCALE)
        m[u, i] = M[1 + y]
    return [(w1, r), (w2, m)]


def look_ahead_loss(shape, S_c, S_t, phi, P, Q, etas, settings):
    """J at theta' = theta - eta grad for given step sizes."""
    alpha, wd, activation = settings
    dP, dQ = gradient(autodebias_terms(shape, S_c, phi, alpha, activation), P, Q, wd, wd)
    P, Q = P - etas[0][:, None] * dP, Q - etas[1][:, None] * dQ
    return sum(v * (P[u] @ Q[i] - r) ** 2 for u, i, r, v in zip(*S_t, strict=True))


def meta_gradient(shape, S_c, S_t, phi, P, Q, etas, settings):
    """dJ/dphi by the dense chain rule: phi -> weights and targets of every pair -> theta' -> J."""
    alpha, wd, activation = settings
    terms = autodebias_terms(shape, S_c, phi, alpha, activation)
    dP, dQ = gradient(terms, P, Q, wd, wd)
    P_ahead, Q_ahead = P - etas[0][:, None] * dP, Q - etas[1][:, None] * dQ
    g_P, g_Q = np.zeros_like(P), np.zeros_like(Q)
    for u, i, r, v in zip(*S_t, strict=True):
        error = v * (P_ahead[u] @ Q_ahead[i] - r)
        g_P[u] += 2 * error * Q_ahead[i]
        g_Q[i] += 2 * error * P_ahead[u]
    free_P, free_Q = free_coordinates(P, Q)
    # dJ = -eta g . d(grad), and d(grad) spreads d(error of a pair) over P_u and Q_i along Q_i and P_u
    by_error = -(etas[0][:, None] * g_P * free_P) @ Q.T - P @ (etas[1][:, None] * g_Q * free_Q).T
    (w1, r), (w2, m) = terms
    scores = P @ Q.T
    by_log_w1, by_log_w2 = by_error * 2 * w1 * (scores - r), by_error * 2 * w2 * (scores - m)
    by_m = -by_error * 2 * w2
    observed = w1 > 0
    classes = [observed & (r <= 0), observed & (r > 0)]
    M = activate(phi.mu, activation)
    slope = 1 - M**2 if activation == "tanh" else M * (1 - M)
    return type(phi)(
        a=by_log_w1.sum(1) / SCALE,
        b=by_log_w1.sum(0) / SCALE,
        c=np.array([by_log_w1[y].sum() for y in classes]) / SCALE,
        a_prime=by_log_w2.sum(1) / SCALE,
        b_prime=by_log_w2.sum(0) / SCALE,
        c_prime=np.array([by_log_w2[~observed].sum(), by_log_w2[observed].sum()]) / SCALE,
        mu=np.array([by_m[kind].sum() for kind in (~observed, *classes)]) * slope,
    )


def adam(value, gradients, lr, wd):
    """Adam with L2 coupled into the gradient, over a list of gradients."""
    first = second = np.zeros_like(value)
    for step, gradient_ in enumerate(gradients, start=1):
        g = gradient_ + wd * value
        first, second = 0.9 * first + 0.1 * g, 0.999 * second + 0.001 * g**2
        value = value - lr * (first / (1 - 0.9**step)) / (np.sqrt(second / (1 - 0.999**step)) + 1e-8)
    return value
