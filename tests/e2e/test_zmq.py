"""The ZeroMQ front end (proto/inferd.proto, docs/zmq.md) against the daemon, with the client of examples/zmq_client.py.

Answers are compared with those of HTTP for the same request; then every way in which a client can be wrong, gone, slow
or unwelcome, each with the daemon's counters back at rest."""
import contextlib
import os
import random
import signal
import subprocess
import sys
import time

import pytest
from conftest import LONG, binary, mini_daemon
from pace import at_best, until
from rawhttp import Raw, get
from zmqclient import PB2_DIR, ROOT, Client, answer, connect, endpoint_of, pb, zmq

pytestmark = pytest.mark.sanitizer

LONG_RUN = dict(prompts=[b"a"], max_tokens=8000, ignore_eos=True)  # 8 s and more


@pytest.fixture(scope="module")
def server(start):
    return start(step_us=1000, context=8192, zmq="tcp://127.0.0.1:*")


@pytest.fixture
def client(server):
    c = connect(server)
    yield c
    c.close()
    assert server.process.poll() is None, "the daemon died"


def kinds(responses):
    return [r.WhichOneof("body") for r in responses]


def error_of(client, **fields):
    last = list(client.generate(**fields))[-1]
    assert last.WhichOneof("body") == "error", last
    return last.error


# --- answers ---

def test_a_stream_and_a_whole_answer_are_what_http_answers(server, client):
    fields = dict(max_tokens=12, seed=7, ignore_eos=True)
    wanted = server.complete(**fields).json()["choices"][0]["text"].encode()
    whole, last, responses = answer(client, prompts=[b"Once upon a time"], **fields)
    assert whole == wanted and kinds(responses) == ["started", "chunk", "done"]

    def one_by_one():
        streamed, last, responses = answer(client, prompts=[b"Once upon a time"], stream=True, **fields)
        assert streamed == wanted and kinds(responses)[0] == "started" and kinds(responses)[-1] == "done"
        assert last.done.usage.completion_tokens == 12 and last.done.usage.prompt_tokens == 4
        assert len(responses) > 8, len(responses)
    at_best(one_by_one)  # where the sender or the reader is held up several tokens come in a chunk


def test_messages_are_rendered_as_http_renders_them(server, client):
    fields = dict(max_tokens=6, seed=3, ignore_eos=True)
    wanted = server.chat("Hello there", **fields).json()
    turn = pb.ChatMessage(role="user", content=b"Hello there")
    text, last, _ = answer(client, messages=[turn], **fields)
    assert text.decode() == wanted["choices"][0]["message"]["content"]
    assert last.done.usage.prompt_tokens == wanted["usage"]["prompt_tokens"]
    ids = client.ask(tokenize=pb.Tokenize(messages=[turn])).tokenize
    assert len(ids.ids) == last.done.usage.prompt_tokens and ids.max_model_len == 8192


def test_ids_in_and_ids_out(client):
    ids = client.ask(tokenize=pb.Tokenize(prompt="Grüße\0 from C".encode())).tokenize.ids
    assert client.ask(detokenize=pb.Detokenize(ids=ids)).detokenize.text == "Grüße\0 from C".encode()
    fields = dict(max_tokens=5, seed=1, ignore_eos=True, return_token_ids=True)
    _, _, responses = answer(client, prompt_ids=[pb.TokenIds(ids=ids)], stream=True, **fields)
    chunks = [r.chunk for r in responses if r.WhichOneof("body") == "chunk"]
    assert list(chunks[0].prompt_token_ids) == list(ids) and not any(c.prompt_token_ids for c in chunks[1:])
    sampled = [i for c in chunks for i in c.token_ids]
    assert len(sampled) == 5 and client.ask(detokenize=pb.Detokenize(ids=sampled)).detokenize.text == b"".join(
        c.text for c in chunks)


