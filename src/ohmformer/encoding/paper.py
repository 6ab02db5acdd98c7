"""Sizes of the paper's own encoding, and its published parameter counts explained."""

from __future__ import annotations

from collections.abc import Mapping


def sizes_of(dataset: str) -> tuple[int, int]:
    """Return the number of columns of the encoding and of rows of its table."""
    sizes = {"zinc": (6, 37), "qm9": (3, 9)}
    if dataset not in sizes:
        raise ValueError(f"expected dataset 'zinc' or 'qm9', got {dataset!r}")
    return sizes[dataset]


def paper_parameters(dataset: str = "zinc") -> Mapping[str, int]:
    """Break down the published parameter counts, 488 for ZINC and 240 for QM9, into their parts.

    Each of three groups holds 3 x 8 diagonals, alpha_V, alpha_Q alpha_K, alpha_R, w_R and four betas, 32 in all. The
    authors' code has 16 more in every group, for choosing among several edge and node features, of which there is only one:
    4 of them multiply existing scalars, 12 are never read. ``LinearTransformerPE.paper`` has none of them.

    >>> [sum(paper_parameters(name).values()) for name in ("zinc", "qm9")]
    [488, 240]
    >>> {k: v for k, v in paper_parameters("zinc").items()}
    {'index table': 296, 'read-out M': 48, 'layers': 96, 'factors of other scalars': 12, 'never used': 36}
    """
    dim, nodes = sizes_of(dataset)
    return {
        "index table": 8 * nodes, "read-out M": 8 * dim, "layers": 3 * 32, "factors of other scalars": 3 * 4,
        "never used": 3 * 12,
    }  # fmt: skip
