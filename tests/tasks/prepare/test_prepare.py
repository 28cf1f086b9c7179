"""From a recipe to rows, tokenizer and config: every objective, held-out data, what is kept, what is refused."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from prepare_samples import COUNT, KINDS, sample_files, sample_recipe

from qkv.data import Loader
from qkv.data.objectives.table import OBJECTIVES
from qkv.errors import QkvError, UsageError
from qkv.tasks.prepare.prepare import PreparedRun, prepare
from qkv.tasks.train import in_batch_negative_notes
from qkv.text import Tokenizer
from qkv.train.loss.training_module import TrainingModule, make_labelled_batch


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("prepared")
    sample_files(path)
    return path


def loss_of(prepared: PreparedRun, rows: Any) -> torch.Tensor:
    """The loss of a fresh network on the first batch of some rows."""
    batch = next(iter(Loader(rows, epochs=1)))
    labels, answers = batch.label_counts
    learner = TrainingModule(prepared.build_network(), prepared.recipe.objective)
    share = torch.tensor(1 / max(labels, 1)), torch.tensor(1 / max(answers, 1))
    loss: torch.Tensor = learner(make_labelled_batch(batch, torch.device("cpu")), *share)
    return loss


@pytest.mark.parametrize("ending", [".", ""])
def test_pairs_of_sentences_are_recognised_and_noted(ending: str, folder: Path, tmp_path: Path) -> None:
    lines = [f"{n} dogs run{ending}\t{n} Hunde laufen{ending}\n" for n in range(100)]
    (tmp_path / "pairs.tsv").write_text("source\ttarget\n" + "".join(lines), encoding="utf-8")
    prepared = prepare(sample_recipe(folder, "seq2seq", str(tmp_path / "pairs.tsv")))
    assert prepared.config.reads_sentences is bool(ending)
    assert any("sentence by sentence" in note for note in prepared.notes) is bool(ending)


def test_a_classifier_records_whether_it_reads_pairs(folder: Path) -> None:
    names = {"moods.csv": False, "two.jsonl": True, "scores.jsonl": True}
    for name, expected in names.items():
        assert prepare(sample_recipe(folder, "classification", str(folder / name))).config.reads_pairs is expected
    assert prepare(sample_recipe(folder, "contrastive")).config.reads_pairs is None


MORE = [
    ("seq2seq", ("a.en", "a.de")),
    ("seq2seq", {"source": "a.en", "target": "a.de"}),
    ("causal_lm", "chat.jsonl"),
    ("classification", "two.jsonl"),
    ("classification", "scores.jsonl"),
    ("contrastive", "scores.jsonl"),
]


@pytest.mark.parametrize(("kind", "file"), [*KINDS.items(), *MORE], ids=str)
def test_every_objective_is_prepared_and_can_be_learnt_from(folder: Path, kind: Any, file: Any) -> None:
    prepared = prepare(sample_recipe(folder, kind, file))
    assert prepared.config.family == OBJECTIVES[kind].families[0]
    assert prepared.valid_data is not None
    assert prepared.valid_data.max_lengths == prepared.train_data.max_lengths
    assert prepared.valid_data.max_documents == prepared.train_data.max_documents
    assert prepared.valid_records
    assert prepared.fields <= prepared.valid_records[0].fields.keys()
    for rows in (prepared.train_data, prepared.valid_data):
        loss = loss_of(prepared, rows)
        loss.backward()
        assert torch.isfinite(loss)


@pytest.mark.parametrize(
    ("kind", "more"),
    [
        ("masked_lm", {"whole_word_masking": True, "mask_prob": 0.3}),
        ("next_sentence", {"whole_word_masking": True}),
        ("span_corruption", {"mean_span_length": 2.0, "mask_prob": 0.2}),
        ("denoising", {"permute_sentences": True, "mean_span_length": 2.0, "random_offset": True}),
        ("causal_lm", {"add_bos_eos": False, "random_offset": True}),
        ("tagging", {"label_subwords": "all"}),
        ("question_answering", {"overlap": 8}),
    ],
    ids=str,
)
def test_the_objectives_own_keys_reach_it(folder: Path, kind: Any, more: dict[str, Any]) -> None:
    usual, changed = (prepare(sample_recipe(folder, kind, objective=keys)) for keys in ({}, more))
    one, other = (next(iter(Loader(prepared.train_data))) for prepared in (usual, changed))
    same = torch.equal(one.inputs.ids, other.inputs.ids)
    assert not same or kind in (
        "question_answering",
        "tagging",
    )  # whose passages and words here are too short to differ
    if kind == "tagging":
        assert other.num_token_labels >= one.num_token_labels
    if kind == "masked_lm":
        assert other.num_token_labels > 1.5 * one.num_token_labels


def test_fields_are_found_by_the_names_that_people_give_them(folder: Path) -> None:
    prepared = prepare(sample_recipe(folder, "classification", "two.jsonl"))
    assert prepared.fields == {"text", "second", "label"}
    assert prepared.labels == ("0", "1", "2")
    assert prepared.config.head.labels == ("0", "1", "2")
    assert prepared.config.stack.token_types == 2
    scored = prepare(sample_recipe(folder, "classification", "scores.jsonl"))
    assert (scored.config.head.outputs, scored.labels) == (1, ())


def test_columns_that_are_not_recognised_are_asked_for_and_taken_when_said(folder: Path) -> None:
    with pytest.raises(
        UsageError, match="recognised as the source and the target that seq2seq needs; the columns are en, de"
    ):
        prepare(sample_recipe(folder, "seq2seq", "languages.tsv"))
    said = prepare(
        sample_recipe(folder, "seq2seq", "languages.tsv", data={"columns": {"source": "en", "target": "de"}})
    )
    plain = prepare(sample_recipe(folder, "seq2seq"))
    assert [r.fields for r in said.valid_records] == [r.fields for r in plain.valid_records]


def test_a_misspelt_field_of_columns(folder: Path) -> None:
    with pytest.raises(UsageError, match="did you mean 'source'"):
        prepare(sample_recipe(folder, "seq2seq", data={"columns": {"sorce": "en"}}))


def test_a_misspelt_dataset_is_no_file(folder: Path) -> None:
    recipe = sample_recipe(folder, "seq2seq", data={"train": "date"})
    with pytest.raises(UsageError, match="did you mean 'dates'"):
        prepare(recipe)


# -------------------------------------------------------------------- held-out data


def test_held_out_records_are_not_trained_on(tmp_path: Path) -> None:
    """The same source twice, with two targets, stays on one side."""
    rows = [f"text {n // 2}\t{'one' if n % 2 else 'two'} {n}" for n in range(400)]
    (tmp_path / "twice.tsv").write_text("\n".join(["source\ttarget", *rows]))
    recipe = sample_recipe(tmp_path, "seq2seq", "twice.tsv", train={"eval_examples": 10**6})
    prepared = prepare(recipe)
    held = {record.fields["source"] for record in prepared.valid_records}
    tokenizer, examples = prepared.tokenizer, prepared.train_data.objectives[0].examples
    trained = {tokenizer.decode(examples[n]["source"]) for n in range(len(examples))}
    assert held
    assert not held & trained
    assert held | trained == {f"text {n}" for n in range(200)}
    assert len(prepared.valid_records) == 2 * len(held)


def test_the_end_of_one_long_text_is_held_out(folder: Path) -> None:
    prepared = prepare(sample_recipe(folder, "causal_lm"))
    text = (folder / "book.txt").read_text()
    (held,) = [record.fields["text"] for record in prepared.valid_records]
    assert text.endswith(held)
    assert 0.14 < len(held) / len(text) < 0.16
    assert any("held out for validation" in note for note in prepared.notes)


def test_validation_files_of_their_own(folder: Path) -> None:
    prepared = prepare(sample_recipe(folder, "seq2seq", data={"valid": str(folder / "pairs.tsv")}))
    assert prepared.train_data.objectives[0].counts.records == COUNT
    assert len(prepared.valid_records) == COUNT


def test_validation_files_that_lack_a_field(folder: Path) -> None:
    recipe = sample_recipe(folder, "classification", "two.jsonl", data={"valid": str(folder / "moods.csv")})
    with pytest.raises(UsageError, match="has no field 'second', but"):
        prepare(recipe)


def test_no_validation(folder: Path) -> None:
    prepared = prepare(sample_recipe(folder, "seq2seq", data={"valid_fraction": 0.0}))
    assert prepared.valid_data is None
    assert prepared.valid_records == []
    assert prepared.train_data.objectives[0].counts.records == COUNT


# -------------------------------------------------------------------- built-in datasets


def test_a_built_in_dataset_needs_no_columns_and_has_its_own_validation_part(folder: Path) -> None:
    recipe = sample_recipe(folder, "seq2seq", data={"train": "dates", "epoch_examples": 300, "max_length": 64})
    prepared = prepare(recipe)
    assert prepared.train_data.objectives[0].counts.records == 300
    assert prepared.valid_records[0].location.file == "dates/valid"
    assert prepared.valid_records[0].fields.keys() == {"source", "target"}
    assert prepared.valid_records[0].fields["target"].replace("-", "").isdecimal()


def test_other_fields_of_a_built_in_dataset(folder: Path) -> None:
    columns = {"source": "iso", "target": "written"}
    recipe = sample_recipe(
        folder, "seq2seq", data={"train": "dates", "epoch_examples": 50, "max_length": 64, "columns": columns}
    )
    assert prepare(recipe).valid_records[0].fields["source"].replace("-", "").isdecimal()
    wrong = sample_recipe(folder, "seq2seq", data={"train": "dates", "columns": {"source": "ios", "target": "written"}})
    with pytest.raises(UsageError, match="did you mean 'iso'"):
        prepare(wrong)


# -------------------------------------------------------------------- mixtures


def test_a_mixture_is_dealt_by_weight_and_validated_on_all(folder: Path) -> None:
    mix = {
        "plain": {"train": str(folder / "pairs.tsv"), "weight": 3.0},
        "named": {"train": str(folder / "languages.tsv"), "columns": {"source": "en", "target": "de"}},
    }
    recipe = sample_recipe(folder, "seq2seq", data={"train": "", "mix": mix})
    prepared = prepare(recipe)
    assert prepared.train_data.dataset_names == ("plain", "named")
    assert prepared.train_data.weights == {"plain": 0.75, "named": 0.25}
    assert prepared.valid_data is not None
    held = prepared.valid_data.objectives[0].counts.records
    trained = sum(objective.counts.records for objective in prepared.train_data.objectives)
    assert held + trained == 2 * COUNT
    assert torch.isfinite(loss_of(prepared, prepared.valid_data))


# -------------------------------------------------------------------- what is kept


def test_the_same_recipe_gives_the_same_again_from_what_was_kept(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    recipe = sample_recipe(folder, "seq2seq", tokenizer={"vocab_size": 400})
    first = prepare(recipe)
    monkeypatch.setattr(Tokenizer, "train", None)  # would fail if it were called
    again = prepare(recipe)
    assert again.tokenizer.fingerprint == first.tokenizer.fingerprint
    assert again.train_data.resume_state() == first.train_data.resume_state()
    one, other = (next(iter(Loader(prepared.train_data))) for prepared in (first, again))
    assert bool((one.inputs.ids == other.inputs.ids).all())
    for (_, a), (_, b) in zip(
        first.build_network().named_parameters(), again.build_network().named_parameters(), strict=True
    ):
        assert torch.equal(a, b)


def test_another_seed_draws_other_weights_from_the_same_data(folder: Path) -> None:
    first, other = (prepare(sample_recipe(folder, "seq2seq", train={"seed": seed})) for seed in (0, 1))
    assert first.tokenizer.fingerprint == other.tokenizer.fingerprint
    a, b = (next(prepared.build_network().parameters()) for prepared in (first, other))
    assert not torch.equal(a, b)


def test_a_damaged_tokenizer_is_trained_again(tmp_path: Path) -> None:
    sample_files(tmp_path)
    recipe = sample_recipe(tmp_path, "seq2seq")
    before = prepare(recipe).tokenizer.fingerprint
    (file,) = (tmp_path / "cache" / "tokenizers").glob("*/tokenizer.json")
    file.write_text("")
    assert prepare(recipe).tokenizer.fingerprint == before


def test_a_changed_choice_gives_another_tokenizer(folder: Path) -> None:
    found = {
        prepare(sample_recipe(folder, "seq2seq", tokenizer=keys)).tokenizer.fingerprint
        for keys in ({}, {"vocab_size": 300}, {"kind": "char"}, {"lowercase": True}, {"kind": "wordpiece"})
    }
    assert len(found) == 5


def test_a_tokenizer_that_the_run_already_has_is_used(folder: Path) -> None:
    given = Tokenizer.train("byte", iter([]), 270, special_tokens=["pad", "bos", "eos"], template="eos")
    prepared = prepare(sample_recipe(folder, "seq2seq"), tokenizer=given)
    assert prepared.tokenizer is given
    assert prepared.config.stack.vocab_size == given.vocab_size


def test_a_tokenizer_from_a_file(folder: Path, tmp_path: Path) -> None:
    Tokenizer.train("byte", iter([]), 270, special_tokens=["pad", "bos", "eos"], template="eos").save(tmp_path)
    for name in (tmp_path, tmp_path / "tokenizer.json"):
        prepared = prepare(sample_recipe(folder, "seq2seq", tokenizer={"from_": str(name)}))
        assert prepared.config.stack.vocab_size == 259


def test_special_tokens_and_frames_suit_the_objective(folder: Path) -> None:
    pairs = prepare(sample_recipe(folder, "seq2seq"))
    batch = next(iter(Loader(pairs.train_data)))
    sources = batch.inputs.source
    assert sources is not None
    source = sources.ids[0][sources.document_ids[0] == 1].tolist()  # type: ignore[index]
    text = pairs.tokenizer.decode(source)
    assert source == pairs.tokenizer.encode(text)  # exactly what the model is given when it is run
    assert pairs.config.decoder_start_token_id == pairs.tokenizer.special_tokens.bos == int(batch.inputs.ids[0, 0])
    free = prepare(sample_recipe(folder, "causal_lm", objective={"add_bos_eos": False}))
    assert (free.config.decoder_start_token_id, free.config.eos_token_ids) == (None, ())
    assert free.tokenizer.encode("a") == free.tokenizer.encode("a", add_special_tokens=False)
    framed = prepare(sample_recipe(folder, "causal_lm"))
    assert framed.tokenizer.encode("a")[0] == framed.config.decoder_start_token_id


# -------------------------------------------------------------------- what is bad, too long or too small


def test_bad_lines_are_told_and_too_many_refused_by_the_recipes_key(tmp_path: Path) -> None:
    good = [json.dumps({"source": f"a {n}", "target": "b"}) for n in range(200)]
    (tmp_path / "some.jsonl").write_text("\n".join([*good, "{broken"]))
    prepared = prepare(sample_recipe(tmp_path, "seq2seq", "some.jsonl"))
    assert prepared.problems.num_invalid == 1
    assert any("some.jsonl:201" in note for note in prepared.notes)
    (tmp_path / "many.jsonl").write_text("\n".join([*good[:20], "{broken", '{"source": "alone"}']))
    with pytest.raises(QkvError, match=r"data\.max_invalid_fraction") as error:
        prepare(sample_recipe(tmp_path, "seq2seq", "many.jsonl"))
    assert "many.jsonl:21" in str(error.value)


def test_records_that_are_too_long_are_counted(folder: Path, tmp_path: Path) -> None:
    recipe = sample_recipe(folder, "seq2seq", data={"max_length": 8, "max_source_length": 64})
    with pytest.raises(QkvError, match="no training examples are left"):
        prepare(recipe)
    (tmp_path / "one.tsv").write_text("source\ttarget\nx\t" + "long " * 300 + "\n" + "a\tb\n" * 3 + "c\td\n" * 3)
    prepared = prepare(sample_recipe(tmp_path, "seq2seq", "one.tsv", data={"valid_fraction": 0.0}))
    assert any("1 skipped" in note for note in prepared.notes)


def test_a_step_that_holds_no_row(tmp_path: Path) -> None:
    (tmp_path / "long.tsv").write_text("source\ttarget\n" + f"{'word ' * 60}\ta b c\n" * 20)
    recipe = sample_recipe(tmp_path, "seq2seq", "long.tsv", data={"valid_fraction": 0.0})
    with pytest.raises(
        UsageError, match=r"train\.batch_tokens = 1024 is less than one sequence of \d+ source and 256 target"
    ):
        prepare(recipe)


def test_pairs_that_are_told_from_all_others_are_not_taken_in_parts(folder: Path) -> None:
    micro = 512
    prepare(sample_recipe(folder, "contrastive", train={"micro_batch_tokens": "auto"}))
    with pytest.raises(UsageError, match=r"train\.micro_batch_tokens = .*the contrastive loss compares each pair"):
        prepare(sample_recipe(folder, "contrastive", train={"micro_batch_tokens": micro}))
    scored = prepare(sample_recipe(folder, "contrastive", "scores.jsonl", train={"micro_batch_tokens": micro}))
    assert in_batch_negative_notes(scored, 2) == [], "with scores each pair stands for itself"
    whole = prepare(sample_recipe(folder, "contrastive", train={"micro_batch_tokens": 1024}))
    assert "each of 2 ranks" in in_batch_negative_notes(whole, 2)[0]
    assert in_batch_negative_notes(whole, 1) == []


def test_scores_beyond_a_cosine_are_refused(tmp_path: Path) -> None:
    """All from 1 on would ask for the same."""
    rows = [{"first": f"one {n}", "second": f"two {n}", "score": n % 6} for n in range(60)]
    (tmp_path / "sts.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    with pytest.raises(UsageError, match=r"range from 0 to 5, but .* set data.max_score = 5"):
        prepare(sample_recipe(tmp_path, "contrastive", "sts.jsonl"))


def test_labels_that_cannot_be_read_are_told_of(tmp_path: Path) -> None:
    """Not as if they were not there."""
    rows = "".join(f"film {n},{('bad', 'tr?s bon')[n % 2]}\n" for n in range(60))
    (tmp_path / "latin.csv").write_bytes(("text,label\n" + rows).encode().replace(b"?", b"\x81"))  # of no encoding
    with pytest.raises(UsageError, match=r"(?s)all labels are bad.*30 of 60 records could not be used.*UTF-8"):
        prepare(sample_recipe(tmp_path, "classification", "latin.csv"))


def test_a_test_file_that_is_not_there_shows_at_once(folder: Path) -> None:
    with pytest.raises(QkvError, match=r"nope\.tsv"):
        prepare(sample_recipe(folder, "seq2seq", data={"test": "nope.tsv"}))


def test_labels_that_are_all_the_same(tmp_path: Path) -> None:
    (tmp_path / "same.csv").write_text("text,label\n" + "".join(f"text {n},yes\n" for n in range(50)))
    with pytest.raises(UsageError, match="at least two classes"):
        prepare(sample_recipe(tmp_path, "classification", "same.csv"))


def test_an_empty_label_is_no_class(tmp_path: Path) -> None:
    rows = [f"text {n},{'yes' if n % 2 else 'no'}" for n in range(300)]
    (tmp_path / "gaps.csv").write_text("\n".join(["text,label", *rows, "alone,", "blank, "]))
    prepared = prepare(sample_recipe(tmp_path, "classification", "gaps.csv", data={"valid_fraction": 0.0}))
    assert prepared.labels == ("no", "yes")
    assert prepared.problems.categories["no label"].count == 2
    assert any("gaps.csv:302: the label is empty" in note for note in prepared.notes)


def test_stray_spaces_and_types_of_labels_make_no_classes(tmp_path: Path) -> None:
    labels = [("1", " 1", 1, 1.0)[n // 2 % 4] if n % 2 else False for n in range(80)]
    rows = [{"text": f"text {n}", "label": label} for n, label in enumerate(labels)]
    (tmp_path / "mixed.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    prepared = prepare(sample_recipe(tmp_path, "classification", "mixed.jsonl"))
    assert prepared.labels == ("1", "false")
    assert prepared.problems.num_invalid == 0
    assert {record.fields["label"] for record in prepared.valid_records} == {"1", "false"}


def test_data_of_which_nothing_can_be_used_is_counted_without_what_is_held_out(tmp_path: Path) -> None:
    """The held-out records are not checked, so the number of records is no total."""
    rows = [{"tokens": n if n % 2 else "more words", "tags": "ab"[n % 2]} for n in range(100)]
    (tmp_path / "texts.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    with pytest.raises(QkvError, match=r"(?s)no record can be used for training:.*\nwrong type: \d+ in") as error:
        prepare(sample_recipe(tmp_path, "tagging", "texts.jsonl"))
    assert "of 100 records" not in str(error.value)


def test_held_out_labels_that_training_never_saw_are_told(tmp_path: Path) -> None:
    rows = [f"text {n},{'yes' if n % 2 else 'no'}" for n in range(300)]
    file = tmp_path / "rare.csv"
    recipe = sample_recipe(tmp_path, "classification", "rare.csv", data={"valid_split_by": "tail"})
    for more, told in (([], ""), (["new,maybe"], "1 record has"), (["new,maybe", "newer,perhaps"], "2 records have")):
        file.write_text("\n".join(["text,label", *rows, *more]))
        prepared = prepare(recipe)
        assert prepared.labels == ("no", "yes")
        found = [note for note in prepared.notes if "not in the training data" in note]
        assert len(found) == bool(told)
        assert all(note.startswith(f"validation: {told} a label") for note in found)


def test_what_is_impossible_is_refused_for_recipes_made_in_python_too(folder: Path) -> None:
    with pytest.raises(UsageError, match="would never end"):
        prepare(sample_recipe(folder, "seq2seq", train={"steps": 0}))


def test_progress_is_told(folder: Path, tmp_path: Path) -> None:
    heard: list[str] = []
    recipe = sample_recipe(folder, "seq2seq", data={"cache_dir": str(tmp_path)})
    prepare(recipe, lambda what, done, total: heard.append(what))
    assert {what.split()[0] for what in heard} == {"training", "tokenising"}


def test_rows_do_not_depend_on_how_often_they_are_planned(folder: Path) -> None:
    prepared = prepare(sample_recipe(folder, "classification"))
    one, other = (prepared.train_data.plan_pool(1) for _ in range(2))
    assert np.array_equal(one.item_order, other.item_order)
