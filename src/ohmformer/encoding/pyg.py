"""What the encoding uses of PyTorch Geometric, which is optional: its absence is one sentence that names the extra."""

from ohmformer.graph.extras import require

require("torch_geometric", "pyg")

from torch_geometric.data import Batch, Data  # noqa: E402
from torch_geometric.data.datapipes import functional_transform  # noqa: E402
from torch_geometric.transforms import BaseTransform  # noqa: E402

__all__ = ["BaseTransform", "Batch", "Data", "functional_transform"]
