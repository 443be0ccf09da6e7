// The drawing of memory against step time: a mark for each point, lines, and axes.

import { amount, tickStep } from "weft/format.js";

const SVG = "http://www.w3.org/2000/svg";
const BOX = { height: 318, left: 78, right: 90, top: 10, bottom: 40 };
const APART = 52; // pixels between the numbers of an axis
const FACTORS = [1, 1.5, 2, 3, 4, 5, 6, 8];
const SHORT = 2.5; // times the least that is the most
const LINE = 26; // pixels between its numbers, one above the other
const LETTER = 6; // pixels

/** Scales are for those that are `near`; others are at the edge. `best` are joined by a broken line, what was synthesised by a whole one; `hover` takes a point. */
export function drawing(app, { points, near, best, width, hover }) {
  const { height } = BOX;
  const scales = scalesOf(near, width);
  const { x, y } = scales;
  const root = shape("svg", { viewBox: `0 0 ${width} ${height}`, width, height, class: "plot", role: "group", "aria-label": "Memory against step time" });
  axes(root, { ...scales, width, units: app.units });
  capacity(app, root, { ...scales, width });
  const line = (among, look) => root.append(shape("polyline", { points: among.map((one) => `${x(one.time)},${y(one.memory)}`).join(" "), fill: "none", ...look }));
  line(best.filter((one) => points.includes(one) && !isSynthesised(one)), { stroke: "var(--accent)", "stroke-dasharray": "4 3" });
  line(points.filter(isSynthesised).sort((one, other) => one.memory - other.memory), { stroke: "var(--made)", "stroke-width": 2 });
  const taken = points.map((point) => ({ x: x(point.time) - 6, right: x(point.time) + 6, y: y(point.memory) }));
  const isNamed = (point) => (best.includes(point) && !isSynthesised(point)) || isShown(app, point);
  for (const point of [...points].sort((one, other) => isNamed(other) - isNamed(one))) {
    const at = { x: x(point.time), y: y(point.memory), width, isBeyond: !near.includes(point), isLow: y(point.memory) > height / 2 };
    root.append(mark(app, point, at, { isBest: best.includes(point), isNamed: isNamed(point), taken, hover }));
  }
  return root;
}

const isSynthesised = (point) => point.kind === "synthesised";
const isShown = (app, point) => app.shown().some((timeline) => timeline.name === point.name);

/** Both by factors: a few schedules take many times as much as the rest. */
function scalesOf(points, width) {
  const { height, left, right, top, bottom } = BOX;
  const times = points.map((point) => point.time);
  const [x0, x1] = [Math.min(...times) / 1.03, Math.max(...times) * 1.06];
  const sizes = points.map((point) => point.memory);
  const [least, most] = [Math.min(...sizes), Math.max(...sizes)];
  const margin = Math.max(1.01, (most / least) ** 0.07);
  const [y0, y1] = [least / margin, most * margin];
  const share = (value, from, to) => Math.max(0, Math.min(1, Math.log(value / from) / Math.log(to / from)));
  return {
    x0, x1, y0, y1,
    x: (time) => left + share(time, x0, x1) * (width - left - right),
    y: (memory) => height - bottom - share(memory, y0, y1) * (height - top - bottom),
  };
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
  for (const at of apart(rounds(x0, x1, units.time.size), x, APART)) {
    root.append(shape("line", { x1: x(at), x2: x(at), y1: top, y2: height - bottom, stroke: "var(--line)" }),
      shape("text", { x: x(at), y: height - bottom + 15, "text-anchor": "middle", class: "faint" }, amount(at, units.time)));
  }
  for (const at of apart(rounds(y0, y1, units.memory.size), (memory) => -y(memory), LINE)) {
    root.append(shape("line", { x1: left, x2: width - right, y1: y(at), y2: y(at), stroke: "var(--line)" }),
      shape("text", { x: left - 6, y: y(at) + 4, "text-anchor": "end", class: "faint" }, amount(at, units.memory)));
  }
  const middle = (top + height - bottom) / 2;
  root.append(
    shape("text", { x: (left + width - right) / 2, y: height - 6, "text-anchor": "middle" }, "time of a step"),
    shape("text", { x: 12, y: middle, "text-anchor": "middle", transform: `rotate(-90 12 ${middle})` }, "most memory of a device"));
}

