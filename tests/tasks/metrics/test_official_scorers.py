"""Metrics, compared with the programs that shared tasks are scored with.

trec_eval is its own C code (package `pytrec-eval-terrier`), and conlleval is a port of the CoNLL script (package
`conlleval`). `squad_scores.json` has outputs of the official script of SQuAD 2.0, for generated answers with case,
articles, punctuation and missing words.
"""

import json
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from qkv.tasks import metrics
from qkv.tasks.metrics import retrieval

queries = st.lists(
    st.tuples(
        st.permutations([f"d{i}" for i in range(14)]).flatmap(
            lambda names: st.integers(1, 14).map(lambda count: names[:count])
        ),
        st.dictionaries(st.sampled_from([f"d{i}" for i in range(16)]), st.integers(-1, 4), min_size=1),
    ),
    min_size=1,
    max_size=4,
)


@settings(deadline=None, max_examples=60)
@given(queries, st.sampled_from([1, 5, 10]))
def test_rankings_are_scored_as_by_trec_eval(listed: list[tuple[list[str], dict[str, int]]], k: int) -> None:
    theirs = pytest.importorskip("pytrec_eval", reason="compared with trec_eval where it is installed")
    judged = {str(number): relevance for number, (_, relevance) in enumerate(listed)}
    run = {str(i): {name: -float(rank) for rank, name in enumerate(found)} for i, (found, _) in enumerate(listed)}
    measures = {f"ndcg_cut.{k}", "map", f"recall.{k}", "recip_rank"}
    scores = theirs.RelevanceEvaluator(judged, measures).evaluate(run).values()
    rankings, judgements = [found for found, _ in listed], [relevance for _, relevance in listed]
    ours = {
        f"ndcg_cut_{k}": metrics.ndcg(rankings, judgements, k=k),
        "map": metrics.mean_average_precision(rankings, judgements),
        f"recall_{k}": metrics.recall_at(rankings, judgements, k=k),
        "recip_rank": retrieval.mean_reciprocal_rank(rankings, judgements, k=100),
    }
    expected = {name: sum(one[name] for one in scores) / len(listed) for name in ours}
    assert ours == pytest.approx(expected)


tag = st.sampled_from(["O", "B-PER", "I-PER", "B-LOC", "I-LOC"])
sentences = st.lists(st.lists(st.tuples(tag, tag), min_size=1, max_size=8), min_size=1, max_size=5)


@settings(deadline=None, max_examples=200)
@given(sentences)
def test_entities_are_scored_as_by_conlleval(listed: list[list[tuple[str, str]]]) -> None:
    theirs = pytest.importorskip("conlleval", reason="compared with conlleval where it is installed")
    lines = [line for words in listed for line in (*(f"word {gold} {said}" for gold, said in words), "")]
    result = theirs.evaluate(lines)
    counts = result["overall"]["chunks"]["stats"]
    predicted, expected = ([[word[side] for word in words] for words in listed] for side in (1, 0))
    ours = metrics.entity_scores(predicted, expected)
    if counts["pred"] and counts["gold"]:  # the script has other conventions for 0 of 0
        assert ours["precision"] == pytest.approx(counts["correct"] / counts["pred"])
        assert ours["recall"] == pytest.approx(counts["correct"] / counts["gold"])
        assert ours["f1"] == pytest.approx(result["overall"]["chunks"]["evals"]["f1"])
    kinds = metrics.entity_counts(predicted, expected)
    for kind, found in result["slots"]["chunks"].items():
        own = metrics.make_class_report(kinds).classes.get(kind)
        assert (own.expected if own else 0) == found["stats"]["gold"]


def test_answers_are_scored_as_by_the_script_of_squad() -> None:
    cases = json.loads((Path(__file__).parent / "squad_scores.json").read_text(encoding="utf-8"))
    assert len(cases) == 400
    for predicted, gold, exact, f1 in cases:
        assert metrics.answer_exact_match([predicted], [gold]) == exact, (predicted, gold)
        assert metrics.answer_f1([predicted], [gold]) == pytest.approx(f1), (predicted, gold)
    predicted, gold, exact, f1 = zip(*cases, strict=True)
    assert metrics.answer_exact_match(predicted, gold) == pytest.approx(sum(exact) / len(cases))
    assert metrics.answer_f1(predicted, gold) == pytest.approx(sum(f1) / len(cases))
