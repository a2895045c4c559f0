"""Whatever fits the OpenAPI document, and much that does not: no 5xx, and answers fit it, too."""

import pytest
import schemathesis
from hypothesis import HealthCheck, Phase, given, settings
from schemathesis import GenerationMode
from schemathesis.checks import not_a_server_error
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    response_schema_conformance,
    status_code_conformance,
)

from carme.service.app import make_api
from support.service import API, Service

OPERATIONS = [
    (o.method, o.path.replace("<int:", "{").replace("<string:", "{").replace(">", "}"))
    for o in make_api().operations
]
ONE = {"Authorization": "token token-ann"}


@pytest.fixture(scope="module")
def schema(tmp_path_factory):
    service = Service(tmp_path_factory.mktemp("schema"), requests_per_minute=10_000_000)
    yield schemathesis.openapi.from_wsgi(f"{API}/openapi.json", service.app)
    service.close()


@pytest.mark.parametrize("mode", [GenerationMode.POSITIVE, GenerationMode.NEGATIVE])
@pytest.mark.parametrize(("method", "path"), OPERATIONS)
def test_every_address(schema, method, path, mode):
    operation = schema[path][method]
    if mode == GenerationMode.NEGATIVE and not (operation.body or operation.query):
        pytest.skip("takes nothing that could be wrong")

    @given(case=operation.as_strategy(generation_mode=mode))
    @settings(
        max_examples=10, deadline=None, derandomize=True, database=None, phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )  # fmt: skip
    def check(case):
        response = case.call(headers=ONE)
        case.validate_response(
            response,
            headers=ONE,
            checks=[
                no_5xx,
                status_code_conformance,
                content_type_conformance,
                response_schema_conformance,
            ],
        )

    check()


def no_5xx(ctx, response, case):
    """503 is an answer of its own: the small view of this test knows no accounting."""
    return None if response.status_code == 503 else not_a_server_error(ctx, response, case)
