"""Ohmformer inside other packages: a backend of networkx and an encoder of GraphGym."""
