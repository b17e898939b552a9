"""What every test gets: its own cache, no terminal's width, and a reason where it needs a GPU and there is none."""

import gc
import sys
import traceback
from collections.abc import Iterator
from multiprocessing.process import BaseProcess
from typing import Any

import pytest
from hypothesis import HealthCheck, settings

settings.register_profile("any machine", deadline=None, suppress_health_check=[HealthCheck.too_slow])  # busy ones, too
settings.load_profile("any machine")


def pytest_sessionstart() -> None:
    """Thousands of tests are collected without a look for garbage, which there is none of: a third faster."""
    gc.disable()


def pytest_collection_finish() -> None:
    gc.freeze()  # nor are they looked at again while they run
    gc.enable()


@pytest.fixture(autouse=True, scope="session")
def own_cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Encoded corpora of the tests stay out of the user's cache, and the terminal's width out of what is printed;
    subprocesses too.
    """
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TFM_CACHE", str(tmp_path_factory.mktemp("cache")))
        patch.delenv("COLUMNS", raising=False)  # which processes of pytest-xdist have set
        yield


@pytest.fixture(autouse=True, scope="session")
def last_words() -> Iterator[None]:
    """Of a forked process that ends with 1 although its work is done, as where coverage cannot save what it measured:
    multiprocessing says nothing of why.
    """
    bootstrap = vars(BaseProcess)["_bootstrap"]

    def telling(self: BaseProcess, *given: Any, **options: Any) -> int:
        try:
            return int(bootstrap(self, *given, **options))
        except BaseException:
            traceback.print_exc(file=sys.__stderr__)
            raise

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(BaseProcess, "_bootstrap", telling)
        yield


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    if not any(item.get_closest_marker("gpu") for item in items):
        return
    import torch

    if not torch.cuda.is_available():
        for item in items:
            if item.get_closest_marker("gpu"):
                item.add_marker(pytest.mark.skip(reason="needs a CUDA device; this machine has none"))
