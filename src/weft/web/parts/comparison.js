// Comparison: the figures of all shown timelines, each against the first.

import { el, table } from "weft/dom.js";
import { change, figureText } from "weft/format.js";

export function comparisonTab(app) {
  const shown = app.shown();
  if (!shown.length) return [el("p", {}, "No timeline is on show.")];
  const [base, ...others] = shown;
  const headings = ["figure", base.name, ...others.flatMap((one) => [one.name, "change"]), { text: "what it is", isWords: true }];
  const rows = base.figures.map((figure) => [
    figure.name,
    figureText(figure, app.units),
    ...others.flatMap((one) => compared(one.figures.find((other) => other.name === figure.name), figure, app.units)),
    el("span", { class: "note" }, figure.means),
  ]);
  return [table(others.length ? `Changes are against ${base.name}.` : "Show another timeline to compare it with this one.", headings, rows)];
}

/** A figure and its change; a timeline out of a file may lack it. */
const compared = (figure, base, units) => (figure ? [figureText(figure, units), difference(figure, base)] : ["–", ""]);

function difference(figure, base) {
  const text = change(figure.value, base.value, figure.unit);
  const word = figure.value > base.value ? "worse" : "better";
  return el("span", { class: text === "=" ? "" : word }, text);
}
