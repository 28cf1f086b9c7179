"""The time from a text of 20 tokens to the picture of its heads in the studio, for the bundled model.

    taskset -c 0,1 python bench/studio.py               all: needs playwright and chromium
    taskset -c 0,1 python bench/studio.py --no-browser  the server's part alone

"server" is the work of the server: it generates the answer, traces the text with it, and writes the document as JSON.
"request" is that work as the browser sees it. "drawn" is the time from the last byte of the response to the frame that
shows the picture, and "picture" is the sum of both. Every text is new, so nothing comes from a cache. CPU times are
those of the process of the server and of the browser's main thread; on a busy machine, only these are comparable.
"""

import argparse
import json
import os
import signal
import statistics
import subprocess
import sys
import time
from itertools import product
from pathlib import Path
from typing import Any

import torch
from qkv.serve.studio.answer import AnswerCache

import qkv
from qkv.serve.http.json_body import encode_json
from qkv.serve.studio.document import trace_document
from qkv.serve.studio.requests import TraceRequest
from qkv.values import read

MODEL = "en-fr"
NUM_TOKENS = 20
NOUNS = ("girl", "boy", "man", "woman", "teacher", "doctor", "king", "queen")
PLACES = ("garden", "house", "street", "kitchen")
PANEL = "attention"
VIEWS = ["attention"]
WATCH = """
window.trace = (text) => new Promise((resolve) => {
  const report = () => {
    const request = performance.getEntriesByType("resource").filter((one) => one.name.endsWith("/api/trace")).at(-1);
    const end = performance.now();
    const [asked, answered] = [request.startTime, request.responseEnd];
    resolve({request: answered - asked, drawn: end - answered, picture: end - asked});
  };
  const observer = new MutationObserver(() => {
    observer.disconnect();
    requestAnimationFrame(() => setTimeout(report));
  });
  observer.observe(document.querySelector("#panel"), {childList: true});
  const field = document.querySelector("#text");
  field.value = text;
  field.dispatchEvent(new Event("input"));
});
"""


def make_texts(model: qkv.Model, count: int) -> list[str]:
    """Different texts of 20 tokens."""
    texts = [
        f"The old {one} is playing in the {place} with the little {other} and her big black dog now."
        for one, other, place in product(NOUNS, NOUNS, PLACES)
    ]
    assert model.tokenizer is not None
    found = [text for text in texts if len(model.tokenizer.encode(text, add_special_tokens=True)) == NUM_TOKENS]
    assert len(found) >= count, f"only {len(found)} texts have {NUM_TOKENS} tokens"
    return found[:count]


def measure_server(model: qkv.Model, texts: list[str]) -> list[dict[str, float]]:
    """The server's part, in this process."""
    answers, rows = AnswerCache(), []
    for text in texts:
        request = read(TraceRequest, {"model": MODEL, "text": text, "views": VIEWS})
        began, cpu = time.perf_counter(), time.process_time()
        size = len(encode_json(trace_document(model, request, {}, answers)))
        row = {"server": time.perf_counter() - began, "server, CPU": time.process_time() - cpu}
        rows.append({**{name: 1e3 * value for name, value in row.items()}, "KB": size / 1e3})
    return rows


def measure_browser(texts: list[str]) -> list[dict[str, float]]:
    """Requests and pictures, in a browser."""
    sys.path.insert(0, str(Path(__file__).parents[1] / "tests" / "page"))
    from browsing import open_browser

    command = [sys.executable, "-m", "qkv", "studio", MODEL, "--port", "0", "--no-browser", "--json"]
    rows: list[dict[str, float]] = []
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as server:
        assert server.stdout is not None
        address = json.loads("".join(iter(server.stdout.readline, "}\n")) + "}")["url"]
        try:
            with open_browser() as browser:
                page = browser.new_context(viewport={"width": 1280, "height": 900}).new_page()
                page.goto(f"{address}/#{PANEL}?model={MODEL}&text=Hello.")
                page.wait_for_selector(f"#studio[data-ready={PANEL}]", state="attached", timeout=120_000)
                metrics = page.context.new_cdp_session(page)
                metrics.send("Performance.enable", {"timeDomain": "threadTicks"})
                page.evaluate(WATCH)
                for text in texts:
                    before = read_cpu(metrics)
                    row = page.evaluate("(text) => window.trace(text)", text)
                    rows.append({**row, "drawn, CPU": 1e3 * (read_cpu(metrics) - before)})
        finally:
            server.send_signal(signal.SIGTERM)
    return rows


def read_cpu(metrics: Any) -> float:
    """The CPU seconds of the browser's main thread."""
    found = {one["name"]: one["value"] for one in metrics.send("Performance.getMetrics")["metrics"]}
    return float(found["TaskDuration"])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--texts", type=int, default=20)
    parser.add_argument("--no-browser", action="store_true")
    arguments = parser.parse_args()
    model = qkv.load(MODEL)
    warm, *texts = make_texts(model, arguments.texts + 1)
    measure_server(model, [warm])
    rows = measure_server(model, texts)
    in_browser = [] if arguments.no_browser else measure_browser([warm, *texts])[1:]
    print(f"torch {torch.__version__}, {torch.get_num_threads()} threads, load {os.getloadavg()[0]:.1f}; ms")
    for name in (*rows[0], *(in_browser[0] if in_browser else ())):
        values = [row[name] for row in (rows if name in rows[0] else in_browser)]
        print(f"{name:12} median {statistics.median(values):7.1f}   best {min(values):7.1f}   worst {max(values):7.1f}")


if __name__ == "__main__":
    main()
