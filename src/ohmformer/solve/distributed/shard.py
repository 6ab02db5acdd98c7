"""The part of a graph that a process holds: its rows of the scaled Laplacian, its halo, and the exchange with neighbours."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Float, Int
from safetensors import SafetensorError, safe_open
from torch import Tensor

from ohmformer import native
from ohmformer.graph.csr import csr_tensor
from ohmformer.graph.ragged import kept
from ohmformer.solve.costs import LANCZOS
from ohmformer.solve.distributed.group import Group, current_group
from ohmformer.solve.distributed.sharding import Manifest, file_digest
from ohmformer.solve.projections import gaussian
from ohmformer.solve.scaled import Extremes, RowBlocks, Scaled, empty_huge_pages, extreme_eigenvalues


@dataclass(frozen=True, eq=False)
class Shard(Scaled):
    """Some rows of ``N = D^-1/2 L D^-1/2``. Vectors have these rows, followed by the halo's in matrix products.

    ``laplacian`` is rows x (rows + halo); components are numbered from zero, those with nodes in other parts first.
    """

    manifest: Manifest
    group: Group
    nodes: Int[Tensor, " rows"]
    """The global numbers of the nodes."""
    halo: Int[Tensor, " halo"]
    interior: int
    """The number of leading rows without neighbours in other parts."""
    sends: tuple[tuple[int, Tensor], ...]
    """Processes, and the rows to send to them."""
    receives: tuple[tuple[int, slice], ...]
    """Processes, and the places of the rows they send."""
    halo_root: Float[Tensor, "halo 1"]
    component_numbers: Int[Tensor, " components"]
    """The global numbers of the components."""

    @classmethod
    def load(cls, folder: Path | str) -> Shard:
        """Load this process's part; raise a ValueError on all processes if any part does not match the manifest."""
        group = current_group()
        manifest, arrays = group.agree(lambda: _read(Path(folder), group))
        on_device = {name: x.to(group.device) for name, x in arrays.items()}
        nodes, halo, start, column, value = (on_device[x] for x in ("nodes", "halo", "start", "column", "value"))
        rows = len(nodes)
        laplacian = csr_tensor(start, column, value, rows + len(halo))
        diagonal = torch.zeros(rows, 1, dtype=torch.float64, device=group.device)
        own = column == torch.repeat_interleave(torch.arange(rows, device=group.device), start.diff())
        diagonal[:, 0] = value[own]
        del own
        root = torch.where(diagonal > 0, diagonal, torch.inf) ** -0.5
        component, local = on_device["component"], manifest.shared
        here = component >= local
        numbers, place = component[here].unique(return_inverse=True)
        component[here] = local + place
        sends = on_device["sent"].long().split(arrays["sends"].tolist())
        ends = (rows + arrays["receives"].cumsum(0)).tolist()
        receives = [
            (q, slice(end - size, end)) for q, (end, size) in enumerate(zip(ends, arrays["receives"].tolist(), strict=True))
        ]
        found = cls(
            laplacian, root, component, local + len(numbers), manifest, group, nodes, halo, int(arrays["interior"]),
            tuple((q, x) for q, x in enumerate(sends) if len(x)),
            tuple((q, x) for q, x in receives if x.stop > x.start), root.new_zeros(len(halo), 1),
            torch.cat([torch.arange(local, device=group.device), numbers]),
        )  # fmt: skip
        found.halo_root.copy_(found.with_halo(root)[rows:])
        return found

    # ------------------------------------------------------------------------------------------------ all rows of the graph

    @property
    def width(self) -> int:
        """Number of rows of a vector while it is multiplied, including the halo."""
        return len(self.nodes) + len(self.halo)

    def total(self, x: Tensor) -> Tensor:
        """Sum ``x`` over all processes."""
        return self.group.sum(x)

    def draw(self, seed: int) -> Float[Tensor, "rows 1"]:
        """Draw a Gaussian number for every node, independent of the partition."""
        return gaussian(self.nodes.cpu().numpy(), seed, 0, 4)[:, :1].to(self.root.device)

    def component_sums(self, x: Float[Tensor, "rows k"]) -> Float[Tensor, "components k"]:
        """Sum x over every component that has nodes here, including its nodes in other parts."""
        if self.num_components == 1:
            return self.total(x.sum(0, keepdim=True)) if self.manifest.shared else x.sum(0, keepdim=True)
        sums = x.new_zeros(self.num_components, x.shape[1]).index_add_(0, self.components, x)
        if self.manifest.shared:
            sums[: self.manifest.shared] = self.total(sums[: self.manifest.shared].clone())
        return sums

    def places(self, nodes: Int[Tensor, " some"]) -> tuple[Int[Tensor, " here"], Int[Tensor, " here"]]:
        """Find which of some nodes are in this part; return their rows here and their positions in ``nodes``."""
        nodes, rows, which = nodes.to(self.nodes.device), [], []
        for first, own in ((0, self.nodes[: self.interior]), (self.interior, self.nodes[self.interior :])):
            at = torch.searchsorted(own, nodes).clamp(max=max(len(own) - 1, 0))
            here = (own[at] == nodes if len(own) else torch.zeros_like(nodes, dtype=torch.bool)).nonzero()[:, 0]
            rows.append(first + at[here])
            which.append(here)
        return torch.cat(rows), torch.cat(which)

    @kept
    def extremes(self) -> Extremes:
        """The ends of the spectrum of N, by Lanczos."""
        return extreme_eigenvalues(self, steps=LANCZOS)

    @kept
    def largest(self) -> float:
        """Upper bound on the eigenvalues of L: the maximum of ``deg(u) + deg(v)`` over edges."""
        degree = torch.cat([self.root, self.halo_root])[:, 0] ** -2.0
        start, column = self.laplacian.crow_indices(), self.laplacian.col_indices()
        most = 0.0
        for first in range(0, len(self.nodes), 2**20):
            last = min(first + 2**20, len(self.nodes))
            row = torch.repeat_interleave(torch.arange(first, last, device=start.device), start[first : last + 1].diff())
            some = column[int(start[first]) : int(start[last])].long()
            joined = torch.where(row == some, 0.0, degree[row] + degree[some])
            most = max(most, float(joined.max()) if len(joined) else 0.0)
        return max(self.group.gather(most)) or 1.0

    @kept
    def _null(self) -> tuple[Float[Tensor, "rows 1"], Float[Tensor, "components 1"]]:
        weight = torch.where(self.root > 0, 1 / self.root, 0.0)
        size = self.component_sums(weight.square())
        return weight, torch.where(size > 0, size, 1.0)

    @kept
    def _sizes(self) -> Float[Tensor, "components 1"]:
        return self.component_sums(torch.ones_like(self.root)).clamp(min=1)

    def project(self, x: Float[Tensor, "rows k"]) -> Float[Tensor, "rows k"]:
        """Remove from ``x`` its part in the null space: isolated nodes, and ``D^1/2 1`` on every other component."""
        weight, size = self._null
        along = self.component_sums(weight * x) / size
        return torch.where(weight > 0, x - weight * along[self.components], 0.0)

    def center(self, x: Float[Tensor, "rows k"]) -> Float[Tensor, "rows k"]:
        """Subtract from ``x`` its mean on every component."""
        return x - (self.component_sums(x) / self._sizes)[self.components]

    # ------------------------------------------------------------------------------------------------ products

    def begin_exchange(self, x: Float[Tensor, "width k"] | Int[Tensor, "width k"]) -> list[Any]:
        """Start sending the rows of x that other processes need, and receiving the halo's rows."""
        sends = [(q, x[rows]) for q, rows in self.sends]
        return self.group.begin(sends, [(q, x[rows]) for q, rows in self.receives])

    def with_halo(self, x: Float[Tensor, "rows k"]) -> Float[Tensor, "width k"]:
        """Return ``x`` followed by the rows of the halo."""
        wide = empty_huge_pages(self.width, x.shape[1], dtype=x.dtype, device=x.device)
        wide[: len(x)] = x
        self.group.finish(self.begin_exchange(wide))
        return wide

    def residual(
        self, psi: Float[Tensor, "rows k"], phi: Float[Tensor, "rows k"], *, in_c: bool | None = None
    ) -> Float[Tensor, "rows k"]:
        """Compute ``psi - L phi``, with interior rows during the exchange of the halo."""
        in_c = native.active() is not None and self.group.device.type == "cpu"
        rows, k = psi.shape
        wide = empty_huge_pages(self.width, k, dtype=torch.float64, device=psi.device)
        wide[:rows] = phi
        begun = self.begin_exchange(wide)
        psi, left = psi.contiguous(), empty_huge_pages(rows, k, dtype=torch.float64, device=psi.device)
        start, column, value = self.laplacian.crow_indices(), self.laplacian.col_indices(), self.laplacian.values()
        for first, last in ((0, self.interior), (self.interior, rows)):
            if first == self.interior:
                self.group.finish(begun)
            if first == last:
                continue
            some, out = psi[first:last], left[first:last]
            if in_c:
                native.call("ohm_residual", last - first, k, k, start[first:], column, value, wide, some, out)
            else:
                torch.addmm(some, _rows(self.laplacian, first, last), wide, alpha=-1.0, out=out)
        return left

    def times(self, x: Float[Tensor, "rows k"]) -> Float[Tensor, "rows k"]:
        """Compute ``N x``."""
        return self.residual(torch.zeros_like(x), self.root * x).mul_(self.root).neg_()

    def times_laplacian(self, x: Float[Tensor, "rows k"]) -> Float[Tensor, "rows k"]:
        """Compute ``L x``."""
        return self.residual(torch.zeros_like(x), x).neg_()

    def step(self, gamma: float, dtype: torch.dtype) -> HaloBlocks:
        """Build ``I - gamma N``, the matrix of one step of gradient descent."""
        start, column, value = self.laplacian.crow_indices(), self.laplacian.col_indices(), self.laplacian.values()
        row = torch.repeat_interleave(torch.arange(len(self.root), dtype=column.dtype, device=column.device), start.diff())
        scale = torch.cat([self.root, self.halo_root])[:, 0].to(dtype)
        values = value.to(dtype).mul_(scale[row]).mul_(scale[column]).mul_(-gamma)
        values += row == column
        return HaloBlocks(self, csr_tensor(start, column, values, self.width))


