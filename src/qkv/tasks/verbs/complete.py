"""Language modelling: complete a text while it is typed, and evaluate the loss of texts.

In a chat (a record with `messages` instead of `text`), only the answers of the assistant are evaluated.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Annotated, Any, ClassVar

from qkv.data.encode.chat import EncodeChat
from qkv.data.encode.encoders import EncodeText
from qkv.data.objectives.causal_lm import CausalLMObjective
from qkv.data.problems import Problems
from qkv.data.records import Record
from qkv.data.stream.random_bits import EpochRng
from qkv.decode import GenerationOptions
from qkv.errors import QkvError
from qkv.models import Config
from qkv.tasks.evaluation import EvaluationOptions, Scored, select_metrics, select_usable
from qkv.tasks.results import MAX_CELL_CHARS, Result, Row, one_line
from qkv.tasks.run.example_batches import max_sequence_length
from qkv.tasks.run.generate import continue_texts, generate_batched, prompt_ids
from qkv.tasks.run.token_losses import compute_token_losses, encode_records
from qkv.tasks.starters.starter import Starter
from qkv.tasks.task import EMBED_POOLED, Task, TaskOptions
from qkv.tasks.text_model import TextModel
from qkv.text.chat_template import ASSISTANT
from qkv.train.watch import Sample
from qkv.values import Limits

if TYPE_CHECKING:
    from qkv.tasks.run.complete import Completer

MAX_WINDOW_TOKENS = 2048  # the maximum length of a window, for models with more positions
SAMPLE_TOKENS = 32  # maximum tokens of a sample's prompt, and of its continuation


@dataclass(frozen=True, kw_only=True)
class CompleteOptions(TaskOptions):
    """Options of `m.complete`."""

    top: Annotated[int, Limits(1, 1_000_000), "The number of suggestions."] = 3
    max_tokens: Annotated[int, Limits(1, 1000), "The maximum number of tokens of a suggestion."] = 8


@dataclass(frozen=True, kw_only=True)
class LanguageEvaluation(EvaluationOptions):
    """Options of an evaluation of a language model."""

    max_length: int = 0  # tokens of a window; 0: the model's number of positions
    add_bos_eos: bool | None = None  # add BOS and EOS to each text; None: yes if the model has an EOS token


@dataclass(frozen=True)
class Suggestion:
    """A text that may follow, and the probability that the model gives it."""

    text: Annotated[str, "What follows the given text."]
    probability: float


@dataclass(frozen=True, repr=False)
class Completion(Result):
    """The most likely continuations of a text, such as the rest of a word that is being typed."""

    text: Annotated[str, "The given text."]
    suggestions: Annotated[list[Suggestion], "The most likely first."]

    def summary(self) -> str:
        text = one_line(self.text[-MAX_CELL_CHARS // 2 :] + (self.suggestions[0].text if self.suggestions else ""))
        return f"…{text}" if len(self.text) > MAX_CELL_CHARS // 2 else text

    def rows(self) -> list[Row]:
        return [(repr(one.text), f"{one.probability:.4f}") for one in self.suggestions]


class CompleteTask(Task):
    """Continue a text: a language model."""

    name, starter_name = "complete", "language"
    description = "continues a text"
    question = "Complete texts that are being typed."
    title = "Continuation"
    objective = "causal_lm"
    inputs, target = ("text",), "text"
    metrics = ("loss", "perplexity", "bits_per_character", "bits_per_byte")
    calls = ("chat", "generate", "score", EMBED_POOLED)
    evaluation_batch_size, max_samples = 16, 3
    generates = reads_documents = continues_by_default = True
    preview_options: ClassVar[Mapping[str, Any]] = {"max_tokens": 16}
    Options, EvalOptions, results = CompleteOptions, LanguageEvaluation, (Completion,)
    starter = Starter("A language model: it continues a text.", "book.txt", 512, preset="gpt2")

    def input_modality(self, config: Config) -> str:
        """Text: a decoder continues a text, whatever else it reads."""
        return "text"

    def decode(self, model: TextModel, texts: Sequence[str], options: CompleteOptions) -> list[Completion]:
        """The most likely continuations of each text: the rest of a word, and what follows.

        The keys and values of the text are kept for the next call, which is fast if its text begins in the same way.
        """
        completer, found = find_completer(model), []
        for done, text in enumerate(texts, 1):
            suggested = completer.complete(text, top=options.top, max_tokens=options.max_tokens)
            found.append(Completion(text, [Suggestion(*one) for one in suggested]))
            if model.progress is not None:
                model.progress(done, len(texts))
        return found

    def run_default(self, model: TextModel, texts: Sequence[Any], values: Mapping[str, Any]) -> Sequence[Result]:
        """`m.run` generates one continuation of each text. The options are the fields of `GenerationOptions`."""
        self.check_texts(texts)
        return continue_texts(model, texts, values)

    def score_records(
        self, model: TextModel, records: Sequence[Record], options: LanguageEvaluation, notes: list[str]
    ) -> Scored:
        """The mean loss per token in nats, perplexity, and bits per character and per byte of the texts."""
        tokenizer, config = model.tokenizer, model.config
        is_chat = bool(records) and "text" not in records[0].fields and "messages" in records[0].fields
        records = select_usable(records, notes, messages=list) if is_chat else select_usable(records, notes, text=str)
        names = select_metrics(options.metrics, self.metrics, self.metrics)
        encode = EncodeChat(tokenizer) if is_chat else EncodeText(tokenizer)
        records, examples = encode_records(records, encode, Problems(max_invalid_fraction=1), notes)
        adds_bos_eos = bool(config.eos_token_ids) if options.add_bos_eos is None else options.add_bos_eos
        objective = CausalLMObjective(
            examples,
            tokenizer,
            max_length=options.max_length or max_sequence_length(config, MAX_WINDOW_TOKENS),
            loss_mask_field="answer" if is_chat else None,
            add_bos_eos=not is_chat and adds_bos_eos,
        )
        if objective.num_examples(EpochRng(0)) == 0:
            raise QkvError(
                "the texts are too short: a token is predicted from the one before it; give texts of 2 tokens or more"
            )
        texts = list(map(evaluated_text, records))
        found = compute_token_losses(model, objective, texts, EpochRng(0))
        if objective.counts.split:
            notes.append(
                f"{objective.counts.split:,} texts were read in windows of {objective.max_lengths[0]:,} tokens"
            )
        samples = sample_continuations(model, records[: options.max_samples])
        scores = found.scores()
        return Scored({name: scores[name] for name in names}, samples, names[0], len(records))


def find_completer(model: TextModel) -> "Completer":
    """The completer of the model's earlier calls, unless its weights have changed since."""
    from qkv.tasks.run.complete import Completer, weights_version

    kept: Completer | None = model.kept.get("completer")
    if kept is None or kept.network is not model.network or kept.version != weights_version(model.network):
        kept = model.kept["completer"] = Completer(model)
    return kept


