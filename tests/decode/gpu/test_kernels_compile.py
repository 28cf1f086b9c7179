"""The Triton kernels compile for a Hopper GPU, which none is needed for: wide loads, early ones first, no spilling."""

import os
import re
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

TRITON = find_spec("triton")  # not loaded here: what is loaded decides whether kernels are interpreted
if TRITON is None:
    pytest.skip("Triton is not installed", allow_module_level=True)

OF_TRAINING = "cross_entropy_kernel|gelu_|paged_attention|add_norm|_rows|slot_attention|row_argmax"
"""Kernels of training, of the engine and of batches, which do not start before the last one has ended."""
PROGRAM = """
import sys, triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource
from qkv.blocks.kernels import linear_gelu_triton as bias_gelu_kernels
from qkv.decode.engine import paged_kernels
from qkv.decode.gpu import batch_kernels
from qkv.decode.gpu import fused_kernels as one_row_kernels
from qkv.train.loss import fused_cross_entropy_triton as loss_kernels

X, HALF, ID, WHOLE = "*fp32", "*bf16", "*i64", "i32"
KINDS = {
    "table_ptr": HALF, "position_table_ptr": HALF, "weight_ptr": HALF, "bias_ptr": HALF, "norm_weight_ptr": HALF,
    "norm_bias_ptr": HALF,
    "key_ptr": HALF, "value_ptr": HALF, "logits_ptr": HALF, "stride": WHOLE, "num_splits": WHOLE, "ended_ptr": "*i1",
    "logprob_ptr": "*fp64", "scale": "fp32", "eps": "fp32", "smoothing": "fp32",
} | dict.fromkeys(("token_ptr", "position_ptr", "slot_ptr", "argmax_ptr", "eos_ptr", "written_ptr", "count_ptr",
                   "target_ptr", "page_table_ptr"), ID)
KINDS |= {"qkv_ptr": X, "input_stride": WHOLE}
ROWS = dict.fromkeys(("x_ptr", "update_ptr", "sum_ptr", "out_ptr", "q_ptr", "mask_ptr"), HALF) | dict.fromkeys(
    ("row_stride", "token_stride", "key_stride", "head_stride", "mask_stride", "mask_token_stride", "num_slots",
     "max_tokens", "slot_stride"), WHOLE) | {"output_ptr": "*fp64"}
BATCHED = {name for name in dir(batch_kernels) if hasattr(getattr(batch_kernels, name), "arg_names")}
COMMON = {"NORM": "none", "NORM_WEIGHT": False, "NORM_BIAS": False, "BIAS": False, "RESIDUAL": False,
          "ACTIVATION": "none", "GATED": False, "EARLY": True}
GELU = {"P0": 1.59, "P1": 0.0756, "P2": -0.00097, "P3": 8.7e-06, "UNROLLED": 4}
BENT = {"x_ptr": HALF, "out_ptr": HALF, "grad_out_ptr": HALF, "grad_x_ptr": HALF, "bias_ptr": X, "rows": WHOLE}
CASES = [
    ("embed", 1, {"WIDTH": 768, "HAS_POSITIONS": True, "BLOCK": 256}),
    ("fused_linear", 4, {"IN": 768, "OUT": 3072, "PADDED": 1024, "BLOCK": 4, "NORM": "layernorm",
                         "NORM_WEIGHT": True, "NORM_BIAS": True, "BIAS": True, "ACTIVATION": "gelu_tanh"}),
    ("fused_linear", 4, {"IN": 2048, "OUT": 5632, "PADDED": 2048, "BLOCK": 2, "NORM": "rmsnorm",
                         "NORM_WEIGHT": True, "ACTIVATION": "silu", "GATED": True}),
    ("fused_linear", 8, {"IN": 14336, "OUT": 4096, "PADDED": 16384, "BLOCK": 2, "RESIDUAL": True}),
    ("attention", 8, {"H": 32, "KV": 8, "D": 128, "ROTARY_DIM": 128, "BLOCK": 256, "IS_SPLIT": True}),
    ("merge_splits", 4, {"D": 64, "PADDED": 32}),
    ("partial_argmax", 4, {"VOCAB": 50257, "BLOCK": 1024}),
    ("finish_greedy_step", 4, {"PARTS": 50, "PADDED": 64, "NUM_EOS": 2}),
    ("cross_entropy_kernel", 4, {"OUTPUTS": 50257, "WIDTH": 50304, "BIAS": False, "SMOOTH": True, "IGNORED": -100,
                                 "BLOCK": 2048}),
    ("paged_attention", 4, {"H": 12, "KV": 12, "D": 64, "ROTARY_DIM": 0, "PAGE_SIZE": 16, "WINDOW": 0, "BLOCK": 64}),
    ("paged_attention", 4, {"H": 32, "KV": 4, "D": 64, "ROTARY_DIM": 64, "PAGE_SIZE": 16, "WINDOW": 9, "BLOCK": 64}),
    ("add_norm", 4, {"WIDTH": 768, "PADDED": 1024, "NORM": "layernorm", "UPDATE": True, "KEEP_SUM": True,
                     "WEIGHT": True, "BIAS": True}),
    ("add_norm", 8, {"WIDTH": 8192, "PADDED": 8192, "NORM": "rmsnorm", "UPDATE": True, "KEEP_SUM": True,
                     "WEIGHT": True}),
    ("rotate_rows", 4, {"HEADS": 36, "PADDED": 64, "D": 64, "ROTARY_DIM": 64, "PADDED_HALF": 32}),
    ("activate_rows", 4, {"WIDTH": 5632, "ACTIVATION": "silu", "GATED": True, "BLOCK": 1024}),
    ("slot_attention", 4, {"T": 1, "NEW": 1, "G": 8, "QUERIES": 16, "H": 32, "KV": 4, "D": 64, "ROTARY_DIM": 64,
                           "WRITES": True, "HAS_MASK": True, "BLOCK": 64}),
    ("slot_attention", 4, {"T": 4, "NEW": 4, "G": 1, "QUERIES": 16, "H": 8, "KV": 8, "D": 64, "ROTARY_DIM": 0,
                           "WRITES": False, "HAS_MASK": True, "BLOCK": 64}),
    ("row_argmax", 8, {"VOCAB": 50304, "BLOCK": 4096}),
    ("finish_rows", 1, {"PARTS": 13, "PADDED": 16, "NUM_EOS": 2}),
    ("store_rows", 1, {"PARTS": 13, "PADDED": 16}),
    ("gelu_forward", 4, {"WIDTH": 3072, "ROWS": 8, "COLUMNS": 1024} | GELU),
    ("gelu_backward", 8, {"WIDTH": 3072, "ROWS": 32, "COLUMNS": 1024} | GELU),
    ("gelu_backward", 2, {"WIDTH": 1000, "ROWS": 32, "COLUMNS": 256} | GELU),
]
MODULES = (one_row_kernels, batch_kernels, loss_kernels, bias_gelu_kernels, paged_kernels)
for number, (name, warps, values) in enumerate(CASES):
    kernel = next(getattr(m, name) for m in MODULES if hasattr(m, name))
    names = kernel.arg_names
    KINDS |= BENT if name.startswith("gelu") else {}
    special = ROWS if name in BATCHED - {"row_argmax", "finish_rows"} else {"max_tokens": WHOLE}
    values = {key: value for key, value in (COMMON | values).items() if key in names}
    kinds = {n: "constexpr" if n in values else (KINDS | special).get(n, X) for n in names}
    even = {(i,): [["tt.divisibility", 16]] for i, n in enumerate(names) if kinds[n][0] == "*" or "stride" in n}
    source = ASTSource(kernel, kinds, {(names.index(key),): value for key, value in values.items()}, even)
    built = triton.compile(source, target=GPUTarget("cuda", 90, 32), options={"num_warps": warps})
    with open(f"{sys.argv[1]}/{number}-{name}.ptx", "w") as file:
        file.write(built.asm["ptx"])
"""


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """The assembly of each case. In a process of its own: here kernels are interpreted."""
    folder = tmp_path_factory.mktemp("ptx")
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    environment |= {"TRITON_CACHE_DIR": str(folder / "cache")}
    done = subprocess.run([sys.executable, "-c", PROGRAM, str(folder)], env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-2000:]
    return {path.stem: path.read_text() for path in sorted(folder.glob("*.ptx"))}


