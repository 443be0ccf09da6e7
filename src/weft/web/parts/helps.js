// What would help: the actions that would shorten the step most if they took less.

import { deviceOf } from "weft/data.js";
import { el, table } from "weft/dom.js";
import { amount, percent } from "weft/format.js";
import { tokenOf } from "weft/names.js";

const MOST = 15;

export function helpsTab(app) {
  return app.shown().flatMap((timeline) => {
    if (timeline.is_measured) return [el("p", {}, `${timeline.name} was measured; its prediction says what would help.`)];
    const caption = `${timeline.title}: the critical path has ${timeline.critical.length} actions.`;
    return [el("h2", {}, caption), el("div", { class: "beside" }, kinds(timeline), actions(app, timeline))];
  });
}

function kinds(timeline) {
  if (timeline.helps === undefined) return el("p", {}, "Being computed.");
  if (timeline.helps === null) return el("p", {}, "Too large to time every kind of work again.");
  if (!timeline.helps.length) return el("p", {}, "No kind of work at a single stage would help.");
  return table("If all work of a kind at a stage took 10% less:", ["work", "stage", "step gains"],
    timeline.helps.map(({ kind, stage, seconds }) =>
      [timeline.words.kinds[kind].word, String(stage), gained(timeline, seconds)]));
}

function actions(app, timeline) {
  const best = mostGaining(timeline);
  if (!best.length) return el("p", {}, "No single action would help: another path is as long.");
  return table("If one action alone took 10% less:", ["action", "device", "takes", "step gains"],
    best.map((action) => row(app, timeline, action)));
}

const gained = (timeline, seconds) =>
  `${amount(seconds, timeline.units.time)} (${percent(seconds / timeline.makespan)})`;

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
    String(deviceOf(timeline, action)),
    amount(end[action] - start[action], unit),
    gained(timeline, gain[action]),
  ];
}
