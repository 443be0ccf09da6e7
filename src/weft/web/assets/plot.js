// Memory against step time over all schedules; a point opens its timeline.

import { byId, el, table } from "weft/dom.js";
import { amount, tickStep } from "weft/format.js";

const SVG = "http://www.w3.org/2000/svg";
const BOX = { height: 204, left: 78, right: 110, top: 8, bottom: 36 };
const LIST = 560; // pixels beside the drawing
const APART = 44; // pixels between the numbers of an axis

export function plotTab(app) {
  const points = app.points.filter((point) => !point.refused && point.time > 0);
  if (!points.length) {
    return [el("p", {}, app.live ? "The plot is being computed." : "This page holds no other schedules; `weft compare -o page.html` writes one that does.")];
  }
  return [el("div", { class: "beside" }, drawing(app, points), list(app, points))];
}

/** The same as a table, the fastest first, and those that have no such shape. */
function list(app, points) {
  const { units } = app;
  const best = unbeaten(points);
  const isLast = (point) => point.is_fitting === false;
  const rows = [...points].sort((one, other) => isLast(one) - isLast(other) || one.time - other.time || one.memory - other.memory).map((point) => [
    el("button", { class: "link", onclick: () => app.openPoint(point) }, point.name),
    amount(point.time, units.time),
    amount(point.memory, units.memory),
    best.includes(point) ? "●" : isLast(point) ? "does not fit" : "",
  ]);
  const refused = app.points.filter((point) => point.refused).map((point) =>
    el("p", { class: "note" }, `${point.name}: ${point.refused}`));
  const caption = "Points open their timeline. ● and the line: no other is better in both.";
  return el("div", {}, table(caption, ["schedule", "step", "memory", ""], rows), ...refused);
}

function drawing(app, points) {
  const { height, left, right, top, bottom } = BOX;
  const width = Math.max(360, Math.min(720, byId("panel").clientWidth - LIST));
  const range = (values) => {
    const [least, most] = [Math.min(...values), Math.max(...values)];
    return [least / 1.06, most * 1.06];
  };
  const [x0, x1] = range(points.map((point) => point.time));
  const [y0, y1] = [0, range(points.map((point) => point.memory))[1] || 1];
  const x = (time) => left + (Math.log(time / x0) / Math.log(x1 / x0)) * (width - left - right);
  const y = (memory) => height - bottom - ((memory - y0) / (y1 - y0)) * (height - top - bottom);
  const root = shape("svg", { viewBox: `0 0 ${width} ${height}`, width, height, class: "plot", role: "group", "aria-label": "Memory against step time" });
  const { units } = app;
  axes(root, { x, y, x0, x1, y0, y1, width, units });
  capacity(app, root, { y, y1, width });
  const best = unbeaten(points);
  root.append(shape("polyline", { points: best.map((one) => `${x(one.time)},${y(one.memory)}`).join(" "), fill: "none", stroke: "var(--accent)", "stroke-dasharray": "4 3" }));
  const taken = points.map((point) => ({ x: x(point.time) - 6, right: x(point.time) + 6, y: y(point.memory) }));
  const isNamed = (point) => best.includes(point) || isShown(app, point);
  for (const point of [...points].sort((one, other) => isNamed(other) - isNamed(one))) {
    root.append(dot(app, point, x(point.time), y(point.memory), best.includes(point), taken, units));
  }
  return root;
}

/** The memory that a device has, where that is known. */
function capacity(app, root, { y, y1, width }) {
  const has = app.timelines.find((timeline) => timeline.capacity)?.capacity;
  if (!has || has > y1) return;
  const { left, right } = BOX;
  root.append(shape("line", { x1: left, x2: width - right, y1: y(has), y2: y(has), stroke: "var(--strong)", "stroke-dasharray": "2 3" }),
    shape("text", { x: width - right + 4, y: y(has) + 4, class: "faint" }, "a device has"));
}

function shape(name, properties, ...children) {
  const element = document.createElementNS(SVG, name);
  for (const [key, value] of Object.entries(properties)) element.setAttribute(key, value);
  element.append(...children);
  return element;
}

