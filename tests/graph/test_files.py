"""Files as graphs: the columns that the header names, weights that are never ignored silently, errors with file and line."""

import numpy as np
import pytest
import scipy.io
import scipy.sparse as sp

from ohmformer.graph.files import read_graph, write_table


def edges_of(named):
    """Every edge as names and resistance, in the order of the file."""
    graph = named.graph
    names = [[named.labels[i] for i in pair] for pair in graph.edge_index.t().tolist()]
    return [(u, v, r) for (u, v), r in zip(names, graph.resistance.tolist(), strict=True)]


def read(tmp_path, content, name="g.csv", **options):
    path = tmp_path / name
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return read_graph(path, **options)


TRIANGLE = [("home", "shop", 1.0), ("shop", "park", 2.0), ("park", "home", 4.0)]


@pytest.mark.parametrize(
    ("content", "options"),
    [
        ("ohm,source,target\n1,home,shop\n2,shop,park\n4,park,home\n", {}),
        ("Target,ohm,Source\nshop,1,home\npark,2,shop\nhome,4,park\n", {}),
        ("id,From Node,ohm,To_Node\n7,home,1,shop\n8,shop,2,park\n9,park,4,home\n", {}),
        ("x,home_end,ohm,y\n0,home,1,shop\n0,shop,2,park\n0,park,4,home\n", {"source": "home_end", "target": "y"}),
        ("x,a,ohm,b\n0,home,1,shop\n0,shop,2,park\n0,park,4,home\n", {"source": "2", "target": "4"}),
        ("a,ohm,b\nhome,1,shop\nshop,2,park\npark,4,home\n", {}),
        ("src,ohm,dst\nhome,1,shop\nshop,2,park\npark,4,home\n", {"resistance": "2"}),
        ("\ufeffu,v,ohm\nhome,shop,1\r\n\r\n# a remark\r\nshop,park,2\r\npark,home,4", {}),
        ('u, v, ohm\n"home", "shop", 1\n"shop", "park", 2\n"park", "home", 4\n', {}),
    ],
)
def test_columns_are_found_by_the_header_in_any_order(tmp_path, content, options):
    assert edges_of(read(tmp_path, content, **{"resistance": "ohm", **options})) == TRIANGLE


def test_a_list_without_header_takes_columns_by_number(tmp_path):
    lines = "1;home;shop\n2;shop;park\n4;park;home\n"
    options = {"sep": ";", "source": "2", "target": "3", "resistance": "1"}
    assert edges_of(read(tmp_path, lines, **options)) == TRIANGLE
    assert edges_of(read(tmp_path, lines.replace(";", " "), "g.txt", **{**options, "sep": None})) == TRIANGLE
    assert edges_of(read(tmp_path, lines.replace(";", "|"), "g.edges", **{**options, "sep": "|"})) == TRIANGLE


