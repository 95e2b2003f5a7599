"""A GIN trained in a plain loop on PyG's graphs: two random views of each, by dropped edges.

Needs torch-geometric beside the suite: pip install torch-geometric.
"""

import torch
from torch_geometric.datasets import FakeDataset
from torch_geometric.loader import DataLoader
from torch_geometric.nn import GIN, global_add_pool
from torch_geometric.utils import dropout_edge

from shared import Objective, margin_nce, term

if __name__ == "__main__":
    graphs = FakeDataset(num_graphs=64, avg_num_nodes=20, num_channels=8)  # yours
    encoder = GIN(in_channels=8, hidden_channels=32, num_layers=3)
    head = torch.nn.Sequential(torch.nn.Linear(32, 32), torch.nn.ReLU(), torch.nn.Linear(32, 32))
    criterion = Objective(term(margin_nce, temperature=0.2, angular=0.1)).build(dim=32)
    modules = torch.nn.ModuleList([encoder, head, criterion])
    optimiser = torch.optim.Adam(modules.parameters(), lr=1e-3)

    def embedded(batch):
        """The graphs of a batch under random edges, (B, 32)."""
        edges = dropout_edge(batch.edge_index, p=0.2)[0]
        return head(global_add_pool(encoder(batch.x, edges), batch.batch))

    for _ in range(2):
        # Whole batches only: the loss compares with the others of a batch.
        for batch in DataLoader(graphs, batch_size=32, shuffle=True, drop_last=True):
            loss = criterion.of_views(embedded(batch), embedded(batch))
            optimiser.zero_grad()
            loss.backward()
            optimiser.step()
    print(f"loss {loss.item():.3f}")