def test_every_kernel_of_a_step_waits_and_lets_the_next_one_start(built: dict[str, str]) -> None:
    for name, text in built.items():
        if not re.search(OF_TRAINING, name):
            assert text.count("griddepcontrol.wait") == text.count("griddepcontrol.launch_dependents") == 1, name
            assert text.index("griddepcontrol.wait") < text.index("st.global"), name


def test_weights_are_read_before_the_wait_and_all_else_after_it(built: dict[str, str]) -> None:
    """Sixteen bytes at a time; what comes after it is the vector, which the last kernel wrote."""
    for name, text in built.items():
        before = (
            re.findall(r"ld\.global\S*", text[: text.index("griddepcontrol.wait")]) if "fused_linear" in name else []
        )
        if "fused_linear" in name:
            assert len([load for load in before if ".v4" in load]) >= 6, (name, before)
        elif not re.search(OF_TRAINING, name):
            assert "ld.global" not in text[: text.index("griddepcontrol.wait")], name


def test_logits_with_an_odd_edge_are_read_and_written_in_wide_pieces(built: dict[str, str]) -> None:
    (text,) = (text for name, text in built.items() if "cross_entropy_kernel" in name)
    assert len(re.findall(r"ld\.global\S*v4", text)) >= 4
    assert re.search(r"st\.global\S*v4", text)


def test_gelu_reads_and_writes_wide_pieces(built: dict[str, str]) -> None:
    for name, text in built.items():
        if "gelu" in name:
            assert len(re.findall(r"ld\.global\S*v[24]", text)) >= 4, name
            assert len(re.findall(r"st\.global\S*v[24]", text)) >= 4, name


def test_pages_are_read_in_wide_pieces(built: dict[str, str]) -> None:
    for name, text in built.items():
        if "paged_attention" in name:
            assert len(re.findall(r"ld\.global\S*v4", text)) >= 2, name


def test_nothing_spills(built: dict[str, str], tmp_path: Path) -> None:
    assembler = Path(TRITON.origin).parent / "backends/nvidia/bin/ptxas"
    if not assembler.exists():
        pytest.skip("this Triton comes without an assembler")
    for name, text in built.items():
        (tmp_path / "kernel.ptx").write_text(text)
        words = [str(assembler), "-v", "-arch=sm_90a", str(tmp_path / "kernel.ptx"), "-o", os.devnull]
        told = subprocess.run(words, capture_output=True, text=True, check=True).stderr
        assert "0 bytes spill stores" in told, (name, told)
