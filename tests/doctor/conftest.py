"""A small corpus with faults, judged."""

import pytest

from tests.data.quality.conftest import Pairs
from transformer_cli.data.quality.judge import Bounds
from transformer_cli.doctor.findings import Report, examine

COPY = "ein Hund <script>alert(1)</script> schläft im Garten"


@pytest.fixture(scope="module")
def report() -> Report:
    pairs = [
        (f"der Hund Nummer {'a' * place} bellt laut", f"dog number {'a' * place} barks loudly") for place in range(90)
    ]
    pairs[20:24] = [(COPY, COPY)] * 4
    pairs[40] = ("a\x1b[31m b c d", "a b c d" + " long" * 60)
    return examine({"train": Pairs(pairs), "valid": Pairs([("x", ""), pairs[3]])}, Bounds())
