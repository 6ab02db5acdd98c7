"""The server answers everything with a page: bad input is a message, and nobody's mistake is a stack trace."""

import base64
import csv
import gzip
import json
import logging
import random
import re
import shlex
import socket
from collections.abc import Iterator
from dataclasses import replace
from functools import cache

import pytest
from typer.testing import CliRunner

pytest.importorskip("dash")

from ohmformer.apps.command_line.main import app as command_line
from ohmformer.apps.explorer import app as explorer
from ohmformer.apps.explorer.compute import solve
from ohmformer.apps.explorer.drawing import LONGEST_NAME, MOST_EDGES, MOST_NODES
from ohmformer.apps.explorer.export import standalone
from ohmformer.apps.explorer.server import listen
from ohmformer.apps.explorer.state import State
from ohmformer.apps.explorer.turns import first_state, turn, with_graph
from ohmformer.apps.explorer.uploads import MOST_BYTES, read_upload

FIRST = first_state({})


SMALL = turn(turn(turn(FIRST, "graph", "path", {}), "size", 5, {}), "method", "cubing", {})


@cache
def client():
    return explorer.make_app().server.test_client()


@cache
def callback() -> dict:
    """The one callback that runs on the server."""
    (found,) = [d for d in client().get("/_dash-dependencies").json if not d["clientside_function"]]
    return found


def flat(dependencies: list[dict], values: dict) -> list[dict]:
    return [{**d, "value": values.get(f"{d['id']}.{d['property']}")} for d in dependencies]


def send(trigger: str, held: State | None = FIRST, values: dict[str, object] | None = None) -> tuple[int, dict]:
    """Post what a browser would, through Dash itself: the status and what comes back."""
    found = callback()
    outputs = [dict(zip(("id", "property"), o.rsplit(".", 1), strict=True)) for o in found["output"].strip(".").split("...")]
    state = held and held.as_json()
    everything = {f"{name}.value": v for name, v in explorer._values(held or FIRST).items()}
    everything |= {"state.data": state, "layer.value": held and held.layer, **(values or {})}
    body = {
        "output": found["output"], "outputs": outputs, "inputs": flat(found["inputs"], everything),
        "changedPropIds": [trigger] if trigger else [], "state": flat(found["state"], everything),
    }  # fmt: skip
    answer = client().post("/_dash-update-component", json=body)
    return answer.status_code, (answer.json or {}).get("response", {})


def upload(filename: str, data: bytes | str) -> dict:
    contents = data if isinstance(data, str) else "data:text/csv;base64," + base64.b64encode(data).decode()
    return {"filename": filename, "contents": contents}


def test_opening_the_page_shows_a_solved_grid():
    status, page = send("", None)
    assert status == 200
    assert page["message"]["children"] == ""
    assert page["state"]["data"] == FIRST.as_json()
    assert page["answer"]["data"]["errors"][-1] < 1e-3
    assert State.from_query(page["link"]["data"]) == FIRST


def test_opening_a_link_shows_its_state_and_a_bad_one_a_message():
    other = turn(FIRST, "task", "heat", {})
    _, page = send("url.search", None, {"url.search": "?" + other.query()})
    assert page["state"]["data"] == other.as_json()
    assert page["task"]["value"] == "heat"
    status, page = send("url.search", None, {"url.search": "?v=1&state=garbage"})
    assert status == 200
    assert "damaged" in page["message"]["children"]
    assert page["state"]["data"] == FIRST.as_json()


def test_two_controls_set_at_once_both_count():
    _, page = send("size.value", FIRST, {"graph.value": "ring", "size.value": 9})
    assert page["state"]["data"]["origin"] == "ring"
    assert len(page["state"]["data"]["nodes"]) == 9


def test_a_refused_control_goes_back_to_what_it_was():
    status, page = send("size.value", FIRST, {"size.value": 1000})
    assert status == 200
    assert page["message"]["children"] == "Expected 2 to 500 nodes, got 1000."
    assert page["size"]["value"] == 25
    assert page["answer"]["data"] is not None