@pytest.mark.parametrize(
    ("content", "options", "message"),
    [
        ("id,x,y,ohm\n1,a,b,2\n", {"resistance": "ohm"}, "--source COLUMN .* line 1 of g.csv has id, x, y, ohm"),
        ("from,to,source,target\na,b,c,d\n", {}, "--source COLUMN and --target COLUMN .* from, to, source, target"),
        ("source,target\na,b\n", {"source": "x", "target": "target"}, "a column 'x' in line 1 of g.csv"),
        ("source,target\na,b\n", {"source": "source"}, "both --source and --target, got only --source"),
        ("source,target\na,b\n", {"source": "1", "target": "1"}, "three different columns"),
        ("source,target,w,w\na,b,1,2\n", {"resistance": "w"}, "a column 'w' in line 1 .* it has more than once"),
        ("1,2,3\n", {"header": False, "resistance": "ohm"}, "a column number from 1 to 3 with --no-header, got 'ohm'"),
        ("a,b\n", {}, r"--header or --no-header, line 1 of g.csv \(a, b\) may name columns or be an edge"),
        ("von,nach\nBerlin,Ulm\nUlm,Bonn\n", {}, "--header or --no-header"),
        ("u,v\nv,w\n", {}, "--header or --no-header"),
        ("a,b,n/a\nb,c,1\nc,d,2\n", {}, "--header or --no-header"),
        ("source,target,w\nshop,,2\n", {}, "a node in column 'target' of line 2 of g.csv, got nothing"),
        ("shop,park,1\n,shop,2\n", {}, "a node in column 1 of line 2 of g.csv"),
        (",,\n1,2,3\n", {}, "a node in column 1 of line 1 of g.csv"),
        ("1,2,3\n,,\n", {}, "a node in column 1 of line 2 of g.csv"),
        ("source,target,w\na,b,1,5\n", {}, "at most 3 columns in line 2 of g.csv, as in its first line, got 4"),
        ("1,2\n2,3\n3,4,9\n", {}, "at most 2 columns in line 3 of g.csv"),
        ("source,target,w\na,b,nan\n", {"resistance": "w"}, "positive and finite resistance in line 2 of g.csv, column 'w'"),
        ("source,target,w\na,b,1\nb,c,inf\n", {"conductance": "w"}, "conductance in line 3 of g.csv, column 'w', got 'inf'"),
        ("source,target,w\n# x\na,b,0\n", {"resistance": "w"}, "in line 3 of g.csv, column 'w', got '0'"),
        ("source,target,w\na,b,-1\n", {"resistance": "w"}, "in line 2 of g.csv, column 'w', got '-1'"),
        ("source,target,w\na,b,1e-310\n", {"resistance": "w"}, "got '1e-310'"),
        ("source,target,w\na,b,1_0\n", {"resistance": "w"}, "a number in line 2 of g.csv, column 'w', got '1_0'"),
        ("source;target;w\na;b;1,5\n", {"sep": ";", "resistance": "w"}, "got '1,5'; decimals have a point"),
        ("a;b;1,5\nb;c;2,5\n", {}, "commas .* g.csv seems to have semicolons from line 1 on; --sep ';' takes those"),
        ("a;b;1\nb;c\n", {}, "g.csv seems to have semicolons"),
        ("1,2\n2,3\n", {"sep": "::"}, "--sep to be tab, space or a single character"),
        ("source,target\nZürich,Genf\nGenf,Köln\n".encode("latin-1"), {}, "UTF-8 text in g.csv, line 2 .* 0xfc, .*Latin-1"),
        ("source,target\na,b\n".encode("utf-16"), {}, "line 1 begins as UTF-16 does"),
        (b"1,2\n2,\x003\n", {}, "line 2 has a zero byte"),
        ('1,2\n"2,3\n3,4\n', {}, "closed quotes in line 2 of g.csv"),
        ("1,2\n", {"resistance": "1", "conductance": "2"}, "only one of --resistance, --conductance and --unit"),
        ("1,2,3\n", {"resistance": "3", "unit": True}, "only one of"),
    ],
)  # fmt: skip
def test_a_list_that_can_be_misread_is_refused_with_file_and_line(tmp_path, content, options, message):
    with pytest.raises(ValueError, match=message) as caught:
        read(tmp_path, content, **options)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("content", "name", "message"),
    [
        ("a, b, 1\nb, c, 2\n", "g.txt", "white space between columns, g.txt seems to have commas from line 1 on; --sep ','"),
        ("New York\tBoston\nBoston\tNew York\n", "g.txt", "g.txt seems to have tabs from line 1 on; --sep tab"),
        ("1 2\n2 New York\n", "g.txt", "at most 2 columns in line 2 of g.txt"),
    ],
)
def test_the_wrong_suffix_is_told_by_the_separator(tmp_path, content, name, message):
    with pytest.raises(ValueError, match=message):
        read(tmp_path, content, name)


@pytest.mark.parametrize(
    ("sep", "name"), [(";", "g.csv"), ("\t", "g.csv"), (",", "g.tsv"), (";", "g.txt"), (",", "g.edges")]
)
def test_a_separator_that_all_lines_have_instead_of_the_suffixs_is_taken_with_a_note(tmp_path, sep, name):
    lines = [sep.join(["source", "target", "ohm"]), *(sep.join([u, v, f"{r}"]) for u, v, r in TRIANGLE)]
    named = read(tmp_path, "\n".join(lines), name, resistance="ohm")
    assert edges_of(named) == TRIANGLE
    assert named.notes[0].startswith(f"columns of {name} are separated by ")


def test_the_right_separator_is_left_alone(tmp_path):
    assert read(tmp_path, "New York, NY\tBoston, MA\nBoston, MA\tSalem, MA\n", "g.tsv").graph.num_edges == 2
    assert read(tmp_path, '"a;b",c\nc,"d;e"\n').labels == ["a;b", "c", "d;e"]
    assert read(tmp_path, "1\t2\n2\t3\n", "g.txt").labels == ["1", "2", "3"]
    assert read(tmp_path, "a;1,b;2\nb;2,c;3\n", sep=",").labels == ["a;1", "b;2", "c;3"]


