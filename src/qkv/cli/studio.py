"""`qkv studio`: a web page that shows models at work."""

import os
import sys
from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from qkv.cli.shared import Device, Json, print_json
from qkv.errors import QkvError

PathList = Annotated[list[Path] | None, Parameter(negative=())]


def studio(
    *models: str,
    port: int = 8100,
    browser: bool = True,
    runs: PathList = None,
    autoencoder: PathList = None,
    examples: Path | None = None,
    device: Device = "cpu",
    log_file: Path | None = None,
    json: Json = False,
) -> None:
    """Look inside models on a web page: attention, predictions, neurons, beam search; and watch training runs.

    Only this computer can open the page, and it needs no network. Ctrl-C stops the server. qkv serve shows the same
    page at /.

    Examples:
        qkv studio runs/dates
        qkv studio runs/small runs/large
        qkv studio models/gpt2 --autoencoder features.safetensors --examples lines.txt

    Parameters
    ----------
    models
        Models as PATH or NAME=PATH. Without one: a bundled model (qkv models lists them), or the newest run.
    port
        Port to listen on; 0: any free port.
    browser
        Open a browser; --no-browser only prints the address.
    runs
        Folders with training runs. Default: ./runs and the folders of the models.
    autoencoder
        Sparse autoencoders: the page shows their features beside the neurons.
    examples
        Text file with one text per line. The page chooses the top examples of each neuron from these texts.
    log_file
        File for the log of requests.
    """
    try:
        from qkv.serve.server import find_default, name_models, run_server
    except ImportError as error:
        raise QkvError("qkv studio needs starlette and uvicorn; install them with: pip install 'qkv[serve]'") from error
    from qkv.serve.settings import ServeSettings
    from qkv.serve.studio.options import make_options

    sources = name_models(models or [find_default()])
    options = make_options(sources.values(), runs or [], autoencoder or [], examples)
    settings = ServeSettings(device=device, max_sequences=4, cache_mib=64, log_file=log_file or Path(os.devnull))

    def announce(address: str) -> None:
        if json:
            print_json({"url": address, "models": list(sources)})
            sys.stdout.flush()
        print(f"qkv studio is at {address}; Ctrl-C stops it", file=sys.stderr, flush=True)
        if browser:
            open_browser(address)

    run_server(sources, settings, port=port, announce=announce, studio=options)


def open_browser(address: str) -> None:
    """Open the page in a browser, without waiting for it."""
    import webbrowser
    from threading import Thread

    Thread(target=webbrowser.open, args=(address,), daemon=True).start()
