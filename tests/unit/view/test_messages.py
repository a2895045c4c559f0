from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from carme.errors import DeniedError, UnavailableError
from carme.view.messages import (
    ViewReply,
    decode_reply,
    encode_reply,
    encode_request,
    error_from,
    error_json,
)


def test_errors_travel() -> None:
    error = error_from(error_json(DeniedError("no", "ask")))
    assert isinstance(error, DeniedError)
    assert (error.message, error.hint) == ("no", "ask")
    assert isinstance(error_from({"error": {"reason": "of a newer Carme"}}), UnavailableError)
    assert error_from({"jobs": []}) is None
    assert error_from([]) is None


def test_request() -> None:
    raw = encode_request("POST", "/x", {"a": "b c"}, {"k": 1}, {"If-None-Match": '"e"'})
    assert raw.startswith(b"POST /x?a=b+c HTTP/1.1\r\n")
    assert b'If-None-Match: "e"\r\n' in raw
    assert raw.endswith(b'\r\n\r\n{"k": 1}')
    assert b"Content-Length: 8\r\n" in raw


@given(st.binary(max_size=200))
def test_replies_round_trip(body: bytes) -> None:
    reply = decode_reply(encode_reply(ViewReply(200, body, {"ETag": '"x"'})))
    assert (reply.status, reply.body) == (200, body)
    assert (reply.headers or {})["etag"] == '"x"'


def test_what_comes_after_the_body_is_not_part_of_it() -> None:
    raw = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}Connection: Close\r\n"
    assert decode_reply(raw).body == b"{}"


def test_chunked_reply() -> None:
    raw = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n2\r\nde\r\n0\r\n\r\n"
    assert decode_reply(raw).body == b"abcde"


@pytest.mark.parametrize(
    "raw",
    [
        b"",
        b"HTTP/1.1 200 OK",
        b"garbage\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nab",
    ],
)
def test_cut_replies(raw: bytes) -> None:
    with pytest.raises(UnavailableError):
        decode_reply(raw)


@given(st.binary(max_size=100))
def test_any_bytes(raw: bytes) -> None:
    with suppress(UnavailableError):
        decode_reply(raw)
