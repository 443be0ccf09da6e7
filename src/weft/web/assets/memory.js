// Memory of a device under its actions: categories stacked, and what it has as a line.

import { above, memoryOf } from "weft/data.js";
import { amount } from "weft/format.js";
import { GUTTER, scaleOf } from "weft/layout.js";
import { CATEGORY_COLOURS } from "weft/palette.js";

/** What all rows of memory are drawn against, so that they compare. */
export function mostMemory(app) {
  return Math.max(...app.shown().flatMap((timeline) => [...timeline.peaks, timeline.capacity ?? 0]), 0) || 1;
}

export function paintMemory(pen, app, row, top, width, theme, most) {
  const { timeline } = row;
  const curves = memoryOf(timeline)[row.device];
  const scale = scaleOf(app, timeline, width);
  const floor = row.y + top + row.height - 1;
  const tall = row.height - 3;
  const y = (level) => floor - (level / most) * tall;
  paintStack(pen, timeline, curves, scale, width, y);
  pen.line([[GUTTER, floor + 0.5], [width, floor + 0.5]], theme.line);
  if (timeline.capacity !== null) {
    const line = Math.round(y(timeline.capacity)) + 0.5;
    pen.line([[GUTTER, line], [width, line]], theme.strong, 1.25, [5, 3]);
  }
}

function paintStack(pen, timeline, curves, scale, width, y) {
  const { times, levels } = curves;
  const edge = Math.min(width, scale.x(timeline.closing));
  const first = Math.max(0, above(times, scale.from) - 1);
  const last = Math.max(first + 1, above(times, scale.to));
  const base = new Float64Array(last - first);
  levels.forEach((level, category) => {
    if (!level) return;
    const below = base.slice();
    for (let at = first; at < last; at++) base[at - first] += level[at];
    const outline = stepped(times, base, below, first, last, scale, edge, y);
    if (outline.length) pen.area(outline, CATEGORY_COLOURS[timeline.categories[category]]);
  });
}

/** A band between two step lines; of the steps within a pixel only the highest is drawn. */
function stepped(times, upper, lower, first, last, scale, edge, y) {
  const over = [];
  const under = [];
  let [held, top, bottom] = [-1, 0, 0];
  for (let at = first; at < last; at++) {
    const x = Math.max(GUTTER, scale.x(times[at]));
    const next = at + 1 < last ? Math.min(edge, scale.x(times[at + 1])) : edge;
    if (next <= x && at + 1 < last) {
      if (held < 0) [held, top, bottom] = [x, upper[at - first], lower[at - first]];
      continue;
    }
    if (held >= 0 && next - held < 1) {
      if (upper[at - first] > top) [top, bottom] = [upper[at - first], lower[at - first]];
      continue;
    }
    const left = held >= 0 ? held : x;
    const high = held >= 0 && next - left < 1.5 ? Math.max(top, upper[at - first]) : upper[at - first];
    over.push(left, y(high), next, y(high));
    under.push([left, y(lower[at - first])], [next, y(lower[at - first])]);
    held = -1;
  }
  return over.concat(under.reverse().flat());
}

/** What a device holds at a time, in words. */
export function memoryAt(timeline, device, time) {
  const { times, levels } = memoryOf(timeline)[device];
  const at = Math.max(0, above(times, time) - 1);
  return timeline.categories.flatMap((name, index) =>
    levels[index]?.[at] ? [{ name, text: amount(levels[index][at], timeline.units.memory), value: levels[index][at] }] : []);
}
