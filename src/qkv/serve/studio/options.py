"""The options of the studio: folders of runs, sparse autoencoders, example texts."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from qkv.errors import UsageError
from qkv.files import read_text
from qkv.inside import SparseAutoencoder, list_sites
from qkv.models import Config
from qkv.serve.studio.requests import MAX_EXAMPLES
from qkv.serve.studio.results import ResultCache
from qkv.serve.studio.runs import Runs, read_examples
from qkv.train.run.folder import RunFolder


@dataclass(frozen=True)
class StudioOptions:
    """What the studio is started with. `autoencoders` are the autoencoders of all models, by name."""

    runs: Runs = field(default_factory=lambda: Runs([Path("runs")]))
    autoencoders: dict[str, SparseAutoencoder] = field(default_factory=dict)
    examples: Sequence[str] = ()
    answers: ResultCache = field(default_factory=ResultCache)

    def find_autoencoders(self, config: Config) -> dict[str, SparseAutoencoder]:
        """The autoencoders whose site and width a model has."""
        sites = set(list_sites(config))
        return {
            name: one
            for name, one in self.autoencoders.items()
            if one.config.site in sites and one.config.width == site_width(config, one.config.site)
        }

    def list_examples(self, source: str | Path | None) -> list[str]:
        """Example texts for a model: the texts given at the start, or texts of the run that trained it."""
        if self.examples or source is None:
            return list(self.examples)
        return read_examples(Path(source))


def site_width(config: Config, site: str) -> int:
    """The size of a vector at a site."""
    stack = config.stacks.get(site.partition(".")[0], config.stack)
    return stack.ffn_width if site.endswith((".mlp_pre", ".mlp_post")) else stack.width


def make_options(
    models: Iterable[str], runs: Sequence[Path], autoencoders: Sequence[Path], examples: Path | None
) -> StudioOptions:
    """The options of `qkv studio`. Without folders of runs, these are `runs` and the folders of the models."""
    for folder in runs:
        if not folder.is_dir():
            raise UsageError(f"--runs {folder}: there is no such folder; give one that has runs")
    folders = [Path(model).absolute() for model in models if RunFolder(model).is_run]
    roots = list(dict.fromkeys([Path("runs").absolute(), *(folder.parent for folder in folders)]))
    lines = [] if examples is None else read_text(examples).splitlines()
    return StudioOptions(
        Runs(runs or roots),
        {path.stem: SparseAutoencoder.load(path) for path in autoencoders},
        [line for line in lines if line.strip()][:MAX_EXAMPLES],
    )
