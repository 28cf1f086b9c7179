"""`qkv serve` and `qkv new-key`: models over HTTP."""

import sys
from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from qkv.cli.shared import Json, print_json, print_result
from qkv.errors import QkvError
from qkv.serve.settings import ServeSettings

DEFAULTS = ServeSettings()
Flat = Annotated[ServeSettings, Parameter(name="*", negative=())]
Insecure = Annotated[bool, Parameter(name="--insecure", negative=())]


def serve(
    *models: str,
    host: str = "127.0.0.1",
    port: int = 8000,
    insecure: Insecure = False,
    json: Json = False,
    settings: Flat = DEFAULTS,
) -> None:
    """Serve models over HTTP, with OpenAI's API and a route for each task. /docs describes them.

    SIGTERM and Ctrl-C let running requests finish. The log has one line of JSON for each request, without its text.
    --host lets other machines use the server; it requires --keys.

    Examples:
        qkv serve runs/dates
        qkv serve runs/dates tiny=models/gpt2 --port 8080
        qkv new-key keys.txt laptop
        qkv serve models/gpt2 --host 0.0.0.0 --keys keys.txt

    Parameters
    ----------
    models
        Models as PATH or NAME=PATH; the first is the default. Without one: a bundled model (qkv models lists them), or
        the newest run.
    host
        Address to listen on.
    port
        Port to listen on; 0: any free port.
    insecure
        Allow a public address without API keys.
    """
    try:
        from qkv.serve.server import find_default, name_models, run_server
    except ImportError as error:
        raise QkvError("qkv serve needs starlette and uvicorn; install them with: pip install 'qkv[serve]'") from error

    sources = name_models(models or [find_default()])

    def announce(address: str) -> None:
        names = ", ".join(sources)
        if json:
            print_json({"url": address, "models": list(sources)})
            sys.stdout.flush()
        print(f"qkv serves {names} at {address}; its API is described at {address}/docs", file=sys.stderr, flush=True)

    run_server(sources, settings, host=host, port=port, insecure=insecure, announce=announce)


def new_key(file: Path, name: str, /, *, json: Json = False) -> None:
    """Make an API key for qkv serve, print it once, and append its hash to a file.

    To revoke a key, remove its line from the file and restart the server.

    Examples:
        qkv new-key keys.txt laptop

    Parameters
    ----------
    file
        File of hashes, for qkv serve --keys.
    name
        Name of the key, which the log shows.
    """
    from qkv.serve.http.keys import add_key

    key = add_key(file, name)
    print_result(json, key, {"name": name, "key": key})
