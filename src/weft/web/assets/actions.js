// A row of actions: rectangles with labels where there is room, mixed pixels where there is none.

import { above } from "weft/data.js";
import { GUTTER, scaleOf, twinOf } from "weft/layout.js";
import { labelOf, shortLabelsOf, widthOf } from "weft/names.js";
import { stylesOf } from "weft/palette.js";

const CROWDED = 3; // pixels of an average action, below which pixels are mixed
const LABELLED = 9.5; // pixels that a label needs at least
const SIGN = 6.2; // pixels of a character, about

/** Where each lane of a row lies: one below the other. */
export function lanesWithin(row) {
  const height = row.height / Math.max(1, row.lanes.length);
  return row.lanes.map((lane, index) => ({ lane, y: row.y + index * height, height }));
}

export function paintActions(pen, app, row, top, width) {
  const scale = scaleOf(app, row.timeline, width);
  const styled = stylesOf(row.timeline, app.options, twinOf(app, row.timeline));
  for (const { lane, y, height } of lanesWithin(row)) {
    const [first, last] = visible(row.timeline, lane, scale);
    const box = { y: y + top, height, width };
    if ((last - first) * CROWDED > width) paintMixed(pen, row.timeline, styled, scale, box, first, last);
    else paintApart(pen, row.timeline, styled, scale, box, first, last);
  }
}

/** The actions of a lane within the view; ends are in order, as starts are, but for pairs. */
export function visible(timeline, lane, scale) {
  const { start, end } = timeline.columns;
  const [first, last] = [timeline.bounds[lane], timeline.bounds[lane + 1]];
  let low = above(start, scale.from, first, last);
  while (low > first && end[low - 1] > scale.from) low--;
  return [low, above(start, scale.to, first, last)];
}

/** How high a pair's halves lie, and a single action. */
function part(columns, action, last, box) {
  const isSecond = columns.joined[action] === 1;
  const isPair = isSecond || (action + 1 < last && columns.joined[action + 1] === 1);
  const height = isPair ? box.height / 2 : box.height;
  return [box.y + (isSecond ? height : 0), height];
}

function paintApart(pen, timeline, styled, scale, box, first, last) {
  const { columns } = timeline;
  const rects = new Map();
  const hatched = [];
  const labels = [];
  const room = last < timeline.bounds[timeline.laneOf[first] + 1] ? last + 1 : last;
  for (let action = first; action < last; action++) {
    const left = Math.max(GUTTER, scale.x(columns.start[action]));
    const right = Math.min(box.width, scale.x(columns.end[action]));
    if (right <= left) continue;
    const [y, height] = part(columns, action, room, box);
    const style = styled.of[action];
    const inset = right - left > 4 ? 0.75 : 0;
    const place = [left, y, Math.max(0.7, right - left - inset), height - (height > 6 ? 0.75 : 0)];
    if (!rects.has(style)) rects.set(style, []);
    rects.get(style).push(...place);
    if (styled.styles[style].isHatched && place[2] > 6 && height > 6) hatched.push(...place);
    if (right - left >= LABELLED && height >= 10) labels.push([action, ...place]);
  }
  for (const [style, numbers] of rects) pen.rects(numbers, styled.styles[style].css);
  if (hatched.length) pen.hatch(hatched);
  for (const label of labels) paintLabel(pen, timeline, styled, ...label);
}

function paintLabel(pen, timeline, styled, action, x, y, width, height) {
  const label = [labelOf(timeline, action), ...shortLabelsOf(timeline, action)]
    .find((candidate) => widthOf(candidate) * SIGN <= width - 1.5);
  if (!label) return;
  const wide = widthOf(label) * SIGN;
  const style = styled.styles[styled.of[action]];
  const middle = y + height / 2 + 0.5;
  if (style.isHatched) {
    const back = Math.min(width - 2, wide + 4);
    pen.rect(x + (width - back) / 2, y + Math.max(1, height / 2 - 7), back, Math.min(14, height - 2), style.css);
  }
  pen.text(x + width / 2, middle, label, style.ink, { size: height < 13 || width < wide + 6 ? 10 : 11, align: "center" });
}

/** Each pixel gets the mean colour of what covers it, so that no action is lost or exaggerated. */
function paintMixed(pen, timeline, styled, scale, box, first, last) {
  const { start, end, joined } = timeline.columns;
  const count = Math.round((box.width - GUTTER) * pen.ratio);
  const sums = new Float32Array(count * 4);
  const colours = styled.styles.map((style) => style.colour);
  for (let action = first; action < last; action++) {
    if (joined[action]) continue;
    const left = Math.max(0, (scale.x(start[action]) - GUTTER) * pen.ratio);
    const right = Math.min(count, (scale.x(end[action]) - GUTTER) * pen.ratio);
    const colour = colours[styled.of[action]];
    for (let pixel = Math.floor(left); pixel < right; pixel++) {
      const share = Math.min(right, pixel + 1) - Math.max(left, pixel);
      const at = pixel * 4;
      sums[at] += colour[0] * share;
      sums[at + 1] += colour[1] * share;
      sums[at + 2] += colour[2] * share;
      sums[at + 3] += share;
    }
  }
  pen.strip(GUTTER, box.y, box.width - GUTTER, box.height - 0.75, mean(sums));
}

function mean(sums) {
  const pixels = new Uint8ClampedArray(sums.length);
  for (let at = 0; at < sums.length; at += 4) {
    const share = sums[at + 3];
    if (share < 0.002) continue;
    pixels[at] = sums[at] / share;
    pixels[at + 1] = sums[at + 1] / share;
    pixels[at + 2] = sums[at + 2] / share;
    pixels[at + 3] = 255 * Math.min(1, share);
  }
  return pixels;
}
