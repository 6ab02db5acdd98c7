"""Graphs cut into parts: files, streams, partitions, and what is wrong with them."""

import gzip
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ohmformer import native
from ohmformer.solve import distributed
from ohmformer.solve.distributed.partition import by_ranges, by_stream
from tests.solve.test_distributed import EXAMPLES, Example, grid


def laplacian_of(folder: Path, nodes: int) -> np.ndarray:
    """The whole Laplacian, put together from the parts' files."""
    from safetensors.numpy import load_file
    from scipy.sparse import csr_array

    whole = np.zeros((nodes, nodes))
    for path in sorted(folder.glob("part-*.safetensors")):
        part = load_file(path)
        columns = np.concatenate([part["nodes"], part["halo"]])
        rows = csr_array((part["value"], part["column"], part["start"]), shape=(len(part["nodes"]), len(columns)))
        whole[np.ix_(part["nodes"], columns)] += rows.toarray()
    return whole


@pytest.mark.parametrize("rule", ["ranges", "stream", "auto"])
@pytest.mark.parametrize("name", EXAMPLES)
def test_parts_put_together_are_the_laplacian(tmp_path, name, rule):
    example = EXAMPLES[name]
    edges = distributed.edge_arrays(example.tail, example.head, conductance=example.conductance)
    manifest = distributed.shard(edges, tmp_path / "shards", 4, partition=rule, nodes=example.nodes)
    wanted = example.graph.laplacian().numpy()
    np.testing.assert_allclose(laplacian_of(tmp_path / "shards", example.nodes), wanted, atol=1e-12)
    assert manifest.components == example.graph.num_components
    assert sum(file.rows for file in manifest.files) == example.nodes
    assert sorted(x.name for x in (tmp_path / "shards").iterdir()) == [
        "asked.json", "manifest.json", *(f"part-0000{i}.safetensors" for i in range(4)),
    ]  # fmt: skip


def write_edges(path: Path, example: Example) -> None:
    """Write edges in the format of the suffix."""
    columns = {"source": example.tail, "target": example.head, "g": example.conductance}
    if path.suffix == ".npz":
        np.savez(path, allow_pickle=False, **columns)
    elif path.suffix == ".parquet":
        pyarrow = pytest.importorskip("pyarrow")
        pytest.importorskip("pyarrow.parquet").write_table(pyarrow.table(columns), path)
    else:
        pytest.importorskip("pyarrow")
        packed = path.suffix == ".gz"
        sep = {".csv": ",", ".tsv": "\t", ".txt": " "}[path.with_suffix("").suffix if packed else path.suffix]
        lines = [
            sep.join(columns),
            *(sep.join(map(repr, row)) for row in zip(*(x.tolist() for x in columns.values()), strict=True)),
        ]
        text = ("# made by a test\n" + "\n".join(lines) + "\n").encode()
        path.write_bytes(gzip.compress(text) if packed else text)


@pytest.mark.parametrize("suffix", [".npz", ".parquet", ".csv", ".tsv", ".txt", ".csv.gz", ".txt.gz"])
def test_files_are_read_in_chunks_as_arrays_are(tmp_path, suffix, monkeypatch):
    from ohmformer.solve.distributed import streams

    monkeypatch.setattr(streams, "CHUNK", 100)
    example = EXAMPLES["random"]
    write_edges(tmp_path / f"edges{suffix}", example)
    stream = distributed.edge_file(tmp_path / f"edges{suffix}", conductance="g")
    chunks = list(stream)
    np.testing.assert_array_equal(np.concatenate([x.tail for x in chunks]), example.tail)
    np.testing.assert_array_equal(np.concatenate([x.head for x in chunks]), example.head)
    np.testing.assert_array_equal(
        np.concatenate([x.conductance for x in chunks if x.conductance is not None]), example.conductance
    )
    with pytest.raises(ValueError, match="--resistance COLUMN, --conductance COLUMN or --unit"):
        distributed.edge_file(tmp_path / f"edges{suffix}")
    arrays = distributed.edge_arrays(example.tail, example.head, conductance=example.conductance)
    made = [distributed.shard(x, tmp_path / name, 2, nodes=300).graph for name, x in (("a", stream), ("b", arrays))]
    assert made[0] == made[1]


