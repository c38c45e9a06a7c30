"""Plain NumPy twins of dubnb.objective.als: one dense system of normal equations for each row, in float64."""

import numpy as np


def solve_users(terms, P, Q, wd_u, bias_ridge):
    """P with every free coordinate (p_u, b_u) at its optimum given Q; terms: dense (weight, target) matrices."""
    weight = sum(w for w, _ in terms)
    pull = sum(w * target for w, target in terms)
    return _solve(weight, pull, P, Q, wd_u, bias_ridge, bias=-2, fixed=-1)


def solve_items(terms, P, Q, wd_i, bias_ridge):
    """Q with every free coordinate (q_i, b_i) at its optimum given P."""
    weight = sum(w for w, _ in terms)
    pull = sum(w * target for w, target in terms)
    return _solve(weight.T, pull.T, Q, P, wd_i, bias_ridge, bias=-1, fixed=-2)


def _solve(weight, pull, rows, other, wd, bias_ridge, bias, fixed):
    Z = np.column_stack([other[:, :-2], other[:, bias]])
    solved = rows.copy()
    for n in range(len(rows)):
        ridge = np.append(np.full(Z.shape[1] - 1, wd[n] / 2), bias_ridge)
        matrix = Z.T @ (weight[n][:, None] * Z) + np.diag(ridge)
        # lstsq: a row with neither pairs nor decay has no unique minimum, and its smallest is 0
        x = np.linalg.lstsq(matrix, Z.T @ (pull[n] - weight[n] * other[:, fixed]), rcond=None)[0]
        solved[n, :-2], solved[n, bias] = x[:-1], x[-1]
    return solved


def objective(quadratics_and_decay, P, Q, bias_ridge):
    """The loss of all_pairs plus the ridge on the biases."""
    return quadratics_and_decay + bias_ridge * ((P[:, -2] ** 2).sum() + (Q[:, -1] ** 2).sum())
