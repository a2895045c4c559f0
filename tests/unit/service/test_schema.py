"""Whatever fits the OpenAPI document, and much that does not: no 5xx, and answers fit it, too."""

import pytest
import schemathesis
from hypothesis import HealthCheck, settings
from schemathesis.checks import not_a_server_error
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    response_schema_conformance,
    status_code_conformance,
)

from support.service import API, Service


@pytest.fixture(scope="module")
def api(tmp_path_factory):
    service = Service(tmp_path_factory.mktemp("schema"), requests_per_minute=1_000_000)
    schema = schemathesis.openapi.from_wsgi(f"{API}/openapi.json", service.app)
    yield schema
    service.close()


schema = schemathesis.pytest.from_fixture("api")
ONE = {"Authorization": "token token-ann"}


@schema.parametrize()
@settings(max_examples=12, deadline=None, suppress_health_check=list(HealthCheck))
def test_every_address(case):
    # Following a task waits for it; the rest is asked as it comes.
    response = case.call(headers=ONE)
    case.validate_response(
        response,
        headers=ONE,
        checks=[
            not_a_server_error_but_503,
            status_code_conformance,
            content_type_conformance,
            response_schema_conformance,
        ],
    )


def not_a_server_error_but_503(ctx, response, case):
    """503 is an answer of its own: the small view of this test knows no accounting."""
    if response.status_code == 503:
        return None
    return not_a_server_error(ctx, response, case)
