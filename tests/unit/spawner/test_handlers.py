import pytest
from tornado.web import HTTPError

from carme_spawner.handlers import parse_port


def test_a_port_is_accepted():
    assert parse_port(b'{"port": 40001}') == 40001


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"null",
        b"[]",
        b"40001",
        b'{"port": "40001"}',
        b'{"port": true}',
        b'{"port": 1.5}',
        b'{"port": 80}',
        b'{"port": 70000}',
        b'{"port": -1}',
        b'{"port": 40001, "exec_prefix": "id"}',
        b'{"exec_prefix": "id"}',
        b'{"ip": "10.0.0.1", "port": 40001}',
        b'{"port": null}',
        b"\xff\xfe",
    ],
)
def test_nothing_else_is(body):
    with pytest.raises(HTTPError) as caught:
        parse_port(body)
    assert caught.value.status_code == 400


def test_batchspawners_endpoint_is_not_served():
    from jupyterhub.apihandlers import default_handlers

    import carme_spawner  # noqa: F401

    assert not [entry for entry in default_handlers if "batchspawner" in entry[0]]
