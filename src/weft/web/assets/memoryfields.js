// What relieves the memory of a schedule: offered in words, or for stages of the reader's choice.

import { choice, textField } from "weft/fields.js";

const OWN = "own";
const WORDS = {
  "": "all in memory",
  "--recompute selective": "recompute norms and activation functions",
  "--offload auto": "offload to the host",
  "--recompute all": "recompute all",
  "--recompute selective --offload auto": "recompute norms …, and offload",
  "--recompute all --offload auto": "recompute all, and offload",
};
const PARTS = [
  ["--recompute", "Stages that are computed again", "0,2 or all"],
  ["--offload", "Offloaded to the host", "auto, all, 0.5, stage:1 or stages 0,2"],
];

/** The choice, and two texts where it is the reader's own; `choose` takes the new relief. */
export function memoryFields(reliefs, one, choose) {
  const isOwn = one.is_own || !reliefs.includes(one.relief);
  const offered = reliefs.map((value) => ({ value, words: WORDS[value] ?? value, title: value }));
  const options = [...offered, { value: OWN, words: "stages of your choice …" }];
  const select = choice("Memory", options, isOwn ? OWN : one.relief, (value) =>
    choose(value === OWN ? { is_own: true } : { is_own: false, relief: value }));
  if (!isOwn) return { select, texts: [] };
  const parts = partsOf(one.relief);
  const texts = PARTS.map(([flag, words, example]) => textField(words, example, parts[flag] ?? "", (value) =>
    choose({ relief: spelled({ ...parts, [flag]: value }) })));
  return { select, texts };
}

/** "--recompute 0,2 --offload auto" by its flags. */
function partsOf(relief) {
  const words = relief.split(" ").filter(Boolean);
  return Object.fromEntries(words.flatMap((word, at) => (at % 2 ? [] : [[word, words[at + 1] ?? ""]])));
}

const spelled = (parts) => PARTS.filter(([flag]) => parts[flag]).map(([flag]) => `${flag} ${parts[flag].replaceAll(" ", "")}`).join(" ");
