"""The dense model is the paper's formula, the efficient model is the dense one on its block form, for any weights."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from ohmformer import EfficientTransformer, Graph, LinearTransformer
from ohmformer.transformer import (
    COLUMNS,
    COLUMNS_AND_INCIDENCE,
    FROBENIUS,
    GRAM,
    INCIDENCE,
    NONE,
    Head,
    Layer,
    Layout,
    Normalization,
    Program,
    similarity,
)
from ohmformer.transformer.dense import DenseLayer
from tests.strategies import graphs

POLICIES = {
    "none": NONE,
    "section 3.5": FROBENIUS,
    "section 4": COLUMNS,
    "section 4.1": COLUMNS_AND_INCIDENCE,
    "appendix E, l1": Normalization(incidence="frobenius", features="columns", degrees="l1"),
    "appendix E, gram": Normalization(incidence="frobenius", features="columns", degrees="gram"),
}


def generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def drawn(*shape: int, seed: int = 0, device=None) -> torch.Tensor:
    return torch.randn(*shape, generator=generator(seed), dtype=torch.float64).to(device)


def efficient_for(
    blocks: dict[str, int], normalization=NONE, *, layers=3, heads=2, seed=0, device=None
) -> EfficientTransformer:
    return EfficientTransformer.random(
        blocks, layers=layers, heads=heads, normalization=normalization, generator=generator(seed), scale=0.3,
        dtype=torch.float64,
    ).to(device)  # fmt: skip


def skip_where_pretended(device: torch.device) -> None:
    if device.type == "elsewhere":
        pytest.skip("torch.func and tensors that only pretend to be on a device do not go together")


def _gradient(x) -> torch.Tensor:
    assert x.grad is not None
    return x.grad


def run_both(g: Graph, efficient: EfficientTransformer, phi: dict[str, torch.Tensor]):
    incidence = g.incidence()
    layout = Layout({INCIDENCE: incidence.shape[-1], **{name: x.shape[-1] for name, x in phi.items()}})
    dense = LinearTransformer.of(efficient.program(), layout).to(g.device)
    with torch.no_grad():
        return (
            efficient(g.laplacian(), phi, incidence=incidence, trace=True),
            dense(layout.pack({INCIDENCE: incidence, **phi}), trace=True),
        )


def test_dense_model_is_the_papers_formula_to_the_letter(device):
    layout = Layout({"incidence": 4, "phi": 3})
    model = LinearTransformer.random(layout, layers=2, heads=3, generator=generator(), scale=0.3, dtype=torch.float64)
    layers = [layer for layer in model.layers if isinstance(layer, DenseLayer)]
    for layer in layers:
        layer.skip.data.normal_(generator=generator(1))
    x = torch.randn(5, 7, generator=generator(2), dtype=torch.float64)
    z = x.T.cpu().numpy()
    for layer in layers:
        wv, wq, wk, wr = (w.detach().cpu().numpy() for w in (layer.value, layer.query, layer.key, layer.skip))
        z = z + sum(wv[h] @ z @ z.T @ wq[h].T @ wk[h] @ z for h in range(3)) + wr @ z
    np.testing.assert_allclose(model.to(device)(x.to(device)).detach().cpu().numpy().T, z, rtol=1e-12)


@given(graphs(largest=8), st.sampled_from(sorted(POLICIES)), st.integers(1, 3), st.integers(0, 100))
def test_efficient_model_equals_the_dense_model_on_its_block_form_for_random_weights(device, g, policy, heads, seed):
    g = g.to(device)
    phi = {
        "demand": drawn(g.num_nodes, 2, seed=seed, device=device),
        "answer": drawn(g.num_nodes, 3, seed=seed + 1, device=device),
    }
    model = efficient_for({"demand": 2, "answer": 3}, POLICIES[policy], heads=heads, seed=seed, device=device)
    efficient, dense = run_both(g, model, phi)
    for name in phi:
        for a, b in zip(efficient[name], dense[name], strict=True):
            torch.testing.assert_close(a, b, rtol=1e-9, atol=1e-9 * float(b.abs().max()))
    gram = dense[INCIDENCE] @ dense[INCIDENCE].mT
    torch.testing.assert_close(efficient[GRAM], gram, rtol=1e-9, atol=1e-9 * float(gram.abs().max()))


@given(graphs(largest=8), st.sampled_from(sorted(POLICIES)), st.integers(0, 100))
def test_lemma_10_edge_order_and_orientation_move_the_incidence_along_and_nothing_else(device, g, policy, seed):
    g = g.to(device)
    order = torch.randperm(g.num_edges, generator=generator(seed)).to(device)
    sign = 2 * torch.randint(2, (g.num_edges,), generator=generator(seed)).to(device) - 1
    index = torch.where(sign > 0, g.edge_index, g.edge_index.flip(0))[:, order]
    moved = Graph(index, g.resistance[order], g.batch)
    phi = {"phi": drawn(g.num_nodes, 3, seed=seed, device=device)}
    model = efficient_for({"phi": 3}, POLICIES[policy], seed=seed, device=device)
    (efficient, dense), (efficient_moved, dense_moved) = run_both(g, model, phi), run_both(moved, model, phi)
    size = float(dense["phi"].abs().max())
    torch.testing.assert_close(efficient_moved["phi"], efficient["phi"], rtol=1e-9, atol=1e-9 * size)
    torch.testing.assert_close(dense_moved["phi"], dense["phi"], rtol=1e-9, atol=1e-9 * size)
    expected = (dense[INCIDENCE] * sign)[..., order]
    torch.testing.assert_close(dense_moved[INCIDENCE], expected, rtol=1e-9, atol=1e-9 * float(expected.abs().max()))


@given(graphs(largest=8), st.integers(0, 100))
def test_relabelling_nodes_relabels_the_answer(device, g, seed):
    g = g.to(device)
    order = torch.randperm(g.num_nodes, generator=generator(seed)).to(device)
    place = order.argsort()
    moved = Graph(place[g.edge_index], g.resistance, g.batch)
    phi = drawn(g.num_nodes, 3, seed=seed, device=device)
    model = efficient_for({"phi": 3}, FROBENIUS, seed=seed, device=device)
    with torch.no_grad():
        expected = model(g.laplacian(), {"phi": phi})["phi"][order]
        torch.testing.assert_close(model(moved.laplacian(), {"phi": phi[order]})["phi"], expected, rtol=1e-8, atol=1e-8)


@pytest.mark.parametrize("policy", sorted(POLICIES))
def test_padding_and_batch_neighbours_change_nothing(device, policy):
    from ohmformer.graph.families import family

    parts = [family(name, n, generator=generator(), spread=1.0) for name, n in (("path", 4), ("csl", 9), ("star", 6))]
    parts = [part.to(device) for part in (*parts, Graph.from_edges([], num_nodes=1))]
    together = Graph.collate(parts)
    x = drawn(together.num_nodes, 3, device=device)
    model = efficient_for({"phi": 3}, POLICIES[policy], device=device)
    with torch.no_grad():
        batch = together.unpad(model(together.laplacian(), {"phi": together.pad(x)}, incidence=together.incidence())["phi"])
        alone = [
            model(g.laplacian(), {"phi": rows}, incidence=g.incidence())["phi"]
            for g, rows in zip(parts, x.split([g.num_nodes for g in parts]), strict=True)
        ]
    torch.testing.assert_close(batch, torch.cat(alone), rtol=1e-10, atol=1e-10)


def test_gradients_of_both_models_agree(device):
    g = Graph.from_edges([(0, 1), (1, 2), (2, 3), (3, 0)], resistance=[1.0, 2.0, 3.0, 4.0]).to(device)
    efficient = efficient_for({"phi": 2}, FROBENIUS, device=device)
    layout = Layout({INCIDENCE: 4, "phi": 2})
    dense = LinearTransformer.of(efficient.program(), layout).to(device)
    phi = drawn(4, 2, device=device)
    efficient(g.laplacian(), {"phi": phi})["phi"].square()[0].sum().backward()
    layout.unpack(dense(layout.pack({INCIDENCE: g.incidence(), "phi": phi})))["phi"].square()[0].sum().backward()
    mine = torch.stack([_gradient(t) for t in efficient.tensors])
    theirs = []
    for layer in dense.layers:
        for head in range(2):
            theirs += [_gradient(w)[head][4:, 4:] for w in (layer.value, layer.query, layer.key)]
        theirs.append(_gradient(layer.skip)[4:, 4:])
    torch.testing.assert_close(mine, torch.stack(theirs), rtol=1e-9, atol=1e-12)
    # a scalar on the incidence block is a multiple of the identity: its gradient is the trace
    traces = []
    for layer in dense.layers:
        traces += [_gradient(w)[h][:4, :4].trace() for h in range(2) for w in (layer.value, layer.query, layer.key)]
        traces.append(_gradient(layer.skip)[:4, :4].trace())
    torch.testing.assert_close(_gradient(efficient.scalars), torch.stack(traces), rtol=1e-9, atol=1e-12)


def test_gradcheck_through_scalars_matrices_and_normalisation(device):
    g = Graph.from_edges([(0, 1), (1, 2)], resistance=[1.0, 2.0]).to(device)
    model = efficient_for({"phi": 2}, COLUMNS_AND_INCIDENCE, layers=2, device=device)
    phi = drawn(3, 2, device=device).requires_grad_()
    gram = g.laplacian().requires_grad_()

    def run(gram, phi, *weights):
        names = [name for name, _ in model.named_parameters()]
        return torch.func.functional_call(model, dict(zip(names, weights, strict=True)), (gram, {"phi": phi}))["phi"]

    assert torch.autograd.gradcheck(run, (gram, phi, *model.parameters()))


def test_zero_columns_stay_zero_with_finite_gradients(device):
    phi = torch.zeros(3, 2, dtype=torch.float64, device=device, requires_grad=True)
    for policy in (FROBENIUS, COLUMNS):
        out = policy.scale_features({"phi": phi})["phi"]
        assert torch.equal(out, torch.zeros_like(out))
        out.sum().backward()
        assert torch.isfinite(_gradient(phi)).all()


def test_a_model_learns(device):
    """A few steps of Adam lower the loss of a random model, in float32, on a batch of graphs."""
    from ohmformer import exact
    from ohmformer.graph.families import family

    g = Graph.collate([family("csl", 10, generator=generator(i), spread=2.0) for i in range(20)]).to(device, torch.float32)
    psi = g.pad(g.center(drawn(g.num_nodes, 4, device=device).float()))
    target = torch.nn.functional.normalize(exact.pinv(g) @ psi, dim=-2)
    model = EfficientTransformer.random(
        {"demand": 4, "answer": 4}, layers=3, normalization=FROBENIUS, generator=generator(), scale=0.3
    ).to(device)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.02)
    losses = []
    for _ in range(60):
        answer = torch.nn.functional.normalize(model(g.laplacian(), {"demand": psi})["answer"], dim=-2)
        loss = (answer - target).square().sum(-2).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert losses[-1] < 0.7 * losses[0]


def test_a_program_survives_being_built_and_read_back():
    model = efficient_for({"phi": 3}, COLUMNS)
    again = EfficientTransformer(model.program())
    assert torch.equal(again.scalars, model.scalars)
    for a, b in zip(again.tensors, model.tensors, strict=True):
        assert torch.equal(a, b)
    assert again.normalization == COLUMNS


def test_state_dict_restores_a_model():
    model, other = efficient_for({"phi": 3}, seed=0), efficient_for({"phi": 3}, seed=1)
    other.load_state_dict(model.state_dict())
    assert torch.equal(other.scalars, model.scalars)


def test_many_models_train_as_one_by_vmap(device):
    """What training several seeds at once needs: stacked parameters through functional_call, with and without gradients."""
    skip_where_pretended(device)
    models = [efficient_for({"phi": 3}, FROBENIUS, seed=seed, device=device) for seed in range(3)]
    g = Graph.from_edges([(0, 1), (1, 2), (2, 3)]).to(device)
    phi = {"phi": drawn(4, 3, device=device)}
    parameters, buffers = torch.func.stack_module_state(models)

    def run(parameters, buffers):
        return torch.func.functional_call(models[0], (parameters, buffers), (g.laplacian(), phi))["phi"]

    together = torch.func.vmap(run)(parameters, buffers)
    torch.testing.assert_close(together, torch.stack([m(g.laplacian(), phi)["phi"] for m in models]))
    gradient = torch.func.vmap(torch.func.grad(lambda p, b: run(p, b)[0, 0]))(parameters, buffers)
    models[1](g.laplacian(), phi)["phi"][0, 0].backward()
    torch.testing.assert_close(gradient["scalars"][1], _gradient(models[1].scalars))


@pytest.mark.parametrize("trained", [False, True])
def test_every_way_to_differentiate_in_the_scalars_agrees_with_autograd(device, trained):
    skip_where_pretended(device)
    func = torch.func
    model = efficient_for({"phi": 3}, COLUMNS, device=device).requires_grad_(trained)
    g = Graph.from_edges([(0, 1), (1, 2), (2, 3)]).to(device)
    phi = {"phi": drawn(4, 3, device=device)}

    def run(scalars):
        return func.functional_call(model, {"scalars": scalars}, (g.laplacian(), phi))["phi"].square()[0].sum()

    at = model.scalars.detach().clone()
    twice, along = torch.stack([at, at]), drawn(*at.shape, seed=1, device=device)
    truth = torch.autograd.grad(run(at.requires_grad_()), at)[0]
    assert truth.abs().sum() > 0
    for way in (func.grad(run), func.jacfwd(run), func.jacrev(run)):
        torch.testing.assert_close(way(at.detach()), truth)
    for way in (func.vmap(func.grad(run)), func.grad(lambda both: func.vmap(run)(both).sum())):
        torch.testing.assert_close(way(twice.detach()), torch.stack([truth, truth]))
    for way, point, direction in (
        (run, at.detach(), along),
        (lambda both: func.vmap(run)(both)[0], twice.detach(), torch.stack([along, along])),
    ):
        torch.testing.assert_close(func.jvp(way, (point,), (direction,))[1], truth @ along)
    torch.testing.assert_close(func.jacfwd(func.jacfwd(run))(at.detach()), func.jacrev(func.jacrev(run))(at.detach()))


def test_functional_call_leaves_shared_layers_alone():
    layer = Layer(heads=(Head(value={("phi", "phi"): -0.1}, **similarity(INCIDENCE)),))
    program = Program({INCIDENCE: "edges", "phi": "demands"}, [layer] * 5)
    dense = LinearTransformer.of(program, program.layout(nodes=3, edges=2, demands=1))
    tokens = torch.ones(3, 3, dtype=torch.float64)
    before = dense(tokens).detach()
    zeros = {name: torch.zeros_like(p) for name, p in dense.named_parameters()}
    torch.testing.assert_close(torch.func.functional_call(dense, zeros, (tokens,)), tokens)
    torch.testing.assert_close(dense(tokens).detach(), before)
    assert len(dense.state_dict()) == 4


def test_a_layer_that_occurs_twice_shares_its_weights():
    layer = Layer(heads=(Head(value={("phi", "phi"): -0.1}, **similarity(INCIDENCE)),))
    program = Program({INCIDENCE: "edges", "phi": "demands"}, [layer] * 5)
    assert EfficientTransformer(program).scalars.numel() == 3
    dense = LinearTransformer.of(program, program.layout(nodes=3, edges=2, demands=1))
    assert len({id(x) for x in dense.layers}) == 1
    assert sum(p.numel() for p in dense.parameters()) == 4 * 9


def test_the_efficient_model_takes_a_sparse_laplacian_where_the_incidence_stays(device):
    g = Graph.from_edges([(0, 1), (1, 2), (2, 3)]).to(device)
    layer = Layer(heads=(Head(value={("phi", "phi"): -0.1}, **similarity(INCIDENCE)),))
    model = EfficientTransformer(Program({INCIDENCE: "edges", "phi": "demands"}, [layer] * 3)).to(device)
    phi = {"phi": drawn(4, 2, device=device)}
    torch.testing.assert_close(model(g.sparse_laplacian(), phi)["phi"], model(g.laplacian(), phi)["phi"])


def test_the_efficient_model_never_holds_anything_as_wide_as_the_edges():
    """50 nodes and 1,225 edges: no tensor made in a forward pass has an axis of 1,225."""
    from torch.overrides import TorchFunctionMode

    widest = 0

    class Watch(TorchFunctionMode):
        def __torch_function__(self, func, types, args=(), kwargs=None):
            nonlocal widest
            out = func(*args, **(kwargs or {}))
            if isinstance(out, torch.Tensor) and out.ndim:
                widest = max(widest, *out.shape)
            return out

    from ohmformer.graph.families import family

    g = family("complete", 50, generator=generator())
    model, phi, gram = efficient_for({"phi": 4}, FROBENIUS), torch.randn(50, 4, dtype=torch.float64), g.laplacian()
    with Watch():
        model(gram, {"phi": phi})
    assert 0 < widest <= 50


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda: EfficientTransformer(_program({("phi", INCIDENCE): 1.0})), "cannot mix incidence and features"),
        (lambda: EfficientTransformer(_program({(INCIDENCE, INCIDENCE): (1.0, 2.0)})), "scalars on the incidence"),
        (lambda: EfficientTransformer(_program({("phi", "psi"): 1.0})), "got 'psi'"),
        (lambda: efficient_for({"phi": 2})(torch.eye(3), {"psi": torch.ones(3, 2)}), "got psi"),
        (lambda: Layout({"a": 1, "b": 2}).matrix({("a", "b"): 1.0}), "equal width, got 1 and 2"),
        (lambda: Layout({"a": 1}).pack({"a": torch.ones(3, 2)}), "of width 1, got 2"),
        (lambda: efficient_for({"phi": 2})(torch.eye(3), {"phi": torch.ones(3, 4)}), "of width 2, got 4"),
        (lambda: _unequal({("a", "b"): 1.0}), "equal width, got 1 and 3"),
        (lambda: _unequal({("b", "b"): torch.ones(1, 3)}), r"shape \(3, 3\), got \(1, 3\)"),
        (lambda: _unequal({("b", "b"): (1.0, 2.0)}), "diagonal of length 3, got 2"),
        (
            lambda: efficient_for({"phi": 2}, POLICIES["appendix E, l1"])(
                torch.eye(3, dtype=torch.float64), {"phi": torch.ones(3, 2, dtype=torch.float64)}
            ),
            "needs the incidence matrix",
        ),
        (lambda: LinearTransformer(Layout({"a": 2}), [])(torch.ones(3, 3)), "tokens of 2 features, got 3"),
    ],
)
def test_wrong_blocks_are_named_in_one_sentence(build, message):
    with pytest.raises(ValueError, match=message):
        build()


def _program(skip) -> Program:
    return Program({INCIDENCE: "edges", "phi": "demands"}, [Layer(skip=skip)])


def _unequal(skip) -> EfficientTransformer:
    return EfficientTransformer(Program({INCIDENCE: "edges", "a": 1, "b": 3}, [Layer(skip=skip)]))
