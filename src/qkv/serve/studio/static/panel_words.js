// Translation: the alignment, the source as words that can be changed one by one, and the answer without each word.

import {disclosure, html, number, scrollBox, table} from "./page/dom.js";
import {saveButton} from "./page/save.js";
import {alignmentPicture} from "./page/view_alignment.js";
import {post} from "./server.js";
import {changedWords, parts} from "./words.js";

export function wordsPanel(context) {
  const {data, info, request} = context;
  return html(
    "div",
    {},
    html("h3", {}, "Change a word"),
    wordInputs(context),
    data.word_alignment
      ? [html("h3", {}, "Word alignment"), wordAlignment(data.word_alignment)]
      : html("p", {class: "note"}, `${alignmentNote(info)} The answer without each word works for every model.`),
    html("h3", {}, "Leave out each word"),
    leaveOut(request, context),
  );
}

function alignmentNote(info) {
  return info.family === "seq2seq"
    ? "There is no alignment, because this model does not generate text."
    : `This model is ${info.family}-only: it has no source and target, so there is no alignment.`;
}

/** A line from each word of the answer to the source word that it depends on most. */
function wordAlignment({source, target, links, max_words: maxWords}) {
  if (source.length > maxWords) {
    const note = `The text has ${source.length} words, and at most ${maxWords} are aligned. Shorten the text.`;
    return html("p", {class: "note"}, note);
  }
  const rows = target.map(() => source.map(() => 0));
  for (const link of links) rows[link.target][link.source] = link.weight;
  const graph = alignmentPicture(source, target, rows);
  const note =
    "Each source word is left out in turn, and the answer is scored again. A line leads to the source word without " +
    "which a word of the answer becomes least likely; the weight is its fraction of the loss in log-probability.";
  return html(
    "div",
    {class: "block"},
    html("p", {class: "note"}, note),
    html("div", {class: "controls"}, saveButton(() => graph, "alignment")),
    scrollBox("Alignment", graph),
    disclosure("Alignment as a table", () =>
      scrollBox(
        "Alignment as a table",
        table(
          "The source word of each word of the answer",
          ["target", "source", "weight"],
          links.map((link) => [target[link.target], source[link.source], number(link.weight, 2)]),
        ),
      ),
    ),
  );
}

/** An input for each word of the text. A change is a change of the text. */
function wordInputs({state, update, side}) {
  const pieces = parts(state.text);
  const input = (piece, i) => {
    const element = html("input", {
      class: "word token",
      value: piece.part,
      size: Math.max(2, Array.from(piece.part).length),
      "aria-label": `Word ${piece.part}`,
      onchange: () => {
        const text = pieces.map(({part}, j) => (j === i ? element.value : part)).join("");
        update({text});
      },
    });
    return element;
  };
  if (side > 0) return null;
  return html(
    "div",
    {class: "words"},
    pieces.map((piece, i) => (piece.isWord ? input(piece, i) : null)),
  );
}

function leaveOut(request, {fail, signal}) {
  const body = html("div", {"aria-live": "polite"});
  const button = html("button", {type: "button", class: "quiet"}, "Compute the answers");
  button.addEventListener("click", async () => {
    button.disabled = true;
    try {
      const found = await post("words", {...request, views: []}, signal);
      body.replaceChildren(...answers(found));
    } catch (error) {
      fail(error);
    } finally {
      button.disabled = false;
    }
  });
  const note = "The answer to the text without one of its words. New words of the answer are underlined.";
  return html("div", {class: "block"}, html("p", {class: "note"}, note), button, body);
}

function answers(found) {
  const rows = found.words.map(({word, answer}) => [word, answer === found.answer ? "the same" : marked(found, answer)]);
  return [
    html("p", {class: "readout"}, `With all words: ${found.answer || "(empty)"}`),
    scrollBox("Answers without each word", table("The answer without each word", ["without", "answer"], rows)),
  ];
}

/** An answer with its new words underlined. */
export function marked(found, answer) {
  const words = changedWords(found.answer, answer);
  if (!words.length) return html("em", {}, "(empty)");
  return html(
    "span",
    {class: "token"},
    words.map(({text, isNew}) => [isNew ? html("ins", {}, text) : text, " "]),
  );
}
