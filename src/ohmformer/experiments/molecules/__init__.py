"""Table 2 of the paper: predicting properties of molecules with learned and fixed positional encodings."""

from ohmformer.graph.smiles import bonds, canonical, read_smiles

__all__ = ["bonds", "canonical", "read_smiles"]
