// What the reader has chosen, and the link that holds it: #panel?model=…&text=…

/** The choices at the beginning. A choice that still has this value is not written into the link. */
export const DEFAULTS = {
  panel: "tokens",
  model: "",
  other: "", // the model on the right side; "" shows one model
  text: "",
  target: "", // "" is the model's own output
  off: [], // the parts that are switched off, of each side
  otherOff: [],
  position: null, // of the next-token distribution
  temperature: 1,
  topK: 0,
  topP: 1,
  beam: 4,
  maxTokens: 24,
  head: "", // the head that is open, such as "decoder.0.3"
  runs: [],
  choices: "", // the menus inside the panel, such as the layer of the neurons: the number of each chosen line
  step: 0, // of the walk-through; 0 is no walk-through
};

/** The choices as the part of an address after "#". */
export function toLink(state) {
  const query = new URLSearchParams();
  for (const [name, value] of Object.entries(state)) {
    const text = Array.isArray(value) ? value.join(",") : String(value ?? "");
    if (name !== "panel" && text !== written(name)) query.set(name, text);
  }
  const text = query.toString();
  return `#${state.panel}${text ? `?${text}` : ""}`;
}

/** The choices of a link. What is missing or unreadable has its default. */
export function fromLink(link) {
  const [panel, query] = splitOnce(link.replace(/^#/, ""), "?");
  const state = {...DEFAULTS, panel: panel || DEFAULTS.panel};
  for (const [name, text] of new URLSearchParams(query)) {
    if (!(name in DEFAULTS) || name === "panel") continue;
    const initial = DEFAULTS[name];
    if (Array.isArray(initial)) state[name] = text ? text.split(",") : [];
    else if (typeof initial === "string") state[name] = text;
    else if (text !== "" && Number.isFinite(Number(text))) state[name] = Number(text);
  }
  return state;
}

function written(name) {
  const value = DEFAULTS[name];
  return Array.isArray(value) ? value.join(",") : String(value ?? "");
}

function splitOnce(text, mark) {
  const at = text.indexOf(mark);
  return at < 0 ? [text, ""] : [text.slice(0, at), text.slice(at + 1)];
}