def test_header_and_no_header_decide_where_the_first_line_is_unclear(tmp_path):
    assert read(tmp_path, "a,b\n", header=False).labels == ["a", "b"]
    assert read(tmp_path, "u,v\nv,w\n", header=True).labels == ["v", "w"]
    assert read(tmp_path, "u,v\nv,w\n", header=False).labels == ["u", "v", "w"]
    assert read(tmp_path, "von,nach\nBerlin,Ulm\n", header=True).labels == ["Berlin", "Ulm"]
    assert read(tmp_path, "1,2\n").labels == ["1", "2"]


def test_columns_that_are_not_read_are_told(tmp_path):
    (note,) = read(tmp_path, "source,target,ohm\na,b,2\n").notes
    assert "one ohm" in note
    assert "--resistance ohm" in note
    assert "--resistance 3" in read(tmp_path, "1,2,5\n").notes[0]
    assert read(tmp_path, "source,target,ohm\na,b,2\n", unit=True).notes == ()
    assert read(tmp_path, "source,target,ohm\na,b,2\n", resistance="ohm").notes == ()


def test_edges_in_both_directions_are_parallel_unless_symmetrized(tmp_path):
    lines = "u,v,ohm\na,b,1\nb,a,1\nb,c,2\nc,b,2\nc,a,3\n"
    plain = read(tmp_path, lines, resistance="ohm")
    assert plain.graph.num_edges == 5
    assert "2 pairs stand in both directions in g.csv and count as parallel edges; --symmetrize" in plain.notes[0]
    merged = read(tmp_path, lines, resistance="ohm", symmetrize=True)
    assert edges_of(merged) == [("a", "b", 1.0), ("b", "c", 2.0), ("c", "a", 3.0)]
    assert merged.notes == ()
    doubled = read(tmp_path, "1,2,1\n2,1,5\n1,2,5\n2,1,1\n", resistance="3", symmetrize=True)
    assert sorted(doubled.graph.resistance.tolist()) == [1.0, 5.0]
    with pytest.raises(ValueError, match=r"line 2 of g.csv has 1 and line 3 of g.csv has 4"):
        read(tmp_path, "u,v,ohm\na,b,1\nb,a,4\n", resistance="ohm", symmetrize=True)
    with pytest.raises(ValueError, match=r"the pair of line 1 of g.csv has 2 and 1"):
        read(tmp_path, "1,2\n1,2\n2,1\n", symmetrize=True)


# ---------------------------------------------------------------------------------------------------- matrices

VALUES = np.array([[0.0, 2.0, 0.0], [2.0, 0.0, 5.0], [0.0, 5.0, 0.0]])


def save(tmp_path, matrix, suffix):
    path = tmp_path / f"m{suffix}"
    if suffix == ".mtx":
        scipy.io.mmwrite(path, sp.coo_array(matrix), symmetry="general")
    else:
        sp.save_npz(path, sp.csr_matrix(matrix))
    return path


@pytest.mark.parametrize("suffix", [".mtx", ".npz"])
def test_values_of_a_matrix_are_read_as_the_flag_says_and_never_ignored_silently(tmp_path, suffix):
    path = save(tmp_path, VALUES, suffix)
    assert edges_of(read_graph(path, resistance="entries")) == [("0", "1", 2.0), ("1", "2", 5.0)]
    assert edges_of(read_graph(path, conductance="entries")) == [("0", "1", 0.5), ("1", "2", 0.2)]
    assert edges_of(read_graph(path, unit=True)) == [("0", "1", 1.0), ("1", "2", 1.0)]
    with pytest.raises(ValueError, match=r"--resistance entries, --conductance entries or --unit .* 2 in row 0, column 1"):
        read_graph(path)
    with pytest.raises(ValueError, match=r"--conductance entries .*, got --conductance weight"):
        read_graph(path, conductance="weight")
    ones = save(tmp_path, (VALUES > 0).astype(float), suffix)
    assert edges_of(read_graph(ones)) == [("0", "1", 1.0), ("1", "2", 1.0)]


@pytest.mark.parametrize("suffix", [".mtx", ".npz"])
@pytest.mark.parametrize("value", [-3.0, np.nan, np.inf])
def test_entries_that_are_no_weights_are_refused_by_row_and_column(tmp_path, suffix, value):
    matrix = VALUES.copy()
    matrix[1, 2] = matrix[2, 1] = value
    path = save(tmp_path, matrix, suffix)
    for resistance, conductance in (("entries", None), (None, "entries"), (None, None)):
        with pytest.raises(ValueError, match=r"row \d, column \d"):
            read_graph(path, resistance=resistance, conductance=conductance)


