"""Register the encoding with GraphGym: after importing this module a config may say ``node_encoder_name: OhmPE``.

This works in PyG's GraphGym and in GraphGPS. GraphGPS also has names for two combined encoders: those registered before this
module is imported are registered as ``NAME+OhmPE`` too, for instance ``TypeDictNode+OhmPE``.

Options are under ``posenc_OhmPE``. GraphGPS computes statistics for every enabled ``posenc_*`` and does not know ours, which
needs none: leave ``posenc_OhmPE.enable`` at False, which is ignored here.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from ohmformer.encoding.pe import LinearTransformerPE
from ohmformer.graph.extras import check_extra

check_extra("graphgym")

from torch_geometric.graphgym import register  # noqa: E402
from torch_geometric.graphgym.config import cfg  # noqa: E402
from yacs.config import CfgNode  # noqa: E402  # pyright: ignore[reportMissingImports]

NAME = "OhmPE"
OPTIONS = f"posenc_{NAME}"


def options(cfg: CfgNode) -> None:
    """Add the options and their defaults to a config."""
    node = CfgNode()
    node.enable = False
    node.dim_pe = 16
    node.hidden = 0
    """Number of channels; 0 in these three selects the default for ``phi0``."""
    node.groups = 0
    node.loops = 0
    node.phi0 = "walks"
    node.evolve = False
    node.raw_norm_type = "running"
    """``running``, the encoding's own norm; ``BatchNorm`` on the encoding before it is appended; or ``none``."""
    node.pretrained = ""
    """A folder, a shipped name or a hub repository, instead of the options above; its dim must equal dim_pe."""
    node.pass_as_var = False
    """Whether to store the encoding as ``batch.pe_OhmPE`` too."""
    setattr(cfg, OPTIONS, node)


class OhmPE(nn.Module):
    """Append the learned encoding to ``batch.x``, first mapped to ``dim_emb - dim_pe`` columns unless ``expand_x=False``."""

    def __init__(self, dim_emb: int, expand_x: bool = True) -> None:
        super().__init__()
        chosen: Any = cfg[OPTIONS]
        dim_in = cfg.share.dim_in
        if chosen.dim_pe > dim_emb:
            raise ValueError(f"expected posenc_OhmPE.dim_pe <= {dim_emb}, the embedding's width, got {chosen.dim_pe}")
        self.linear_x = nn.Linear(dim_in, dim_emb - chosen.dim_pe) if expand_x and dim_emb > chosen.dim_pe else None
        if chosen.pretrained:
            self.pe = LinearTransformerPE.from_pretrained(chosen.pretrained)
            if self.pe.dim != chosen.dim_pe:
                raise ValueError(f"expected posenc_OhmPE.dim_pe={self.pe.dim} for this file, got {chosen.dim_pe}")
        else:
            shape: dict[str, Any] = {name: chosen[name] or None for name in ("hidden", "groups", "loops")}
            self.pe = LinearTransformerPE(
                chosen.dim_pe, norm="running" if chosen.raw_norm_type == "running" else None, phi0=chosen.phi0,
                evolve=chosen.evolve, in_features=dim_in if chosen.phi0 == "features" else None, **shape,
            )  # fmt: skip
        self.norm = nn.BatchNorm1d(chosen.dim_pe) if chosen.raw_norm_type.lower() == "batchnorm" else nn.Identity()
        self.expand_x, self.pass_as_var = expand_x, chosen.pass_as_var

    def forward(self, batch: Any) -> Any:
        """Return the batch with the encoding appended to ``x``."""
        encoding = self.norm(self.pe(batch))
        if self.pass_as_var:
            setattr(batch, f"pe_{NAME}", encoding)
        if self.expand_x:
            batch.x = encoding if self.linear_x is None else torch.cat([self.linear_x(batch.x.float()), encoding], dim=1)
        else:
            batch.x = torch.cat([batch.x, encoding], dim=1)
        return batch


def composed(first: Any) -> type[nn.Module]:
    """Return a node encoder whose first ``dim_emb - dim_pe`` columns are from ``first`` and the rest from the encoding."""

    class Composed(nn.Module):
        def __init__(self, dim_emb: int) -> None:
            super().__init__()
            self.first = first(dim_emb - cfg[OPTIONS].dim_pe)
            self.second = OhmPE(dim_emb, expand_x=False)

        def forward(self, batch: Any) -> Any:
            return self.second(self.first(batch))

    Composed.__name__ = f"{getattr(first, '__name__', 'Encoder')}And{NAME}"
    return Composed


def register_all() -> list[str]:
    """Register everything not registered yet and return our names; call it again after registering other encoders."""
    if OPTIONS not in register.config_dict:
        register.register_config(OPTIONS, options)
        if OPTIONS not in cfg:
            options(cfg)
    if NAME not in register.node_encoder_dict:
        register.register_node_encoder(NAME, OhmPE)
    for name, encoder in list(register.node_encoder_dict.items()):
        if "+" not in name and name != NAME and f"{name}+{NAME}" not in register.node_encoder_dict:
            register.register_node_encoder(f"{name}+{NAME}", composed(encoder))
    return [name for name in register.node_encoder_dict if name.split("+")[-1] == NAME]


register_all()
