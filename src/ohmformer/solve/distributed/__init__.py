"""One graph over many processes: shards on disk, and questions that the processes of ``torch.distributed`` ask together."""

from ohmformer.solve.distributed.answers import read_answer
from ohmformer.solve.distributed.edge_resistances import edge_resistances
from ohmformer.solve.distributed.group import ProcessLost
from ohmformer.solve.distributed.questions import potentials, resistances, resistive_embedding
from ohmformer.solve.distributed.shard import Shard
from ohmformer.solve.distributed.sharding import Manifest, shard
from ohmformer.solve.distributed.spectral import eigenvectors, heat, heat_embedding, spectral_filter
from ohmformer.solve.distributed.streams import EdgeStream, edge_arrays, edge_file

__all__ = [
    "EdgeStream",
    "Manifest",
    "ProcessLost",
    "Shard",
    "edge_arrays",
    "edge_file",
    "edge_resistances",
    "eigenvectors",
    "heat",
    "heat_embedding",
    "potentials",
    "read_answer",
    "resistances",
    "resistive_embedding",
    "shard",
    "spectral_filter",
]