@pytest.mark.parametrize("suffix", [".npz", ".parquet", ".csv", ".txt.gz"])
def test_sharding_tells_how_many_edges_are_read_of_how_many(tmp_path, suffix, monkeypatch):
    from ohmformer.solve.distributed import streams

    monkeypatch.setattr(streams, "CHUNK", 100)
    example = EXAMPLES["random"]
    write_edges(tmp_path / f"edges{suffix}", example)
    told: dict[str, list[tuple[int, int | None]]] = {}
    stream = distributed.edge_file(tmp_path / f"edges{suffix}", conductance="g")
    distributed.shard(
        stream, tmp_path / "shards", 3, nodes=300, partition="stream",
        progress=lambda what, done, of: told.setdefault(what, []).append((done, of)),
    )  # fmt: skip
    counting, *others = told
    assert counting == "counting edges"
    about = {of for _, of in told[counting]}
    assert about == {None} if suffix.endswith(".gz") else all(0.7 < of / len(example.tail) < 1.4 for of in about if of)
    assert told[counting][-1][0] == len(example.tail)
    for what in others:
        assert told[what][-1] == ((3, 3) if what == "making parts" else (len(example.tail), len(example.tail)))


def test_a_packed_archive_of_arrays_is_refused_with_what_may_be_packed(tmp_path):
    (tmp_path / "edges.npz.gz").write_bytes(gzip.compress(b"PK"))
    with pytest.raises(ValueError, match=r"\.csv, .*packed by gzip or not.*edges\.npz\.gz"):
        distributed.edge_file(tmp_path / "edges.npz.gz")


def test_an_edge_index_is_read_out_of_an_archive_compressed_or_not(tmp_path, monkeypatch):
    from ohmformer.solve.distributed import streams

    monkeypatch.setattr(streams, "CHUNK", 100)
    example = EXAMPLES["random"]
    for save in (np.savez, np.savez_compressed):
        save(tmp_path / "edges.npz", edge_index=np.stack([example.tail, example.head]))
        chunks = list(distributed.edge_file(tmp_path / "edges.npz"))
        np.testing.assert_array_equal(np.concatenate([x.head for x in chunks]), example.head)
        assert len(chunks) > 5
        assert chunks[0].conductance is None


class Killed(BaseException):
    """As if the process had been killed."""


def test_sharding_that_was_interrupted_goes_on_and_ends_as_if_it_had_not_been(tmp_path, monkeypatch):
    from ohmformer.solve.distributed import sharding, streams

    monkeypatch.setattr(streams, "CHUNK", 100)
    example = EXAMPLES["disconnected"]
    wanted = example.shard(tmp_path / "whole", 3)
    honest, written = sharding.whole_file, 0

    def dies(path):
        nonlocal written
        written += 1
        if written == 3 + times % 2:  # after the note of what was asked and a step or two
            raise Killed
        return honest(path)

    monkeypatch.setattr(sharding, "whole_file", dies)
    times = 0
    while not (tmp_path / "parts/manifest.json").exists() and times < 30:
        written = 0
        with suppress(Killed):
            example.shard(tmp_path / "parts", 3)
        times += 1
    assert times > 6
    for path in sorted((tmp_path / "whole").iterdir()):
        assert path.read_bytes() == (tmp_path / "parts" / path.name).read_bytes()
    assert example.shard(tmp_path / "parts", 3) == wanted
    with pytest.raises(ValueError, match="of the same edges and options"):
        example.shard(tmp_path / "parts", 2)


