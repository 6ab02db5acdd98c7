"""Random numbers that belong to nodes and edges of the graph, the same whatever part these are in."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from ohmformer import native
from ohmformer.solve.distributed.shard import Shard
from ohmformer.solve.projections import QUANTILES, gaussian

ENTRIES = 2**22
"""Number of matrix entries processed together."""


def entry_blocks(shard: Shard) -> Iterator[tuple[slice, slice, Int[Tensor, " entries"]]]:
    """Yield blocks of rows, their entries, and the row of each entry."""
    start = shard.laplacian.crow_indices().cpu().long()
    rows, first = len(start) - 1, 0
    while first < rows:
        last = int(torch.searchsorted(start, int(start[first]) + ENTRIES, right=True)) - 1
        last = min(max(last, first + 1), rows)
        counts = start[first : last + 1].diff()
        row = torch.repeat_interleave(torch.arange(first, last), counts)
        yield slice(first, last), slice(int(start[first]), int(start[last])), row
        first = last


class Noise:
    """Columns of ``B Q``, Q Gaussian: demands whose covariance is the Laplacian, a function of seed, edge and column."""

    def __init__(self, shard: Shard, seed: int) -> None:
        self._shard, self._seed = shard, seed % 2**63

    def demands(self, columns: slice) -> Float[Tensor, "rows k"]:
        """Compute a slice of columns for this process's rows."""
        shard, first = self._shard, columns.start // 4 * 4
        wide = -(-(columns.stop - first) // 4) * 4
        psi = torch.zeros(len(shard.nodes), wide, dtype=torch.float64)
        ids = torch.cat([shard.nodes, shard.halo]).cpu()
        column, value = shard.laplacian.col_indices().cpu(), shard.laplacian.values().cpu()
        for rows, entries, row in entry_blocks(shard):
            tail, head = ids[row], ids[column[entries].long()]
            key = torch.minimum(tail, head) * shard.manifest.nodes + torch.maximum(tail, head)  # may wrap around
            root = (-value[entries]).clamp(min=0).sqrt() * (tail - head).sign()  # zero on the diagonal
            if native.active() is not None:
                start = torch.cat([torch.zeros(1, dtype=torch.int32), torch.bincount(row - rows.start).cumsum(0).int()])
                arrays = start, key, root, QUANTILES
                native.call("ohm_noise", rows.stop - rows.start, wide, first, self._seed, *arrays, psi[rows])
            else:
                drawn = gaussian(key.numpy(), self._seed, first, wide)
                psi.index_add_(0, row, root[:, None] * drawn)
        return shard.center(psi[:, columns.start - first :][:, : columns.stop - columns.start].to(shard.group.device))


def node_noise(shard: Shard, seed: int, columns: slice) -> Float[Tensor, "rows k"]:
    """Draw Gaussian numbers for this process's nodes."""
    first = columns.start // 4 * 4
    wide = -(-(columns.stop - first) // 4) * 4
    found = np.concatenate([gaussian(x, seed, first, wide) for x in np.array_split(shard.nodes.cpu().numpy(), 16)])
    return torch.as_tensor(found[:, columns.start - first :][:, : columns.stop - columns.start]).to(shard.group.device)
