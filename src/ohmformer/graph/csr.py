"""Sparse tensors in CSR, made of parts that are known to fit.

torch warns once per process that CSR support is in beta. That warning is triggered and ignored while this module is
imported, where a warnings filter does not affect other threads.
"""

from __future__ import annotations

import warnings

import torch
from torch import Tensor

with warnings.catch_warnings():
    warnings.filterwarnings("ignore", message="Sparse CSR tensor support is in beta")
    torch.sparse_csr_tensor([0, 0], torch.zeros(0, dtype=torch.long), torch.zeros(0), (1, 1), check_invariants=False)


def csr_tensor(start: Tensor, columns: Tensor, values: Tensor, width: int) -> Tensor:
    """Build a CSR matrix with ``width`` columns from row offsets, column indices and values, without checking them."""
    return torch.sparse_csr_tensor(start, columns, values, (len(start) - 1, width), check_invariants=False)
