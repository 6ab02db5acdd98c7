"""Doors in other people's houses: :mod:`ohmformer.integrations.networkx_backend`."""
