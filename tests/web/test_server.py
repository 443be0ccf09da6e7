"""The live server: whom it answers, what it refuses, and what it computes."""

from __future__ import annotations

import json
import re
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from http.client import HTTPConnection
from threading import Thread
from typing import Any

import pytest

from tests.cli.running import refused, weft
from weft.cost import Share
from weft.errors import ProgramError
from weft.notation import to_json, to_text, to_torch_csv
from weft.schedules import one_f_one_b, pipedream
from weft.simulate import simulate
from weft.timeline import Timeline
from weft.web.answers import ANSWERS
from weft.web.requests import LIMITS
from weft.web.server import Server

Answer = tuple[int, Any]


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    with Server() as running:
        Thread(target=running.serve_forever, daemon=True).start()
        yield running
        running.shutdown()


def ask(
    server: Server, method: str, path: str, body: bytes = b"", **headers: str
) -> tuple[int, bytes]:
    connection = HTTPConnection("127.0.0.1", server.port, timeout=20)
    connection.putrequest(method, path, skip_host=True)
    given = {"Host": f"127.0.0.1:{server.port}", "Content_Length": str(len(body)), **headers}
    for name, value in given.items():
        connection.putheader(name.replace("_", "-"), value)
    connection.endheaders(body)
    response = connection.getresponse()
    content = response.read()
    connection.close()
    return response.status, content


def post(server: Server, path: str, question: object, **headers: str) -> Answer:
    body = json.dumps(question).encode()
    status, content = ask(
        server, "POST", path, body, **{"Content_Type": "application/json", **headers}
    )
    return status, json.loads(content)


def request(**changes: object) -> dict[str, object]:
    return {"schedule": "1f1b", "devices": 4, "microbatches": 8, "stages_per_device": 1} | changes


def answer(server: Server, **changes: object) -> Any:
    status, content = post(server, "/timelines", {"requests": [request(**changes)]})
    assert status == 200
    return content["answers"][0]


# whom it answers


def test_the_page_is_served(server: Server) -> None:
    status, content = ask(server, "GET", "/")
    assert status == 200
    assert b'"live":' in content
    assert b"connect-src 'self'" in content


def test_it_listens_on_loopback(server: Server) -> None:
    assert server.server_address[0] == "127.0.0.1"


@pytest.mark.parametrize("host", ["evil.example", "evil.example:80", "127.0.0.1", "", "[::1]"])
def test_only_by_its_own_name(server: Server, host: str) -> None:
    assert ask(server, "GET", "/", Host=host)[0] == 403
    assert post(server, "/timelines", {"requests": [request()]}, Host=host)[0] == 403


def test_localhost_is_its_name_too(server: Server) -> None:
    assert ask(server, "GET", "/", Host=f"localhost:{server.port}")[0] == 200


def test_no_other_page_may_ask(server: Server) -> None:
    question = {"requests": [request()]}
    assert post(server, "/timelines", question, Origin="http://evil.example")[0] == 403
    assert post(server, "/timelines", question, Content_Type="text/plain")[0] == 422
    assert post(server, "/timelines", question, Origin=server.address.rstrip("/"))[0] == 200


@pytest.mark.parametrize("path", ["/etc/passwd", "/../server.py", "/app.js", "/?x"])
def test_there_is_nothing_else(server: Server, path: str) -> None:
    assert ask(server, "GET", path)[0] == 404
    assert post(server, path, {})[0] == 404


# what it refuses


def test_too_long_a_question(server: Server) -> None:
    status, content = ask(
        server,
        "POST",
        "/open",
        Content_Type="application/json",
        Content_Length=str(1 << 40),
    )
    assert status == 422
    assert b"MiB" in content


@pytest.mark.parametrize("length", ["-1", "many", "1e3", ""])
def test_a_length_that_is_none(server: Server, length: str) -> None:
    status, _ = ask(server, "POST", "/open", Content_Type="application/json", Content_Length=length)
    assert status == 422


