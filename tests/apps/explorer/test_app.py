"""The server answers everything with a page: bad input is a message, and nobody's mistake is a stack trace."""

import base64
import logging
import random
import socket
from collections.abc import Iterator
from functools import cache

import pytest
from typer.testing import CliRunner

pytest.importorskip("dash")

from ohmformer.apps.command_line.main import app as command_line
from ohmformer.apps.explorer import app as explorer
from ohmformer.apps.explorer.drawing import MOST_EDGES, MOST_NODES
from ohmformer.apps.explorer.server import listen
from ohmformer.apps.explorer.state import State
from ohmformer.apps.explorer.turns import first_state, turn
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
    assert page["message"]["children"] == "Expected 2 to 100 nodes, got 1000."
    assert page["size"]["value"] == 25
    assert page["answer"]["data"] is not None


def test_an_edge_list_is_read_with_its_names_and_resistances():
    drawing = read_upload("my.csv", upload("", b"source,target,resistance\na,b,2\nb,c,0.5\n")["contents"])
    assert drawing.names == ("a", "b", "c")
    assert drawing.ohms == (2.0, 0.5)
    drawing = read_upload("my.tsv", upload("", b"source\ttarget\tconductance\na\tb\t4\n")["contents"])
    assert drawing.ohms == (0.25,)
    drawing = read_upload("my.txt", upload("", "# ours\nü <b>\n<b> c\n".encode())["contents"])
    assert drawing.names == ("ü", "<b>", "c")


def malformed() -> Iterator[object]:
    """Two hundred files that hold no graph for this page, twenty kinds of them, ten of each."""
    draw = random.Random(0)
    for i in range(1, 11):
        noise = bytes(draw.randrange(256) for _ in range(20 * i)) + b"\xff\xfe\x00"
        many = "\n".join(f"{u},{u + 1}" for u in range(MOST_NODES + i)).encode()
        dense = "\n".join(f"{u},{v}" for u in range(40) for v in range(u))[: -i or None].encode()
        bad_number = draw.choice(
            ["-1", "0", "nan", "inf", "-inf", "1e-9", "1e9", "one", "", "0x10", "5 ohm", "__import__('os')"]
        )
        head = b"source,target,resistance\n"
        yield upload("noise.csv", noise)
        yield upload("many.csv", many)
        yield upload("dense.csv", dense)
        yield upload("weight.csv", head + f"a,b,{bad_number}".encode())
        yield upload("short.csv", head + b"a,b,1\n" * i + b"a,b")
        yield upload("one.csv", b"a\n" * i)
        yield upload("empty.csv", b"\n" * (i - 1))
        yield upload("comments.csv", b"# nothing\n" * i)
        yield upload("header.csv", b"source,target\n" + b"\n" * i)
        yield upload("unnamed.csv", f"a,b,{i}\n".encode())
        yield upload("both.csv", b"source,target,resistance,conductance\n" + b"a,b,1,1\n" * i)
        yield upload("big.csv", b"a,b\n" * (MOST_BYTES // 4 + i))
        yield upload("lines.csv", b"#\n" * (4 * MOST_EDGES + i))
        yield upload("name.csv", b"a" * (24 + i) + b",b\n")
        yield upload("control.csv", b"a" + bytes([i]) + b"z,b\n" if i not in (9, 10) else b"a\x7fz,b\n")
        yield upload("utf16.csv", ("a,b\n" * i).encode("utf-16"))
        yield upload(draw.choice(["x.graphml", "x.exe", "x.npz", "x", "", "../../etc/passwd", "x.pkl", "x.mtx"]), b"a,b\n")
        yield upload("broken.csv", "data:text/csv;base64," + "A" * (4 * i + 1))
        yield upload("nameless.csv", b"a,\n" * i)
        yield draw.choice(
            [None, [], "text", 7, {}, {"filename": "x.csv"}, {"contents": "x"}, {"filename": 1, "contents": 2}]
        )


def test_200_malformed_uploads_give_200_messages_and_no_server_error(caplog):
    files = list(malformed())
    assert len(files) == 200
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

    monkeypatch.setattr(explorer, "solve", broken)
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
