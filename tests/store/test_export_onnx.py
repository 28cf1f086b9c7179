"""ONNX graphs say what qkv says, for other batches and lengths than those that they were traced with."""

from pathlib import Path

import numpy as np
import pytest
import torch

import qkv

pytest.importorskip("onnxscript", reason="onnxscript is not installed")
onnxruntime = pytest.importorskip("onnxruntime", reason="onnxruntime is not installed")

STACK = qkv.StackConfig(vocab=30, width=16, layers=1, heads=2, ffn_width=32, position="learned", max_positions=32)
CONFIGS = {
    "encoder": qkv.Config(encoder=STACK, head=qkv.HeadConfig(kind="tag", outputs=3)),
    "decoder": qkv.Config(decoder=STACK, head=qkv.HeadConfig(kind="lm", outputs=30, tied=True)),
}


@pytest.mark.parametrize("family", CONFIGS)
def test_a_graph_gives_the_same_numbers(family: str, tmp_path: Path) -> None:
    model = qkv.new(CONFIGS[family], seed=2)
    model.export(tmp_path / "out", format="onnx")
    graphs = sorted((tmp_path / "out").glob("*.onnx"))
    assert graphs
    session = onnxruntime.InferenceSession(str(graphs[0]), providers=["CPUExecutionProvider"])
    ids = torch.randint(0, 30, (3, 9), generator=torch.Generator().manual_seed(1))
    names = [given.name for given in session.get_inputs()]
    feed = {"ids": ids.numpy(), "mask": np.ones(ids.shape, dtype=np.int64)}
    if "past" in names:  # a whole text at once: nothing was read before
        feed["past"] = np.zeros((1, 2, 3, 2, 0, 8), dtype=np.float32)
    assert set(feed) == set(names)
    assert np.allclose(session.run(None, feed)[0], model.logits(ids).numpy(), atol=1e-4)