def test_a_matrix_of_one_triangle_needs_symmetrize(tmp_path):
    path = save(tmp_path, np.triu(VALUES), ".npz")
    with pytest.raises(ValueError, match=r"m.npz has row 0, column 1 .* --symmetrize"):
        read_graph(path, resistance="entries")
    assert edges_of(read_graph(path, resistance="entries", symmetrize=True)) == [("0", "1", 2.0), ("1", "2", 5.0)]
    unequal = VALUES.copy()
    unequal[0, 1] = 3.0
    for symmetrize in (False, True):
        with pytest.raises(
            ValueError, match=r"equal weights in both directions, row 0, column 1 .* has 3 and row 1, column 0"
        ):
            read_graph(save(tmp_path, unequal, ".npz"), resistance="entries", symmetrize=symmetrize)


def test_entries_that_disagree_are_named_by_their_own_lines(tmp_path):
    path = tmp_path / "m.mtx"
    path.write_text("%%MatrixMarket matrix coordinate real general\n2 2 2\n1 2 1.0\n2 1 3.0\n")
    with pytest.raises(
        ValueError, match=r"row 0, column 1 \(.*; line 3\) .* has 1 and row 1, column 0 \(.*; line 4\) .* has 3"
    ):
        read_graph(path, resistance="entries")


def test_an_edge_of_graphml_without_an_end_is_named_by_its_line(tmp_path):
    path = tmp_path / "g.graphml"
    path.write_text('<graphml>\n<graph edgedefault="undirected">\n<edge source="a"/>\n</graph></graphml>\n')
    with pytest.raises(ValueError, match=r"expected an attribute target of <edge> in line 3 of g.graphml, got none"):
        read_graph(path)


def test_zeros_and_repeated_entries_are_not_taken_for_resistances(tmp_path):
    path = tmp_path / "m.npz"
    sp.save_npz(path, sp.coo_matrix(([0.0, 0.0], ([0, 1], [1, 0])), shape=(2, 2)))
    assert read_graph(path, conductance="entries").graph.num_edges == 0
    with pytest.raises(ValueError, match=r"m.npz has 0 in row 0, column 1"):
        read_graph(path, resistance="entries")
    sp.save_npz(path, sp.coo_matrix(([1.0, 2.0, 3.0], ([0, 0, 1], [1, 1, 0])), shape=(2, 2)))
    assert edges_of(read_graph(path, conductance="entries")) == [("0", "1", pytest.approx(1 / 3))]
    with pytest.raises(ValueError, match=r"row 0, column 1 .* stands twice"):
        read_graph(path, resistance="entries")


def test_a_pattern_matrix_has_unit_resistances_and_drops_its_diagonal(tmp_path):
    path = tmp_path / "m.mtx"
    path.write_text("%%MatrixMarket matrix coordinate pattern symmetric\n3 3 3\n1 1\n2 1\n3 2\n")
    graph = read_graph(path).graph
    assert (graph.num_edges, graph.self_loops_dropped) == (2, 1)


# ---------------------------------------------------------------------------------------------------- GraphML

GRAPHML = """<graphml xmlns="http://graphml.graphdrawing.org/xmlns">
<key id="w" for="edge" attr.name="ohm" attr.type="{kind}"/>
<graph edgedefault="{direction}"><node id="a"/><node id="b"/><node id="c"/>
<edge source="a" target="b"><data key="w">{first}</data></edge>
<edge source="{tail}" target="{head}"><data key="w">3</data></edge></graph></graphml>"""
USUAL = {"kind": "double", "direction": "undirected", "first": "2", "tail": "b", "head": "c"}


def test_directed_graphml_is_refused_with_the_flag_that_reads_it(tmp_path):
    text = GRAPHML.format(**{**USUAL, "direction": "directed"})
    with pytest.raises(ValueError, match=r"line 4 of g.graphml has a directed edge; --symmetrize") as caught:
        read(tmp_path, text, "g.graphml")
    assert "to_undirected" not in str(caught.value)
    merged = read(tmp_path, text, "g.graphml", resistance="ohm", symmetrize=True)
    assert edges_of(merged) == [("a", "b", 2.0), ("b", "c", 3.0)]
    back = GRAPHML.format(**{**USUAL, "direction": "directed", "head": "a"})
    with pytest.raises(ValueError, match=r"edge \(a, b\) in line 4 of g.graphml has 2 and edge \(b, a\) in line 5"):
        read(tmp_path, back, "g.graphml", resistance="ohm", symmetrize=True)