def test_an_edge_list_is_read_with_its_names_and_resistances():
    drawing, remark = read_upload("my.csv", upload("", b"source,target,resistance\na,b,2\nb,c,0.5\n")["contents"])
    assert drawing.names == ("a", "b", "c")
    assert drawing.ohms == (2.0, 0.5)
    assert remark == ""
    drawing, _ = read_upload("my.tsv", upload("", b"source\ttarget\tconductance\na\tb\t4\n")["contents"])
    assert drawing.ohms == (0.25,)
    drawing, _ = read_upload("my.txt", upload("", "# ours\nü <b>\n<b> c\n".encode())["contents"])
    assert drawing.names == ("ü", "<b>", "c")


OWN_FILES = {
    "the README's": ("a.csv", "source,target,ohm\nhome,shop,2\nshop,park,3\n", ""),
    "weights first": ("a.csv", "ohm,source,target\n2,home,shop\n3,shop,park\n", ""),
    "a byte order mark and Windows' lines": ("a.csv", "\ufeffsource,target,ohm\r\nhome,shop,2\r\nshop,park,3\r\n", ""),
    "semicolons": ("a.csv", "von;nach;Widerstand\nhome;shop;2\nshop;park;3\n", "--sep ';' --resistance Widerstand"),
    "unusual columns": (
        "a.csv", "id,left,right,r\n1,home,shop,2\n2,shop,park,3\n", "--source left --target right --resistance r"
    ),
    "numbers of columns": ("a.txt", "home shop 2\nshop park 3\n", "--resistance 3 --no-header"),
    "names with commas": ("a.csv", 'source,target,ohm\n"home",shop,2\nshop,"park, big",3\n', ""),
    "GraphML": (
        "a.graphml",
        '<graphml xmlns="http://graphml.graphdrawing.org/xmlns"><key id="d" for="edge" attr.name="r" attr.type="double"/>'
        '<graph edgedefault="undirected"><node id="home"/><node id="shop"/><node id="park"/>'
        '<edge source="home" target="shop"><data key="d">2</data></edge>'
        '<edge source="shop" target="park"><data key="d">3</data></edge></graph></graphml>',
        "--resistance r",
    ),
    "Matrix Market": (
        "a.mtx", "%%MatrixMarket matrix coordinate real symmetric\n3 3 2\n2 1 2\n3 2 3\n", "--resistance entries"
    ),
}  # fmt: skip


@pytest.mark.parametrize("kind", sorted(OWN_FILES))
def test_a_file_is_read_as_the_command_line_reads_it(kind, tmp_path):
    name, text, options = OWN_FILES[kind]
    file = {**upload(name, text.encode()), "options": options}
    status, page = send("file.data", SMALL, {"file.data": file})
    assert (status, page["message"]["children"]) == (200, "")
    assert sorted(ohm for _, _, ohm in page["state"]["data"]["edges"]) == [2.0, 3.0]
    (tmp_path / name).write_bytes(text.encode())
    named = [] if "resistance" in options else ["--resistance", "ohm"]
    run = CliRunner().invoke(command_line, ["solve", str(tmp_path / name), *shlex.split(options), *named])
    assert run.exit_code == 0, run.stderr
    labels = {name for name, _, _ in page["state"]["data"]["nodes"]}
    assert {cell for row in csv.reader(run.stdout.splitlines()[1:]) for cell in row[:2]} == labels


def test_a_column_that_is_not_read_is_said():
    file = upload("a.csv", b"source,target,weight\na,b,2\nb,c,3\n")
    _, page = send("file.data", SMALL, {"file.data": file})
    assert page["message"]["children"].startswith(
        "Every edge has one ohm: column 'weight' of a.csv is not read (--resistance"
    )
    assert [ohm for _, _, ohm in page["state"]["data"]["edges"]] == [1.0, 1.0]


@pytest.mark.parametrize("name", ["size", "layers", "time", "which"])
@pytest.mark.parametrize(("given", "told"), [(None, "got nothing"), (10**6, "got 1e+06"), (-1, "got -1"), (2.5, "2.5")])
def test_a_number_out_of_range_is_told_with_the_range(name, given, told):
    if (name, given) == ("time", 2.5):
        return
    held = turn(turn(turn(FIRST, "task", "heat", {}), "task", "eigenvector", {}), "size", 6, {})
    status, page = send(f"{name}.value", held, {f"{name}.value": given})
    message = page["message"]["children"]
    assert status == 200
    assert told.replace("1e+06", "1000000" if name == "size" else "1e+06") in message
    assert message.startswith("Expected")
    assert "None" not in message
    assert page["state"]["data"] == held.as_json()


