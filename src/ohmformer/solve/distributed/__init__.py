"""One graph over many processes: shards on disk, and questions that the processes of ``torch.distributed`` ask together."""

from ohmformer.solve.distributed.answers import read_answer
from ohmformer.solve.distributed.group import ProcessLost
from ohmformer.solve.distributed.questions import potentials, resistances
from ohmformer.solve.distributed.shard import Shard
from ohmformer.solve.distributed.sharding import Manifest, shard
from ohmformer.solve.distributed.streams import EdgeStream, edge_arrays, edge_file

__all__ = [
    "EdgeStream",
    "Manifest",
    "ProcessLost",
    "Shard",
    "edge_arrays",
    "edge_file",
    "potentials",
    "read_answer",
    "resistances",
    "shard",
]
