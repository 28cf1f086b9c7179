// The panels of the studio: the name, the title, a sentence, the parts of a document that it needs, and its drawing.

import {html} from "./page/dom.js";
import {attentionView} from "./page/view_attention.js";
import {embeddingsView} from "./page/view_embeddings.js";
import {lensView} from "./page/view_lens.js";
import {maskView} from "./page/view_mask.js";
import {tokensView} from "./page/view_tokens.js";
import {VIEWS} from "./page/views.js";
import {headActions} from "./heads.js";
import {neuronsPanel} from "./panel_neurons.js";
import {nextPanel} from "./panel_next.js";
import {runsPanel} from "./panel_runs.js";
import {searchPanel} from "./panel_search.js";
import {switchesPanel} from "./panel_switches.js";
import {wordsPanel} from "./panel_words.js";

const sentences = Object.fromEntries(VIEWS.map(([name, , sentence]) => [name, sentence]));

export const PANELS = [
  {
    name: "tokens",
    title: "Tokens",
    sentence: `${sentences.tokens} ${sentences.embeddings}`,
    views: ["embeddings"],
    draw: ({data}) => [tokensView(data), embeddingsView(data)],
  },
  {
    name: "attention",
    title: "Attention",
    sentence: sentences.attention,
    views: ["attention"],
    draw: (context) => attentionView(context.data, headActions(context)),
  },
  {name: "mask", title: "Mask", sentence: sentences.mask, views: ["mask"], draw: ({data}) => maskView(data)},
  {
    name: "lens",
    title: "Logit lens",
    sentence: sentences.lens,
    views: ["lens"],
    draw: ({data, info}) =>
      data.lens ? lensView(data) : html("p", {}, `This model has a ${info.head} head, which predicts no tokens.`),
  },
  {
    name: "next",
    title: "Next token",
    sentence: "The probabilities of the output, and what temperature, top-k and top-p make of them.",
    views: ["next"],
    draw: nextPanel,
  },
  {name: "search", title: "Beam search", sentence: sentences.search, views: [], draw: searchPanel},
  {
    name: "words",
    title: "Translation",
    sentence: "Which source word each word of the answer depends on, and how the answer changes with each word.",
    views: ["word_alignment"],
    draw: wordsPanel,
  },
  {name: "neurons", title: "Neurons", sentence: sentences.neurons, views: ["neurons", "features"], draw: neuronsPanel},
  {
    name: "switches",
    title: "Switches",
    sentence: "Switch heads, MLPs and layers off, and see how the answer changes.",
    views: [],
    draw: switchesPanel,
  },
  {
    name: "runs",
    title: "Runs",
    sentence: "The training runs on this machine, live.",
    views: null, // no trace of the text
    draw: runsPanel,
  },
];
