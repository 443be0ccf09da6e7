// Frontier: memory against step time of all schedules, and of orders that were synthesised for less.

import { byId, el, table } from "weft/dom.js";
import { amount, change } from "weft/format.js";
import { drawing } from "weft/plot.js";

const LIST = 470; // pixels beside the drawing
const FAR = 1.6; // times as long as the fastest: drawn at the edge
const SLIGHT = 0.97; // of the time: no reason to need much more memory
const WIDEST = 760;

export function frontierTab(app) {
  const points = app.points.filter((point) => !point.refused && point.time > 0);
  if (!points.length) {
    return [el("p", {}, app.live ? "The points are being computed." : "This page holds no other schedules; `weft compare -o page.html` writes one that does.")];
  }
  const whole = points.filter((point) => !isPartial(point));
  const width = Math.max(360, Math.min(WIDEST, byId("panel").clientWidth - LIST));
  const tip = el("div", { class: "plottip", hidden: true });
  const hover = (point, place) => showTip(app, tip, point, place);
  const best = unbeaten(points);
  const picture = el("div", { class: "picture" }, drawing(app, { points: whole, near: crowdOf(whole, best), best, width, hover }), tip);
  return [el("div", { class: "beside" }, picture, list(app, points, best))];
}

/** Whether sums that others count are missing in its time. */
const isPartial = (point) => point.is_stale && point.words;

/** What the scales are made for: not those that take many times as much as the rest. */
function crowdOf(points, best) {
  const isWorth = (point, next) => !next || point.memory < FAR * next.memory || point.time < SLIGHT * next.time;
  const worth = best.filter((point, at) => isWorth(point, best[at + 1]));
  if (!worth.length) return points;
  const quick = worth.filter((point) => point.time <= FAR * worth[0].time);
  const most = Math.max(...quick.map((point) => point.memory)) * 1.1;
  return points.filter((point) => point.time <= FAR * worth[0].time && point.memory <= most);
}

/** Of those that fit and use the newest weights, the ones that no other beats in both, fastest first. */
function unbeaten(points) {
  const found = [];
  const among = points.filter((point) => point.is_fitting !== false && !point.is_stale);
  for (const point of among.sort((a, b) => a.time - b.time || a.memory - b.memory)) {
    if (!found.length || point.memory < found.at(-1).memory * (1 - 1e-9)) found.push(point);
  }
  return found;
}

/** The same as a table, the fastest first, and those that have no such shape. */
function list(app, points, best) {
  const { units } = app;
  const rank = (point) => (point.is_fitting === false ? 2 : point.is_stale ? 1 : 0);
  const remark = (point) => ["", "stale weights", "does not fit"][rank(point)] || (best.includes(point) ? "●" : "");
  const rows = [...points].sort((one, other) => rank(one) - rank(other) || one.time - other.time || one.memory - other.memory).map((point) => [
    el("button", { class: "link", onclick: () => app.openPoint(point) }, point.name),
    amount(point.time, units.time),
    amount(point.memory, units.memory),
    remark(point),
  ]);
  const notes = app.points.filter((point) => point.refused).map((point) => `${point.name}: ${point.refused}`);
  if (points.some(isPartial)) notes.push("The times of asynchronous schedules are without sums over copies: they are in the table alone.");
  const signs = [
    "● no other is better in both",
    ...(points.some((point) => point.kind === "synthesised") ? ["■ synthesised"] : []),
    ...(points.some((point) => point.is_stale) ? ["▲ stale weights"] : []),
    ...(points.some((point) => point.is_fitting === false) ? ["○ does not fit"] : []),
  ];
  const said = app.progress ? [el("p", { class: "note", role: "status" }, app.progress)] : [];
  return el("div", {}, ...said, table(`Points open their timeline. ${signs.join(", ")}.`, ["schedule", "step", "memory", ""], rows),
    ...notes.map((words) => el("p", { class: "note" }, words)));
}

/** What is known of a point, beside it; nothing where there is none. */
function showTip(app, tip, point, place) {
  tip.hidden = !point;
  if (!point) return;
  const { units } = app;
  const [shown] = app.shown();
  const base = shown && app.points.find((one) => one.name === shown.name);
  const against = (name) => (base && base !== point ? ` (${change(point[name], base[name], name)})` : "");
  const lines = [
    `${amount(point.time, units.time)} a step${against("time")}`,
    `${amount(point.memory, units.memory)} on the fullest device${against("memory")}`,
    ...(base && base !== point ? [`in brackets: against ${base.name}`] : []),
    ...(point.words ? [point.words] : []),
    ...(point.is_fitting === false ? ["does not fit"] : []),
    ...(point.is_stale ? ["uses stale weights"] : []),
  ];
  tip.replaceChildren(el("div", { class: "head" }, point.name), ...lines.map((words) => el("div", {}, words)));
  const isRight = place.x > place.width / 2;
  tip.style.left = isRight ? "" : `${place.x + 14}px`;
  tip.style.right = isRight ? `${place.width - place.x + 14}px` : "";
  tip.style.top = `${place.y}px`;
  tip.style.transform = place.isLow ? "translateY(calc(-100% - 10px))" : "translateY(10px)";
}
