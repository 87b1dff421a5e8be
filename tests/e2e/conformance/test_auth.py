"""Section 2: who needs a key, what is wrong with a wrong one. kf-35: no route that generates or shows is left open."""
import pytest

from conformance.conftest import KEYS
from conformance.rows import each
from conformance.wire import call, request_bytes

CHAT = {"messages": [{"role": "user", "content": "a"}], "max_tokens": 1}
GUARDED = [("GET", "/v1/models", None), ("GET", "/v1/models/alias", None),
           ("POST", "/v1/completions", {"prompt": "a", "max_tokens": 1}), ("POST", "/v1/chat/completions", CHAT),
           ("POST", "/tokenize", {"prompt": "a"}), ("POST", "/detokenize", {"tokens": [5]}),
           ("POST", "/%74okenize", {"prompt": "a"}), ("POST", "/v1/%63ompletions", {"prompt": "a", "max_tokens": 1}),
           ("HEAD", "/v1/models", None)]
WRONG = [None, "", "Bearer", "Bearer ", f"Bearer {KEYS[0][:-1]}", f"Bearer {KEYS[0]}x", f"Bearer {KEYS[0].upper()}",
         f"Bearer {KEYS[1].lower()}", f"Basic {KEYS[0]}", KEYS[0], f"Bearer{KEYS[0]}", f"Bearer {KEYS[0]} {KEYS[1]}",
         f"Bearer {KEYS[0]},{KEYS[1]}", "Bearer " + "x" * 4000, f'Bearer "{KEYS[0]}"', "Bearer ü"]
RIGHT = [f"{scheme} {key}" for scheme in ("Bearer", "bearer", "BEARER", "bEaReR") for key in KEYS]


@pytest.mark.sanitizer
def test_every_guarded_route_refuses_every_wrong_key(keyed):
    def check(method, path, body, authorization):
        answer = call(keyed.address, method, path, body, {"Authorization": authorization})
        assert answer.status == 401, answer
        if method != "HEAD":
            assert answer.error["code"] == "invalid_api_key"
            for key in KEYS:
                assert key not in answer.body.decode()
            assert not authorization or len(authorization) < 20 or authorization[7:] not in answer.body.decode()
    each([(*route, wrong) for route in GUARDED for wrong in (WRONG if route[1] == "/tokenize" else WRONG[:6])], check)


@pytest.mark.sanitizer
def test_every_key_opens_and_the_scheme_has_no_case(keyed):
    def check(method, path, body, authorization):
        answer = call(keyed.address, method, path, body, {"Authorization": authorization})
        assert answer.status == 200, answer
    each([(*route, right) for route in GUARDED for right in (RIGHT if route[1] == "/tokenize" else RIGHT[:2])], check)


def test_two_authorization_headers_do_not_smuggle_a_wrong_one(keyed):
    with keyed.connect() as c:
        c.send(request_bytes("POST", "/tokenize", {"prompt": "a"},
                             [("Authorization", "Bearer wrong"), ("Authorization", "Bearer wrong2")]))
        assert c.answer().status == 401


@pytest.mark.sanitizer
def test_service_endpoints_are_open(keyed):
    for path in ("/health", "/ready", "/version", "/metrics"):
        for wrong in (None, "Bearer wrong"):
            assert call(keyed.address, "GET", path, headers={"Authorization": wrong}).status == 200, path


def test_without_keys_any_authorization_will_do(null):
    for any_ in (None, "", "Bearer x", "Basic abc", "nonsense"):
        assert call(null.address, "GET", "/v1/models", headers={"Authorization": any_}).status == 200


def test_the_key_is_in_no_log(keyed):
    keyed.post("/v1/completions", {"prompt": "a", "max_tokens": 1})
    for key in KEYS:
        assert key not in keyed.log_text()