class HaloBlocks(RowBlocks):
    """A part's rows of a sparse matrix in blocks: interior ones during the exchange of the halo, then the others."""

    def __init__(self, shard: Shard, matrix: Tensor) -> None:
        self.matrix, self.shard = matrix, shard
        self._interior = RowBlocks(_rows(matrix, 0, shard.interior))
        self._others = RowBlocks(_rows(matrix, shard.interior, matrix.shape[0]))

    def __iter__(self) -> Iterator[tuple[slice, Callable[[Tensor], Tensor]]]:
        """Iterate over pairs of a row range and the function for these rows; call them in order, with the same x."""
        begun: list[Any] | None = None

        def run(product: Callable[[Tensor], Tensor], needs_halo: bool, x: Tensor) -> Tensor:
            nonlocal begun
            begun = self.shard.begin_exchange(x) if begun is None else begun
            if needs_halo:
                self.shard.group.finish(begun)  # empties the list: only the first product waits
            return product(x)

        first = self.shard.interior
        for rows, product in self._interior if first else ():
            yield rows, partial(run, product, False)
        for rows, product in self._others if first < self.matrix.shape[0] else ():
            yield slice(first + rows.start, first + rows.stop), partial(run, product, True)

    def spans(self, x: Tensor) -> Iterator[tuple[int, int]]:
        """Yield ranges of rows: interior ones during the exchange of the halo of x, then the others."""
        begun = self.shard.begin_exchange(x)
        yield 0, self.shard.interior
        self.shard.group.finish(begun)
        yield self.shard.interior, self.matrix.shape[0]


