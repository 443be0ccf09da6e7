"""`weft serve`: the page live in a browser, on this machine alone."""

from __future__ import annotations

import webbrowser
from contextlib import suppress
from errno import EADDRNOTAVAIL
from ipaddress import ip_address
from pathlib import Path

import click

from weft.cli.help import Sectioned
from weft.cost.models import add_model
from weft.errors import InputError
from weft.notation import read_cluster, read_model


@click.command("serve", cls=Sectioned)
@click.option("--port", type=click.IntRange(0, 65535), default=8123, show_default=True, metavar="P",
              help="Port to listen on; 0 is any that is free.")  # fmt: skip
@click.option("--host", default="127.0.0.1", show_default=True, metavar="ADDRESS",
              help="Address to listen on.")  # fmt: skip
@click.option("--allow-others", is_flag=True, help="Allow a --host that other machines can reach.")
@click.option("--model", "models", type=click.Path(exists=True, dir_okay=False, path_type=Path),
              multiple=True, metavar="FILE",
              help="A model to choose from beside the usual ones: a config.json of Hugging Face, or"
              " a model file of Weft; it is called by its folder or its file.")  # fmt: skip
@click.option("--cluster", type=click.Path(exists=True, dir_okay=False, path_type=Path),
              metavar="FILE", help="A cluster that the page computes with first: as `weft plan"
              " --cluster` takes it.")  # fmt: skip
@click.option("--open/--no-open", "is_opened", default=True, help="Open a browser.")
def command(
    port: int,
    host: str,
    allow_others: bool,
    models: tuple[Path, ...],
    cluster: Path | None,
    is_opened: bool,
) -> None:
    """Serve the page live: choose schedules, sizes and costs, and see the timeline at once.

    \b
      $ weft serve
      The page is at http://127.0.0.1:8123/ until Ctrl-C.
      $ weft serve --port 0 --no-open
      $ weft serve --model llama-3-8b/config.json --cluster mine.json

    It listens on this machine only, unless --host and --allow-others say otherwise; then whoever
    reaches the port can use it. Nothing that it is sent is executed. A program, a plan, a timeline,
    a torch CSV, or a file of a model, a device or a cluster can be dropped on the page.
    """
    from weft.web.descriptions import described
    from weft.web.server import Server

    _check_host(host, allow_others=allow_others)
    for path in models:
        add_model(
            path.resolve().parent.name if path.stem == "config" else path.stem, read_model(path)
        )
    given = [] if cluster is None else [described(read_cluster(cluster), cluster.name, "")]
    try:
        server = Server(host, port, given=given)
    except OSError as error:
        is_elsewhere = error.errno == EADDRNOTAVAIL
        remedy = "Give --host an address of this machine" if is_elsewhere else "Try --port 0"
        raise InputError(
            f"{host}:{port} cannot be listened on: {error.strerror}. {remedy}."
        ) from None
    with server, suppress(KeyboardInterrupt):  # which is how one ends it
        print(f"The page is at {server.address} until Ctrl-C.", flush=True)
        if is_opened:
            webbrowser.open(server.address)
        server.serve_forever()


def _check_host(host: str, *, allow_others: bool) -> None:
    """Refuse an address that others see, unless that is wanted."""
    try:
        address = ip_address("127.0.0.1" if host == "localhost" else host)
    except ValueError:
        raise InputError(f"--host {host}: an address like 127.0.0.1, or localhost") from None
    if address.is_unspecified:
        raise InputError(
            f"--host {host} stands for every address of this machine; give the one that browsers"
            f" will ask for"
        )
    if not address.is_loopback and not allow_others:
        raise InputError(f"--host {host} is seen by other machines; add --allow-others to mean it")