def test_an_edge_in_both_directions_counts_twice_unless_it_is_symmetrised(tmp_path):
    tail, head = np.array([0, 1, 1, 2]), np.array([1, 0, 2, 3])
    plain = distributed.shard(distributed.edge_arrays(tail, head), tmp_path / "a", 2)
    merged = distributed.shard(distributed.edge_arrays(tail, head), tmp_path / "b", 2, symmetrize=True)
    assert plain.both == merged.both == 1
    assert [laplacian_of(tmp_path / x, 4)[0, 1] for x in "ab"] == [-2, -1]
    assert laplacian_of(tmp_path / "b", 4)[3, 2] == -1
    edges = distributed.edge_arrays(tail, head, conductance=[1.0, 2.0, 1.0, 1.0])
    wrong = "expected equal conductances in both directions, got 1 from node 0 to 1 and 2 from 1 to 0"
    with pytest.raises(ValueError, match=wrong):
        distributed.shard(edges, tmp_path / "c", 2, symmetrize=True)


def test_directions_that_differ_are_named_by_nodes_and_in_the_weights_of_the_file(tmp_path):
    edges = distributed.edge_arrays([0, 1, 6, 5], [1, 0, 5, 6], resistance=[3.0, 3.0, 4.0, 7.0])
    wrong = "equal resistances in both directions, got (7 from node 5 to 6 and 4 from 6 to 5|4 .* and 7 from 5 to 6)"
    with pytest.raises(ValueError, match=wrong):
        distributed.shard(edges, tmp_path / "c", 2, symmetrize=True)


def test_a_refused_graph_leaves_no_folder_behind_and_can_be_sharded_once_it_is_mended(tmp_path):
    tail, head, out = [0, 1, 2, 5, 6], [1, 2, 3, 6, 5], tmp_path / "new" / "shards"
    for weights, merge in (([1.0, 1, 1, 1, 2], True), ([1.0, 1, 1, 1, -1], False)):
        with pytest.raises(ValueError, match="expected"):
            distributed.shard(distributed.edge_arrays(tail, head, resistance=weights), out, 2, symmetrize=merge)
        assert not out.exists()
        out.mkdir()
        with pytest.raises(ValueError, match="expected"):
            distributed.shard(distributed.edge_arrays(tail, head, resistance=weights), out, 2, symmetrize=merge)
        assert not [*out.iterdir()]
        out.rmdir()
    assert distributed.shard(distributed.edge_arrays(tail, head), out, 2).nodes == 7


def test_shards_are_not_written_into_a_file_or_a_folder_that_cannot_be_written_to(tmp_path):
    (tmp_path / "file").write_text("")
    for out in (tmp_path / "file", tmp_path / "file" / "shards", Path("/proc/shards")):
        with pytest.raises(ValueError, match="expected a folder to write into"):
            distributed.shard(distributed.edge_arrays([0], [1]), out, 1)


def test_metis_is_asked_for_at_most_as_many_parts_as_there_are_nodes(tmp_path, capfd):
    pytest.importorskip("pymetis")
    edges = distributed.edge_arrays([0, 2], [1, 3])
    with pytest.raises(ValueError, match="expected at most as many parts as nodes for METIS, got 10 parts of 4 nodes"):
        distributed.shard(edges, tmp_path / "metis", 10, partition="metis")
    assert distributed.shard(edges, tmp_path / "auto", 10).partition != "metis"
    assert "***" not in "".join(capfd.readouterr())


@pytest.mark.parametrize("edges", [([0, -1], [1, 2]), ([0.5], [1.0]), ([2**50], [1])])
def test_nodes_that_are_no_small_whole_numbers_are_refused(tmp_path, edges):
    with pytest.raises(ValueError, match=r"expected (whole numbers|nodes of)"):
        distributed.shard(distributed.edge_arrays(*edges), tmp_path / "x", 2)


