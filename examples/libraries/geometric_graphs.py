"""PyTorch Geometric: a graph network of three kinds of convolution, trained on graphs of different sizes.

python examples/libraries/geometric_graphs.py
"""

from __future__ import annotations

import torch
from torch import nn
from torch_geometric.data import Batch, Data
from torch_geometric.nn import GATConv, GCNConv, SAGEConv, global_mean_pool
from what_ran import print_what_ran


class Network(nn.Module):
    """Three convolutions on nodes of 8 features, then two numbers for each graph."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second, self.third = GCNConv(8, 16), GATConv(16, 8, heads=2), SAGEConv(16, 16)
        self.head = nn.Linear(16, 2)

    def forward(self, x: torch.Tensor, edges: torch.Tensor, batch: torch.Tensor, graphs: int) -> torch.Tensor:
        x = self.first(x, edges).relu()
        x = self.second(x, edges).relu()
        x = self.third(x, edges).relu()
        return self.head(global_mean_pool(x, batch, graphs))


def graphs(sizes: list[int]) -> Batch:
    """Random graphs with so many nodes each, as one batch."""
    found = [Data(x=torch.randn(n, 8), edge_index=torch.randint(n, (2, 4 * n)), y=torch.tensor([n % 2])) for n in sizes]
    return Batch.from_data_list(found)


def train(compiled: bool) -> torch.Tensor:
    """The loss of each of four steps."""
    torch.manual_seed(0)
    model = Network()
    run = torch.compile(model, backend="max_backend", dynamic=True) if compiled else model
    optimizer = torch.optim.Adam(model.parameters(), 1e-2)
    losses = []
    for sizes in ([5, 6, 7], [8, 9, 4], [3, 12, 10], [6, 5, 9]):
        batch = graphs(sizes)
        loss = nn.functional.cross_entropy(run(batch.x, batch.edge_index, batch.batch, 3), batch.y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.detach())
    return torch.stack(losses)


def main() -> None:
    """Train in eager and compiled, and compare."""
    wanted, given = train(False), train(True)
    print(f"eager    {wanted.tolist()}\ncompiled {given.tolist()}")
    torch.testing.assert_close(given, wanted, rtol=1e-4, atol=1e-5)
    print_what_ran()


if __name__ == "__main__":
    main()
