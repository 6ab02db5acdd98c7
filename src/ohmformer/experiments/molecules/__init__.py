"""Molecules as graphs."""

from ohmformer.graph.smiles import bonds, canonical, read_smiles

__all__ = ["bonds", "canonical", "read_smiles"]
