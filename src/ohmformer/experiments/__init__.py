"""Experiments that reproduce the paper and the benchmarks of the field; the library never imports them."""