@pytest.mark.parametrize("body", [b"", b"{", b"[]", b"3", b"\xff", b"[" * 100_000])
def test_questions_that_are_no_objects(server: Server, body: bytes) -> None:
    status, content = ask(server, "POST", "/timelines", body, Content_Type="application/json")
    assert status == 422
    assert json.loads(content)["refused"]


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"devices": 10**9}, "devices: 1000000000 is not a whole number from 1 to 256"),
        ({"devices": 0}, "devices: 0 is not a whole number from 1 to"),
        ({"devices": True}, "devices: True is not a whole number"),
        ({"devices": "4"}, "devices: '4' is not a whole number"),
        ({"microbatches": 2.5}, "microbatches: 2.5 is not a whole number"),
        ({"forward": -1}, "forward: -1 is not a finite number from 0 up"),
        ({"forward": "1"}, "forward: '1' is not a finite number from 0 up"),
        ({"latency": 1e300}, "latency: 1e+300 is not a finite number from 0 up"),
        ({"schedule": "1f2b"}, "Did you mean 1f1b?"),
        ({"schedule": ["1f1b"]}, "schedule: ['1f1b'] is not a short text"),
        ({"devices": 256, "microbatches": 4096}, f"the page shows {LIMITS.actions:,}"),
    ],
)
def test_what_makes_no_sense_is_refused(
    server: Server, changes: dict[str, object], reason: str
) -> None:
    assert reason in answer(server, **changes)["refused"]


@pytest.mark.parametrize(
    "question", [{}, {"requests": []}, {"requests": [1] * 99}, {"requests": 1}]
)
def test_no_requests_or_too_many(server: Server, question: object) -> None:
    status, content = post(server, "/timelines", question)
    assert status == 422
    assert "requests are answered at once" in content["refused"]


def test_a_shape_that_is_refused_says_why_and_what_works(server: Server) -> None:
    refusal = answer(server, schedule="dualpipe", devices=3, microbatches=8)
    assert refusal["refused"] == "dualpipe needs an even number of devices."
    assert refusal["nearest"]["devices"] == 4
    mended = answer(server, schedule="dualpipe", **refusal["nearest"])
    assert "timeline" in mended


def test_a_model_with_too_few_layers_says_for_which_schedule(server: Server) -> None:
    model = {"model": "gpt-6.2b", "device": "a100", "devices": 31, "microbatches": 31}
    message = answer(server, **model)["refused"]
    assert message.startswith("1f1b: 30 layers do not fill 31 stages; take fewer devices or stages")


def test_an_answer_may_hold_both(server: Server) -> None:
    asked = {"requests": [request(), request(schedule="chimera", devices=3)]}
    _, content = post(server, "/timelines", asked)
    assert "timeline" in content["answers"][0]
    assert "refused" in content["answers"][1]


# what it computes


def test_a_timeline_is_that_of_the_engine(server: Server) -> None:
    shown = answer(server)["timeline"]
    assert shown["makespan"] == simulate(one_f_one_b(devices=4, microbatches=8)).makespan


def test_links_and_memory_count(server: Server) -> None:
    plain = answer(server)["timeline"]["makespan"]
    assert answer(server, latency=0.5)["timeline"]["makespan"] > plain
    assert answer(server, bandwidth=2)["timeline"]["makespan"] > plain
    assert answer(server, capacity=3)["timeline"]["memory"]["capacity"] == 3
    assert answer(server)["timeline"]["memory"]["capacity"] is None


def test_updates_of_an_asynchronous_run(server: Server) -> None:
    def ended(updates: int) -> Any:
        return answer(server, schedule="pipedream", updates=updates)["timeline"]["makespan"]

    assert ended(4) > ended(2)
    assert answer(server, updates=4)["timeline"]["makespan"] == 33  # 1f1b is synchronous


@pytest.mark.parametrize("name", ["1f1b", "kimi-k2", "pipedream"])
def test_streams(server: Server, name: str) -> None:
    stages = 2 if name == "kimi-k2" else 1
    shown = answer(server, schedule=name, stages_per_device=stages, streams=True)["timeline"]
    assert {lane["row"] for lane in shown["lanes"]} == {"compute", "comm", "copy"}