def test_attributes_of_graphml_are_named_in_notes_and_errors(tmp_path):
    assert "--resistance ohm" in read(tmp_path, GRAPHML.format(**USUAL), "g.graphml").notes[0]
    with pytest.raises(ValueError, match=r"finite resistance 'ohm', edge \(a, b\) in line 4 of g.graphml has '-2'"):
        read(tmp_path, GRAPHML.format(**{**USUAL, "first": "-2"}), "g.graphml", resistance="ohm")
    words = GRAPHML.format(**{**USUAL, "kind": "string", "first": "thick"})
    with pytest.raises(ValueError, match="has 'thick'"):
        read(tmp_path, words, "g.graphml", resistance="ohm")
    with pytest.raises(ValueError, match=r"attribute 'w' on every edge, edge \(a, b\) in line 4 of g.graphml has ohm"):
        read(tmp_path, GRAPHML.format(**USUAL), "g.graphml", resistance="w")


@pytest.mark.parametrize("option", [{"sep": ";"}, {"source": "1", "target": "2"}, {"header": True}])
def test_flags_of_edge_lists_are_refused_for_other_files(tmp_path, option):
    with pytest.raises(ValueError, match="for an edge list only"):
        read(tmp_path, GRAPHML.format(**USUAL), "g.graphml", **option)


def test_a_table_that_cannot_be_written_is_refused_before(tmp_path):
    for path, message in ((tmp_path, "type .csv"), (tmp_path / "x.csv" / "y.csv", "a folder to write y.csv into")):
        (tmp_path / "x.csv").touch()
        with pytest.raises(ValueError, match=message):
            write_table(path, {"a": [1]})


@pytest.mark.parametrize("content", ["node,node\na,b\nb,c\n", "node,node,w\na,b,1\nb,c,1\n"])
def test_a_first_line_of_one_word_twice_that_is_no_node_below_may_be_a_header(tmp_path, content):
    if content.startswith("node,node\n"):
        with pytest.raises(ValueError, match=r"expected --header or --no-header, line 1 of g\.csv \(node, node\)"):
            read(tmp_path, content)
    assert set(read(tmp_path, content, header=True, unit=True, source="1", target="2").labels) == set("abc")
    assert read(tmp_path, "a,a\na,b\n").labels == ["a", "b"]  # a loop


def test_a_matrix_of_more_nodes_than_fit_is_refused_with_the_line_of_its_size(tmp_path):
    lines = "%%MatrixMarket matrix coordinate real symmetric\n% a remark\n3000000000 3000000000 1\n2 1 1.0\n"
    with pytest.raises(ValueError, match=r"expected at most \d+ nodes, line 3 of g\.mtx has 3000000000 rows"):
        read(tmp_path, lines, "g.mtx")
    dense = "%%MatrixMarket matrix array real general\n3000000000 3000000000\n1.0\n"
    with pytest.raises(ValueError, match=r"expected at most \d+ nodes, line 2 of g\.mtx has 3000000000 rows"):
        read(tmp_path, dense, "g.mtx")
    sp.save_npz(tmp_path / "wide.npz", sp.coo_matrix(([1.0], ([0], [1])), shape=(3 * 10**9, 3 * 10**9)))
    with pytest.raises(ValueError, match=r"expected at most \d+ nodes, wide\.npz has 3000000000 rows"):
        read_graph(tmp_path / "wide.npz")


def test_an_archive_of_arrays_is_refused_with_what_was_expected_and_what_takes_it(tmp_path):
    np.savez(tmp_path / "arrays.npz", edge_index=np.array([[0, 1], [1, 2]]))
    wanted = r"expected a sparse matrix as scipy\.sparse\.save_npz writes it in arrays\.npz, .* `ohmformer shard`"
    with pytest.raises(ValueError, match=wanted):
        read_graph(tmp_path / "arrays.npz")


UNDECLARED = """<graphml><graph edgedefault="undirected"><node id="a"/><node id="b"/>
<edge source="a" target="b"><data key="d0">2.0</data></edge></graph></graphml>"""


def test_data_of_graphml_without_a_declared_key_go_by_their_id(tmp_path):
    assert edges_of(read(tmp_path, UNDECLARED, "g.graphml", resistance="d0")) == [("a", "b", 2.0)]
    named = read(tmp_path, UNDECLARED, "g.graphml")
    assert named.graph.resistance.tolist() == [1.0]
    assert "attributes of edges (d0) of g.graphml are not read" in named.notes[0]
    assert not read(tmp_path, UNDECLARED, "g.graphml", unit=True).notes
