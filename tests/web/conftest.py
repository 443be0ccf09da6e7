"""One browser for all tests of a process; installed where it is missing and can be."""

from __future__ import annotations

import fcntl
import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from threading import Thread

import pytest

from tests.web import browser as driver
from tests.web.driving import opened
from tests.web.pages import OTHER, SMALL, measured
from weft.schedules import pipedream
from weft.simulate import simulate
from weft.web import write_page
from weft.web.server import Server

INSTALL = (
    ["apt-get", "update", "-qq"],
    ["apt-get", "install", "-y", "-qq", "--no-install-recommends", "chromium"],
)


@pytest.fixture(scope="session")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[driver.Browser]:
    """Debian's Chromium."""
    if driver.program() is None:
        _install(tmp_path_factory)
    if driver.program() is None:
        pytest.skip(f"{driver.MISSING} (which this user cannot, or found no network for)")
    with driver.browser() as running:
        yield running


def _install(tmp_path_factory: pytest.TempPathFactory) -> None:
    """Where this is Debian and the user may; one of several test processes does it."""
    if not shutil.which("apt-get") or os.geteuid() != 0:
        return
    lock = tmp_path_factory.getbasetemp().parent / "chromium.lock"
    with lock.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        if driver.program() is not None:
            return
        environment = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
        for command in INSTALL:
            subprocess.run(command, env=environment, check=False, capture_output=True, timeout=600)


@pytest.fixture(scope="session")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Pages that several tests open."""
    made = tmp_path_factory.mktemp("pages")
    write_page(made / "small.html", [SMALL])
    write_page(made / "two.html", [SMALL, OTHER])
    write_page(made / "run.html", [SMALL, measured(SMALL)], ["predicted", "measured"])
    write_page(made / "versions.html", [simulate(pipedream(devices=3, microbatches=4).unrolled())])
    return made


@pytest.fixture
def small(browser: driver.Browser, folder: Path) -> driver.Page:
    return opened(browser, folder / "small.html")


@pytest.fixture(scope="module")
def live() -> Iterator[Server]:
    """The live server on a port of its own."""
    with Server() as running:
        Thread(target=running.serve_forever, daemon=True).start()
        yield running
        running.shutdown()


@pytest.fixture
def page(browser: driver.Browser, live: Server) -> driver.Page:
    """The live page, with its first timeline."""
    made = browser.page()
    made.open(live.address)
    made.until("weft.timelines.length")
    return made
