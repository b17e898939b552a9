"""Keys are known by their hashes and read again when the file changes; a client has so much a minute."""

import hashlib
import os
from pathlib import Path

import pytest

from transformer_cli.errors import UserError
from transformer_cli.serve.limits import MOST_CLIENTS, Keys, Limits, Meter, Refused


def hashed(key: str) -> str:
    return hashlib.sha256(key.encode()).hexdigest()


def test_keys_are_read_again_when_the_file_changes(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "keys"
    file.write_text(f"{hashed('one').upper()}\n")
    keys = Keys(file)
    assert keys.knows("one")
    assert not keys.knows(hashed("one"))
    assert not keys.knows("two")
    file.write_text(f"{hashed('two')}  of somebody\n\n# a comment\n")
    os.utime(file, ns=(1, 1))
    assert keys.knows("two")
    assert not keys.knows("one")
    file.write_text("two\n")
    assert keys.knows("two"), "what was right last"
    assert f"{file}:1: is not the SHA-256 of a key" in capfd.readouterr().err
    file.unlink()
    assert keys.knows("two")
    assert "no such file" in capfd.readouterr().err


def test_a_file_that_holds_no_hashes_is_refused(tmp_path: Path) -> None:
    (tmp_path / "keys").write_text(f"{hashed('a')}\nsesame\n")
    with pytest.raises(UserError, match=r"keys:2: is not the SHA-256"):
        Keys(tmp_path / "keys")
    with pytest.raises(UserError, match="no such file"):
        Keys(tmp_path / "none")


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def refused(meter: Meter, client: str, characters: int = 1) -> int | None:
    try:
        meter.charge(client, 1, characters)
    except Refused as error:
        return error.retry_after if error.status == 429 else -1
    return None


def test_requests_a_minute() -> None:
    clock = Clock()
    meter = Meter(Limits(requests_per_minute=6), clock)
    assert [refused(meter, "a") for _ in range(7)] == [None] * 6 + [11]
    assert refused(meter, "b") is None
    clock.now += 10.5
    assert refused(meter, "a") is None
    assert refused(meter, "a") is not None
    clock.now += 1e6
    assert [refused(meter, "a") for _ in range(7)][:6] == [None] * 6, "no more than a minute's worth is saved"


def test_characters_a_minute() -> None:
    clock = Clock()
    meter = Meter(Limits(characters_per_minute=100), clock)
    assert refused(meter, "a", 60) is None
    assert refused(meter, "a", 60) == 13
    assert refused(meter, "a", 0) is None
    clock.now += 60
    assert refused(meter, "a", 1000) is None, "one that is larger than the limit empties it"
    assert refused(meter, "a", 1) is not None


def test_not_every_client_is_remembered() -> None:
    meter = Meter(Limits(requests_per_minute=1), Clock())
    for number in range(3 * MOST_CLIENTS):
        assert refused(meter, str(number)) is None
    assert len(meter._left) <= 2 * MOST_CLIENTS
