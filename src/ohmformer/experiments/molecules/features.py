"""Features of one molecule: labels of atoms and bonds, and the parts of the penalised logP, which is to be predicted.

The labels are those of the paper's experiment: an atom is its symbol, explicit hydrogens and charge; a bond, in the Kekulé
form, is single, double or triple. The target is ``z(logP) + z(-SA) + z(cycle)``, each part standardised on the training
molecules, with ``cycle = -max(0, longest ring - 6)``.

>>> molecule = describe("C1CCCCCC1[NH3+]")
>>> molecule.atoms
['NH3+1', 'C', 'C', 'C', 'C', 'C', 'C', 'C']
>>> molecule.ring
7
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from functools import cache
from typing import NamedTuple

import numpy as np

from ohmformer.graph.smiles import canonical_molecule, clean

BONDS = ("none", "single", "double", "triple")
"""Labels of bonds; ``none``, for pairs of atoms without a bond, is in the paper's table and unused here."""


class Molecule(NamedTuple):
    """Labels, bonds and descriptors of one molecule."""

    atoms: list[str]
    bonds: list[tuple[int, int, int]]
    """Every bond once: two atoms and the index of its label in :data:`BONDS`."""
    logp: float
    accessibility: float
    """RDKit's synthetic accessibility score, 1 (easy) to 10."""
    ring: int
    """The longest ring of a smallest cycle basis, which does not depend on the atom numbering; 0 without rings."""
    networkx_ring: int
    """The longest ring of networkx's cycle basis, which depends on it: the choice of the ZINC benchmark."""


def describe(smiles: str, *, as_written: bool = False) -> Molecule:
    """Parse a SMILES; raise a ValueError that names it if it is not a molecule with bonds.

    The molecule is cleaned and its atoms are numbered canonically, unless ``as_written``, as in the ZINC benchmark.
    """
    from rdkit import Chem, rdBase
    from rdkit.Chem.rdMolDescriptors import CalcCrippenDescriptors

    with rdBase.BlockLogs():
        molecule = Chem.MolFromSmiles(smiles) if as_written else canonical_molecule(clean(smiles))[1]
    if molecule is None or molecule.GetNumBonds() == 0:
        raise ValueError(f"expected a molecule with at least one bond, got {smiles!r}")
    with rdBase.BlockLogs():
        logp, accessibility = CalcCrippenDescriptors(molecule)[0], _scorer().calculateScore(molecule)
        rings = [len(ring) for ring in molecule.GetRingInfo().AtomRings()]
        try:
            Chem.Kekulize(molecule, clearAromaticFlags=True)
        except Chem.KekulizeException as error:
            raise ValueError(f"expected a molecule with a Kekulé form, got {smiles!r}") from error
    kinds = {Chem.BondType.SINGLE: 1, Chem.BondType.DOUBLE: 2, Chem.BondType.TRIPLE: 3}
    bonds = [(b.GetBeginAtomIdx(), b.GetEndAtomIdx(), kinds.get(b.GetBondType(), 1)) for b in molecule.GetBonds()]
    longest = max(rings, default=0)
    return Molecule(
        [_label(atom) for atom in molecule.GetAtoms()], bonds, logp, accessibility, longest,
        _networkx_ring(bonds) if len(rings) > 1 else longest,
    )  # fmt: skip


class Described(NamedTuple):
    """Many molecules in flat NumPy arrays, as returned by worker processes, which do not import torch."""

    atom: np.ndarray
    """The label of every atom, as an index into ``labels``."""
    bonds: np.ndarray
    """Every bond of every molecule, as in :class:`Molecule`."""
    node_start: np.ndarray
    bond_start: np.ndarray
    parts: np.ndarray
    """For every molecule: logP, accessibility, and the two ring sizes."""
    row: np.ndarray
    labels: tuple[str, ...]
    bad: list[tuple[int, str]]
    """Rows that are not molecules, with the reason."""


def describe_all(first: int, smiles: Sequence[str], *, as_written: bool = False) -> Described:
    """Parse many SMILES, which are rows ``first`` and following of a file."""
    molecules, rows, bad = [], [], []
    for row, text in enumerate(smiles, first):
        try:
            molecules.append(describe(text, as_written=as_written))
            rows.append(row)
        except ValueError as error:
            bad.append((row, str(error)))
    labels = sorted({label for molecule in molecules for label in molecule.atoms})
    place = {label: i for i, label in enumerate(labels)}
    return Described(
        atom=np.array([place[label] for m in molecules for label in m.atoms], dtype=np.int16),
        bonds=np.array([bond for m in molecules for bond in m.bonds], dtype=np.int16).reshape(-1, 3),
        node_start=np.array([0, *itertools.accumulate(len(m.atoms) for m in molecules)]),
        bond_start=np.array([0, *itertools.accumulate(len(m.bonds) for m in molecules)]),
        parts=np.array([m[2:] for m in molecules], dtype=np.float32).reshape(-1, 4),
        row=np.array(rows, dtype=np.int64),
        labels=tuple(labels),
        bad=bad,
    )


def _label(atom) -> str:
    hydrogens, charge = atom.GetNumExplicitHs(), atom.GetFormalCharge()
    return atom.GetSymbol() + (f"H{hydrogens}" if hydrogens else "") + (f"{charge:+d}" if charge else "")


def _networkx_ring(bonds: list[tuple[int, int, int]]) -> int:
    import networkx as nx

    graph = nx.Graph()
    graph.add_nodes_from(range(1 + max(max(bond[:2]) for bond in bonds)))
    graph.add_edges_from(sorted((min(u, v), max(u, v)) for u, v, _ in bonds))  # the order of an adjacency matrix
    return max((len(cycle) for cycle in nx.cycle_basis(graph)), default=0)


@cache
def _scorer():
    from rdkit.Contrib.SA_Score import sascorer  # pyright: ignore[reportMissingImports]

    return sascorer