def test_choices_stops_and_finish_reasons(server, client):
    fields = dict(prompts=[b"a", b"b"], n=2, max_tokens=4, seed=5, ignore_eos=True)
    responses = list(client.generate(**fields))
    chunks = [r.chunk for r in responses if r.WhichOneof("body") == "chunk"]
    assert [c.index for c in chunks] == [0, 1, 2, 3] and all(c.finish_reason == pb.LENGTH for c in chunks)
    http = server.complete(prompt=["a", "b"], n=2, max_tokens=4, seed=5, ignore_eos=True).json()
    assert [c.text.decode() for c in chunks] == [c["text"] for c in http["choices"]]
    text = chunks[0].text
    stop = text[len(text) // 2:len(text) // 2 + 3]
    stopped = next(r.chunk for r in client.generate(**{**fields, "prompts": [b"a"], "n": 1, "stop": [stop]})
                   if r.WhichOneof("body") == "chunk")
    assert stopped.finish_reason == pb.STOP and stopped.stop_text == stop and text.startswith(stopped.text)
    ids = [r.chunk for r in client.generate(prompts=[b"a"], max_tokens=4, seed=5, ignore_eos=True, return_token_ids=True)
           if r.WhichOneof("body") == "chunk"][0].token_ids
    by_token = next(r.chunk for r in client.generate(prompts=[b"a"], max_tokens=4, seed=5, ignore_eos=True,
                                                     stop_token_ids=[ids[1]]) if r.WhichOneof("body") == "chunk")
    assert by_token.finish_reason == pb.STOP and by_token.stop_token == ids[1]


def test_timings_are_whole(client):
    last = list(client.generate(prompts=[b"a"], max_tokens=3, return_timings=True))[-1].done.timings
    parts = [last.accept_us, last.parse_us, last.template_us, last.tokenize_us, last.submit_us, last.queue_us, last.prefill_us, last.decode_us,
             last.deliver_us]
    assert abs(sum(parts) - last.total_us) < 1 and last.prefill_us > 500 and last.decode_steps == 2


REAL = pytest.mark.skipif("tsan" in str(binary()), reason="a model on the CPU is too slow under TSan to be waited for")


@REAL
def test_log_probabilities_are_those_of_http(start):
    daemon = start(device="cpu", context=512, zmq="tcp://127.0.0.1:*") if not _mini() else pytest.skip("no model")
    client = connect(daemon)
    fields = dict(max_tokens=4, temperature=0, logprobs=True, top_logprobs=3)
    http = daemon.complete("The capital of France is", max_tokens=4, temperature=0, logprobs=3).json()["choices"][0]
    for stream in (False, True):
        text, last, responses = answer(client, prompts=[b"The capital of France is"], stream=stream, **fields)
        entries = [e for r in responses for e in r.chunk.logprobs]
        assert text.decode() == http["text"]
        assert [round(e.logprob, 4) for e in entries] == [round(x, 4) for x in http["logprobs"]["token_logprobs"]]
        assert [e.text_offset for e in entries] == http["logprobs"]["text_offset"]
        assert b"".join(e.token for e in entries) == text and all(len(e.top) == 3 for e in entries)
        assert all(e.top[0].logprob >= e.top[2].logprob for e in entries)
    # echo alone scores a prompt
    responses = list(client.generate(prompts=[b"The capital of France is"], max_tokens=0, echo=True, logprobs=True))
    entries = [e for r in responses for e in r.chunk.logprobs]
    assert len(entries) == responses[-1].done.usage.prompt_tokens and not entries[0].HasField("logprob")
    assert all(e.logprob < 0 for e in entries[1:])
    best = [r.chunk.text for r in client.generate(prompts=[b"Hello"], n=1, best_of=3, max_tokens=4, seed=1)
            if r.WhichOneof("body") == "chunk"]
    wanted = daemon.complete("Hello", n=1, best_of=3, max_tokens=4, seed=1).json()["choices"][0]["text"]
    assert best == [wanted.encode()]
    client.close()


@REAL
def test_a_cache_salt_keeps_prefixes_apart(start):
    daemon = start(device="cpu", context=512, zmq="tcp://127.0.0.1:*") if not _mini() else pytest.skip("no model")
    client = connect(daemon)
    prompt = dict(prompts=[b"one two three four five six seven eight nine ten " * 8], max_tokens=1)
    cached = [list(client.generate(**prompt, **salt))[-1].done.usage.cached_tokens
              for salt in ({}, {}, {"cache_salt": b"mine"}, {"cache_salt": b"mine"}, {"cache_salt": b"other"})]
    assert cached[0] == cached[2] == cached[4] == 0 and cached[1] > 0 and cached[3] > 0
    client.close()


def test_health_model_and_load(server, client):
    health = client.ask(health=pb.HealthQuery()).health
    assert health.state == pb.Health.READY and health.version
    info = client.ask(model_info=pb.ModelInfoQuery()).model_info
    assert list(info.names) == ["smollm2", "alias/smollm2"] and info.context_tokens == 8192
    wanted = client.send(generate=pb.Generate(**LONG_RUN))
    assert client.receive().started.model == "smollm2"
    server.wait_running(1)

    def alone():  # the answers of former tests may just be leaving
        load = client.ask(load_report=pb.LoadReportQuery()).load_report
        return load.seqs_running == 1 and load.requests_open == 1 and load.kv_blocks_total > load.kv_blocks_used > 0
    until(alone, "one sequence, one request, some blocks")
    client.send(cancel=pb.Cancel(id=wanted))
    server.wait_idle()


# --- refusals ---

REFUSED = [
    (dict(prompts=[b"a"], temperature=3.0), "temperature", "invalid_value"),
    (dict(prompts=[b"a"], temperature=float("nan")), "temperature", "invalid_value"),
    (dict(prompts=[b"a"], top_p=-0.5), "top_p", "invalid_value"),
    (dict(prompts=[b"a"], top_k=-2), "top_k", "invalid_value"),
    (dict(prompts=[b"a"], n=0), "n", "invalid_value"),
    (dict(prompts=[b"a"], n=129), "n", "invalid_value"),
    (dict(prompts=[b"a"], max_tokens=-1), "max_tokens", "invalid_value"),
    (dict(prompts=[b"a"], max_tokens=1 << 40), "max_tokens", "context_length_exceeded"),
    (dict(prompts=[b"a"], repetition_penalty=0.0), "repetition_penalty", "invalid_value"),
    (dict(prompts=[b"a"], stop=[b""]), "stop[0]", "invalid_value"),
    (dict(prompts=[b"a"], stop=[b"x"] * 129), "stop", "invalid_value"),
    (dict(prompts=[b"a"], stop_token_ids=[-1]), "stop_token_ids[0]", "invalid_value"),
    (dict(prompts=[b"a"], logit_bias=[pb.LogitBias(token=-3, bias=1)]), "logit_bias", "invalid_value"),
    (dict(prompts=[b"a"], logit_bias=[pb.LogitBias(token=3, bias=101)]), "logit_bias", "invalid_value"),
    (dict(prompts=[b"a"], top_logprobs=3), "top_logprobs", "invalid_value"),
    (dict(prompts=[b"a"], logprobs=True, top_logprobs=21), "top_logprobs", "invalid_value"),
    (dict(prompts=[b"a"], priority=101), "priority", "invalid_value"),
    (dict(prompts=[b"a"], timeout_s=-1.0), "timeout_s", "invalid_value"),
    (dict(prompts=[b"a"], timeout_s=float("nan")), "timeout_s", "invalid_value"),
    (dict(prompts=[b"a"], cache_salt=b"x" * 1025), "cache_salt", "invalid_value"),
    (dict(prompts=[b"\xff\xfe"]), "prompts", "invalid_value"),
    (dict(prompts=[b"ok", b"\xc0\x80"]), "prompts[1]", "invalid_value"),
    (dict(prompts=[b""]), "prompts", "invalid_value"),
    (dict(prompts=[b"a"] * 513), "prompts", "invalid_value"),
    (dict(), "prompts", "missing_required_parameter"),
    (dict(prompts=[b"a"], prompt_ids=[pb.TokenIds(ids=[1])]), "prompts", "invalid_value"),
    (dict(prompt_ids=[pb.TokenIds(ids=[1, 1 << 30])]), "prompt_ids[0]", "invalid_value"),
    (dict(prompt_ids=[pb.TokenIds()]), "prompt_ids[0]", "invalid_value"),
    (dict(prompts=[b"word " * 20000], max_tokens=1), "prompts", "context_length_exceeded"),
    (dict(messages=[pb.ChatMessage(role="nobody", content=b"a")]), "messages[0].role", "invalid_value"),
    (dict(messages=[pb.ChatMessage(role="user")]), "messages[0].content", "missing_required_parameter"),
    (dict(messages=[pb.ChatMessage(role="user", content=b"a")], best_of=2), "best_of", "invalid_value"),
    (dict(messages=[pb.ChatMessage(role="user", content=b"a")], chat_template_kwargs=b"[1"), "chat_template_kwargs",
     "invalid_value"),
]


def test_refusals_name_the_field(client):
    for fields, param, code in REFUSED:
        error = error_of(client, **fields)
        assert (error.status, error.code, error.param) == (400, code, param), (fields.keys(), error)
        assert error.message and "\n" not in error.message
    error = error_of(client, prompts=[b"a"], model="other")
    assert (error.status, error.code) == (404, "model_not_found")
    if _null():
        assert error_of(client, prompts=[b"a"], logprobs=True).code == "unsupported_parameter"


def test_ids_of_open_requests_are_unique(server, client):
    client.send(generate=pb.Generate(**LONG_RUN, stream=True))
    client.last_id -= 1
    client.send(generate=pb.Generate(**LONG_RUN))
    codes = set()
    while not codes:
        response = client.receive()
        if response.WhichOneof("body") == "error":
            codes.add(response.error.code)
    assert codes == {"duplicate_id"}
    client.send(cancel=pb.Cancel(id=1))
    server.wait_idle()


# --- cancelling, time limits ---

@pytest.mark.parametrize("stream", [False, True])
def test_cancel_ends_a_request(server, client, stream):
    before = server.wait_idle()
    wanted = client.send(generate=pb.Generate(**LONG_RUN, stream=stream))
    assert client.receive().WhichOneof("body") == "started"
    assert client.ask(cancel=pb.Cancel(id=wanted)).cancel.found
    while (response := client.receive()).WhichOneof("body") == "chunk":
        pass
    assert response.error.code == "cancelled" and response.error.status == 499
    after = server.wait_idle()
    assert after["inferd_requests_aborted_total"] == before["inferd_requests_aborted_total"] + 1
    assert not client.ask(cancel=pb.Cancel(id=wanted)).cancel.found
    other = connect(server)
    wanted = client.send(generate=pb.Generate(**LONG_RUN))
    assert not other.ask(cancel=pb.Cancel(id=wanted)).cancel.found  # another client's request is out of reach
    assert client.ask(cancel=pb.Cancel(id=wanted)).cancel.found
    other.close()


def test_cancel_right_behind_the_request(server, client):
    for _ in range(50):
        wanted = client.send(generate=pb.Generate(**LONG_RUN))
        client.send(cancel=pb.Cancel(id=wanted))
    errors = 0
    while errors < 50:
        errors += client.receive().WhichOneof("body") == "error"
    server.wait_idle()


def rejections(server):
    return sum(v for k, v in server.metrics().items() if k.startswith("inferd_requests_rejected_total"))


def test_a_time_limit_ends_the_request(server, client):
    rejected = rejections(server)
    error = error_of(client, **LONG_RUN, timeout_s=0.3)
    assert error.status in (429, 503)
    assert rejections(server) == rejected + (error.status == 429), "it was admitted"
    server.wait_idle()


# --- clients that vanish ---

VANISHING = """
import sys, time
sys.path[:0] = [{pb2!r}, {examples!r}]
from zmq_client import Client, pb
c = Client({endpoint!r})
for k in range(4):
    c.send(generate=pb.Generate(prompts=[b"word " * (300 if k == 2 else 1)], max_tokens=7500, ignore_eos=True, stream=k % 2 == 0))
c.receive()
print("ready", flush=True)
time.sleep(60)
"""


def vanishing(server):
    script = VANISHING.format(pb2=PB2_DIR, examples=str(ROOT / "examples"), endpoint=endpoint_of(server))
    process = subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE)
    assert process.stdout.readline() == b"ready\n"
    return process


