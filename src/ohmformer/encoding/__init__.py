"""The learned positional encoding: a module, PyG transforms, a GraphGym encoder, pretraining, and bulk encoding."""

from ohmformer.encoding.pe import LinearTransformerPE, paper_parameters

__all__ = ["LinearTransformerPE", "paper_parameters"]
