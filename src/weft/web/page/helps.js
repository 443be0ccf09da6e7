// What would help: the actions that would shorten the step most if they took less.

import { deviceOf } from "weft/data.js";
import { el, table } from "weft/dom.js";
import { amount, percent } from "weft/format.js";
import { tokenOf, wordOf } from "weft/names.js";

const MOST = 15;

export function helpsTab(app) {
  return app.shown().flatMap((timeline) => {
    if (timeline.is_measured) return [el("p", {}, `${timeline.name} was measured; ask its prediction.`)];
    const best = mostGaining(timeline);
    const critical = `The critical path has ${timeline.critical.length} actions.`;
    if (!best.length) {
      return [el("p", {}, `${timeline.title}. ${critical} No single action would help: another path is as long.`)];
    }
    return [table(`${timeline.title}. ${critical} If one action alone took 10% less, the step would take:`,
      ["action", "does", "device", "takes", "step gains"],
      best.map((action) => row(app, timeline, action)))];
  });
}

function mostGaining(timeline) {
  const { gain } = timeline.columns;
  return [...timeline.critical.keys()].map((index) => timeline.critical[index])
    .filter((action) => gain[action] > 0)
    .sort((one, other) => gain[other] - gain[one])
    .slice(0, MOST);
}

function row(app, timeline, action) {
  const { start, end, gain } = timeline.columns;
  const unit = timeline.units.time;
  return [
    el("button", { class: "link", onclick: () => app.select({ timeline, action }) }, tokenOf(timeline, action)),
    wordOf(timeline, action),
    String(deviceOf(timeline, action)),
    amount(end[action] - start[action], unit),
    `${amount(gain[action], unit)} (${percent(gain[action] / timeline.makespan)})`,
  ];
}