@pytest.mark.parametrize("how", ["killed", "stopped"])
def test_a_vanished_client_leaves_nothing(start, how):
    server = start(step_us=5000, context=8192, zmq="tcp://127.0.0.1:*")
    before = server.wait_idle()
    process = vanishing(server)
    server.wait_running(4)
    process.send_signal(signal.SIGKILL if how == "killed" else signal.SIGSTOP)  # stopped: its connection stays open
    server.wait_idle()
    until(lambda: server.metrics()["inferd_zmq_clients"] == 0, "the client gone")
    after = server.metrics()
    process.kill()
    process.wait()
    assert after["inferd_requests_aborted_total"] == before["inferd_requests_aborted_total"] + 4
    assert after["inferd_zmq_clients_vanished_total"] == before["inferd_zmq_clients_vanished_total"] + 1


def test_clients_that_close_over_and_over(server):
    rounds = 300 if LONG else 60
    before = server.wait_idle()
    rss = server.rss()
    for k in range(rounds):
        c = connect(server)
        for _ in range(3):
            c.send(generate=pb.Generate(**LONG_RUN, stream=k % 2 == 0))
        if k % 3:
            c.receive()
        c.close()
    until(lambda: server.metrics()["inferd_zmq_clients"] == 0, "all clients gone")
    after = server.wait_idle()
    assert after["inferd_kv_cache_usage_ratio"] == 0
    assert after["inferd_requests_aborted_total"] > before["inferd_requests_aborted_total"]
    assert server.grown(rss) < 24 << 20
    c = connect(server)
    assert answer(c, prompts=[b"a"], max_tokens=1)[1].WhichOneof("body") == "done"
    c.close()


