"""Sparse tensors in CSR, made of parts that are known to fit.

torch says once a process that CSR is in beta. It is told while this module is imported, where a filter of warnings disturbs
no other thread.
"""

from __future__ import annotations

import warnings

import torch
from torch import Tensor

with warnings.catch_warnings():
    warnings.filterwarnings("ignore", message="Sparse CSR tensor support is in beta")
    torch.sparse_csr_tensor([0, 0], torch.zeros(0, dtype=torch.long), torch.zeros(0), (1, 1), check_invariants=False)


def csr_tensor(start: Tensor, columns: Tensor, values: Tensor, width: int) -> Tensor:
    """Make a matrix of ``width`` columns from where its rows begin, the columns of its entries and their values."""
    return torch.sparse_csr_tensor(start, columns, values, (len(start) - 1, width), check_invariants=False)
