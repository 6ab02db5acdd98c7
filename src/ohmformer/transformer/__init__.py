"""The models: one set of classes for built and for trained weights."""

from ohmformer.transformer.attention import linear_attention
from ohmformer.transformer.blocks import INCIDENCE, Head, Layer, Layout, Program, similarity
from ohmformer.transformer.dense import LinearTransformer
from ohmformer.transformer.efficient import GRAM, EfficientTransformer
from ohmformer.transformer.normalize import COLUMNS, COLUMNS_AND_INCIDENCE, FROBENIUS, NONE, Normalization
from ohmformer.transformer.trace import Trace

__all__ = [
    "COLUMNS",
    "COLUMNS_AND_INCIDENCE",
    "FROBENIUS",
    "GRAM",
    "INCIDENCE",
    "NONE",
    "EfficientTransformer",
    "Head",
    "Layer",
    "Layout",
    "LinearTransformer",
    "Normalization",
    "Program",
    "Trace",
    "linear_attention",
    "similarity",
]
