"""``ohmformer shard``, and ``ohmformer solve`` about a folder of shards: every flag changes the answer or is refused."""

import warnings

import numpy as np
import pytest

from tests.apps.running import run


@pytest.fixture(scope="module")
def shards(tmp_path_factory):
    """A triangle with a tail, and an edge of another component."""
    pytest.importorskip("pyarrow")
    folder = tmp_path_factory.mktemp("edges")
    (folder / "edges.csv").write_text("source,target\n0,1\n1,2\n2,0\n2,3\n4,5\n")
    made = run("shard", folder / "edges.csv", "--parts", "1", "--out", folder / "shards")
    assert made.exit_code == 0, made.output
    return folder / "shards"


@pytest.mark.parametrize(
    "flags",
    [
        ("--resistance", "w"), ("--conductance", "w"), ("--unit",), ("--source", "1"), ("--target", "2"), ("--sep", ";"),
        ("--header",), ("--no-header",), ("--symmetrize",),
    ],
)  # fmt: skip
def test_flags_about_reading_a_file_are_refused_for_shards(shards, flags):
    refused = run("solve", shards, "--pair", "0", "3", *flags)
    assert refused.exit_code == 2
    assert f"expected no {flags[0]} for --task resistance of shards" in refused.stderr


@pytest.mark.parametrize(
    ("text", "flags"),
    [
        ("0,3\n1,2\n", ()),
        ("\ufeffsource,target\r\n0,3\r\n\r\n# a remark\r\n1,2\r\n", ()),
        ("0;3\n1;2\n", ()),
        ("u|v\n0|3\n1|2\n", ("--sep", "|")),
    ],
)
def test_pairs_of_shards_are_read_as_those_of_other_graphs(shards, tmp_path, text, flags):
    (tmp_path / "pairs.csv").write_text(text)
    answered = run("solve", shards, "--pairs", tmp_path / "pairs.csv", *flags)
    assert answered.exit_code == 0, answered.output
    assert [line.split(",")[:2] for line in answered.stdout.splitlines()[1:]] == [["0", "3"], ["1", "2"]]


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("0,3\n0,x\n", "expected a node from 0 to 5, got 'x' (line 2 of pairs.csv)"),
        ("0,6\n", "expected a node from 0 to 5, got '6' (line 1 of pairs.csv)"),
        ("0,1,2\n", "expected two nodes in line 1 of pairs.csv, got 3 cells"),
        ("", "expected at least one pair of nodes in pairs.csv"),
    ],
)
def test_bad_pairs_of_shards_are_named_by_line(shards, tmp_path, text, sentence):
    (tmp_path / "pairs.csv").write_text(text)
    refused = run("solve", shards, "--pairs", tmp_path / "pairs.csv")
    assert refused.exit_code == 2
    assert sentence in refused.stderr


def test_a_pair_across_components_is_infinite_without_a_warning(shards):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        answered = run("solve", shards, "--pair", "0", "4", "--pair", "0", "3")
    assert answered.stdout.splitlines()[1] == "0,4,inf"
    assert answered.stdout.splitlines()[2].startswith("0,3,1.66666")


def test_unbalanced_demands_say_what_to_do_with_the_file(shards, tmp_path):
    np.save(tmp_path / "demands.npy", np.arange(6.0))
    asked = ("--task", "potentials", "--demands", tmp_path / "demands.npy", "--out", tmp_path / "answer")
    refused = run("solve", shards, *asked)
    assert refused.exit_code == 2
    assert "subtract its mean on each component from that column of" in refused.stderr
    assert "center them" not in refused.stderr


def test_shard_does_not_write_into_a_file(shards, tmp_path):
    (tmp_path / "file").write_text("")
    refused = run("shard", shards.parent / "edges.csv", "--parts", "1", "--out", tmp_path / "file")
    assert refused.exit_code == 2
    assert "expected a folder to write into" in refused.stderr