def _rows(matrix: Tensor, first: int, last: int) -> Tensor:
    """Return some rows of a CSR matrix, without copying its entries."""
    start = matrix.crow_indices()
    low, high = int(start[first]), int(start[last])
    part = matrix.col_indices()[low:high], matrix.values()[low:high]
    return csr_tensor(start[first : last + 1] - start[first], *part, matrix.shape[1])


def _read(folder: Path, group: Group) -> tuple[Manifest, dict[str, Tensor]]:
    """Read and check the manifest and the arrays of this process's part."""
    manifest = Manifest.read(folder)
    if len(manifest.files) != group.size:
        raise ValueError(
            f"expected as many processes as {folder} has parts, {len(manifest.files)}, got {group.size}; "
            f"start so many, or shard the graph again"
        )
    path = folder / manifest.files[group.rank].name
    if not path.is_file():
        raise ValueError(f"expected part {group.rank} in {path}, there is no such file")
    try:
        with safe_open(path, framework="pt") as file:
            told, arrays = file.metadata() or {}, {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    except SafetensorError as error:
        raise ValueError(f"expected part {group.rank} in {path}, it is damaged: {error}") from None
    if told != {"part": f"{group.rank} of {manifest.graph}"}:
        raise ValueError(
            f"expected {path} to be part {group.rank} of the graph in {folder}'s manifest, it is of another one"
        )
    if file_digest(path) != manifest.files[group.rank].sha256:
        raise ValueError(f"expected {path} as it was written, it is damaged: its SHA-256 differs from the manifest's")
    return manifest, arrays