def test_clusters_of_a_stream_are_those_of_plain_python_and_cut_fewer_edges_than_ranges():
    draw = np.random.default_rng(0)
    shuffled = draw.permutation(900)
    example = grid(30)
    tail, head = shuffled[example.tail], shuffled[example.head]
    stream, degree = distributed.edge_arrays(tail, head), np.bincount(np.concatenate([tail, head]), minlength=900)
    found = by_stream(stream, degree, 4)
    with native.used("off"):
        np.testing.assert_array_equal(by_stream(stream, degree, 4), found)
    assert np.bincount(found, minlength=4).max() <= 900 / 4 * (1 + 1 / 8) + 1
    ranges = by_ranges(degree, 4)
    assert (found[tail] != found[head]).sum() < 0.6 * (ranges[tail] != ranges[head]).sum()


def test_other_edges_of_the_same_number_are_not_taken_for_those_in_the_folder(tmp_path):
    first = distributed.shard(distributed.edge_arrays([0, 1, 2, 3, 0], [1, 2, 3, 0, 2]), tmp_path / "arrays", 1)
    again = distributed.shard(distributed.edge_arrays([0, 1, 2, 3, 0], [1, 2, 3, 0, 2]), tmp_path / "arrays", 1)
    assert again == first
    with pytest.raises(ValueError, match="same edges and options, it is of others"):
        distributed.shard(distributed.edge_arrays([0, 0, 0, 0, 1], [1, 2, 3, 4, 2]), tmp_path / "arrays", 1)
    path = tmp_path / "edges.csv"
    path.write_text("source,target\n0,1\n1,2\n")
    distributed.shard(distributed.edge_file(path), tmp_path / "file", 1)
    path.write_text("source,target\n0,1\n0,2\n")
    with pytest.raises(ValueError, match="same edges and options, it is of others"):
        distributed.shard(distributed.edge_file(path), tmp_path / "file", 1)


def test_shards_of_another_column_or_another_file_of_the_same_name_are_not_taken_for_the_ones_asked_for(tmp_path):
    pytest.importorskip("pyarrow")
    path, out = tmp_path / "two.csv", tmp_path / "shards"
    path.write_text("source,target,r1,r2\n0,1,1,10\n1,2,1,10\n2,0,1,10\n2,3,1,10\n")
    distributed.shard(distributed.edge_file(path, resistance="r1"), out, 1)
    distributed.shard(distributed.edge_file(path, resistance="3"), out, 1)  # the same column
    others: list[dict[str, Any]] = [{"resistance": "r2"}, {"resistance": "r1", "source": "r2", "target": "source"}]
    for other in others:
        with pytest.raises(ValueError, match="same edges and options, it is of others"):
            distributed.shard(distributed.edge_file(path, **other), out, 1)
    moved = tmp_path / "moved" / "two.csv"
    moved.parent.mkdir()
    path.rename(moved)
    with pytest.raises(ValueError, match="same edges and options, it is of others"):
        distributed.shard(distributed.edge_file(moved, resistance="r1"), out, 1)


@pytest.mark.parametrize("suffix", [".csv", ".parquet"])
def test_a_column_given_by_number_is_that_column_also_if_names_repeat(tmp_path, suffix):
    pyarrow, path = pytest.importorskip("pyarrow"), tmp_path / f"edges{suffix}"
    names, columns = ["source", "target", "w", "w"], [[0, 1], [1, 2], [1.0, 2.0], [4.0, 8.0]]
    if suffix == ".csv":
        rows = [",".join(map(str, row)) for row in zip(*columns, strict=True)]
        path.write_text("\n".join([",".join(names), *rows]))
    else:
        table = pyarrow.Table.from_arrays([pyarrow.array(x) for x in columns], names=names)
        pytest.importorskip("pyarrow.parquet").write_table(table, path)
    for number, wanted in (("3", [1.0, 0.5]), ("4", [0.25, 0.125])):
        (chunk,) = distributed.edge_file(path, resistance=number)
        assert chunk.conductance is not None
        assert chunk.conductance.tolist() == wanted


def test_a_node_that_has_only_a_loop_counts_also_if_it_is_the_last(tmp_path):
    manifest = distributed.shard(distributed.edge_arrays([0, 5], [1, 5]), tmp_path, 1)
    assert (manifest.nodes, manifest.edges, manifest.loops, manifest.components) == (6, 1, 1, 5)
