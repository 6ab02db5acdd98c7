"""How much of electric flow do the node states of a graph network hold, layer by layer?

| file | content |
|---|---|
| ``states`` | hooks that record the node states of every layer of a PyG model |
| ``targets`` | the probed quantities: diagonals of L^+, heat and return probabilities, resistances of pairs, eigenvectors |
| ``probes`` | linear probes: ridge regression, squared distances after a linear map, subspaces |
| ``measure`` | all probes on all layers, with their controls, for one split of the graphs |
| ``findings`` | values over seeds as a table, a figure and a paragraph |
| ``study`` | trained models of ZINC-12k |

>>> import torch
>>> from torch_geometric.data import Data
>>> from torch_geometric.nn import GIN
>>> from ohmformer.experiments import dream
>>> from ohmformer.graph.families import family
>>> draw = torch.Generator().manual_seed(0)
>>> edges = [family("erdos-renyi", 8, generator=draw).edge_index for _ in range(12)]
>>> graphs = [Data(x=torch.ones(8, 1), edge_index=torch.cat([e, e.flip(0)], 1)) for e in edges]
>>> found = dream.probe(GIN(1, 4, 2), graphs, seeds=2)
>>> found.layers
['convs.0', 'convs.1']
"""

from ohmformer.experiments.dream.findings import Findings
from ohmformer.experiments.dream.measure import CONTROLS, probe
from ohmformer.experiments.dream.states import node_states
from ohmformer.experiments.dream.targets import Targets

__all__ = ["CONTROLS", "Findings", "Targets", "node_states", "probe"]
