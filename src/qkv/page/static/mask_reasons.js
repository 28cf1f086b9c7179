// Why a query may not attend to a key. The numbers are those of `inside/look/masks.py`.

export const REASONS = [
  {name: "visible", letter: "●", text: "the query attends to the key"},
  {name: "padding", letter: "p", text: "the query or the key is padding"},
  {name: "other document", letter: "d", text: "the two tokens belong to different documents"},
  {name: "future", letter: "f", text: "the key comes after the query"},
  {name: "outside the window", letter: "w", text: "the two tokens are further apart than the sliding window"},
];
