"""The output of `qkv info`: the parameters, FLOPs and memory of a model."""

from rich.bar import Bar
from rich.console import Console
from rich.table import Table
from rich.text import Text

from qkv.blocks.parts import find_part
from qkv.errors import count_nouns
from qkv.models import Config
from qkv.models.tables.summary import ModelSummary
from qkv.render.formatting import format_count, plain_table

FAMILY_NAMES = {"encoder": "encoder-only", "decoder": "decoder-only", "seq2seq": "encoder-decoder"}


def print_info(name: str, config: Config, summary: ModelSummary, console: Console) -> None:
    """Print the table of `qkv info`."""
    numbers = list(summary.layers.values())
    depth = " + ".join(map(str, numbers)) + (" layer" if numbers == [1] else " layers")
    head = "" if config.head.kind == "none" else f", {config.head.kind} head"
    console.print(Text.assemble((name, "bold"), f"   {FAMILY_NAMES[summary.family]}{head}"))
    stack = config.stack
    if not stack.has_blocks:
        layers = " + ".join(f"{stack.layers} {stack.block.upper()}" for stack in config.stacks.values())
        layers += " layer" if numbers == [1] else " layers"
        console.print(f"{layers} · width {stack.width:,} · vocabulary {stack.vocab_size:,}", highlight=False)
        if config.family == "seq2seq" and "recurrent_attention" in find_part("block", stack).fields:
            console.print(f"attention: {stack.recurrent_attention}", highlight=False)
    else:
        _print_shape(config, depth, console)
    table = plain_table("component", "parameters", "fraction", "", header_style="bold")
    table.columns[3].width = 30
    add_parameter_rows(table, summary)
    console.print(table)

    costs = plain_table("", "")
    forward, training = (format_count(flops, "FLOP") for flops in (summary.flops_forward, summary.flops_training))
    flops = f"{forward} forward, {training} training"
    if summary.unstated_flops:
        flops = f"unknown: {', '.join(summary.unstated_flops)} without FLOPs"
    costs.add_row(f"compute per token, at {summary.context_length:,} tokens", flops)
    for kind, flops_of_one in summary.flops_per_input.items():
        what = "image, with its patches" if kind == "patches" else f"input of {kind}"
        costs.add_row(f"compute per {what}", f"{format_count(flops_of_one, 'FLOP')} forward")
    costs.add_row("memory of the weights", _format_sizes(summary.weight_bytes))
    if summary.cache_bytes_per_token["float32"]:
        costs.add_row("cache per token", _format_sizes(summary.cache_bytes_per_token))
    if summary.cross_bytes_per_source_token["float32"]:
        costs.add_row("cache per source token", _format_sizes(summary.cross_bytes_per_source_token))
    if summary.state_bytes["float32"]:
        costs.add_row("state per sequence", _format_sizes(summary.state_bytes))
    console.print(costs, highlight=False)


def _print_shape(config: Config, depth: str, console: Console) -> None:
    stack = config.stack
    grouped = f" ({stack.kv_heads} key/value)" if stack.kv_heads != stack.heads else ""
    console.print(
        f"{depth} · {count_nouns(stack.heads, 'head')} of {stack.head_dim}{grouped} · width {stack.width:,} · "
        f"vocabulary {stack.vocab_size:,}",
        highlight=False,
    )
    console.print(_describe_positions(config), highlight=False)


def _describe_positions(config: Config) -> str:
    stack = config.stack
    window = f", sliding window of {stack.sliding_window:,}" if stack.sliding_window else ""
    if stack.sliding_window and config.decoder is None:
        window += " in both directions"
    return (
        f"{stack.position.replace('_', ' ')} positions"
        + (f" ({stack.max_positions:,})" if stack.has_max_positions else "")
        + window
    )


def _format_sizes(sizes: dict[str, int]) -> str:
    return ", ".join(f"{format_count(sizes[dtype], 'B')} {dtype}" for dtype in ("float32", "bfloat16"))


def add_parameter_rows(table: Table, summary: ModelSummary) -> None:
    """Add a row for each component of a model and one for the total: parameters, fraction and a bar."""
    for component, number in summary.parameters.items():
        label = "MLP" if component == "mlp" else component
        label += " (tied)" if component == "head" and summary.tied else ""
        bar = Bar(summary.total, 0, number, width=30, color="cyan")
        table.add_row(label, format_count(number), f"{number / summary.total:.1%}", bar)
    table.add_row("total", format_count(summary.total), "", "", style="bold")
    if summary.active != summary.total:
        table.add_row("used by a token", format_count(summary.active), f"{summary.active / summary.total:.1%}", "")
