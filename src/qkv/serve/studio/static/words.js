// Words of a text, and which of them differ between two texts.

/** The parts of a text: words and what is between them. `isWord` tells them apart. */
export function parts(text) {
  return Array.from(text.matchAll(/\s+|\S+/g), ([part]) => ({part, isWord: /\S/.test(part)}));
}

/** For each word of `after`, whether it is new: not part of the longest common subsequence with the words of `before`. */
export function changedWords(before, after) {
  const [old, now] = [before, after].map((text) => text.split(/\s+/).filter(Boolean));
  const lengths = Array.from({length: old.length + 1}, () => new Array(now.length + 1).fill(0));
  for (let i = old.length - 1; i >= 0; i--) {
    for (let j = now.length - 1; j >= 0; j--) {
      lengths[i][j] = old[i] === now[j] ? lengths[i + 1][j + 1] + 1 : Math.max(lengths[i + 1][j], lengths[i][j + 1]);
    }
  }
  const changed = now.map((text) => ({text, isNew: true}));
  for (let i = 0, j = 0; i < old.length && j < now.length; ) {
    if (old[i] === now[j]) {
      changed[j].isNew = false;
      i++;
      j++;
    } else if (lengths[i + 1][j] >= lengths[i][j + 1]) i++;
    else j++;
  }
  return changed;
}