def test_the_plot_has_a_point_for_each_variant(server: Server) -> None:
    status, content = post(server, "/plot", {"request": request(schedule="chimera")})
    assert status == 200
    assert [point["name"] for point in content["points"]] == [
        "chimera",
        "chimera (doubling)",
        "chimera (halving)",
    ]
    _, content = post(server, "/plot", {"request": request(schedule="dualpipe", devices=3)})
    assert "needs an even number of devices" in content["points"][0]["refused"]


def test_a_run_is_compared_by_its_step_once_settled(server: Server) -> None:
    for updates in (2, 6):
        shown = answer(server, schedule="pipedream", updates=updates)["timeline"]
        figures = {figure["name"]: figure for figure in shown["figures"]}
        assert figures["step"]["value"] == pytest.approx(24)
        assert figures["messages"]["value"] == 48
        assert not figures["run"]["is_compared"]


def test_where_memory_is_short_the_plot_has_what_fits(server: Server) -> None:
    _, content = post(server, "/plot", {"request": request(capacity=3.5)})
    found = {point["name"]: point for point in content["points"]}
    assert not found["1f1b"]["is_fitting"]
    eased = found["1f1b --recompute all"]
    assert eased["is_fitting"]
    shown = answer(server, capacity=3.5, relief=eased["relief"])["timeline"]
    assert shown["name"] == "1f1b --recompute all"
    assert max(shown["memory"]["peaks"]) == eased["memory"] <= 3.5
    assert shown["makespan"] == eased["time"]
    assert shown["group"] == "exact gradients"
    assert answer(server, capacity=3.5)["timeline"]["group"] == "does not fit"


def test_relief_is_one_that_there_is(server: Server) -> None:
    assert "relief is one of" in answer(server, relief="--nothing")["refused"]
    shown = answer(server, relief="--recompute all", streams=True)["timeline"]
    assert {lane["row"] for lane in shown["lanes"]} == {"compute", "comm", "copy"}


def test_a_run_in_a_file_is_compared_by_the_pages_step(server: Server) -> None:
    text = to_text(pipedream(devices=4, microbatches=2, updates=16))
    _, content = post(server, "/open", {"name": "run.txt", "text": text, "microbatches": 8})
    figures = {figure["name"]: figure["value"] for figure in content["timelines"][0]["figures"]}
    assert figures["step"] == pytest.approx(24)
    _, content = post(server, "/open", {"name": "program.txt", "text": FILES["program.txt"]})
    assert content["timelines"][0]["step"] == 4


def test_what_would_help(server: Server) -> None:
    _, content = post(server, "/helps", {"request": request()})
    helps = content["helps"]
    assert {help["stage"] for help in helps["stages"]} <= set(range(4))
    assert "every forward 10% shorter" in [change["words"] for change in helps["changes"]]


PROGRAM = one_f_one_b(devices=2, microbatches=4)
FILES = {
    "program.json": to_json(PROGRAM),
    "program.txt": to_text(PROGRAM),
    "table.csv": to_torch_csv(PROGRAM),
    "timeline.json": to_json(simulate(PROGRAM)),
}


@pytest.mark.parametrize("name", FILES)
def test_files_are_opened(server: Server, name: str) -> None:
    status, content = post(server, "/open", {"name": name, "text": FILES[name]})
    assert status == 200
    assert content["timelines"][0]["makespan"] == simulate(PROGRAM).makespan


def test_a_program_is_timed_at_the_costs_that_are_chosen(server: Server) -> None:
    asked = {"name": "program.txt", "text": to_text(PROGRAM), "costs": {"forward": 3}}
    _, content = post(server, "/open", asked)
    cost = Share(forward=3).cost(PROGRAM)
    assert content["timelines"][0]["makespan"] == simulate(PROGRAM, cost).makespan


def test_a_body_that_repeats_endlessly_is_refused_before_it_is_unrolled(server: Server) -> None:
    program = pipedream(devices=2, microbatches=4)
    assert program.period
    endless = replace(program, period=replace(program.period, repeats=10**7))
    status, content = post(server, "/open", {"name": "x.json", "text": to_json(endless)})
    assert status == 422
    assert f"the page shows {LIMITS.actions:,}" in content["refused"]


