"""The Hugging Face hub, which is optional: models are saved and loaded without it, and pushed with ``ohmformer[hub]``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ohmformer.graph.extras import require

if TYPE_CHECKING:
    from huggingface_hub import PyTorchModelHubMixin as HubMixin
else:
    try:
        from huggingface_hub import PyTorchModelHubMixin as HubMixin
    except ImportError:

        class HubMixin:
            """Stands in where huggingface_hub is not installed."""

            def push_to_hub(self, *_: Any, **__: Any) -> str:
                """Raise an error that names the extra to install."""
                require("huggingface_hub", "hub")
                raise AssertionError


__all__ = ["HubMixin"]
