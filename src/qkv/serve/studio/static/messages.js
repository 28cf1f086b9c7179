// The lines under the text: the answer of a model, an error, a form for the API key.

import {html} from "./page/dom.js";
import {marked} from "./panel_words.js";
import {setKey} from "./server.js";

/** The answer, which of its words the switches changed, and a button that switches all on. */
export function answerLine({data, off, switchAllOn}) {
  const answer = data.answer;
  const isChanged = off.length && answer.text !== answer.with_all;
  return html(
    "div",
    {class: "answer column"},
    html("p", {class: "note"}, data.subtitle),
    answer.title
      ? html(
          "p",
          {},
          html("span", {class: "note"}, `${answer.title} `),
          html("span", {class: "answer-text"}, marked({answer: answer.with_all}, answer.text)),
          answer.problem ? html("span", {class: "note"}, ` ${answer.problem}`) : null,
        )
      : null,
    off.length
      ? html(
          "p",
          {class: "note"},
          `${off.length} ${off.length === 1 ? "part is" : "parts are"} off. `,
          isChanged ? `With all parts: ${answer.with_all || "(empty)"} ` : "The answer is the same with all parts. ",
          html("button", {type: "button", class: "quiet", onclick: switchAllOn}, "Switch all on"),
        )
      : null,
  );
}

/** An error, and a button or a form to try again. */
export function errorLine(error, retry) {
  const again = html("button", {type: "button", class: "quiet", onclick: retry}, "Try again");
  return html("div", {class: "warning"}, `${error.message} `, error.status === 401 ? keyForm(retry) : again);
}

/** A server with API keys needs one of them. */
function keyForm(retry) {
  const input = html("input", {type: "password", id: "key", autocomplete: "off"});
  const submit = (event) => {
    event.preventDefault();
    setKey(input.value);
    retry();
  };
  const button = html("button", {class: "quiet"}, "Use this key");
  return html("form", {class: "controls", onsubmit: submit}, html("label", {for: "key"}, "API key"), input, button);
}
