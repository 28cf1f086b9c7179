"""The number of connections that the limit of open files allows.

Each connection is an open file. If the files run out, a server can accept no further connection, and asyncio writes a
traceback for each attempt.
"""

from dataclasses import replace

from qkv.serve.settings import ServeSettings

RESERVED_FILES = 32
"""Open files of the server besides its connections: models, logs, the processes that check requests."""
MAX_BACKLOG = 2048


def fit_to_open_files(settings: ServeSettings) -> tuple[ServeSettings, int, str]:
    """Raise the limit of open files as far as needed and allowed, or else lower the number of connections.

    Returns the settings, the number of connections that may wait to be accepted, and a note if there was a change.
    """
    try:
        import resource
    except ImportError:  # Windows has no such limit
        return settings, MAX_BACKLOG, ""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = settings.max_connections + MAX_BACKLOG + RESERVED_FILES
    if soft != resource.RLIM_INFINITY and soft < wanted:
        soft = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    if soft == resource.RLIM_INFINITY or soft >= wanted:
        return settings, MAX_BACKLOG, ""
    # Connections are accepted in bursts of at most the backlog, before the surplus ones are closed.
    free = max(soft - RESERVED_FILES, 8)
    backlog = min(free // 4, MAX_BACKLOG)
    if free - backlog >= settings.max_connections:
        return settings, backlog, ""
    most = free - backlog
    per_address = min(settings.max_connections_per_address, max(most * 3 // 4, 1))
    note = (
        f"this process may open {soft:,} files, so at most {most:,} connections are accepted instead of "
        f"{settings.max_connections:,}, {per_address:,} of them from one address; raise the limit with ulimit -n"
    )
    return replace(settings, max_connections=most, max_connections_per_address=per_address), backlog, note
