"""Molecules as graphs."""

from ohmformer.molecules.smiles import bonds, canonical, read_smiles

__all__ = ["bonds", "canonical", "read_smiles"]