def test_a_client_that_does_not_read_is_bounded_and_holds_up_nobody(start):
    daemon = start(step_us=100, context=8192, stall_s=2, zmq="tcp://127.0.0.1:*")
    slow = Client.__new__(Client)
    slow.context = zmq.Context.instance()
    slow.socket = slow.context.socket(zmq.DEALER)
    slow.socket.setsockopt(zmq.RCVHWM, 1)
    slow.socket.setsockopt(zmq.RCVBUF, 4096)
    slow.socket.setsockopt(zmq.LINGER, 0)
    slow.socket.connect(endpoint_of(daemon))
    slow.api_key, slow.last_id, slow.waiting = "", 0, []
    other = connect(daemon)
    answer(other, prompts=[b"a"], max_tokens=4)
    rss = daemon.rss()
    for _ in range(32):  # 60 MB of answers: far more than the sockets of both sides hold
        slow.send(generate=pb.Generate(prompts=[b"a"], n=8, max_tokens=8000, ignore_eos=True, stream=True,
                                       return_token_ids=True))
    time.sleep(1)
    for _ in range(20):
        assert answer(other, prompts=[b"a"], max_tokens=20, ignore_eos=True)[1].done.usage.completion_tokens == 20
    daemon.wait_idle()  # it was cut
    m = daemon.metrics()
    assert m["inferd_zmq_clients_vanished_total"] + m["inferd_zmq_clients_slow_total"] >= 1
    assert m["inferd_generation_tokens_total"] < 32 * 8 * 8000 * 0.9
    assert daemon.grown(rss) < 64 << 20
    slow.socket.close()
    other.close()