/** Round numbers, in a unit: at equal distances on a short scale, else by factors. */
function rounds(least, most, size) {
  const found = [];
  const step = tickStep((most - least) / size, 6) * size;
  if (most < SHORT * least) {
    for (let at = Math.ceil(least / step); at * step <= most; at++) found.push(at * step);
    return found;
  }
  for (let power = 10 ** Math.floor(Math.log10(least / size)); power * size <= most; power *= 10) {
    found.push(...FACTORS.map((factor) => factor * power * size));
  }
  return found.filter((at) => at >= least && at <= most);
}

/** Those that stand far enough from the one before. */
function apart(numbers, place, least) {
  const kept = [];
  for (const at of numbers) {
    if (!kept.length || place(at) - place(kept.at(-1)) >= least) kept.push(at);
  }
  return kept;
}

/** A button: pointed at or in focus it says what it is, pressed it opens its timeline. */
function mark(app, point, at, { isBest, isNamed, taken, hover }) {
  const open = () => app.openPoint(point);
  const { units } = app;
  const facts = [at.isBeyond ? ", beyond the picture" : "", point.is_fitting === false ? ", does not fit" : "", point.is_stale ? ", stale weights" : "", point.words ? `, ${point.words}` : ""];
  const words = `${point.name}: ${amount(point.time, units.time)}, ${amount(point.memory, units.memory)}${facts.join("")}`;
  const label = isNamed ? labelOf(point.name, at, taken) : null;
  const found = shape("g", { tabindex: "0", role: "button", "aria-label": words, class: at.isBeyond ? "beyond" : "" },
    form(point, at, isShown(app, point) ? 7 : 5, look(point, isBest)),
    ...(label ? [label] : []));
  found.addEventListener("click", open);
  for (const event of ["pointerenter", "focus"]) found.addEventListener(event, () => hover(point, at));
  for (const event of ["pointerleave", "blur"]) found.addEventListener(event, () => hover(null));
  found.addEventListener("keydown", (event) => {
    if (event.key !== "Enter" && event.key !== " ") return;
    event.preventDefault();
    open();
  });
  return found;
}

/** A schedule is a circle, with stale weights a triangle; what was synthesised a square. */
function form(point, { x, y }, size, colours) {
  if (isSynthesised(point)) return shape("rect", { x: x - size + 1, y: y - size + 1, width: 2 * size - 2, height: 2 * size - 2, ...colours });
  if (point.is_stale) return shape("path", { d: `M${x} ${y - size}L${x + size} ${y + size - 1}H${x - size}Z`, ...colours });
  return shape("circle", { cx: x, cy: y, r: size, ...colours });
}

/** Hollow where a device has less memory than it takes. */
function look(point, isBest) {
  if (point.is_fitting === false) return { fill: "var(--panel)", stroke: "var(--strong)" };
  if (isSynthesised(point)) return { fill: "var(--made)", stroke: "var(--panel)" };
  return { fill: isBest ? "var(--accent)" : "var(--faint)", stroke: "var(--panel)" };
}

/** Beside the point, a little higher or lower where another label stands; else none. */
function labelOf(name, { x, y, width }, taken) {
  const length = name.length * LETTER;
  const isLeft = x + 9 + length > width;
  for (const shift of [-7, 4, 15, -18, 26]) {
    const from = isLeft ? x - 9 - length : x + 9;
    const spot = { x: from, y: y + shift, right: from + length };
    const isFree = spot.y < BOX.height - BOX.bottom && spot.y > BOX.top && taken.every((other) => Math.abs(other.y - spot.y) > 11 || other.right < spot.x || spot.right < other.x);
    if (!isFree) continue;
    taken.push(spot);
    return shape("text", { x: isLeft ? x - 9 : x + 9, y: spot.y, ...(isLeft ? { "text-anchor": "end" } : {}) }, name);
  }
  return null;
}