def evaluated_text(record: Record) -> str:
    """The part of a record that is evaluated: the whole text, or the assistant's answers in a chat."""
    if "text" in record.fields:
        return str(record.fields["text"])
    return "".join(message["content"] for message in record.fields["messages"] if message["role"] == ASSISTANT)


def sample_continuations(model: TextModel, records: Sequence[Record]) -> list[Sample]:
    """Samples of continuations: the model continues the beginning of each text, or a chat before its last answer."""
    stack = model.config.stack
    max_tokens = min(SAMPLE_TOKENS, stack.max_positions // 2 - 1) if stack.has_max_positions else SAMPLE_TOKENS
    if max_tokens < 1:
        return []
    made = [make_prompt(model, record, max_tokens) for record in records]
    prompts = [prompt[-max_tokens - 1 :] for prompt, _ in made]
    quiet = replace(model, batch_size=8, progress=None)
    results = generate_batched(quiet, prompts, GenerationOptions(max_tokens=max_tokens))
    return [Sample(text, result.text, "") for (_, text), result in zip(made, results, strict=True)]


def make_prompt(model: TextModel, record: Record, max_tokens: int) -> tuple[list[int], str]:
    """The ids and the text of a prompt: the beginning of a text, or a chat before its last answer."""
    tokenizer = model.tokenizer
    if "text" in record.fields:
        ids = tokenizer.encode(record.fields["text"][: 20 * SAMPLE_TOKENS], add_special_tokens=False)[: 2 * max_tokens]
        text = tokenizer.decode(ids[: (len(ids) + 1) // 2])
        return prompt_ids(tokenizer, model.config, text), text
    messages = record.fields["messages"]
    last = max(i for i, message in enumerate(messages) if message["role"] == ASSISTANT)
    prompt = EncodeChat(tokenizer).template.encode(messages[:last])
    return prompt, "\n".join(f"{message['role']}: {message['content']}" for message in messages[:last])


COMPLETE = CompleteTask()
