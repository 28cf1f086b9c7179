// The scores of all single substitutions of a protein: amino acids in rows, residues in columns.

import {signedColours} from "./colour.js";
import {html, number, scrollBox} from "./dom.js";
import {labelledHeatmap} from "./heatmap.js";
import {saveButton} from "./save.js";
import {onTheme} from "./theme.js";
import {unpack} from "./unpack.js";

export function substitutionsView(data) {
  const {amino_acids: letters, sequence, scores, pseudo_perplexity: perplexity} = data.substitutions;
  const residues = [...sequence];
  const readout = html("p", {class: "readout", role: "status"}, "Click a cell to read the score of a substitution.");
  const body = html("div", {});
  unpack(scores).then(({data: bytes, value}) => {
    const pick = (i, j) => {
      if (j < 0) return;
      const score = number(value(i * residues.length + j));
      readout.textContent = `${residues[j]}${j + 1}${letters[i]}: ${score}`;
    };
    const label = `Scores of substitutions, ${letters.length} amino acids by ${residues.length} residues`;
    const draw = () =>
      labelledHeatmap({
        label,
        bytes,
        colours: signedColours(),
        queries: [...letters],
        keys: residues,
        hidden: (i) => letters[Math.floor(i / residues.length)] === residues[i % residues.length],
        pick,
        room: 14 * residues.length,
      });
    onTheme(body, () => body.replaceChildren(draw()));
  });
  return html(
    "div",
    {class: "block"},
    html("div", {class: "controls"}, saveButton(() => body.querySelector(".heatmap"), "substitutions")),
    readout,
    scrollBox("Substitutions", body),
    html("p", {class: "note"}, `Pseudo-perplexity of the protein: ${number(perplexity)}.`),
  );
}
