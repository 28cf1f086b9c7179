"""Looking inside a model: read and change the activations of all three families.

    trace        `Trace`: activations of one text, by site     record       makes traces
    trace_files  traces of a corpus on disk                    tokens       ids and texts of tokens
    sites        the names of the sites of a model             forward      runs any family on token ids
    attention    patterns, summaries of heads, rollout         lens         the logit lens
    attribution  what each head and MLP adds to a logit        tuned_lens   a lens that is trained
    edits        change activations, also while generating     edit_tap     the tap that applies edits
    patching     activation patching of each position or head, attribution patching

    neurons/     the top examples of a unit, and the tokens that it promotes
    autoencoder/ sparse autoencoders of the activations of a site
    facts/       find a fact in an MLP, and edit it
    substitutions  the scores of all single substitutions of a protein
    contacts     maps of the residues that attend to each other
    doctor/      the checks of `qkv doctor`                    look/        the page of `qkv look`

The sites have the names of `qkv.blocks.tap`. Recording leaves the fast attention kernels on.
"""

from typing import TYPE_CHECKING

from qkv.inside.record import DEFAULT_SITES, MAX_TRACE_BYTES, trace, trace_many
from qkv.lazy import lazy_names

if TYPE_CHECKING:
    from qkv.inside.attention import (
        HeadSummary,
        Rollout,
        attention_pattern,
        head_summaries,
        rollout,
        value_weighted_pattern,
    )
    from qkv.inside.attribution import ATTRIBUTION_SITES, Attribution, Component, logit_attribution
    from qkv.inside.autoencoder import (
        AutoencoderOptions,
        AutoencoderReport,
        FeatureReport,
        FeatureSummary,
        SparseAutoencoder,
        evaluate_autoencoder,
        fit_autoencoder,
        summarise_features,
    )
    from qkv.inside.contacts import ContactMap, ContactWeights, map_contacts, read_contact_weights
    from qkv.inside.edit_tap import Edit, EditTap, check_edits
    from qkv.inside.edits import change, mean_ablate, mean_values, patch, resample_ablate, steer, zero_ablate
    from qkv.inside.forward import encode_examples
    from qkv.inside.lens import LensReading, lens_logits, logit_lens
    from qkv.inside.neurons import UnitExamples, VocabularyEffect, direction_effect, top_examples, vocabulary_effect
    from qkv.inside.patching import (
        PatchingResult,
        activation_patching,
        attribution_patching,
        logit_difference,
        token_logprob,
    )
    from qkv.inside.sites import list_sites
    from qkv.inside.substitutions import Substitutions, score_substitutions
    from qkv.inside.tokens import TokenList
    from qkv.inside.trace import Trace
    from qkv.inside.trace_files import read_traces, write_traces
    from qkv.inside.tuned_lens import LensComparison, TunedLens, lens_sites, measure_lens, train_tuned_lens
else:
    __getattr__ = lazy_names(
        __name__,
        {
            "attention": "HeadSummary Rollout attention_pattern head_summaries rollout value_weighted_pattern",
            "attribution": "ATTRIBUTION_SITES Attribution Component logit_attribution",
            "autoencoder": "AutoencoderOptions AutoencoderReport FeatureReport FeatureSummary SparseAutoencoder "
            "evaluate_autoencoder fit_autoencoder summarise_features",
            "contacts": "ContactMap ContactWeights map_contacts read_contact_weights",
            "edit_tap": "Edit EditTap check_edits",
            "edits": "change mean_ablate mean_values patch resample_ablate steer zero_ablate",
            "forward": "encode_examples",
            "lens": "LensReading lens_logits logit_lens",
            "neurons": "UnitExamples VocabularyEffect direction_effect top_examples vocabulary_effect",
            "patching": "PatchingResult activation_patching attribution_patching logit_difference token_logprob",
            "sites": "list_sites",
            "substitutions": "Substitutions score_substitutions",
            "tokens": "TokenList",
            "trace": "Trace",
            "trace_files": "read_traces write_traces",
            "tuned_lens": "LensComparison TunedLens lens_sites measure_lens train_tuned_lens",
        },
    )


__all__ = [
    "ATTRIBUTION_SITES",
    "DEFAULT_SITES",
    "MAX_TRACE_BYTES",
    "Attribution",
    "AutoencoderOptions",
    "AutoencoderReport",
    "Component",
    "ContactMap",
    "ContactWeights",
    "Edit",
    "EditTap",
    "FeatureReport",
    "FeatureSummary",
    "HeadSummary",
    "LensComparison",
    "LensReading",
    "PatchingResult",
    "Rollout",
    "SparseAutoencoder",
    "Substitutions",
    "TokenList",
    "Trace",
    "TunedLens",
    "UnitExamples",
    "VocabularyEffect",
    "activation_patching",
    "attention_pattern",
    "attribution_patching",
    "change",
    "check_edits",
    "direction_effect",
    "encode_examples",
    "evaluate_autoencoder",
    "fit_autoencoder",
    "head_summaries",
    "lens_logits",
    "lens_sites",
    "list_sites",
    "logit_attribution",
    "logit_difference",
    "logit_lens",
    "map_contacts",
    "mean_ablate",
    "mean_values",
    "measure_lens",
    "patch",
    "read_contact_weights",
    "read_traces",
    "resample_ablate",
    "rollout",
    "score_substitutions",
    "steer",
    "summarise_features",
    "token_logprob",
    "top_examples",
    "trace",
    "trace_many",
    "train_tuned_lens",
    "value_weighted_pattern",
    "vocabulary_effect",
    "write_traces",
    "zero_ablate",
]
