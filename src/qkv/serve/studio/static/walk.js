// A walk through a Transformer in eight steps, on the reader's own model and text.

import {count, html, visibleToken} from "./page/dom.js";

/** Each step has a title, a panel, and a text made of facts about the model and the trace. */
const STEPS = [
  {
    title: "A text becomes tokens",
    panel: "tokens",
    text: ({data}) => {
      const [name, sequence] = Object.entries(data.sequences)[0];
      const first = sequence.texts.slice(0, 4).map((text) => `“${visibleToken(text)}”`);
      return (
        `Your text has ${count(sequence.texts.length, "token")}, beginning with ${first.join(", ")}. Each has a number ` +
        `in the vocabulary. The ${name} reads these numbers, and no letters. Type another text above to change them.`
      );
    },
  },
  {
    title: "A token becomes a vector, and gets a position",
    panel: "tokens",
    text: ({info}) =>
      `Each token is looked up in a table and becomes ${info.stacks[0].width} numbers. Attention alone would not know the ` +
      "order of the tokens, so the position is encoded as well. Compare the rows of two equal tokens below.",
  },
  {
    title: "What is attention?",
    panel: "attention",
    text: ({info}) =>
      "Each token has three vectors: a query, a key and a value. The better the query of one token matches the key of " +
      "another, the more of that other token's value it takes. This model computes this in " +
      `${listHeads(info)}. Rows are queries, columns are keys.`,
  },
  {
    title: "One head, number by number",
    panel: "attention",
    text: () =>
      "Open a head. Its table shows for one query: q · k for each key, the division by the root of the head's width, the " +
      "mask, and the softmax that turns scores into weights with a sum of 1. The output is the sum of the values, each " +
      "times its weight. Press Try it to open the first head.",
    attempt: ({data}) => ({head: `${data.attention?.[0]?.name ?? "decoder"}.0.0`, panel: "attention"}),
  },
  {
    title: "Who may see whom: the mask",
    panel: "mask",
    text: ({info}) =>
      info.family === "encoder"
        ? "This model is an encoder: every token attends to the whole text, so nothing is masked. A decoder masks the future."
        : "A decoder predicts the next token, so no token may attend to the tokens after it. Their scores become −∞, and " +
          "their weights 0. An encoder has no such mask.",
  },
  {
    title: "Layer by layer to an answer",
    panel: "lens",
    text: ({info}) =>
      ["lm", "mlm"].includes(info.head)
        ? "Each layer adds to the residual stream. The logit lens reads the prediction after every layer, as if the rest did " +
          "nothing. Often the answer appears only in the last layers."
        : `This model has a ${info.head} head. It predicts no tokens, so there is nothing to read between its layers.`,
  },
  {
    title: "From probabilities to text",
    panel: "next",
    text: () =>
      "The last vector becomes a score for every token or label, and softmax makes probabilities of them. Move the " +
      "temperature: low values sharpen the distribution, high ones flatten it. Top-k and top-p cut its tail off.",
    attempt: () => ({temperature: 0.5, topP: 0.9, panel: "next"}),
  },
  {
    title: "What is each part good for?",
    panel: "switches",
    text: ({data}) =>
      `With all parts the answer is “${data.answer.with_all || "(empty)"}”. Switch a head off, then the whole first layer, ` +
      "and read the answer again. Some parts change nothing on this text, and others change everything. Press Try it to " +
      "switch off layer 0.",
    attempt: ({info}) => ({off: [`${info.stacks.at(-1).name}.0`], panel: "switches"}),
  },
];

function listHeads(info) {
  const stacks = info.stacks.map((one) => `${count(one.layers, "layer")} of ${count(one.heads, "head")} in the ${one.name}`);
  return stacks.join(" and ");
}

export const NUM_STEPS = STEPS.length;

/** The panel of a step, counted from 1. */
export function stepPanel(number) {
  return STEPS[number - 1].panel;
}

/** The card of the present step. */
export function walkCard({state, update, context}) {
  const step = STEPS[state.step - 1];
  const go = (number) => update({step: number, ...(number ? {panel: stepPanel(number)} : {})});
  const button = (text, onclick, disabled = false) =>
    html("button", {type: "button", class: "quiet", onclick, disabled}, text);
  return html(
    "section",
    {class: "walk", "aria-labelledby": "walk-title"},
    html("h2", {id: "walk-title", tabindex: "-1"}, `${state.step} of ${NUM_STEPS}: ${step.title}`),
    html("p", {}, context.data ? step.text(context) : "Choose a model and type a text first."),
    html(
      "div",
      {class: "buttons"},
      button("← Back", () => go(state.step - 1), state.step === 1),
      state.step < NUM_STEPS ? button("Next →", () => go(state.step + 1)) : null,
      step.attempt && context.data ? button("Try it", () => update(step.attempt(context))) : null,
      button("End the walk-through", () => go(0)),
    ),
  );
}
