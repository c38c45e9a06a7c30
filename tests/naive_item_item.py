"""A plain dense twin of dubnb.objective.item_item, in float64: the objective, and its minimum by least squares."""

import numpy as np


def inputs(seen, y):
    """X of all users with the constant feature, dense; seen: users x items, whether a pair is in S_c."""
    n = seen.sum(axis=1)
    scale = (np.maximum(n, 1) / n.mean()) ** -0.5
    return np.column_stack([scale[:, None] * np.where(seen, 0.5 + 0.5 * y, 0.0), np.ones(len(seen))])


def penalties(X, observed, w, a, C, lam):
    """pen, items x features."""
    k = np.where(observed, w - np.outer(a, C), 0.0)
    D = np.outer(C, a @ X**2) + k.T @ X**2
    pen = lam + np.maximum(D, 0)
    pen[:, -1] = 0.1
    return pen


def objective(B, c, X, observed, w, y, a, C, t, pen):
    """The sum over all pairs, one by one; w, y and t are users x items."""
    S = c[:, None] + X @ B.T
    weight = np.where(observed, w, np.outer(a, C))
    return (weight * (S - np.where(observed, y, t)) ** 2).sum() + (pen * B**2).sum() + (c**2).sum()


def conjugate_gradients(X, observed, w, y, a, C, t, lam, steps):
    """(B, c) after some steps from zero, c then set to its best given B; preconditioned by the diagonal."""
    n_users, n_items = observed.shape
    weight, target = np.where(observed, w, np.outer(a, C)), np.where(observed, y, t)
    pen = penalties(X, observed, w, a, C, lam)
    diagonal = weight.T @ X**2 + pen
    sums = 1 + weight.sum(axis=1)
    own = np.eye(n_items, n_items + 1, dtype=bool)

    def operator(B, c):
        S = weight * (c[:, None] + X @ B.T)
        return np.where(own, 0.0, S.T @ X + pen * B), S.sum(axis=1) + c

    def inner(first, second):
        return (first[0] * second[0]).sum() + first[1] @ second[1]

    B, c = np.zeros(pen.shape), np.zeros(n_users)
    R, r = np.where(own, 0.0, (weight * target).T @ X), (weight * target).sum(axis=1)
    Z, z = R / diagonal, r / sums
    P, p = Z, z
    for _ in range(steps):
        size = inner((R, r), (Z, z))
        if not size > 0:
            break
        G, g = operator(P, p)
        length = size / inner((P, p), (G, g))
        B, c, R, r = B + length * P, c + length * p, R - length * G, r - length * g
        Z, z = R / diagonal, r / sums
        P, p = Z + inner((R, r), (Z, z)) / size * P, z + inner((R, r), (Z, z)) / size * p
    return B, (weight * (target - X @ B.T)).sum(axis=1) / sums


def minimum(X, observed, w, y, a, C, t, pen):
    """(B, c) that minimise `objective` with B_ii = 0: one dense least-squares problem in all unknowns together."""
    n_users, n_items = observed.shape
    n_features = n_items + 1
    weight, target = np.where(observed, w, np.outer(a, C)), np.where(observed, y, t)
    rows, goals = [], []
    for u in range(n_users):
        for i in range(n_items):
            row = np.zeros(n_items * n_features + n_users)
            row[i * n_features : (i + 1) * n_features] = X[u]
            row[n_items * n_features + u] = 1
            rows.append(np.sqrt(weight[u, i]) * row)
            goals.append(np.sqrt(weight[u, i]) * target[u, i])
    ridge = np.diag(np.sqrt(np.concatenate([pen.ravel(), np.ones(n_users)])))
    matrix, goal = np.vstack([rows, ridge]), np.concatenate([goals, np.zeros(len(ridge))])
    free = np.ones(matrix.shape[1], dtype=bool)
    free[[i * n_features + i for i in range(n_items)]] = False
    found = np.zeros(matrix.shape[1])
    found[free] = np.linalg.lstsq(matrix[:, free], goal, rcond=None)[0]
    return found[: n_items * n_features].reshape(n_items, n_features), found[n_items * n_features :]
