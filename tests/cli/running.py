"""Run the command line, within the test or as a process of its own."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, TypeAlias

from click.testing import CliRunner, Result

from weft.cli import main

Done: TypeAlias = subprocess.CompletedProcess[str]


def weft(*words: str, **environment: str) -> Result:
    """Run within the test; standard output is no terminal."""
    result = CliRunner(env=environment).invoke(main, list(words))
    assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
    return result


def weft_json(*words: str) -> Any:
    """The one object that a command prints."""
    result = weft(*words, "--json")
    assert result.exit_code == 0, result.stderr
    return json.loads(result.stdout)


def process(*words: str, env: Mapping[str, str] = MappingProxyType({}), **settings: Any) -> Done:
    """Run as a user does, with this added to the environment."""
    command = [sys.executable, "-m", "weft", *words]
    settings |= {"env": {**os.environ, **env}}
    return subprocess.run(command, capture_output=True, text=True, check=False, **settings)


def refused(result: Result, *fragments: str) -> None:
    """Bad input: status 2, one message, nothing printed."""
    assert result.exit_code == 2
    assert result.stdout == ""
    assert result.stderr.startswith("weft: ")
    assert result.stderr.count("\n") == 1
    for fragment in fragments:
        assert fragment in result.stderr
