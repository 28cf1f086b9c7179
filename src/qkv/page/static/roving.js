// One tab stop for a whole grid: arrow keys, Home and End move the focus inside it.

/** `rows` are lists of focusable elements. The first of row `start` is the tab stop until another gets the focus. */
export function roving(rows, start = 0) {
  const place = new Map();
  rows.forEach((row, y) =>
    row.forEach((element, x) => {
      place.set(element, [y, x]);
      element.tabIndex = y === start && x === 0 ? 0 : -1;
      element.addEventListener("focus", () => {
        for (const other of place.keys()) other.tabIndex = -1;
        element.tabIndex = 0;
      });
      element.addEventListener("keydown", (event) => {
        const next = neighbour(event.key, ...place.get(element));
        if (!next) return;
        event.preventDefault();
        next.focus();
      });
    }),
  );

  function neighbour(key, y, x) {
    if (key === "ArrowRight") return rows[y][x + 1];
    if (key === "ArrowLeft") return rows[y][x - 1];
    if (key === "ArrowDown") return rows[y + 1]?.[Math.min(x, rows[y + 1].length - 1)];
    if (key === "ArrowUp") return rows[y - 1]?.[Math.min(x, rows[y - 1].length - 1)];
    if (key === "Home") return rows[y][0];
    if (key === "End") return rows[y].at(-1);
    return null;
  }
}