def test_a_reader_who_leaves_is_no_error(server: Server, capfd: pytest.CaptureFixture[str]) -> None:
    for error in (BrokenPipeError(), ConnectionResetError()):
        try:
            raise error
        except ConnectionError:
            server.handle_error(None, ("127.0.0.1", 1))
    assert capfd.readouterr().err == ""


def test_a_timeline_of_a_program_that_cannot_have_run_is_refused(server: Server) -> None:
    """Its critical path would go round in circles."""
    lanes = PROGRAM.contents()
    turned = {lane: actions.take(slice(None, None, -1)) for lane, actions in lanes.items()}
    times = simulate(PROGRAM)
    timeline = Timeline(PROGRAM.with_lanes(turned), times.cost, times.start, times.end)
    status, content = post(server, "/open", {"name": "x.json", "text": to_json(timeline)})
    assert status == 422
    assert "whose result it reads" in content["refused"]
    with pytest.raises(ProgramError, match="never ends"):
        assert timeline.critical_path.actions


BROKEN = to_text(PROGRAM).replace("0F1 ", "")


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", "x.json: it is empty"),
        ("{", "x.json"),
        ('{"format": "weft.cost"}', "x.json"),
        ("import os; os.abort()", "x.json"),
        (BROKEN, "0F1"),
        ("\0\0\0", "x.json"),
    ],
)
def test_bad_files_are_refused_with_a_reason(server: Server, text: str, reason: str) -> None:
    status, content = post(server, "/open", {"name": "x.json", "text": text})
    assert status == 422
    assert reason in content["refused"]


# whatever is sent


def raw(server: Server, head: str, body: bytes = b"") -> tuple[int, str]:
    """The status and the text of the answer to bytes as they are."""
    with socket.create_connection(("127.0.0.1", server.port), timeout=60) as connection:
        connection.sendall(head.replace("HOST", f"127.0.0.1:{server.port}").encode("latin-1"))
        connection.sendall(body)
        connection.shutdown(socket.SHUT_WR)
        answered = b"".join(iter(lambda: connection.recv(1 << 16), b"")).decode()
    status = re.match(r"HTTP/1.1 (\d+)|.*Error code: (\d+)", answered, re.DOTALL)
    assert status is not None, answered[:80]
    return int(status[1] or status[2]), answered


POST = "POST /open HTTP/1.1\r\nHost: HOST\r\nContent-Type: application/json\r\n"


@pytest.mark.parametrize(
    "origin",
    ["http://[", "http://[::1", "http://]", "null", "//", "\x01", "é", "http://" + "a" * 60_000],
)
def test_an_origin_that_is_no_address_is_refused(server: Server, origin: str) -> None:
    assert raw(server, f"GET / HTTP/1.1\r\nHost: HOST\r\nOrigin: {origin}\r\n\r\n")[0] == 403
    assert raw(server, f"{POST}Origin: {origin}\r\nContent-Length: 2\r\n\r\n", b"{}")[0] == 403


@pytest.mark.parametrize("length", ["9" * 5000, "٣", "+2", "2 2", "0x2", " ", "2;3"])
def test_a_length_that_is_no_number_is_refused(server: Server, length: str) -> None:
    written = length.encode().decode("latin-1")
    status, answered = raw(server, f"{POST}Content-Length: {written}\r\n\r\n", b"{}")
    assert status == 422
    assert "longer than" in answered or "no length" in answered


def test_leading_zeros_are_a_number(server: Server) -> None:
    status, answered = raw(server, f"{POST}Content-Length: {'0' * 5000}2\r\n\r\n", b"{}")
    assert (status, "a name and a text" in answered) == (422, True)


