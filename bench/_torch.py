"""MF and NCF as a researcher would write them in torch: embeddings, BCEWithLogitsLoss, batches of shuffled indices."""

import itertools

import numpy as np
import torch
from torch import nn

torch.set_num_threads(1)
OPTIMIZERS = ("SparseAdam", "Adam", "Adam(fused)")


class MF(nn.Module):
    """s = b0 + b_u + b_i + p_u . q_i, from the weights of a dubnb model."""

    def __init__(self, weights, sparse):
        super().__init__()
        arrays = weights.arrays()
        self.p, self.q = (_embedding(arrays[name], sparse) for name in ("user_factors", "item_factors"))
        self.b_u, self.b_i = (_embedding(arrays[name][:, None], sparse) for name in ("user_bias", "item_bias"))
        self.b0 = nn.Parameter(torch.from_numpy(arrays["b0"].copy()))

    def forward(self, users, items):
        dots = (self.p(users) * self.q(items)).sum(1)
        return dots + self.b_u(users).squeeze(1) + self.b_i(items).squeeze(1) + self.b0


class NCF(nn.Module):
    """x = [p_u ; q_i] -> dense -> tanh -> dense -> one score, from the weights of a dubnb model."""

    def __init__(self, weights, sparse):
        super().__init__()
        arrays = weights.arrays()
        self.p, self.q = (_embedding(arrays[name], sparse) for name in ("user_factors", "item_factors"))
        layers, at, sizes = [], 0, arrays["sizes"]
        for fan_in, fan_out in itertools.pairwise(sizes):
            layer = nn.Linear(int(fan_in), int(fan_out))
            W = arrays["dense"][at : at + fan_in * fan_out].reshape(fan_in, fan_out)
            b = arrays["dense"][at + fan_in * fan_out : at + (fan_in + 1) * fan_out]
            layer.weight.data, layer.bias.data = torch.from_numpy(W.T.copy()), torch.from_numpy(b.copy())
            layers += [layer, nn.Tanh()]
            at += (fan_in + 1) * fan_out
        self.layers = nn.Sequential(*layers[:-1])

    def forward(self, users, items):
        return self.layers(torch.cat([self.p(users), self.q(items)], 1)).squeeze(1)


def _embedding(rows, sparse):
    return nn.Embedding.from_pretrained(torch.from_numpy(rows.copy()), freeze=False, sparse=sparse)


class Trainer:
    """A torch model, its optimizer, and the samples it is trained on."""

    def __init__(self, model, weights, optimizer, lr, batch_size, triplets):
        sparse = optimizer == "SparseAdam"
        self.model = model(weights, sparse)
        tables = [layer.weight for layer in self.model.modules() if isinstance(layer, nn.Embedding)]
        dense = [p for p in self.model.parameters() if not any(p is table for table in tables)]
        if sparse:
            self.optimizers = [torch.optim.SparseAdam(tables, lr=lr), torch.optim.Adam(dense, lr=lr)]
        else:
            self.optimizers = [torch.optim.Adam(tables + dense, lr=lr, fused=optimizer == "Adam(fused)")]
        self.loss, self.batch_size = nn.BCEWithLogitsLoss(), batch_size
        self.users, self.items = (torch.from_numpy(column.astype(np.int64)) for column in triplets[:2])
        self.labels = torch.from_numpy(triplets[2].copy())

    def epoch(self, order=None):
        """One pass over all samples in random, or the given, order."""
        order = torch.randperm(len(self.users)) if order is None else torch.from_numpy(order)
        for batch in order.split(self.batch_size):
            for optimizer in self.optimizers:
                optimizer.zero_grad()
            loss = self.loss(self.model(self.users[batch], self.items[batch]), self.labels[batch])
            loss.backward()
            for optimizer in self.optimizers:
                optimizer.step()

    @torch.no_grad()
    def mean_loss(self):
        """The objective over all samples at the current weights."""
        return float(self.loss(self.model(self.users, self.items), self.labels))
