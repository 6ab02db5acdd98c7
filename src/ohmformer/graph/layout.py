"""Which node and which edge belong to which graph and component: the structure of a batch, without its matrices."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from ohmformer import native
from ohmformer.graph.ragged import Spans, kept

BLOCK = 4096
"""Number of rows processed at a time in multi-pass loops, so that they stay in the cache."""


@dataclass(frozen=True, eq=False, repr=False)
class Layout:
    """The nodes and edges of one graph or of a batch, their components, and signals on the nodes."""

    edge_index: Int[Tensor, "2 edges"]
    """Each edge once, tail then head."""
    resistance: Float[Tensor, " edges"]
    batch: Int[Tensor, " nodes"]
    """Index of the graph of each node, ascending."""
    num_graphs: int = 1
    batched: bool = False
    """Whether matrices have a leading graph axis."""
    self_loops_dropped: int = 0
    signed: bool = False
    """Whether some resistances are negative."""

    # ------------------------------------------------------------------------------------------------ sizes

    @property
    def num_nodes(self) -> int:
        """Total number of nodes of all graphs."""
        return self.batch.shape[0]

    @property
    def num_edges(self) -> int:
        """Total number of edges of all graphs, each counted once."""
        return self.edge_index.shape[1]

    @property
    def device(self) -> torch.device:
        """The device of the tensors."""
        return self.resistance.device

    @property
    def dtype(self) -> torch.dtype:
        """The dtype of the resistances, and of every matrix made from them."""
        return self.resistance.dtype

    @kept
    def nodes(self) -> Spans:
        """The range of nodes of each graph."""
        return Spans.of(torch.bincount(self.batch, minlength=self.num_graphs))

    @property
    def graph_sizes(self) -> Int[Tensor, " graphs"]:
        """Number of nodes of each graph."""
        return self.nodes.counts

    @property
    def graph_offsets(self) -> Int[Tensor, " graphs"]:
        """Index of each graph's first node."""
        return self.nodes.first

    @kept
    def edge_graph(self) -> Int[Tensor, " edges"]:
        """Index of the graph of each edge."""
        return self.batch.index_select(0, self.edge_index[0])

    @kept
    def edge_counts(self) -> Int[Tensor, " graphs"]:
        """Number of edges of each graph."""
        return torch.bincount(self.edge_graph, minlength=self.num_graphs)

    @kept
    def components(self) -> Int[Tensor, " nodes"]:
        """Index of the connected component of each node, from 0 through the whole batch."""
        n, (tail, head) = self.num_nodes, self.edge_index.cpu().contiguous()
        if native.active() is not None:
            found = torch.empty(n, dtype=torch.long)
            native.call("ohm_components", n, len(tail), tail, head, found)
            return found.to(self.device)
        from scipy.sparse import coo_array
        from scipy.sparse.csgraph import connected_components

        adjacency = coo_array((np.ones(len(tail), dtype=np.int8), (tail, head)), shape=(n, n))
        labels = connected_components(adjacency, directed=False)[1] if n else np.zeros(0, dtype=np.int64)
        return torch.as_tensor(labels, dtype=torch.long, device=self.device)

    @kept
    def num_components(self) -> int:
        """Total number of connected components of all graphs; isolated nodes count."""
        return int(self.components.max()) + 1 if self.num_nodes else 0

    @kept
    def connected(self) -> bool:
        """Whether every graph is connected; a graph without nodes counts as connected."""
        return self.num_components == int((self.graph_sizes > 0).sum())

    @kept
    def component_sizes(self) -> Int[Tensor, " components"]:
        """Number of nodes of each component."""
        return torch.bincount(self.components, minlength=self.num_components)

    @kept
    def ranks(self) -> Int[Tensor, " graphs"]:
        """The rank of each graph's Laplacian: nodes minus components."""
        first = torch.full((self.num_components,), self.num_nodes, device=self.device)
        node = torch.arange(self.num_nodes, device=self.device)
        first = first.scatter_reduce(0, self.components, node, "amin")
        return self.graph_sizes - torch.bincount(self.batch[first], minlength=self.num_graphs)

    # ------------------------------------------------------------------------------------------------ padding

    @kept
    def width(self) -> int:
        """Number of nodes of the largest graph: the length of the node axis of padded tensors."""
        return int(self.graph_sizes.max()) if self.num_graphs else 0

    @property
    def _slot(self) -> Int[Tensor, " nodes"]:
        """Position of each node within its graph."""
        return self.nodes.within

    @kept
    def mask(self) -> Bool[Tensor, "*graphs width"]:
        """True where a padded tensor has a node, False on padding."""
        mask = torch.zeros(self.num_graphs, self.width, dtype=torch.bool, device=self.device)
        mask[self.batch, self._slot] = True
        return self._squeeze(mask)

    @kept
    def padded_components(self) -> Int[Tensor, "*graphs width"]:
        """Component of each node of a padded tensor, -1 on padding."""
        label = torch.full((self.num_graphs, self.width), -1, device=self.device)
        label[self.batch, self._slot] = self.components
        return self._squeeze(label)

    def pad(self, x: Float[Tensor, "nodes features"]) -> Float[Tensor, "*graphs width features"]:
        """Convert node features of a batch to ``(graphs, nodes, features)``, with zeros on padding."""
        if not self.batched:
            return x
        padded = x.new_zeros(self.num_graphs, self.width, x.shape[1])
        return padded.index_put((self.batch, self._slot), x)

    def unpad(self, x: Float[Tensor, "*graphs width features"]) -> Float[Tensor, "nodes features"]:
        """Convert padded features back to one list of nodes; the inverse of :meth:`pad`."""
        return x[self.batch, self._slot] if self.batched else x

    def _squeeze(self, x: Tensor) -> Tensor:
        return x if self.batched else x.squeeze(0)

    def component_means(self, x: Float[Tensor, "nodes ..."]) -> Float[Tensor, "components ..."]:
        """Compute the mean of every column over every component."""
        if self.num_components == 1:
            return x.mean(dim=0, keepdim=True)
        sums = x.new_zeros(self.num_components, *x.shape[1:]).index_add(0, self.components, x)
        return sums / self.component_sizes.to(x.dtype).view(-1, *[1] * (x.ndim - 1))

    def center(self, x: Float[Tensor, "nodes ..."]) -> Float[Tensor, "nodes ..."]:
        """Subtract the mean over each component from ``x``; applied twice because the first mean is rounded."""
        for _ in range(2):
            x = x - self._means_on_nodes(x)
        return x

    def center_(self, x: Float[Tensor, "nodes features"]) -> Float[Tensor, "nodes features"]:
        """Subtract the mean over each component from ``x`` in place, for large tensors that need no gradient."""
        for _ in range(2):
            mean = self.component_means(x)
            for first in range(0, len(x), BLOCK):
                rows = slice(first, first + BLOCK)
                x[rows] -= mean if len(mean) == 1 else mean[self.components[rows]]
        return x

    def _means_on_nodes(self, x: Tensor) -> Tensor:
        mean = self.component_means(x)
        return mean if len(mean) == 1 else mean.index_select(0, self.components)

    def check_signals(self, signals: Tensor | np.ndarray | Sequence[Any]) -> Float[Tensor, "nodes signals"]:
        """Return ``signals`` as ``(nodes, signals)`` in the graph's dtype, or raise a ValueError that says what is wrong."""
        x = self._check_shape(as_numbers(signals))
        if x.numel() and not torch.isfinite(torch.stack(torch.aminmax(x.detach()))).all():
            raise ValueError("expected finite numbers on the nodes, got NaN or infinity")
        return x

    def _check_shape(self, signals: Tensor) -> Float[Tensor, "nodes signals"]:
        x = signals[:, None] if signals.ndim == 1 else signals
        if x.ndim != 2 or x.shape[0] != self.num_nodes:
            raise ValueError(f"expected one row per node, shape ({self.num_nodes}, k), got {tuple(signals.shape)}")
        if x.is_complex():
            raise ValueError(f"expected real numbers on the nodes, got {x.dtype}")
        return x.to(self.device, self.dtype)

    def _sums(self, x: Float[Tensor, "nodes k"]) -> tuple[Float[Tensor, "components k"], Float[Tensor, "components k"]]:
        """Compute the sum of each column over each component, and its largest absolute value there."""
        shape = self.num_components, x.shape[1]
        if x.dtype != torch.float64 or x.device.type != "cpu" or native.active() is None:
            largest = x.new_zeros(shape).scatter_reduce_(0, self.components[:, None].expand_as(x), x.abs(), "amax")
            return self.component_means(x) * self.component_sizes[:, None], largest
        sums, largest = x.new_empty(2, *shape), x.new_empty(shape)
        native.call("ohm_sums", *x.shape, self.num_components, self.components, x.contiguous(), sums, largest)
        return sums[0] + sums[1], largest

    def _largest_of_graphs(self, largest: Float[Tensor, "components k"]) -> Float[Tensor, "_ k"]:
        """Return for every component the largest of the components of its graph; one row if there is one graph."""
        if self.num_graphs == 1:
            return largest.amax(dim=0, keepdim=True)
        owner = self.batch.new_zeros(self.num_components).scatter(0, self.components, self.batch)
        none = largest.new_zeros(self.num_graphs, largest.shape[1])
        return none.scatter_reduce(0, owner[:, None].expand_as(largest), largest, "amax")[owner]

    def check_demands(
        self, demands: Tensor | np.ndarray | Sequence[Any], *, center: bool = False
    ) -> Float[Tensor, "nodes demands"]:
        """Return ``demands`` as ``(nodes, demands)``; raise a ValueError if one does not sum to zero on each component.

        With ``center=True`` the mean over each component is subtracted instead. A sum may be off by rounding, also of larger
        numbers from which a mean was subtracted: of those on the component, and of the largest on its graph.
        """
        demands = as_numbers(demands)
        psi = self.check_signals(demands) if center else self._check_shape(demands)
        if center or not psi.numel():
            return self.center(psi)
        sums, largest = self._sums(psi.detach())
        if not sums.isfinite().all():
            self.check_signals(psi)
        eps = max(torch.finfo(x).eps for x in (psi.dtype, demands.dtype) if x.is_floating_point)
        size, most = self.component_sizes[:, None], self._largest_of_graphs(largest)
        off = sums.abs() - eps * size * (8 * largest + most)
        if off.max() > 0:
            component, column = divmod(int(off.argmax()), psi.shape[1])
            raise ValueError(
                f"expected every demand to sum to zero on each component, demand {column} sums to "
                f"{sums[component, column].item():.3g} on component {component}; pass center=True to subtract the mean"
            )
        rounded = bool((sums.abs() <= torch.finfo(psi.dtype).eps * size * largest).all())
        return psi if rounded else self.center(psi)


def as_numbers(values: Tensor | np.ndarray | Sequence[Any]) -> Tensor:
    """Convert numbers to a tensor, lists to float64; raise a ValueError for anything that is not numeric."""
    if isinstance(values, Tensor):
        return values
    try:
        array = np.asarray(values)
        return torch.as_tensor(array if isinstance(values, np.ndarray) else array.astype(np.float64))
    except (TypeError, ValueError):
        raise ValueError(f"expected numbers on the nodes, got {type(values).__name__}") from None
