// Beam search, drawn while the server searches.

import {html} from "./page/dom.js";
import {searchView} from "./page/view_search.js";
import {stream} from "./server.js";

const PAUSE_MS = 90; // between two steps, so that the eye can follow

export function searchPanel({info, request, state, update, fail, signal}) {
  if (info.head !== "lm") return html("p", {}, `This model has a ${info.head} head: it does not generate text.`);
  const body = html("div", {}, html("p", {class: "readout", role: "status"}, "Searching …"));
  const search = {beam: state.beam, steps: [], hypotheses: [], best: null, stop_reason: ""};
  run(search, body, {...request, beam: state.beam, max_tokens: state.maxTokens}, signal).catch(fail);
  return html(
    "div",
    {},
    html(
      "div",
      {class: "controls"},
      count("Beams", state.beam, 2, 12, (beam) => update({beam})),
      count("Maximum tokens", state.maxTokens, 1, 64, (maxTokens) => update({maxTokens})),
      html("button", {type: "button", class: "quiet", onclick: () => update({}, {redraw: true})}, "Search again"),
    ),
    body,
  );
}

function count(label, value, min, max, change) {
  const clamp = (number) => Math.min(max, Math.max(min, Math.round(number) || min));
  const input = html("input", {type: "number", min, max, value, onchange: () => change(clamp(input.valueAsNumber))});
  return html("label", {class: "choice"}, html("span", {}, label), input);
}

async function run(search, body, request, signal) {
  const pause = matchMedia("(prefers-reduced-motion: reduce)").matches ? 0 : PAUSE_MS;
  for await (const record of stream("search", request, signal)) {
    const {step, ...found} = record;
    if (step) search.steps.push(step);
    Object.assign(search, found);
    body.replaceChildren(searchView({search}));
    const box = body.querySelector(".scroll");
    box.scrollLeft = box.scrollWidth; // the newest step is at the right
    await new Promise((resolve) => setTimeout(resolve, pause));
  }
  body.dataset.done = "true";
}
