"""Small networks and data for the tests of methods."""

import torch
from torch import nn

HEADS = [(0, 1), (2, 3), (4, 5)]


def network(outputs=6, seed=0):
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(3, 5), nn.Tanh(), nn.Linear(5, outputs)).double()


def data(task, n=12):
    generator = torch.Generator().manual_seed(task)
    return torch.randn(n, 3, generator=generator).double() + task, torch.arange(n) % 2


def move(model, step):
    with torch.no_grad():
        for p in model.parameters():
            p += step * torch.sin(torch.arange(p.numel()).double()).reshape(p.shape)


def copies(tensors):
    return {name: t.detach().clone() for name, t in tensors.items()}
