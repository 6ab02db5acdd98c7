"""The command ``ohmformer``."""
