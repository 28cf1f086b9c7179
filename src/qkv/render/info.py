"""What `qkv info` shows: where a model's parameters, arithmetic and memory go."""

from rich.bar import Bar
from rich.console import Console
from rich.table import Table
from rich.text import Text

from qkv.models import Config
from qkv.models.summary import COMPONENTS, ModelSummary

FAMILY_NAMES = {"encoder": "encoder-only", "decoder": "decoder-only", "seq2seq": "encoder-decoder"}
PART_NAMES = {"embedding": "embedding", "attention": "attention", "mlp": "MLP", "norms": "norms", "head": "head"}


def format_count(number: float, unit: str = "") -> str:
    """A number that a person reads at a glance.

    >>> format_count(115_970_408_448), format_count(124_439_808), format_count(1_536, "B")
    ('116.0 billion', '124.4 million', '1,536 B')
    """
    if unit:
        for size, prefix in ((1e12, "T"), (1e9, "G"), (1e6, "M"), (1e4, "k")):
            if number >= size:
                scale = 1e3 if prefix == "k" else size
                return f"{number / scale:,.1f} {prefix}{unit}"
        return f"{number:,.0f} {unit}"
    for size, name in ((1e9, "billion"), (1e6, "million")):
        if number >= size:
            return f"{number / size:,.1f} {name}"
    return f"{number:,.0f}"


def print_info(name: str, config: Config, account: ModelSummary, console: Console) -> None:
    """The table of `qkv info`."""
    depth = " + ".join(str(n) for n in account.layers.values())
    head = "" if config.head.kind == "none" else f", {config.head.kind} head"
    console.print(Text.assemble((name, "bold"), f"   {FAMILY_NAMES[account.family]}{head}"))
    stack = config.stack
    grouped = f" ({stack.kv_heads} key/value)" if stack.kv_heads != stack.heads else ""
    console.print(
        f"{depth} layers · {stack.heads} heads of {stack.head_dim}{grouped} · width {stack.width:,} · "
        f"vocabulary {stack.vocab_size:,}",
        highlight=False,
    )
    console.print(_positions(config), highlight=False)
    table = Table(box=None, padding=(0, 2, 0, 0), pad_edge=False)
    table.add_column("where")
    table.add_column("parameters", justify="right")
    table.add_column("share", justify="right")
    table.add_column("", width=30)
    add_parameter_rows(table, account)
    console.print(table)

    costs = Table(box=None, padding=(0, 2, 0, 0), pad_edge=False, show_header=False)
    costs.add_row(
        f"arithmetic per token, at {account.context_length:,} tokens",
        f"{format_count(account.flops_forward, 'FLOP')} forward, {format_count(account.flops_training, 'FLOP')} training",
    )
    costs.add_row("memory of the weights", _sizes(account.weight_bytes))
    if account.cache_bytes_per_token["float32"]:
        costs.add_row("cache per token", _sizes(account.cache_bytes_per_token))
    if account.cross_bytes_per_source_token["float32"]:
        costs.add_row("cache per source token", _sizes(account.cross_bytes_per_source_token))
    console.print(costs, highlight=False)


def _positions(config: Config) -> str:
    stack = config.stack
    window = f", a window of {stack.sliding_window:,} back" if stack.sliding_window else ""
    if stack.sliding_window and config.decoder is None:
        window += " and ahead"
    return (
        f"{stack.position.replace('_', ' ')} positions"
        + (f" ({stack.max_positions:,})" if stack.has_max_positions else "")
        + window
    )


def _sizes(sizes: dict[str, int]) -> str:
    return ", ".join(f"{format_count(sizes[kind], 'B')} {kind}" for kind in ("float32", "bfloat16"))


def add_parameter_rows(table: Table, account: ModelSummary) -> None:
    """A row for each part of a model, and one for all: how many, the share, a bar."""
    for part in COMPONENTS:
        number = account.parameters[part]
        label = PART_NAMES[part] + (" (tied)" if part == "head" and account.tied else "")
        bar = Bar(account.total, 0, number, width=30, color="cyan")
        table.add_row(label, format_count(number), f"{number / account.total:.1%}", bar)
    table.add_row("total", format_count(account.total), "", "", style="bold")
