// What would help: what would shorten the step if it took less, all of it or at one place.

import { NOT_WORKED_OUT } from "weft/details.js";
import { deviceOf } from "weft/data.js";
import { el, table } from "weft/dom.js";
import { amount, percent, spanOf } from "weft/format.js";
import { tokenOf } from "weft/names.js";

const MOST = 15;

export function helpsTab(app) {
  return app.shown().flatMap((timeline) => {
    if (timeline.is_measured) return [el("p", {}, `${timeline.name} was measured; its prediction says what would help.`)];
    if (timeline.is_plain) return [el("p", {}, `${timeline.name}: ${NOT_WORKED_OUT}`)];
    const caption = `${timeline.title}: the critical path has ${timeline.critical.length} actions.`;
    return [el("h2", {}, caption), el("div", { class: "beside" }, ...everywhere(app, timeline), actions(app, timeline))];
  });
}

function everywhere(app, timeline) {
  const { helps } = timeline;
  if (helps === undefined && app.live && timeline.request) return [el("p", {}, "Being computed.")];
  if (helps === undefined) return [el("p", {}, "This page does not hold what other costs would bring; `weft explain` says it.")];
  if (helps === null) return [el("p", {}, "Too large to time every kind of work again.")];
  if (helps.refused) return [el("p", {}, `Not computed: ${helps.refused}`)];
  return [changes(timeline), stages(timeline)];
}

function changes(timeline) {
  return table("If everything were different in one way:", ["with", gains(timeline)],
    timeline.helps.changes.map(({ words, seconds }) => [words, gained(timeline, timeline.makespan - seconds)]));
}

function stages(timeline) {
  if (!timeline.helps.stages.length) return el("p", {}, "No kind of work at a single stage would help.");
  return table("If all work of a kind at a stage took 10% less:", ["work", "stage", gains(timeline)],
    timeline.helps.stages.map(({ kind, stage, seconds }) =>
      [timeline.words.kinds[kind].word, String(stage), gained(timeline, seconds)]));
}

function actions(app, timeline) {
  const best = mostGaining(timeline);
  if (!best.length) return el("p", {}, "No single action would help: another path is as long.");
  return table("If one action alone took 10% less:", ["action", "device", "takes", gains(timeline)],
    best.map((action) => row(app, timeline, action)));
}

const gains = (timeline) => `${spanOf(timeline)} gains`;

const gained = (timeline, seconds) => (seconds > timeline.makespan * 1e-9
  ? `${amount(seconds, timeline.units.time)} (${percent(seconds / timeline.makespan)})` : "nothing");

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
