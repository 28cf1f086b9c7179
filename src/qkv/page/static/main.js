// The page: a heading, a list of views, and the views for which the document has numbers.

import {html} from "./dom.js";
import {themeButton} from "./theme.js";
import {alignmentView} from "./view_alignment.js";
import {attentionView} from "./view_attention.js";
import {embeddingsView} from "./view_embeddings.js";
import {lensView} from "./view_lens.js";
import {maskView} from "./view_mask.js";
import {neuronsView} from "./view_neurons.js";
import {searchView} from "./view_search.js";
import {tokensView} from "./view_tokens.js";

const VERSION = 1;

const VIEWS = [
  ["tokens", "Tokens", "The text as the model reads it: one vector will enter the network for each token.", tokensView],
  [
    "embeddings",
    "Embedding and position",
    "What enters the first block: a vector for each token, and how the model encodes its position.",
    embeddingsView,
  ],
  [
    "attention",
    "Attention",
    "Every head of every layer. The stronger a cell, the more of its new value a query (row) takes from a key " +
      "(column). Open a head to see its numbers.",
    attentionView,
  ],
  [
    "alignment",
    "Alignment",
    "Where the decoder looks in the source while it writes each word: the cross-attention as lines.",
    alignmentView,
  ],
  ["lens", "Logit lens", "The prediction read off after each layer, as if the remaining layers did nothing.", lensView],
  [
    "neurons",
    "Neurons",
    "Hidden units of the feed-forward networks, the tokens that excite them, and the tokens whose logits they raise.",
    neuronsView,
  ],
  ["search", "Beam search", "Every continuation that the search considered, with its log-probability.", searchView],
  ["mask", "Mask", "Which keys each query may attend to, and the reason where it may not.", maskView],
];

/** Draw a document into an element. The studio calls this with documents from a server. */
export function mount(root, data) {
  if (data.version !== VERSION) {
    root.replaceChildren(
      html(
        "p",
        {class: "warning"},
        `This page draws documents of version ${VERSION}, but got version ${data.version}.`,
      ),
    );
    return;
  }
  const views = VIEWS.filter(([name]) => data.views.includes(name));
  root.replaceChildren(
    html(
      "header",
      {class: "top"},
      html("div", {}, html("h1", {}, data.title), html("p", {class: "subtitle"}, data.subtitle)),
      themeButton(),
    ),
    html(
      "nav",
      {"aria-label": "Views"},
      views.map(([name, title]) => html("a", {href: `#${name}`, onclick: (event) => goTo(event, name)}, title)),
    ),
    html(
      "main",
      {},
      data.notes.map((note) => html("p", {class: "warning"}, note)),
      views.map(([name, title, sentence, view]) =>
        html(
          "section",
          {id: name, tabindex: "-1", "aria-labelledby": `${name}-title`},
          html("h2", {id: `${name}-title`}, title),
          html("p", {class: "lead"}, sentence),
          view(data),
        ),
      ),
    ),
    html("footer", {}, data.footer),
  );
  root.dataset.ready = "true";
}

/** Go to a section. The frame of a notebook has no address of its own, so its links to sections would lead nowhere. */
function goTo(event, name) {
  if (location.protocol !== "about:") return;
  event.preventDefault();
  const section = document.getElementById(name);
  section.scrollIntoView();
  section.focus({preventScroll: true});
}

const embedded = document.getElementById("look-data");
if (embedded) mount(document.getElementById("look"), JSON.parse(embedded.textContent));
