"""The features of a sparse autoencoder with their top examples, as a page: one HTML file without scripts or network."""

from dataclasses import dataclass
from html import escape
from pathlib import Path

from qkv.files import save_text, to_path
from qkv.inside.autoencoder.evaluate import AutoencoderReport
from qkv.inside.neurons import ActivatingExample, TokenEffect, VocabularyEffect

STYLE = """
:root { color-scheme: light dark;
  --ink: #1c1e21; --soft: #5b6168; --line: #d9dde2; --paper: #ffffff; --heat: 214 97 20; }
@media (prefers-color-scheme: dark) {
  :root { --ink: #e8eaed; --soft: #a3abb4; --line: #3a4048; --paper: #16181b; --heat: 255 142 66; }
}
body { margin: 0 auto; max-width: 72rem; padding: 1.5rem; background: var(--paper); color: var(--ink);
  font: 16px/1.5 system-ui, sans-serif; }
h1 { font-size: 1.5rem; margin: 0 0 .25rem; }
h2 { font-size: 1.05rem; margin: 0; }
p { margin: .25rem 0; }
.soft { color: var(--soft); }
dl { display: flex; flex-wrap: wrap; gap: .25rem 2rem; margin: 1rem 0; }
dt { color: var(--soft); font-size: .85rem; } dd { margin: 0; font-variant-numeric: tabular-nums; }
section { border-top: 1px solid var(--line); padding: .9rem 0; }
ol { list-style: none; margin: .5rem 0 0; padding: 0; }
li { display: grid; grid-template-columns: 4rem 1fr; gap: .75rem; }
li > span:first-child { color: var(--soft); text-align: right; font-variant-numeric: tabular-nums; }
code { font: 14px/1.6 ui-monospace, Menlo, Consolas, monospace; overflow-wrap: anywhere; white-space: pre-wrap; }
code.promoted { border: 1px solid var(--line); border-radius: .25rem; padding: 0 .25rem; }
mark { background: rgb(var(--heat) / var(--heat-alpha)); color: inherit; border-radius: .15rem; }
mark.peak { outline: 2px solid rgb(var(--heat)); }
"""
MAX_ALPHA = 0.6
"""The opacity of the background of the most active token."""
CONTROL_PICTURES = {code: 0x2400 + code for code in range(32)} | {127: 0x2421}
"""Control characters, and the visible signs that Unicode has for them."""


@dataclass(frozen=True)
class FeatureSummary:
    """One feature: where it is active, and what it promotes."""

    number: int
    active_fraction: float  # the fraction of tokens at which it is active
    examples: tuple[ActivatingExample, ...]
    effect: VocabularyEffect | None  # None for a site from which no token is predicted directly


@dataclass(frozen=True)
class FeatureReport:
    """The features of an autoencoder, for a page. `report` has the measures of the whole autoencoder."""

    site: str
    features: tuple[FeatureSummary, ...]
    num_features: int  # of the whole autoencoder
    report: AutoencoderReport | None = None

    def to_html(self, title: str = "Features") -> str:
        """One HTML page that needs no scripts and no network."""
        sections = "\n".join(_feature_section(feature) for feature in self.features)
        measures = "" if self.report is None else _measures(self.report)
        shown = f"{len(self.features):,} of {self.num_features:,} features"
        return f"""<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>{escape(title)}</title>
<style>{STYLE}</style>
</head>
<body>
<main>
<h1>{escape(title)}</h1>
<p class="soft">{shown} of a sparse autoencoder at <code>{escape(self.site)}</code>. The stronger the colour of a
token, the more active the feature; the outlined token is the most active one of its text.</p>
{measures}
{sections}
</main>
</body>
</html>
"""

    def save(self, path: str | Path, *, title: str = "Features") -> None:
        """Write the page. Missing folders are made."""
        save_text(to_path(path), self.to_html(title))


def _measures(measured: AutoencoderReport) -> str:
    rows = {
        "explained variance": f"{measured.explained_variance:.1%}",
        "active features per token (L0)": f"{measured.l0:.1f}",
        "dead features": f"{measured.dead_fraction:.1%}",
        "loss": f"{measured.loss:.3f}",
        "loss with the autoencoder": f"{measured.loss_spliced:.3f}",
        "loss with zeros": f"{measured.loss_zero:.3f}",
        "loss recovered": f"{measured.loss_recovered:.1%}",
        "tokens": f"{measured.num_tokens:,}",
    }
    listed = "".join(f"<div><dt>{escape(name)}</dt><dd>{escape(value)}</dd></div>" for name, value in rows.items())
    return f"<dl>{listed}</dl>"


def _feature_section(feature: FeatureSummary) -> str:
    name = f"feature-{feature.number}"
    effects = ""
    if feature.effect is not None:
        effects = f'<p class="soft">promotes {_tokens(feature.effect.promoted)}</p>'
    examples = "\n".join(_example_item(example, feature.examples[0].value) for example in feature.examples)
    return f"""<section aria-labelledby="{name}">
<h2 id="{name}">Feature {feature.number}</h2>
<p class="soft">active at {feature.active_fraction:.2%} of all tokens</p>
{effects}
<ol>
{examples}
</ol>
</section>"""


def _tokens(effects: tuple[TokenEffect, ...]) -> str:
    return " ".join(f'<code class="promoted">{_visible(effect.text.replace(" ", "␣"))}</code>' for effect in effects)


def _example_item(example: ActivatingExample, largest: float) -> str:
    parts = []
    for number, (text, value) in enumerate(zip(example.tokens.texts, example.values, strict=True)):
        if value <= 0:
            parts.append(_visible(text))
            continue
        alpha = MAX_ALPHA * min(1.0, value / largest)
        peak = ' class="peak"' if number == example.offset else ""
        parts.append(f'<mark{peak} style="--heat-alpha: {alpha:.2f}" title="{value:.2f}">{_visible(text)}</mark>')
    return f"<li><span>{example.value:.2f}</span><code>{''.join(parts)}</code></li>"


def _visible(text: str) -> str:
    """A token as HTML, with a visible sign for line breaks and other control characters."""
    return escape(text.replace("\n", "⏎").translate(CONTROL_PICTURES))
