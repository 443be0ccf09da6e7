// Details: all about the selected action or gap; else about the timelines on show.

import { announce } from "weft/app.js";
import { chainOf, reasonOf } from "weft/chain.js";
import { deviceOf, readBy, readersOf } from "weft/data.js";
import { el } from "weft/dom.js";
import { amount, figureText, percent } from "weft/format.js";
import { causeOf } from "weft/gaps.js";
import { twinOf } from "weft/layout.js";
import { tokenOf, wordOf } from "weft/names.js";

export const NOT_WORKED_OUT = "The file says when things ran, not why; dropped on the page of `weft serve`, it is worked out.";
const MOST = 12; // readers that are listed

export function buildDetails(app, place) {
  const update = () => place.replaceChildren(...content(app));
  app.on("select", update);
  app.on("timelines", update);
  update();
}

function content(app) {
  const { selection } = app;
  if (!selection) return app.shown().flatMap((timeline) => aboutTimeline(app, timeline));
  return selection.gap !== undefined ? aboutGap(app, selection) : aboutAction(app, selection);
}

const facts = (rows) => el("dl", {}, ...rows.flatMap(([name, value, title = ""]) =>
  [el("dt", { title }, name), el("dd", { title }, value)]));

function aboutTimeline(app, timeline) {
  return [
    el("h2", {}, timeline.title),
    ...(timeline.shortage && !app.live ? [el("p", { class: "refusal" }, `It does not fit. ${timeline.shortage}`)] : []),
    facts(timeline.figures.map((figure) => [figure.name, figureText(figure, timeline.units), figure.means])),
    el("p", { class: "note" }, timeline.is_plain ? NOT_WORKED_OUT : "Point at an action or an idle stretch; click it to keep it."),
  ];
}

/** A button that selects an action. */
function link(app, timeline, action) {
  const words = `${tokenOf(timeline, action)} on device ${deviceOf(timeline, action)}`;
  return el("button", { class: "link", onclick: () => app.select({ timeline, action }) }, words);
}

function aboutAction(app, { timeline, action }) {
  const { columns, units } = timeline;
  const since = (time) => amount(time - timeline.opening, units.time);
  announce(`${tokenOf(timeline, action)}, ${wordOf(timeline, action)}, device ${deviceOf(timeline, action)}, `
    + `${since(columns.start[action])} to ${since(columns.end[action])}`);
  return [
    el("h2", {}, `${tokenOf(timeline, action)}: ${wordOf(timeline, action)}`),
    facts([
      ["device", String(deviceOf(timeline, action))],
      ["stage", String(columns.stage[action])],
      ...(columns.microbatch[action] >= 0 ? [["microbatch", String(columns.microbatch[action])]] : []),
      ...(columns.version[action] >= 0 ? [["weights of version", String(columns.version[action])]] : []),
      ["starts", since(columns.start[action])],
      ["ends", since(columns.end[action])],
      ["takes", amount(columns.end[action] - columns.start[action], units.time)],
      ...slackFacts(timeline, action),
      ...gainFacts(timeline, action),
      ...twinFacts(app, timeline, action),
    ]),
    ...waitedFor(app, timeline, action),
    ...linked(app, timeline, "Reads", readBy(timeline, action)),
    ...linked(app, timeline, "Waits for this", readersOf(timeline, action)),
  ];
}

function slackFacts(timeline, action) {
  if (timeline.is_plain) return [];
  const slack = timeline.columns.slack[action];
  const text = slack <= timeline.makespan * 1e-6 ? "none: critical" : amount(slack, timeline.units.time);
  return [["slack", text, "how much later it could end without delaying the step"]];
}

function gainFacts(timeline, action) {
  if (timeline.is_measured || timeline.is_plain) return [];
  const gain = timeline.columns.gain[action];
  const text = gain > 0 ? `−${amount(gain, timeline.units.time)} (${percent(gain / timeline.makespan)})` : "nothing";
  return [["10% shorter brings", text, "what the step would gain if this one action took a tenth less"]];
}

function twinFacts(app, timeline, action) {
  const twin = twinOf(app, timeline);
  if (!twin) return [];
  const here = timeline.columns.end[action] - timeline.columns.start[action];
  const there = twin.columns.end[action] - twin.columns.start[action];
  const ratio = there > 0 ? ` (${here >= there ? "+" : "−"}${percent(Math.abs(here / there - 1))} here)` : "";
  return [[`takes, ${twin.name}`, amount(there, timeline.units.time) + ratio]];
}

function waitedFor(app, timeline, action) {
  if (timeline.is_plain) return [el("p", { class: "note" }, NOT_WORKED_OUT)];
  const decider = timeline.columns.decider[action];
  const words = decider < 0 ? ["Nothing: it started without waiting."]
    : [link(app, timeline, decider), ` (${reasonOf(timeline, action)})`];
  return [el("h3", {}, "Waited for"), el("p", {}, ...words)];
}

function linked(app, timeline, title, ends) {
  if (!ends.length) return [];
  const items = ends.slice(0, MOST).map((end) =>
    el("li", {}, link(app, timeline, end.action), el("small", {}, ` ${end.value}`)));
  if (ends.length > MOST) items.push(el("li", {}, `and ${ends.length - MOST} more`));
  return [el("h3", {}, title), el("ol", { class: "chain" }, ...items)];
}

function aboutGap(app, { timeline, gap }) {
  const { start, end, device, before } = timeline.idle;
  const { time } = timeline.units;
  const cause = causeOf(timeline, gap);
  const chain = chainOf(timeline, gap);
  announce(`device ${device[gap]} idle for ${amount(end[gap] - start[gap], time)}, ${cause}`);
  const title = `Device ${device[gap]} is idle: ${cause}`;
  return [
    el("h2", {}, title),
    el("p", { class: "note" }, `${timeline.words.causes[cause].replace(/\.$/, "")}.`),
    facts([
      ["from", amount(start[gap] - timeline.opening, time)],
      ["to", amount(end[gap] - timeline.opening, time)],
      ["lasts", amount(end[gap] - start[gap], time)],
    ]),
    ...(before[gap] >= 0 ? [el("p", {}, "Next: ", link(app, timeline, before[gap]))] : []),
    ...(timeline.is_plain ? [] : chainList(app, timeline, chain)),
  ];
}

function chainList(app, timeline, chain) {
  if (!chain.length) return [el("p", {}, "It waits for nothing: its work is done.")];
  const items = chain.map(({ action, reason }) =>
    el("li", {}, link(app, timeline, action), el("div", {}, el("small", {}, `started ${reason}`))));
  return [el("h3", {}, "The chain of waits"), el("ol", { class: "chain" }, ...items)];
}
