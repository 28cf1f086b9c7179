"""An index of known traps, which other implementations fell into, and the tests that prove that this one did not.

The numbers are those of the project's list of traps. If a test is renamed or removed, this index must change, too.
"""

import ast
from functools import cache
from pathlib import Path

ROOT = Path(__file__).parent

TRAPS: dict[int, tuple[str, ...]] = {
    # A fully masked query gives NaN, depending on the kernel
    1: (
        "blocks/test_attention.py::test_a_fully_masked_query_gets_zeros",
        "blocks/test_attention.py::test_a_fully_masked_query_has_finite_gradients",
        "models/test_invariance.py::test_a_row_of_padding_alone_is_finite_forward_and_backward",
    ),
    # NaN in a masked value still leaks
    2: (
        "blocks/test_attention.py::test_poison_in_padded_tokens_changes_no_other_output",
        "blocks/test_attention.py::test_poison_in_a_padded_source_changes_no_output",
        "blocks/test_attention.py::test_without_blanking_the_poison_would_spread",
        "models/test_invariance.py::test_poison_in_the_vector_of_padding_reaches_no_text",
    ),
    # Left padding moves positions
    3: (
        "models/test_invariance.py::test_a_prompt_alone_is_the_prompt_in_a_padded_batch",
        "models/test_cached.py::test_prompts_of_unequal_length_decode_in_one_batch_as_alone",
    ),
    # `is_causal` is aligned to the first key, wrong with a cache
    4: (
        "models/test_cached.py::test_a_decoder_with_a_cache_is_the_full_forward",
        "models/test_cached.py::test_a_wrongly_aligned_mask_would_be_noticed",
    ),
    # Returning attention weights switched kernels and dropped the causal mask
    5: (
        "models/test_tap.py::test_looking_leaves_outputs_bit_for_bit_the_same",
        "models/test_tap.py::test_patterns_are_those_that_mixed_the_values",
    ),
    # SDPA applies dropout whenever dropout_p > 0, in eval mode, too
    6: (
        "models/test_modes.py::test_evaluation_is_the_same_twice_whatever_the_dropout",
        "models/test_modes.py::test_without_dropout_training_is_evaluation",
        "models/test_modes.py::test_each_dropout_acts_in_training",
    ),
    # T5 does not scale scores, shares its bias from layer 0, scales its head when tied
    7: (
        "parity/test_parity_heads.py::test_a_text_alone",
        "parity/test_parity_controls.py::test_a_mistake_in_a_stack_is_seen",
        "parity/test_parity_controls.py::test_a_mistake_in_a_head_is_seen",
        "parity/test_parity_export.py::test_every_pairing_of_a_tied_and_a_scaled_head",
    ),
    # BART's positions start at offset 2, RoBERTa's at pad + 1
    8: (
        "parity/test_parity_heads.py::test_a_padded_batch_says_what_each_text_says_alone",
        "parity/test_parity_packed.py::test_texts_in_one_row_say_what_they_say_alone",
        "parity/test_parity_controls.py::test_a_mistake_in_a_stack_is_seen",
    ),
    # Tied weights mixed up at load
    9: (
        "parity/test_parity_stored.py::test_tied_matrices_share_storage_and_others_do_not",
        "parity/test_parity_stored.py::test_save_and_load_keep_numbers_config_and_ties",
        "models/test_build.py::test_a_tied_head_shares_the_embeddings_storage",
    ),
    # The embedding's scale √C on or off
    10: (
        "blocks/test_embedding.py::test_tokens_are_scaled_by_the_root_of_the_width_or_not",
        "parity/test_parity_controls.py::test_a_mistake_in_a_stack_is_seen",
    ),
    # Post-norm has no final norm, pre-norm has one
    11: (
        "blocks/test_stack.py::test_a_last_norm_is_there_where_blocks_do_not_end_with_one",
        "parity/test_parity_torch.py::test_the_whole_transformer",
        "parity/test_parity_torch.py::test_a_final_norm_after_post_norm_would_be_seen",
    ),
    # Deep-copied layers start identical
    12: (
        "models/tables/test_presets.py::test_no_two_layers_of_a_preset_start_equal",
        "blocks/test_init.py::test_no_two_layers_start_equal",
    ),
    # Cross keys and values recomputed, copied per beam, or hit by the self window
    13: (
        "models/test_beams.py::test_a_decoding_reads_and_projects_its_source_once",
        "models/test_beams.py::test_the_memory_of_the_source_does_not_grow_with_beams",
        "models/test_beams.py::test_beams_with_caches_are_separate_sources_without",
        "blocks/test_stack.py::test_the_window_does_not_touch_cross_attention",
    ),
    # Rotary tables in low precision
    18: (
        "models/test_precision.py::test_a_bfloat16_model_is_as_good_far_out_as_at_the_start",
        "models/test_precision.py::test_low_precision_angles_would_be_noticed",
        "blocks/test_position.py::test_rotary_tables_keep_their_precision_in_a_low_precision_model",
    ),
    # Softmax and norms in bfloat16
    19: (
        "blocks/test_attention.py::test_a_long_row_of_weights_sums_to_one_in_bfloat16",
        "blocks/test_attention.py::test_the_softmax_of_a_bfloat16_model_is_as_good_as_its_inputs",
        "blocks/test_norm.py::test_norms_take_their_statistics_in_float32",
        "models/test_precision.py::test_a_bfloat16_network_is_near_the_exact_one",
    ),
    # The beam's cache reorder is skipped
    14: (
        "decode/test_beam.py::test_a_beam_with_room_for_every_path_finds_the_best_of_all",
        "decode/test_beam.py::test_the_reorder_of_the_cache_matters",
    ),
    # Length penalty and early stopping: the bound depends on the sign
    15: (
        "decode/test_beam.py::test_a_beam_with_room_for_every_path_finds_the_best_of_all",
        "decode/test_beam.py::test_stopping_early_loses_nothing",
    ),
    # Label smoothing counts padding
    16: (
        "train/loss/test_training_module.py::test_padding_changes_neither_loss_nor_gradient",
        "train/loss/test_training_module.py::test_the_loss_is_the_cross_entropy_of_all_logits_written_out",
    ),
    # Accumulation averages averages instead of weighing by tokens
    17: (
        "train/loss/test_training_module.py::test_micro_batches_add_up_to_the_batch",
        "train/loss/test_training_module.py::test_averages_of_averages_would_be_found",
        "train/test_step.py::test_micro_batches_give_the_step_of_the_whole_batch",
    ),
    # Resuming loses the random state, the sampler, patience, or the position inside an epoch
    20: (
        "faults/test_fault_resume.py::test_ten_steps_are_five_a_crash_and_five",
        "faults/test_fault_resume.py::test_other_dropout_would_be_noticed",
        "faults/test_fault_resume.py::test_the_middle_of_an_epoch_is_found_again",
        "faults/test_fault_training.py::test_runs_that_were_killed_end_as_the_undisturbed_one",
        "train/test_loop.py::test_patience_and_the_best_come_back_after_a_crash",
        "data/stream/test_sequences.py::test_resuming_with_another_world_size_changes_nothing",
        "data/load/test_loader.py::test_resuming_changes_nothing_whatever_the_workers",
        "data/load/test_loader.py::test_two_processes_then_one_then_two",
    ),
    # Packing leaks between documents, or trains on the first label of the next one
    21: (
        "data/test_packed_loss.py::test_the_loss_of_packed_sequences_is_that_of_separate_examples",
        "data/test_packed_loss.py::test_no_gradient_flows_between_documents_of_a_sequence",
        "data/stream/test_sequences.py::test_no_label_is_predicted_from_another_document",
        "data/stream/test_sequences.py::test_shifting_a_packed_sequence_would_cross_documents",
    ),
    # Pickle hidden in a file
    22: (
        "store/test_store_weights.py::test_a_pickle_under_the_name_of_safetensors_is_not_opened",
        "store/test_store_weights.py::test_a_pickle_alone_is_named_and_not_opened",
        "store/test_store_weights.py::test_the_pickle_would_do_harm",
        "test_layers.py::test_nothing_unpickles_or_runs_code_when_it_loads",
    ),
    # A checkpoint killed half-way is taken as the newest
    23: (
        "faults/test_fault_saving.py::test_after_each_kill_the_newest_complete_checkpoint_loads_bit_by_bit",
        "faults/test_fault_saving.py::test_kills_fell_into_the_middle_of_a_save",
        "faults/test_fault_resume.py::test_a_damaged_newest_checkpoint_is_passed_over_with_a_note",
    ),
    # A NaN loss is averaged away in the log while it updates weights
    24: (
        "faults/test_fault_numbers.py::test_the_run_stops_with_its_weights_untouched_and_names_step_and_examples",
        "faults/test_fault_numbers.py::test_a_step_that_was_skipped_is_not_averaged_into_the_log",
        "faults/test_fault_numbers.py::test_unguarded_the_poison_would_reach_the_weights",
    ),
    # Tokenizer and vocabulary do not match the model
    25: ("store/test_store_weights.py::test_a_tokenizer_larger_than_the_vocabulary_is_refused_with_both_sizes",),
    # Inputs silently cut to the model's length
    26: (
        "data/objectives/test_windows.py::test_too_long_is_an_error_that_says_what_to_do",
        "data/objectives/test_windows.py::test_what_is_cut_is_counted",
        "data/objectives/test_windows.py::test_what_is_skipped_is_counted",
        "test_api.py::test_inputs_that_a_model_cannot_read_are_refused",
        "decode/test_greedy.py::test_texts_beyond_the_positions_are_refused_not_cut",
    ),
    # A stream cuts a multi-byte character in two
    27: ("decode/test_text.py::test_the_stream_is_the_text",),
    # A run from scratch whose output ignores its source
    28: (
        "system/test_learns_recipe.py::test_another_source_gives_another_answer",
        "system/test_learns_recipe.py::test_a_model_that_ignores_its_source_is_found_out",
    ),
    # A bad line in a data file ends, or silently thins, the run
    29: (
        "data/readers/test_invalid_data.py::test_invalid_utf8_is_named_by_line_and_position",
        "data/readers/test_invalid_data.py::test_an_invalid_json_line_is_named",
        "data/readers/test_invalid_data.py::test_one_percent_is_accepted_and_more_is_not",
        "data/readers/test_invalid_data.py::test_a_damaged_file_never_ends_in_a_traceback",
    ),
    # One rank dies and the others hang half an hour
    30: (
        "faults/test_fault_training.py::test_a_process_that_is_killed_ends_the_others_and_the_run_goes_on",
        "train/parallel/test_process_faults.py::test_the_first_failure_is_the_exit_code_and_ends_the_others",
        "train/parallel/test_process_faults.py::test_a_frozen_process_ends_the_other_one_which_hangs_in_a_collective",
    ),
}


@cache
def defined_in(path: Path) -> frozenset[str]:
    """The names of the tests in a file, read from its source without running it."""
    if not path.exists():
        return frozenset()
    body = ast.parse(path.read_text(encoding="utf-8")).body
    return frozenset(node.name for node in body if isinstance(node, ast.FunctionDef) and node.name.startswith("test_"))


def test_the_proofs_of_all_traps_are_there() -> None:
    missing = [
        f"trap {trap}: no {name}"
        for trap, names in TRAPS.items()
        for name in names
        if name.split("::")[1] not in defined_in(ROOT / name.split("::")[0])
    ]
    assert not missing


def test_every_trap_has_a_proof() -> None:
    assert set(TRAPS) == set(range(1, 31))
    assert all(TRAPS.values())


def test_a_proof_that_is_gone_would_be_noticed() -> None:
    assert "test_the_proofs_of_all_traps_are_there" in defined_in(ROOT / "test_traps.py")
    assert "test_that_was_renamed" not in defined_in(ROOT / "test_traps.py")
    assert not defined_in(ROOT / "test_that_was_removed.py")
