"""Several servers are one: the least loaded is asked first, and a dead one's requests are answered by the others."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from pdfquarry.engine import servers
from pdfquarry.engine.pages import EngineDown
from pdfquarry.engine.servers import Servers


class StatusError(RuntimeError):
    def __init__(self, status_code: int) -> None:
        super().__init__(f"status {status_code}")
        self.status_code = status_code


class Fake:
    """A server's client: answers with its name, or fails."""

    def __init__(self, name: str) -> None:
        self.name, self.now, self.most, self.error = name, 0, 0, None

    async def aio_predict(self, *_: Any) -> str:
        if self.error is not None:
            raise self.error
        self.now += 1
        self.most = max(self.most, self.now)
        await asyncio.sleep(0.01)
        self.now -= 1
        return self.name


def ask(pool: Servers, number: int) -> list[Any]:
    async def all_of_them() -> list[Any]:
        requests = (pool.aio_predict(None, "") for _ in range(number))
        return await asyncio.gather(*requests, return_exceptions=True)

    return asyncio.run(all_of_them())


@pytest.fixture
def fakes(monkeypatch: pytest.MonkeyPatch) -> dict[str, Fake]:
    monkeypatch.setattr(servers, "_FIRST_PAUSE", 0.05)
    return {name: Fake(name) for name in "abc"}


def test_the_load_is_spread(fakes: dict[str, Fake]) -> None:
    pool = Servers(list("abc"), fakes.__getitem__, 1)
    answers = ask(pool, 30)
    assert all(answers.count(name) == 10 for name in "abc")
    assert all(fake.most <= 10 for fake in fakes.values()) and pool.answered == 30


@pytest.mark.parametrize("error", [OSError("refused"), StatusError(503), StatusError(429)])
def test_a_dead_servers_requests_move_to_the_others(fakes: dict[str, Fake], error: Exception) -> None:
    fakes["b"].error = error
    answers = ask(Servers(list("abc"), fakes.__getitem__, 1), 30)
    assert sorted(set(answers)) == ["a", "c"] and len(answers) == 30


def test_a_server_that_is_not_there_at_the_start_is_asked_again(fakes: dict[str, Fake]) -> None:
    tried: list[str] = []

    def connect(url: str) -> Fake:
        tried.append(url)
        if len(tried) < 3:
            raise ConnectionError(url)
        return fakes[url]

    assert ask(Servers(["a"], connect, 5), 1) == ["a"]


def test_no_server_at_all_is_the_engine_down_and_not_the_page(fakes: dict[str, Fake]) -> None:
    for fake in fakes.values():
        fake.error = OSError("refused")
    (error,) = ask(Servers(list("abc"), fakes.__getitem__, 0.3), 1)
    assert isinstance(error, EngineDown) and "a, b, c" in str(error)


@pytest.mark.parametrize("status", [401, 403, 404])
def test_a_key_or_a_model_that_is_wrong_ends_the_job(fakes: dict[str, Fake], status: int) -> None:
    fakes["a"].error = StatusError(status)
    (error,) = ask(Servers(["a"], fakes.__getitem__, 1), 1)
    assert isinstance(error, EngineDown) and str(status) in str(error)


def test_a_request_that_a_server_refuses_is_the_requests_fault(fakes: dict[str, Fake]) -> None:
    fakes["a"].error = StatusError(400)
    (error,) = ask(Servers(["a"], fakes.__getitem__, 1), 1)
    assert isinstance(error, StatusError)


def test_a_key_that_is_refused_while_connecting_is_told_at_once() -> None:
    class ServerError(RuntimeError):
        """As mineru-vl-utils raises it when it asks for the model's name."""

    def connect(url: str) -> Fake:
        raise ServerError(f"Failed to get model name from {url}. Status code: 401, response body: no")

    pool = Servers(["a"], connect, 60)
    with pytest.raises(EngineDown, match="401"):
        asyncio.run(pool.any_client())