def long_answer(client):
    """A Detokenize of 1 MB that makes 20 MB of text."""
    longest = client.ask(tokenize=pb.Tokenize(prompt=b" " * 256)).tokenize.ids[0]
    length = len(client.ask(detokenize=pb.Detokenize(ids=[longest])).detokenize.text)
    return pb.Detokenize(ids=[longest] * ((20 << 20) // length))


def ask_and_not_read(daemon, wanted, count):
    """A socket that has asked for all of it at once and takes next to nothing. A libzmq that does not read answers no heartbeat, and is
    taken for gone where its answers do not follow each other quickly: unless it sends something (says_something)."""
    socket = zmq.Context.instance().socket(zmq.DEALER)
    for option, value in ((zmq.RCVHWM, 1), (zmq.RCVBUF, 4096), (zmq.LINGER, 0)):
        socket.setsockopt(option, value)
    socket.connect(endpoint_of(daemon))
    for k in range(count):
        socket.send(pb.Request(id=k + 1, detokenize=wanted).SerializeToString())
    return socket


def asked_anew(daemon, **body):
    """The kind of answer that a client gets which has just come; None where it was held up for a second, and so was taken for gone."""
    with contextlib.closing(connect(daemon, timeout_s=30)) as client, contextlib.suppress(zmq.Again):
        return client.ask(**body).WhichOneof("body")


def says_something(socket):
    with contextlib.suppress(zmq.Again):
        socket.send(b"", zmq.DONTWAIT)


def test_whole_answers_that_are_not_read_are_bounded(start):
    """libzmq takes any number of large messages for a client that reads nothing: its share of 512 MiB is held and no more, others are served
    meanwhile, and when the connection has ended there is room again."""
    daemon = start(step_us=100, stall_s=600, zmq="tcp://127.0.0.1:*")
    with contextlib.closing(connect(daemon)) as first:
        wanted = long_answer(first)

    def vanished(metrics):
        return metrics["inferd_zmq_clients_vanished_total"]

    def held():
        rss, before = daemon.rss(), daemon.metrics()
        refused, served = ('inferd_zmq_requests_total{kind="detokenize",status="%d"}' % status for status in (429, 200))
        slow = ask_and_not_read(daemon, wanted, 40)

        def all_told():
            if not daemon.sanitized:  # too slow there: its client is taken for gone
                says_something(slow)
            now = daemon.metrics()
            return sum(now.get(n, 0) - before.get(n, 0) for n in (refused, served)) >= 40 or vanished(now) > vanished(before)
        until(all_told, "all are answered or refused", 600)
        until(lambda: asked_anew(daemon, tokenize=pb.Tokenize(prompt=b"a")) == "tokenize", "others are served")
        got = daemon.metrics()[served] - before[served]
        grown = daemon.grown(rss)
        slow.close()
        until(lambda: asked_anew(daemon, detokenize=wanted) == "detokenize", "room again", 600)
        until(lambda: daemon.grown(rss) < 200 << 20, "its memory back")
        least = 0 if daemon.sanitized else 12  # too slow there to follow each other: its client is taken for gone
        assert least <= got <= 18 and grown < 450 << 20, (got, grown)  # the sockets themselves take one or two

    at_best(held)


def test_a_connection_in_which_nothing_gets_through_ends(start):
    """And with it what is held for it, though its client is there and answers TCP's probes."""
    daemon = start(step_us=100, stall_s=1, zmq="tcp://127.0.0.1:*")
    if daemon.sanitized:
        pytest.skip("what is held is seen by the resident size")
    other = connect(daemon)
    wanted, rss = long_answer(other), daemon.rss()
    slow = ask_and_not_read(daemon, wanted, 8)

    def told():
        """All are answered, and are held; or the connection has ended before that."""
        says_something(slow)
        now = daemon.metrics()
        return now.get('inferd_zmq_requests_total{kind="detokenize",status="200"}', 0) >= 8 + 1 or now["inferd_zmq_clients_slow_total"] or \
            now["inferd_zmq_clients_vanished_total"]

    def fallen():
        says_something(slow)
        return daemon.grown(rss) < 60 << 20

    until(told, "answers are held")
    until(fallen, "and given up")
    slow.close()
    other.close()


# --- what is no message ---

def good_messages():
    yield pb.Request(id=1, generate=pb.Generate(prompts=[b"abc"], max_tokens=2, temperature=0.5, stop=[b"x"],
                                                logit_bias=[pb.LogitBias(token=5, bias=1)]))
    yield pb.Request(id=2, generate=pb.Generate(messages=[pb.ChatMessage(role="user", content=b"hi")], max_tokens=2))
    yield pb.Request(id=3, generate=pb.Generate(prompt_ids=[pb.TokenIds(ids=range(20))], max_tokens=1))
    yield pb.Request(id=4, tokenize=pb.Tokenize(prompt=b"abc"))
    yield pb.Request(id=5, cancel=pb.Cancel(id=1))
    yield pb.Request(id=6, health=pb.HealthQuery())


def mutated(rng, message):
    data = bytearray(message)
    for _ in range(rng.randint(1, 4)):
        what = rng.random()
        if what < 0.4 and data:
            data[rng.randrange(len(data))] = rng.randrange(256)
        elif what < 0.6:
            del data[rng.randrange(len(data) + 1):]
        elif what < 0.8:
            at = rng.randrange(len(data) + 1)
            data[at:at] = rng.randbytes(rng.randint(1, 8))
        else:
            at = rng.randrange(len(data) + 1)
            data[at:at] = bytes([0xff] * rng.randint(1, 12))
    return bytes(data)


def test_malformed_messages_are_answered_or_dropped(server):
    seed = int(os.environ.get("INFERD_TEST_SEED", random.randrange(1 << 30)))
    rng = random.Random(seed)
    c = connect(server)
    seeds = [m.SerializeToString() for m in good_messages()]
    count = 20000 if LONG else 2000
    for k in range(count):
        data = rng.randbytes(rng.randint(1, 64)) if k % 10 == 0 else mutated(rng, rng.choice(seeds))
        frames = [data] + [b"more"] * (rng.random() < 0.05)
        c.socket.send_multipart(frames)
        while c.socket.poll(0):
            pb.Batch.FromString(c.socket.recv())  # whatever comes can be read
    c.close()
    m = server.wait_idle()
    assert m["inferd_zmq_malformed_total"] > count / 20, f"INFERD_TEST_SEED={seed}"
    again = connect(server)
    assert again.ask(health=pb.HealthQuery()).health.state == pb.Health.READY
    again.close()


def test_what_is_no_request_is_said_to_be_none(client):
    for frames in ([b"\xff\xff\xff"], [b"", b"x"], [pb.Request(id=9, health=pb.HealthQuery()).SerializeToString(), b"x"]):
        client.socket.send_multipart(frames)
        assert client.receive().error.code == "invalid_message"
    client.socket.send(pb.Request(id=77).SerializeToString())
    response = client.receive()
    assert response.id == 77 and response.error.code == "invalid_message"
    # a newer client's unknown fields are no fault
    unknown = pb.Request(id=78, health=pb.HealthQuery()).SerializeToString() + b"\xfa\x7f\x03abc"
    client.socket.send(unknown)
    assert client.receive().health.state == pb.Health.READY
    client.socket.send(b"")  # a keepalive
    assert client.ask(health=pb.HealthQuery()).health.state == pb.Health.READY


def test_too_large_a_message_closes_the_connection(start):
    daemon = start(step_us=0, body=65536, zmq="tcp://127.0.0.1:*")
    c = connect(daemon)
    assert c.ask(health=pb.HealthQuery()).health.state == pb.Health.READY
    c.send(tokenize=pb.Tokenize(prompt=b"a" * 70000))
    c.send(health=pb.HealthQuery())  # libzmq connects again by itself
    c.socket.setsockopt(zmq.RCVTIMEO, 5000)  # what was sent may have gone with the connection
    try:
        assert c.receive().id != c.last_id - 1
    except zmq.Again:
        pass
    again = connect(daemon)
    assert again.ask(tokenize=pb.Tokenize(prompt=b"a" * 60000)).tokenize.ids
    again.close()
    c.close()


def test_small_parts_take_no_more_memory_than_their_message_may(server):
    c = connect(server)
    rss = server.rss()
    many = pb.Generate()
    for _ in range(1000):
        many.messages.add()
    block = many.SerializeToString()
    c.send(generate=pb.Generate.FromString(block * 4000))  # 4 million empty turns in 8 MB
    response = c.receive()
    assert response.error.status == 400, response
    assert server.grown(rss) < 400 << 20
    c.close()


def test_few_bytes_of_ids_make_no_text_without_bound(client):
    error = client.ask(detokenize=pb.Detokenize(ids=[1] * 6_000_000)).error  # 12 bytes each
    assert (error.status, error.param) == (400, "ids") and "bytes" in error.message
    assert client.ask(detokenize=pb.Detokenize(ids=[1] * 1000)).detokenize.text == b"<|im_start|>" * 1000


def test_the_operator_sees_and_ends_requests(start, tmp):
    if _mini():
        pytest.skip("needs serve")
    path = tmp / "zmq-admin.sock"
    daemon = start(step_us=5000, zmq="tcp://127.0.0.1:*", extra=["--admin-socket", path])

    def ask(method, url):
        with Raw(str(path)) as raw:
            raw.send(get(url, method=method))
            return raw.answer()

    c = connect(daemon)
    for stream in (True, False):
        c.send(generate=pb.Generate(**LONG_RUN, stream=stream))
    until(lambda: {r["state"] for r in ask("GET", "/admin/requests").json()} == {"stream", "computing"}, "both under way")
    listed = ask("GET", "/admin/requests").json()
    assert {r["state"] for r in listed} == {"stream", "computing"} and all(r["path"] == "zmq" and r["prompt_tokens"] == 1 for r in listed)
    for r in listed:
        assert ask("DELETE", "/admin/requests/" + r["id"]).status == 200
        assert ask("DELETE", "/admin/requests/" + r["id"]).status == 404
    ended = set()
    while len(ended) < 2:
        r = c.receive()
        if r.WhichOneof("body") == "error":
            assert r.error.code == "cancelled"
            ended.add(r.id)
    daemon.wait_idle()
    assert ask("GET", "/admin/requests").json() == []
    c.close()


# --- keys ---

def test_api_keys(start):
    daemon = start(step_us=0, keys=["secret", "other"], zmq="tcp://127.0.0.1:*")
    for key, ok in (("secret", True), ("other", True), ("", False), ("secre", False), ("secret2", False)):
        c = connect(daemon, api_key=key)
        responses = list(c.generate(prompts=[b"a"], max_tokens=1))
        assert (responses[-1].WhichOneof("body") == "done") == ok
        if not ok:
            assert (responses[0].error.status, responses[0].error.code) == (401, "invalid_api_key")
            until(lambda: "request refused" in daemon.log_text() and "code=invalid_api_key" in daemon.log_text(), "the log tells")
            assert c.ask(tokenize=pb.Tokenize(prompt=b"a")).error.status == 401
            assert c.ask(load_report=pb.LoadReportQuery()).error.status == 401
        assert c.ask(health=pb.HealthQuery()).health.state == pb.Health.READY  # as /health: open
        c.close()


def test_curve(start, tmp):
    server_public, server_secret = (k.decode() for k in zmq.curve_keypair())
    known_public, known_secret = (k.decode() for k in zmq.curve_keypair())
    key, clients = tmp / "server.key", tmp / "clients.keys"
    key.write_text(f"# the server\n{server_secret}\n")
    clients.write_text(f"{zmq.curve_keypair()[0].decode()}\n{known_public}  # ours\n")
    daemon = start(step_us=0, zmq="tcp://127.0.0.1:*", zmq_key=str(key), zmq_clients=str(clients))
    c = connect(daemon, server_key=server_public, client_secret=known_secret)
    assert answer(c, prompts=[b"a"], max_tokens=1)[1].WhichOneof("body") == "done"
    c.close()
    refused = (dict(server_key=server_public),                                    # a stranger's key
               dict(),                                                            # in the clear
               dict(server_key=zmq.curve_keypair()[0].decode(), client_secret=known_secret))  # another server's key
    for options in refused:
        stranger = connect(daemon, timeout_s=0.7, **options)
        with pytest.raises(zmq.Again):
            stranger.ask(health=pb.HealthQuery())
        stranger.close()
    until(lambda: daemon.metrics()["inferd_zmq_keys_refused_total"] >= 1, "a key refused")
    open_daemon = start(step_us=0, zmq="tcp://127.0.0.1:*", zmq_key=str(key))  # any client that knows the server's key
    c = connect(open_daemon, server_key=server_public)
    assert c.ask(health=pb.HealthQuery()).health.state == pb.Health.READY
    c.close()


def test_ipc(start, tmp):
    path = tmp / "zmq.sock"
    daemon = start(step_us=0, zmq=f"ipc://{path}")
    c = connect(daemon)
    assert answer(c, prompts=[b"a"], max_tokens=3, ignore_eos=True)[1].done.usage.completion_tokens == 3
    c.close()
    assert daemon.terminate() == 0 and not path.exists()


@pytest.mark.parametrize("options", [dict(zmq="udp://127.0.0.1:5"), dict(zmq="tcp://nowhere.invalid:1"),
                                     dict(zmq="tcp://127.0.0.1:*", zmq_clients="/dev/null")])
def test_what_cannot_be_listened_on_is_an_error_at_start(start, options):
    with pytest.raises(AssertionError) as refused:
        start(step_us=0, **options)
    assert "zmq" in str(refused.value) or "nowhere" in str(refused.value)


# --- load and drain ---

def test_a_full_queue_is_429_and_many_streams_are_whole(start):
    daemon = start(step_us=2000, queue=8, seqs=4, context=8192, zmq="tcp://127.0.0.1:*")
    c = connect(daemon)
    held = [c.send(generate=pb.Generate(**LONG_RUN)) for _ in range(4)]
    daemon.wait_running(4)  # all places taken, and the first comes free after 16 s or when the queue has been full
    for _ in range(40):
        c.send(generate=pb.Generate(prompts=[b"a"], max_tokens=20, ignore_eos=True, stream=True))
    ends = {}
    while len(ends) < 40:
        r = c.receive()
        if r.id in held:
            continue
        if r.WhichOneof("body") == "done":
            assert r.done.usage.completion_tokens == 20
            ends[r.id] = 200
        elif r.WhichOneof("body") == "error":
            assert r.error.code == "rate_limit_exceeded" and r.error.retry_after_s >= 1
            ends[r.id] = r.error.status
            if list(ends.values()).count(429) == 32:
                for wanted in held:
                    c.send(cancel=pb.Cancel(id=wanted))
    assert list(ends.values()).count(200) == 8 and list(ends.values()).count(429) == 32
    c.close()


def test_256_streams_of_one_client(server):
    c = connect(server)
    for _ in range(256):
        c.send(generate=pb.Generate(prompts=[b"a"], max_tokens=30, ignore_eos=True, stream=True, seed=3))
    texts, done = {}, 0
    while done < 256:
        r = c.receive()
        assert r.WhichOneof("body") != "error", r
        if r.WhichOneof("body") == "chunk":
            texts[r.id] = texts.get(r.id, b"") + r.chunk.text
        done += r.WhichOneof("body") == "done"
    assert len(set(texts.values())) == 1 and len(texts) == 256
    c.close()


@pytest.mark.parametrize("extra", [[], ["--reuse-port"]])
def test_drain_lets_running_requests_finish(start, extra):
    daemon = start(step_us=5000, zmq="tcp://127.0.0.1:*", extra=extra)
    c = connect(daemon)
    c.send(generate=pb.Generate(prompts=[b"a"], max_tokens=150, ignore_eos=True, stream=True))
    c.send(generate=pb.Generate(prompts=[b"a"], max_tokens=150, ignore_eos=True))
    assert c.receive().WhichOneof("body") == "started"
    held = c.send(generate=pb.Generate(prompts=[b"a"], max_tokens=2000, ignore_eos=True))  # the drain does not end before it is told
    daemon.wait_admitted(3)
    daemon.begin_drain()
    refused = c.send(generate=pb.Generate(prompts=[b"a"]))
    health = c.send(health=pb.HealthQuery())
    done, told = set(), set()
    while len(done) < 2 or len(told) < 2:
        r = c.receive()
        if r.id == refused:
            assert r.error.code == "server_draining" and r.error.retry_after_s >= 1
            told.add(r.id)
        elif r.id == health:
            assert r.health.state == pb.Health.DRAINING
            told.add(r.id)
        elif r.WhichOneof("body") == "done":
            assert r.done.usage.completion_tokens == 150 and r.id != held
            done.add(r.id)
    assert daemon.process.poll() is None
    c.send(cancel=pb.Cancel(id=held))
    assert daemon.process.wait(60) == 0
    c.close()


def test_the_end_of_the_drain_ends_requests_with_an_error(start):
    daemon = start(step_us=20000, context=8192, drain_ms=1000, zmq="tcp://127.0.0.1:*")
    c = connect(daemon)
    for stream in (True, False):
        c.send(generate=pb.Generate(**LONG_RUN, stream=stream))
    daemon.wait_running(2)
    daemon.process.send_signal(signal.SIGTERM)
    ended = set()
    while len(ended) < 2:
        r = c.receive()
        if r.WhichOneof("body") == "error":
            assert r.error.code == "server_draining" and r.error.status == 503
            ended.add(r.id)
    assert daemon.process.wait(60) == 0
    lines = [line for line in daemon.log_text().splitlines() if "request done" in line]
    assert len(lines) == 2 and all("outcome=error" in line and "code=server_draining" in line for line in lines), lines
    c.close()


def test_while_the_model_loads(start, tmp):
    loaded = tmp / "zmq-loaded"
    daemon = start(step_us=0, load_until=loaded, wait=False, program=mini_daemon(), zmq="tcp://127.0.0.1:*")
    c = connect(daemon)
    assert c.ask(health=pb.HealthQuery()).health.state == pb.Health.LOADING
    for body in (dict(generate=pb.Generate(prompts=[b"a"])), dict(tokenize=pb.Tokenize(prompt=b"a")),
                 dict(model_info=pb.ModelInfoQuery())):
        error = c.ask(**body).error
        assert error.code == "model_loading" and error.status == 503 and error.retry_after_s >= 1
    loaded.touch()
    daemon.wait_ready()
    assert answer(c, prompts=[b"a"], max_tokens=1)[1].WhichOneof("body") == "done"
    c.close()


def test_the_log_has_a_line_per_request(server, client):
    client.last_id += 1
    client.socket.send(pb.Request(id=client.last_id, x_request_id="zmq-test.1",
                                  generate=pb.Generate(prompts=[b"a"], max_tokens=2)).SerializeToString())
    started = client.receive().started
    assert started.x_request_id == "zmq-test.1"
    while client.receive().WhichOneof("body") != "done":
        pass
    line = until(lambda: next((line for line in server.log_text().splitlines() if "zmq-test.1" in line), None), "the line")
    assert started.completion_id in line and "route=zmq" in line and "status=200" in line
    assert started.completion_id in [e["id"] for e in server.get("/stats").json()["ended"]]


def test_a_running_request_is_seen_in_stats(server, client):
    client.last_id += 1
    client.socket.send(pb.Request(id=client.last_id, generate=pb.Generate(**LONG_RUN)).SerializeToString())
    started = client.receive().started
    running = [r for r in server.get("/stats").json()["running"] if r["id"] == started.completion_id]
    assert running and running[0]["route"] == "zmq" and running[0]["prompt_tokens"] == 1
    client.socket.send(pb.Request(id=client.last_id + 1, cancel=pb.Cancel(id=client.last_id)).SerializeToString())
    until(lambda: server.get("/stats").json()["running"] == [], "none runs")


def test_counters(server, client):
    before = server.metrics()
    answer(client, prompts=[b"a"], max_tokens=1)
    client.ask(health=pb.HealthQuery())
    for name in ('inferd_zmq_requests_total{kind="generate",status="200"}', 'inferd_zmq_requests_total{kind="health",status="200"}',
                 "inferd_zmq_messages_received_total", "inferd_zmq_messages_sent_total", "inferd_zmq_sent_bytes_total"):
        until(lambda: server.metrics()[name] > before.get(name, 0), name)


def test_the_example_runs(server):
    got = subprocess.run([sys.executable, str(ROOT / "examples/zmq_client.py"), endpoint_of(server), "Once upon a time",
                          "--max-tokens", "5"], capture_output=True, timeout=60, env={**os.environ, "PYTHONPATH": PB2_DIR})
    assert got.returncode == 0 and b"5 out]" in got.stderr and got.stdout.strip(), got


def _mini():
    return binary().name == "mini_daemon"


def _null():
    return True
