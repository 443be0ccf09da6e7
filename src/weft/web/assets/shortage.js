// What does not fit: which device, by how much, and what would help, each a button that does it.

import { el } from "weft/dom.js";

/** A box about a timeline that does not fit; `use` takes a change of what is asked. */
export function shortageBox(timeline, use) {
  return el("div", { class: "refusal" },
    el("strong", {}, `${timeline.name} does not fit. `), timeline.shortage, ...ways(timeline, use));
}

function ways({ ways: found }, use) {
  if (!found) return [el("p", { class: "note" }, "What would help is being computed.")];
  if (found.refused) return [el("p", { class: "note" }, `What would help is not known: ${found.refused}`)];
  if (!found.ways.length) {
    const nearest = found.nearest ? ` The nearest: ${found.nearest}.` : "";
    return [el("p", {}, `Nothing that was tried makes it fit.${nearest} Take a larger cluster, or a smaller model.`)];
  }
  const items = found.ways.map(({ words, change }) =>
    el("li", {}, el("button", { class: "link", onclick: () => use(change) }, words)));
  return [el("p", {}, "It would fit with:"), el("ul", { class: "ways" }, ...items)];
}
