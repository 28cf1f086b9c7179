"""The state that the routes of one server share."""

import time
from dataclasses import dataclass, field

from qkv.serve.http.keys import ApiKeys
from qkv.serve.http.metrics import Metrics
from qkv.serve.http.request_log import RequestLog
from qkv.serve.running.pool import ModelPool
from qkv.serve.settings import ServeSettings


@dataclass(eq=False)
class ServerState:
    """The models, the settings, the metrics and the log of a server."""

    pool: ModelPool
    settings: ServeSettings
    log: RequestLog
    keys: ApiKeys | None = None
    metrics: Metrics = field(default_factory=Metrics)
    num_running: int = 0  # requests that are being answered
    unsent_bytes: int = 0  # of answers that are being sent
    is_draining: bool = False  # a stop signal has arrived
    started_at: float = field(default_factory=time.time)
