"""The program of a sandboxed process, run by `qkv.sandbox`: `python program.py WORKER`.

A line of stdin is {"shared", "items", "max_seconds", "max_bytes"} as JSON. For each item, the program calls the
function `answer(shared, item)` of the worker, a Python file. It writes a line with a list of {"result"} or {"error"}.
"""

import json
import runpy
import sys
import time
from contextlib import suppress


def limit_process(max_seconds: int, max_bytes: int) -> None:
    """Limit the CPU time from now on and the memory of this process, on systems that can."""
    with suppress(ImportError, ValueError, OSError):
        import resource

        _, hard_limit = resource.getrlimit(resource.RLIMIT_CPU)
        resource.setrlimit(resource.RLIMIT_CPU, (int(time.process_time()) + 1 + max_seconds, hard_limit))
        resource.setrlimit(resource.RLIMIT_AS, (max_bytes, max_bytes))
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))


def main() -> None:
    """Read requests from stdin, and write their answers to stdout."""
    answer = runpy.run_path(sys.argv[1])["answer"]
    for line in sys.stdin.buffer:
        request = json.loads(line)
        answers = []
        for item in request["items"]:
            limit_process(request["max_seconds"], request["max_bytes"])
            try:
                answers.append({"result": answer(request["shared"], item)})
            except Exception as error:  # untrusted work can raise anything
                answers.append({"error": f"{type(error).__name__}: {str(error)[:500]}"})
        sys.stdout.buffer.write(json.dumps(answers).encode() + b"\n")
        sys.stdout.buffer.flush()


if __name__ == "__main__":
    main()
