// Comparison: the figures of all shown timelines, each against the first.

import { el, table } from "weft/dom.js";
import { change, figureText } from "weft/format.js";

export function comparisonTab(app) {
  const shown = app.shown();
  if (!shown.length) return [el("p", {}, "No timeline is on show.")];
  const [base, ...others] = shown;
  const headings = ["figure", base.name, ...others.flatMap((one) => [one.name, "change"]), { text: "what it is", isWords: true }];
  const sizes = new Set(shown.map((one) => one.step));
  const unlike = sizes.size > 1 ? ` Their steps have ${[...sizes].join(" and ")} microbatches: compare the times per microbatch.` : "";
  const rows = base.figures.map((figure) => [
    figure.name,
    figureText(figure, app.units),
    ...others.flatMap((one) => compared(one.figures.find((other) => other.name === figure.name), figure, app.units)),
    el("span", { class: "note" }, meaning(figure, others)),
  ]);
  return [table(others.length ? `Changes are against ${base.name}.${unlike}` : "Show another timeline to compare it with this one.", headings, rows)];
}

/** What a figure is, of the first and of those where it is something else. */
function meaning(figure, others) {
  const found = others.map((one) => [one.name, one.figures.find((other) => other.name === figure.name)?.means]);
  const unlike = found.filter(([, means]) => means && means !== figure.means).map(([name, means]) => `${name}: ${means}`);
  return [figure.means, ...unlike].join("; ");
}

/** A figure and its change; a timeline out of a file may lack it. */
const compared = (figure, base, units) => (figure ? [figureText(figure, units), figure.is_compared === false ? "" : difference(figure, base)] : ["–", ""]);

function difference(figure, base) {
  const text = change(figure.value, base.value, figure.unit);
  const word = figure.value > base.value ? "worse" : "better";
  return el("span", { class: text === "=" ? "" : word }, text);
}
