"""Requests drawn from what `GET /spec` says, right and wrong ones: no fault, and each answer is as described."""

from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import schemathesis
from hypothesis import HealthCheck, Phase, given, settings
from schemathesis import GenerationMode
from schemathesis.checks import not_a_server_error
from schemathesis.core.result import Ok
from schemathesis.specs.openapi import checks

from tests.serve.test_server import Server

CHECKS = [
    not_a_server_error,
    checks.status_code_conformance,
    checks.content_type_conformance,
    checks.response_headers_conformance,
    checks.response_schema_conformance,
]


def explore(url: str, cases: int) -> Counter[tuple[str, int]]:
    """Send about so many requests; return how many had each status, by path. What is drawn is the same each time."""
    found: Counter[tuple[str, int]] = Counter()
    results = [*schemathesis.openapi.from_url(f"{url}/spec").get_all_operations()]
    operations = [one.ok() for one in results if isinstance(one, Ok)]
    assert len(operations) == len(results)
    posts = [(one, mode) for one in operations if one.method == "post" for mode in GenerationMode]
    gets = [(one, GenerationMode.POSITIVE) for one in operations if one.method == "get"]
    for operation, mode in [*posts, *gets]:

        @settings(
            max_examples=cases // len(posts) if operation.method == "post" else 2,
            phases=[Phase.generate],
            derandomize=True,
            database=None,
            suppress_health_check=list(HealthCheck),
        )
        @given(case=operation.as_strategy(generation_mode=mode))
        def check(case: "schemathesis.Case[Any]") -> None:
            response = case.call()
            found[case.operation.path, response.status_code] += 1
            case.validate_response(response, checks=CHECKS)

        check()
    return found


@pytest.mark.medium
@pytest.mark.parametrize("cases", [150, pytest.param(10_000, marks=pytest.mark.slow)])
def test_answers_are_as_described(cases: int, models: dict[str, Path], tmp_path: Path) -> None:
    serving = Server(*models.values(), "--suggestions", tmp_path / "suggestions.jsonl", "--quiet", "--greedy")
    try:
        found = explore(serving.url, cases)
    finally:
        code = serving.end()
    assert code == 143
    assert found.total() > 0.9 * cases
    answered = {path for path, status in found if status == 200}
    assert answered >= {"/translate", "/detect", "/suggest", "/v2/translate"}  # no file is drawn that ends in .txt
    assert serving.said == [f"serving on {serving.url}"], "nothing went wrong inside"