def malformed() -> Iterator[object]:
    """Three hundred files that hold no graph for this page, thirty kinds of them, ten of each."""
    draw = random.Random(0)
    for i in range(1, 11):
        noise = bytes(draw.randrange(256) for _ in range(20 * i)) + b"\xff\xfe\x00"
        many = "\n".join(f"{u},{u + 1}" for u in range(MOST_NODES + i)).encode()
        dense = "\n".join(f"{u},{v}" for u in range(MOST_EDGES // 40 + 15) for v in range(u))[: -i or None].encode()
        bad_number = draw.choice(
            ["-1", "0", "nan", "inf", "-inf", "1e-9", "1e9", "one", "", "0x10", "5 ohm", "__import__('os')"]
        )
        head = b"source,target,resistance\n"
        graphml = b'<graphml><graph edgedefault="undirected"><node id="a"/><edge source="a" target="b">'
        market = b"%%MatrixMarket matrix coordinate real symmetric\n"
        yield upload("noise.csv", noise)
        yield upload("many.csv", many)
        yield upload("dense.csv", dense)
        yield upload("weight.csv", head + f"a,b,{bad_number}".encode())
        yield upload("short.csv", head + b"a,b,1\n" * i + b"a,b")
        yield upload("one.csv", b"a\n" * i)
        yield upload("empty.csv", b"\n" * (i - 1))
        yield upload("comments.csv", b"# nothing\n" * i)
        yield upload("bomb.csv.gz", gzip.compress(b"a,b\n" * 10**6) if i % 2 else gzip.compress(b"a,b\n")[:-i])
        yield upload("header.csv", b"source,target\n" + b"\n" * i)
        yield upload("ambiguous.csv", b"a,b,c\n" + b"a,b,1\n" * i)
        yield upload("big.csv", b"a,b\n" * (MOST_BYTES // 4 + i))
        yield upload("name.csv", b"a" * (LONGEST_NAME + i) + b",b\n")
        yield upload("control.csv", b"a" + bytes([i]) + b"z,b\n" if i not in (9, 10) else b"a\x7fz,b\n")
        yield upload("utf16.csv", ("a,b\n" * i).encode("utf-16"))
        yield upload("latin.csv", b"a,b\n" * i + b"caf\xe9,b\n")
        yield upload(draw.choice(["x.exe", "x", "", "../../etc/passwd", "x.pkl", "x.html", "..", "x.json"]), b"a,b\n")
        yield upload("broken.csv", "data:text/csv;base64," + "A" * (4 * i + 1))
        yield upload("nameless.csv", b"a,\n" * i)
        yield upload("quote.csv", b"a,b\n" * i + b'"a,b\n')
        yield upload("negative.csv", b"siemens,source,target\n" + b"1,a,b\n" * i + b"-1,a,b\n")
        yield upload("cut.graphml", graphml[: 12 * i])
        yield upload("text.graphml", b"a,b\n" * i)
        yield upload("cut.mtx", market + b"3 3 2\n2 1 2\n"[: i + 1])
        yield upload("text.mtx", b"a b\n" * i)
        yield upload("noise.npz", noise if i % 2 else b"PK\x03\x04" + noise)
        yield {**upload("negative.mtx", market + b"2 2 1\n2 1 -%d\n" % i), "options": "--resistance entries"}
        yield upload("text.m", b"function x\n" * i)
        yield {
            **upload("a.csv", b"a,b\nb,c\n"),
            "options": draw.choice(["--magic", "--sep", "--sep 'x", "a", "--header --", "x" * 300]),
        }
        yield draw.choice(
            [None, [], "text", 7, {}, {"filename": "x.csv"}, {"contents": "x"}, {"filename": 1, "contents": 2}]
        )


def test_300_malformed_uploads_give_300_messages_and_no_server_error(caplog):
    files = list(malformed())
    assert len(files) == 300
    with caplog.at_level(logging.ERROR):
        for file in files:
            status, page = send("file.data", SMALL, {"file.data": file})
            message = page["message"]["children"]
            assert (status, bool(message)) == (200, True), file
            assert message != explorer.SORRY, file
            assert "\n" not in message
            assert len(message) <= 301
            assert page["state"]["data"] == SMALL.as_json()
    assert not caplog.records


def test_what_nobody_expected_is_a_message_and_a_line_in_the_log(monkeypatch, caplog):
    def broken(*_):
        raise ZeroDivisionError("never shown")

    monkeypatch.setattr(explorer, "answered", broken)
    with caplog.at_level(logging.ERROR):
        status, page = send("task.value", FIRST, {"task.value": "heat"})
    assert status == 200
    assert page["message"]["children"] == explorer.SORRY
    assert "never shown" not in str(page)
    assert "ZeroDivisionError" in caplog.text


@pytest.mark.parametrize("held", [{}, [], "x", 7, {"v": 1}, {"v": 1, "nodes": "x"}, {**FIRST.as_json(), "layers": "many"}])
def test_a_state_that_was_tampered_with_is_replaced(held):
    request = explorer.Request({}, "task", None, None, held, 3)
    page = explorer.respond(request, {})
    assert page["message"]
    assert page["state"] == FIRST.as_json()


def test_going_back_opens_what_the_address_says():
    other = turn(FIRST, "task", "heat", {})
    _, page = send("url.search", FIRST, {"url.search": "?" + other.query()})
    assert page["state"]["data"] == other.as_json()


def test_the_exported_page_holds_every_layer_of_both_constructions_and_asks_for_nothing():
    state = turn(SMALL, "beside", "squaring", {})
    answer = client().get("/export.html?" + state.query())
    assert answer.status_code == 200
    text = answer.text
    held = json.loads(text.partition('id="data">')[2].partition("</script>")[0])
    assert State.from_json(held["state"]) == state
    for run, method in ((held["answer"], "cubing"), (held["answer"]["beside"], "squaring")):
        alone = turn(replace(state, beside="", layer=0), "method", method, {})
        assert run["values"][-1] == pytest.approx(solve(alone, {}).values[-1].tolist(), rel=1e-7, abs=1e-12)
        assert len(run["values"]) == len(run["errors"]) == run["layers"] + 1
    assert not re.findall(r"(?:src|href)=", text)
    assert set(re.findall(r"https?://[^\s\"']*", text)) <= {"http://www.w3.org/2000/svg"}
    assert len(text) < 200_000
    bad = client().get("/export.html?v=1&state=garbage")
    assert (bad.status_code, bad.text) == (400, "Expected a whole link, this one is damaged.")


def test_a_name_cannot_end_the_script_of_an_exported_page():
    drawing, _ = read_upload("a.csv", upload("", b"source,target\n</script><b>,b\n")["contents"])
    text = standalone(with_graph(SMALL, drawing, "upload", {}), {})
    assert text.count("</script>") == 2
    assert "</script><b>" not in text


def test_requests_beyond_the_limit_are_refused():
    answer = client().post("/_dash-update-component", json={"output": "x" * explorer.MOST_REQUEST})
    assert answer.status_code == 413


def test_the_policy_keeps_the_browser_at_home():
    policy = client().get("/").headers["Content-Security-Policy"]
    assert "default-src 'self'" in policy
    assert "unsafe-eval" not in policy
    assert "http" not in policy


def test_the_command_says_what_is_wrong_in_one_line(tmp_path):
    run = CliRunner().invoke(command_line, ["explore", "--checkpoint", str(tmp_path)])
    assert run.exit_code == 2
    assert "expected a checkpoint" in run.stderr
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        run = CliRunner().invoke(command_line, ["explore", "--port", str(taken.getsockname()[1])])
    assert run.exit_code == 2
    assert "error: expected to listen on 127.0.0.1" in run.stderr


def test_the_page_listens_to_this_computer_only():
    server = listen([])
    try:
        assert server.server_address[0] == "127.0.0.1"
    finally:
        server.server_close()
