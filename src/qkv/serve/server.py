"""Runs the application with uvicorn until a signal stops it."""

import gc
import ipaddress
import logging
import re
import signal
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from types import FrameType
from typing import Any

import uvicorn
from starlette.applications import Starlette

from qkv.errors import QkvError, UsageError
from qkv.serve.app import make_app
from qkv.serve.http.connection import make_protocol
from qkv.serve.http.open_files import MAX_BACKLOG, fit_to_open_files
from qkv.serve.http.request_log import RedactingHandler
from qkv.serve.settings import LOCAL_HOSTS, ServeSettings
from qkv.serve.studio.options import StudioOptions
from qkv.store.hub import bundled_folders
from qkv.train.run.folder import RunFolder

SWITCH_SECONDS = 0.001
"""How long the thread of an engine may wait for the event loop to release Python's lock; by default, it is 5 ms."""
KEEP_ALIVE_SECONDS = 75
"""How long an idle connection stays open: longer than clients and proxies reuse one (httpx 5 s, many proxies 60 s).
A client that reuses a connection in the moment in which the server closes it gets a reset instead of an answer."""
NAME = re.compile(r"[A-Za-z0-9_.-]{1,100}")


class DrainingServer(uvicorn.Server):
    """On SIGTERM or SIGINT, it accepts no new request, and ends when the running ones have ended or time is up."""

    def __init__(self, config: uvicorn.Config, app: Starlette, announce: Callable[[str], None]) -> None:
        """`announce` is called with the address when the server listens."""
        super().__init__(config)
        self.app, self.announce = app, announce

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """Start to drain. A second Ctrl-C ends at once."""
        self.app.state.server.is_draining = True
        super().handle_exit(sig, frame)

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Handle signals. Unlike uvicorn's own method, this does not raise them again after a clean end."""
        before = {one: signal.signal(one, self.handle_exit) for one in (signal.SIGINT, signal.SIGTERM)}
        try:
            yield
        finally:
            for one, handler in before.items():
                signal.signal(one, handler)

    async def startup(self, sockets: list[Any] | None = None) -> None:
        """Listen, and announce the address."""
        await super().startup(sockets)
        if self.started:
            port = self.servers[0].sockets[0].getsockname()[1]
            host = f"[{self.config.host}]" if ":" in self.config.host else self.config.host
            self.announce(f"http://{host}:{port}")


def run_server(
    sources: Mapping[str, str],
    settings: ServeSettings,
    *,
    host: str = "127.0.0.1",
    port: int = 8000,
    insecure: bool = False,
    announce: Callable[[str], None],
    studio: StudioOptions | None = None,
) -> None:
    """Load the models and serve them until a signal stops the server. Running requests are finished first."""
    if not 0 <= port < 2**16:
        raise UsageError(f"--port {port}: a port is a number from 0 to 65535; choose another")
    if not is_local(host):
        if settings.keys is None and not insecure:
            raise UsageError(
                f"--host {host}: everybody who can reach this address could use the server; give API keys (--keys "
                "FILE), or --insecure if something else protects it"
            )
        if settings.allowed_hosts == LOCAL_HOSTS:
            settings = replace(settings, allowed_hosts=("*",))
    prepare_interpreter()
    settings, backlog, note = fit_to_open_files(settings)
    app = make_app(sources, settings)
    app.state.studio = studio or app.state.studio
    for name in sources:
        app.state.server.pool.load(name)
    config = make_config(app, settings, host, port, backlog)
    server = DrainingServer(config, app, announce)
    logger = logging.getLogger("qkv")
    logger.addHandler(RedactingHandler(app.state.server.log, settings.log_texts))
    logger.propagate = False
    if note:
        app.state.server.log.write("fewer_connections", reason=note)
    try:
        server.run()
    except SystemExit as stop:  # uvicorn's way to say that the port is in use
        raise QkvError(f"--port {port}: cannot listen on {host} (is another server running?); use --port") from stop


def prepare_interpreter() -> None:
    """Shorten the waits of the event loop: for Python's lock, and for the garbage collector.

    The objects that exist before the models are loaded are not searched for garbage again.
    """
    sys.setswitchinterval(SWITCH_SECONDS)
    gc.collect()
    gc.freeze()


def make_config(
    app: Starlette, settings: ServeSettings, host: str, port: int, backlog: int = MAX_BACKLOG
) -> uvicorn.Config:
    """How uvicorn runs an application."""
    return uvicorn.Config(
        app,
        host=host,
        port=port,
        http=make_protocol(settings),
        backlog=backlog,
        ws="none",
        lifespan="on",
        log_config=None,
        access_log=False,
        server_header=False,
        limit_concurrency=settings.max_connections,
        timeout_keep_alive=KEEP_ALIVE_SECONDS,
        timeout_graceful_shutdown=int(settings.drain_seconds),
    )


def is_local(host: str) -> bool:
    """Whether only this machine can reach an address.

    >>> is_local("127.0.0.1"), is_local("::1"), is_local("0.0.0.0"), is_local("example.org")
    (True, True, False, False)
    """
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def name_models(arguments: Sequence[str]) -> dict[str, str]:
    """The names and paths of models. An argument is a path, or NAME=PATH.

    >>> name_models(["runs/dates", "big=models/gpt2"])
    {'dates': 'runs/dates', 'big': 'models/gpt2'}
    """
    sources: dict[str, str] = {}
    for argument in arguments:
        name, equals, path = argument.partition("=")
        if not equals or Path(argument).exists():
            name, path = Path(argument).resolve().name if argument in (".", "..") else Path(argument).name, argument
        if NAME.fullmatch(name) is None or not path:
            raise UsageError(f"{argument}: give the model a name of letters, digits, dots and dashes: NAME=PATH")
        if name in sources:
            raise UsageError(f"two models have the name {name!r}; give one of them another name: NAME=PATH")
        sources[name] = path
    return sources


def find_default(folder: Path = Path("runs")) -> str:
    """The model to serve if none is named: a bundled model, or else the newest run with a model or a checkpoint."""
    if in_box := list(bundled_folders()):
        return in_box[0]
    found = [
        (path.stat().st_mtime, str(path))
        for path in (folder.iterdir() if folder.is_dir() else ())
        if (path / "config.json").is_file() or (RunFolder(path).is_run and RunFolder(path).checkpoints.steps())
    ]
    if not found:
        raise UsageError(f"give a model, such as: qkv serve runs/dates (there is no run in {folder}/)")
    return max(found)[1]
