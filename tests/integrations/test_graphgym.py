"""The encoding in GraphGym: a config file names it, and the model that GraphGym makes of it trains."""

import os
import subprocess
import sys
import warnings
from argparse import Namespace
from functools import partial

import pytest
import torch

from tests.docs.blocks import ROOT, blocks
from tests.encoding.molecules import batch_of, molecules

pytest.importorskip("yacs")
pytest.importorskip("lightning")
with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # of GraphGym's own imports
    from torch_geometric import graphgym
    from torch_geometric.graphgym.config import cfg, load_cfg, set_cfg
    from torch_geometric.graphgym.models.encoder import IntegerFeatureEncoder

    from ohmformer.integrations import graphgym as ours

CONFIG = """
dataset: {{task: graph, task_type: regression, node_encoder: true, node_encoder_name: {name}, node_encoder_bn: false}}
posenc_OhmPE: {{{options}}}
gnn: {{dim_inner: 16, layers_pre_mp: 0, layers_mp: 2, layer_type: gcnconv, head: graph}}
"""


@pytest.fixture
def configured(tmp_path):
    """Read a config file over GraphGym's defaults, which are put back afterwards."""

    def read(name, options="", dim_pe=6):
        file = tmp_path / "config.yaml"
        file.write_text(CONFIG.format(name=name, options=f"{options}, dim_pe: {dim_pe}" if options else f"dim_pe: {dim_pe}"))
        load_cfg(cfg, Namespace(cfg_file=str(file), opts=[]))
        cfg.share.dim_in, cfg.share.dim_out = 5, 1
        return graphgym.create_model(to_device=False).model

    set_cfg(cfg)
    yield read
    set_cfg(cfg)


def batch(x=None):
    made = batch_of(molecules(12))
    made.y = torch.randn(12, 1, generator=torch.Generator().manual_seed(0))
    if x is not None:
        made.x = x(made.x)
    return made


@pytest.mark.parametrize(
    "options", ["", "evolve: true, phi0: diagonal", "phi0: features", "pretrained: zinc", "raw_norm_type: none"]
)
def test_a_config_names_the_encoder_and_it_trains(configured, options):
    model = configured("OhmPE", options)
    prediction, truth = model(batch())
    assert prediction.shape == truth.shape == (12, 1)
    (prediction - truth).square().mean().backward()
    encoder = model.encoder.node_encoder
    assert all(float(p.grad.abs().sum()) > 0 for p in (encoder.pe.readout, encoder.pe.value))


@pytest.mark.parametrize("page", ["docs/howto/graphgps.md"])
def test_the_yaml_of_the_docs_trains_in_plain_graphgym(tmp_path, page):
    """Only what every config needs is set besides: the task and the dimensions of the data."""
    (block,) = (block for block in blocks((ROOT / page).read_text()) if block.language == "yaml")
    file = tmp_path / "config.yaml"
    file.write_text(block.code)
    set_cfg(cfg)
    try:
        load_cfg(cfg, Namespace(cfg_file=str(file), opts=["dataset.task", "graph", "gnn.head", "graph"]))
        cfg.share.dim_in, cfg.share.dim_out = 5, 1
        model = graphgym.create_model(to_device=False).model
    finally:
        set_cfg(cfg)
    prediction, truth = model(batch())
    assert prediction.shape == truth.shape == (12, 1)
    (prediction - truth).square().mean().backward()
    assert float(model.encoder.node_encoder.pe.readout.grad.abs().sum()) > 0


@pytest.mark.parametrize("package", ["yacs", "lightning", "torch_geometric"])
def test_a_missing_package_names_the_extra(package):
    """In a fresh interpreter, where the package cannot be found."""
    code = f"""
import importlib.util, sys
find = importlib.util.find_spec
importlib.util.find_spec = lambda name, package=None: None if name == {package!r} else find(name, package)
try:
    import ohmformer.integrations.graphgym
except ImportError as error:
    print(error)
"""
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(p for p in sys.path if p), "PYTHONWARNINGS": "ignore"}
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, env=environment)
    assert run.stdout.strip() == f"expected the package {package}, which `pip install ohmformer[graphgym]` brings, got none"


def test_the_last_columns_are_the_encoding(configured):
    encoder = configured("OhmPE", "raw_norm_type: none, pass_as_var: true").encoder.node_encoder
    plain = batch()
    encoded = encoder(batch())
    wanted = encoder.pe(plain.edge_index, None, plain.batch, plain.num_nodes)
    assert encoded.x.shape == (plain.num_nodes, 16)
    assert torch.equal(encoded.x[:, -6:], wanted)
    assert torch.equal(encoded.pe_OhmPE, wanted)


def test_other_encoders_are_followed_by_ours(configured):
    """As in GraphGPS: ``Types+OhmPE`` is the encoder of types on dim_inner - dim_pe columns, then the encoding."""
    if "Types" not in graphgym.register.node_encoder_dict:
        graphgym.register_node_encoder("Types", partial(IntegerFeatureEncoder, num_classes=3))
    assert "Types+OhmPE" in ours.register_all()
    model = configured("Types+OhmPE", "raw_norm_type: none")
    typed = partial(batch, x=lambda x: (x[:, :1] > 0).long())
    encoded = model.encoder.node_encoder(typed())
    first = model.encoder.node_encoder.first.encoder.weight
    assert torch.equal(encoded.x[:, :10], first[typed().x[:, 0]])
    prediction, truth = model(typed())
    assert prediction.shape == truth.shape


def test_a_wrong_width_is_refused_in_one_sentence(configured):
    with pytest.raises(ValueError, match=r"expected posenc_OhmPE\.dim_pe=6 for this file, got 4"):
        configured("OhmPE", "pretrained: zinc", dim_pe=4)
    with pytest.raises(ValueError, match=r"expected posenc_OhmPE\.dim_pe <= 16"):
        configured("OhmPE", dim_pe=20)