function axes(root, { x, y, x0, x1, y0, y1, width, units }) {
  const { height, left, right, bottom, top } = BOX;
  for (const at of apart(rounds(x0, x1), x)) {
    root.append(shape("line", { x1: x(at), x2: x(at), y1: top, y2: height - bottom, stroke: "var(--line)" }),
      shape("text", { x: x(at), y: height - bottom + 15, "text-anchor": "middle", class: "faint" }, amount(at, units.time)));
  }
  const stepY = tickStep(y1 - y0, 5);
  for (let at = Math.ceil(y0 / stepY) * stepY; at <= y1; at += stepY) {
    root.append(shape("line", { x1: left, x2: width - right, y1: y(at), y2: y(at), stroke: "var(--line)" }),
      shape("text", { x: left - 6, y: y(at) + 4, "text-anchor": "end", class: "faint" }, amount(at, units.memory)));
  }
  root.append(
    shape("text", { x: (left + width - right) / 2, y: height - 5, "text-anchor": "middle" }, "time of a step"),
    shape("text", { x: 12, y: (top + height - bottom) / 2, "text-anchor": "middle", transform: `rotate(-90 12 ${(top + height - bottom) / 2})` }, "most memory of a device"));
}

/** Round numbers of a scale by factors: the naive schedule takes many times as long as the rest. */
function rounds(least, most) {
  const found = [];
  for (let power = 10 ** Math.floor(Math.log10(least)); power <= most; power *= 10) {
    found.push(...[1, 1.2, 1.5, 2, 2.5, 3, 4, 5, 6, 8].map((factor) => factor * power));
  }
  return found.filter((at) => at >= least && at <= most);
}

/** Those that stand far enough from the one before. */
function apart(numbers, x) {
  const kept = [];
  for (const at of numbers) {
    if (!kept.length || x(at) - x(kept.at(-1)) >= APART) kept.push(at);
  }
  return kept;
}

/** Of those that fit, the ones that no other beats in both time and memory, fastest first. */
function unbeaten(points) {
  const found = [];
  const fitting = points.filter((point) => point.is_fitting !== false);
  for (const point of fitting.sort((a, b) => a.time - b.time || a.memory - b.memory)) {
    if (!found.length || point.memory < found.at(-1).memory - 1e-9) found.push(point);
  }
  return found;
}

const isShown = (app, point) => app.shown().some((timeline) => timeline.name === point.name);

function dot(app, point, x, y, isBest, taken, units) {
  const open = () => app.openPoint(point);
  const fits = point.is_fitting === false ? ", does not fit" : "";
  const words = `${point.name}: ${amount(point.time, units.time)}, ${amount(point.memory, units.memory)}${fits}`;
  const isOpen = isShown(app, point);
  const place = isBest || isOpen ? labelPlace(taken, x, y, point.name.length * 6) : null;
  const mark = shape("g", { tabindex: "0", role: "button", "aria-label": words },
    shape("circle", { cx: x, cy: y, r: isOpen ? 7 : 5, ...look(point, isBest) }),
    shape("title", {}, words),
    ...(place ? [shape("text", { x: x + 9, y: place }, point.name)] : []));
  mark.addEventListener("click", open);
  mark.addEventListener("keydown", (event) => {
    if (event.key !== "Enter" && event.key !== " ") return;
    event.preventDefault();
    open();
  });
  return mark;
}

/** Hollow where a device has less memory than it takes. */
function look(point, isBest) {
  if (point.is_fitting === false) return { fill: "var(--panel)", stroke: "var(--strong)" };
  return { fill: isBest ? "var(--accent)" : "var(--faint)", stroke: "var(--panel)" };
}

/** Beside the point, a little higher or lower where another label stands; else none. */
function labelPlace(taken, x, y, width) {
  for (const shift of [-7, 4, 15, -18, 26]) {
    const spot = { x: x + 9, y: y + shift, right: x + 9 + width };
    const isFree = taken.every((other) => Math.abs(other.y - spot.y) > 11 || other.right < spot.x || spot.right < other.x);
    if (isFree) {
      taken.push(spot);
      return spot.y;
    }
  }
  return null;
}
