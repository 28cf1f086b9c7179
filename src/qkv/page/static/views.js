// The views of a document: the name, the title, a sentence, and the function that draws it.

import {alignmentView} from "./view_alignment.js";
import {attentionView} from "./view_attention.js";
import {embeddingsView} from "./view_embeddings.js";
import {lensView} from "./view_lens.js";
import {maskView} from "./view_mask.js";
import {neuronsView} from "./view_neurons.js";
import {pictureView} from "./view_picture.js";
import {searchView} from "./view_search.js";
import {substitutionsView} from "./view_substitutions.js";
import {tokensView} from "./view_tokens.js";

export const VIEWS = [
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
  [
    "picture",
    "Attention on the picture",
    "Where each word looks: patches that it does not look at are dark. Below, whether the word depends on them.",
    pictureView,
  ],
  ["lens", "Logit lens", "The prediction read off after each layer, as if the remaining layers did nothing.", lensView],
  [
    "neurons",
    "Neurons",
    "Hidden units of the feed-forward networks, the tokens that excite them, and the tokens whose logits they raise. " +
      "Of a mixture of experts: the weight that the router gives each expert.",
    neuronsView,
  ],
  ["search", "Beam search", "Every continuation that the search considered, with its log-probability.", searchView],
  [
    "substitutions",
    "Substitutions",
    "The score of every amino acid at every residue: the log-probability when the residue is masked, minus that of the " +
      "residue that is there.",
    substitutionsView,
  ],
  ["mask", "Mask", "Which keys each query may attend to, and the reason where it may not.", maskView],
];
