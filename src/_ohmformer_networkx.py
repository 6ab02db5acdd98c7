"""What networkx reads of our backend whenever it is imported: names, not code. It must not import torch."""

from __future__ import annotations

from typing import Any

LAPACK = "By LAPACK, for graphs of up to 8,000 nodes; `tol`, `method` and `seed` are accepted and change nothing."
SOLVER = "Computed in float64 by the solver that fits; `dtype` and `solver` are accepted and change nothing."
MERGED = "Parallel edges count as one of their summed conductance, self-loops carry no current."

FUNCTIONS = {
    "resistance_distance": "Conductances must not be negative.",
    "effective_graph_resistance": "Conductances must not be negative.",
    "current_flow_closeness_centrality": SOLVER,
    "current_flow_betweenness_centrality": f"{SOLVER} {MERGED}",
    "current_flow_betweenness_centrality_subset": f"{SOLVER} {MERGED}",
    "edge_current_flow_betweenness_centrality": f"{SOLVER} {MERGED}",
    "edge_current_flow_betweenness_centrality_subset": f"{SOLVER} {MERGED}",
    "approximate_current_flow_betweenness_centrality": f"{SOLVER} A seed draws the pairs that it draws in networkx.",
    "algebraic_connectivity": LAPACK,
    "fiedler_vector": f"{LAPACK} The first entry that is not zero is negative.",
    "spectral_bisection": LAPACK,
    "spectral_ordering": LAPACK,
}


def get_info() -> dict[str, Any]:
    """The metadata of the backend."""
    return {
        "backend_name": "ohmformer",
        "project": "ohmformer",
        "package": "ohmformer",
        "short_summary": "Resistances, current flow and Fiedler vectors, solved for many demands at once.",
        "functions": {name: {"additional_docs": text} for name, text in FUNCTIONS.items()},
    }