@pytest.mark.parametrize(
    "head",
    [
        "GARBAGE\r\n\r\n",
        "GET / HTTP/9.9\r\n\r\n",
        "GET /" + "a" * 70_000 + " HTTP/1.1\r\nHost: HOST\r\n\r\n",
        "GET / HTTP/1.1\r\n" + "X: 1\r\n" * 200 + "\r\n",
        "GET / HTTP/1.1\r\n\r\n",
        "GET http://[ HTTP/1.1\r\nHost: HOST\r\n\r\n",
        "DELETE / HTTP/1.1\r\nHost: HOST\r\n\r\n",
        "POST /open HTTP/1.1\r\nHost: [\r\n\r\n",
        POST + "Transfer-Encoding: chunked\r\n\r\n2\r\n{}\r\n0\r\n\r\n",
        POST + "Content-Type: ;;;=\r\nContent-Length: 2\r\n\r\n{}",
        POST + "Content-Length: 50\r\n\r\n{}",
    ],
)
def test_every_request_gets_an_answer(
    server: Server, head: str, capfd: pytest.CaptureFixture[str]
) -> None:
    status, _ = raw(server, head)
    assert 400 <= status < 600
    assert "Traceback" not in capfd.readouterr().err


def test_who_sends_too_much_sees_the_answer(server: Server) -> None:
    body = b'{"name": [' + b"[]," * (21 << 20) + b"[]]}"
    status, answered = raw(server, f"{POST}Content-Length: {len(body)}\r\n\r\n", body)
    assert (status, "longer than the 32 MiB" in answered) == (422, True)


@pytest.mark.parametrize("sign", [b"[],", b"{},", b"1,", b'"",'])
def test_a_question_is_small_outside_its_texts(server: Server, sign: bytes) -> None:
    body = b'{"name": [' + sign * 300_000 + b"1]}"
    status, content = ask(server, "POST", "/open", body, Content_Type="application/json")
    assert status == 422
    assert b"256 KiB outside its texts" in content


@pytest.mark.parametrize("text", [b'\\"', b'"', b"\\\\", b"\\", b"\xff"])
def test_a_text_that_never_ends_is_no_json(server: Server, text: bytes) -> None:
    body = b'{"name": "' + text * 1_000_001
    status, content = ask(server, "POST", "/open", body, Content_Type="application/json")
    assert (status, json.loads(content)["refused"]) == (422, "the question is no JSON")


def test_a_fault_of_the_server_is_answered(
    server: Server, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(ANSWERS, "/plot", lambda asked: {"points": 1 // len(asked)})
    status, content = post(server, "/plot", {})
    assert status == 500
    assert "ZeroDivisionError" in content["refused"]
    assert "Traceback" in capfd.readouterr().err
    assert post(server, "/plot", {"one": 1})[0] == 200


# the command


def test_serve_ends_with_an_interrupt() -> None:
    command = [sys.executable, "-m", "weft", "serve", "--port", "0", "--no-open"]
    running = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert running.stdout is not None
    line = running.stdout.readline()
    assert line.startswith("The page is at http://127.0.0.1:")
    running.send_signal(signal.SIGINT)
    _, message = running.communicate(timeout=20)
    assert running.returncode == 0
    assert message == ""


def test_others_see_it_only_where_that_is_meant() -> None:
    refused(weft("serve", "--host", "192.0.2.1", "--no-open"), "add --allow-others")
    refused(weft("serve", "--host", "0.0.0.0", "--allow-others"), "that browsers will ask for")
    elsewhere = weft("serve", "--host", "192.0.2.1", "--allow-others", "--no-open")
    refused(elsewhere, "Give --host an address of this machine")
    refused(weft("serve", "--host", "example.org"), "an address like 127.0.0.1")


def test_a_port_that_is_taken(server: Server) -> None:
    refused(weft("serve", "--port", str(server.port), "--no-open"), "Try --port 0")


def test_ipv6(server: Server) -> None:
    if not socket.has_ipv6:
        pytest.skip("this machine has no IPv6")
    try:
        other = Server("::1")
    except OSError:
        pytest.skip("this machine has no loopback of IPv6")
    with other:
        assert other.address == f"http://[::1]:{other.port}/"
        assert other.knows(f"[::1]:{other.port}")
