"""Run the command line, within the test or as a process of its own."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Any

from click.testing import CliRunner, Result

from weft.cli import main


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


def process(*words: str, **settings: Any) -> subprocess.CompletedProcess[str]:
    """Run as a user does."""
    command = [sys.executable, "-m", "weft", *words]
    return subprocess.run(command, capture_output=True, text=True, check=False, **settings)


def refused(result: Result, *fragments: str) -> None:
    """Bad input: status 2, one message, nothing printed."""
    assert result.exit_code == 2
    assert result.stdout == ""
    assert result.stderr.startswith("weft: ")
    assert result.stderr.count("\n") == 1
    for fragment in fragments:
        assert fragment in result.stderr
