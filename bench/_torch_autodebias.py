"""AutoDebias-MF as in its authors' code, in torch: all pairs in blocks, under autograd.

For every block of users x items: the base loss over the block's pairs with the gradient's graph kept, one step ahead,
J on S_t there, backwards through the step into phi, Adam on phi, then the base loss again and a step of theta.
"""

import numpy as np
import torch

from dubnb._random import generator

torch.set_num_threads(1)
BLOCK = (6_000, 500)
ALPHA, DECAY, LR, SCALE = 0.1, 1e-3, 1e-3, 5.0


class BlockTrainer:
    """theta = (p, q, b_u, b_i); phi = (a, b, c, a', b', c', mu)."""

    def __init__(self, data, rank):
        self.shape, rng = (data.n_users, data.n_items), generator(0, "bench-autodebias")
        n_users, n_items = self.shape
        self.theta = [_tensor(rng, 0.1, n_users, rank), _tensor(rng, 0.1, n_items, rank)]
        self.theta += [_tensor(rng, 0.1, n_users), _tensor(rng, 0.1, n_items)]
        self.phi = [_tensor(rng, 1e-3, n) for n in (n_users, n_items, 2, n_users, n_items, 2, 3)]
        self.theta_optimizer = torch.optim.SGD(self.theta, lr=LR)
        self.phi_optimizer = torch.optim.Adam(self.phi, lr=1e-3)
        self.classes = np.zeros(self.shape, np.int64)  # 0 unobserved, 1 negative, 2 positive
        S_c, S_t = data.triplets("S_c"), data.triplets("S_t")
        self.classes[S_c.users, S_c.items] = 1 + (S_c.labels > 0)
        self.S_t = [torch.from_numpy(column.astype(np.int64)) for column in S_t[:2]]
        self.r_t = torch.from_numpy(2 * S_t.labels - 1)

    def blocks(self):
        """The users and items of every block."""
        for first_user in range(0, self.shape[0], BLOCK[0]):
            for first_item in range(0, self.shape[1], BLOCK[1]):
                users = np.arange(first_user, min(first_user + BLOCK[0], self.shape[0]))
                yield users, np.arange(first_item, min(first_item + BLOCK[1], self.shape[1]))

    def step(self, users, items):
        """One block: phi by a look-ahead, then theta."""
        u, i = (torch.from_numpy(grid.ravel()) for grid in np.meshgrid(users, items, indexing="ij"))
        y = torch.from_numpy(self.classes[np.ix_(users, items)].ravel())
        gradients = torch.autograd.grad(self.base_loss(u, i, y), self.theta, create_graph=True)
        ahead = [tensor - LR * gradient for tensor, gradient in zip(self.theta, gradients, strict=True)]
        J = ((scores(ahead, *self.S_t) - self.r_t) ** 2).sum()
        self.phi_optimizer.zero_grad()
        J.backward(inputs=self.phi)
        self.phi_optimizer.step()
        self.theta_optimizer.zero_grad()
        self.base_loss(u, i, y).backward(inputs=self.theta)
        self.theta_optimizer.step()

    def base_loss(self, u, i, y):
        """sum_obs w1 (s - r)^2 + alpha sum_all w2 (s - m)^2 + decay, over the pairs of a block."""
        a, b, c, a_prime, b_prime, c_prime, mu = self.phi
        s = scores(self.theta, u, i)
        observed = y > 0
        r = 2.0 * (y[observed] == 2) - 1.0
        w1 = torch.exp((a[u[observed]] + b[i[observed]] + c[y[observed] - 1]) / SCALE)
        w2 = torch.exp((a_prime[u] + b_prime[i] + c_prime[observed.long()]) / SCALE)
        decay = sum((tensor**2).sum() for tensor in self.theta[:2])
        loss = (w1 * (s[observed] - r) ** 2).sum() + ALPHA * (w2 * (s - torch.tanh(mu[y])) ** 2).sum()
        return loss + DECAY / 2 * decay


def scores(theta, u, i):
    p, q, b_u, b_i = theta
    return (p[u] * q[i]).sum(1) + b_u[u] + b_i[i]


def _tensor(rng, std, *shape):
    return torch.tensor(rng.normal(0.0, std, shape), dtype=torch.float32, requires_grad=True)
