// What lies over the picture: the selected and the hovered action, arrows, the moment that plays.

import { readBy, readersOf } from "weft/data.js";
import { chainOf } from "weft/chain.js";
import { AXIS, GUTTER, scaleOf } from "weft/layout.js";
import { boxOf } from "weft/paint.js";

const MOST_ARROWS = 40;

export function paintOverlay(pen, app, theme) {
  const { width, height } = app.viewport;
  pen.clipped(GUTTER, AXIS, width - GUTTER, height - AXIS, () => {
    if (app.cursor !== null) paintMoment(pen, app, theme);
    if (app.selection) paintSelection(pen, app, app.selection, theme);
    const isOther = app.hover && !(app.selection
      && app.hover.action === app.selection.action && app.hover.gap === app.selection.gap);
    if (isOther) paintSelection(pen, app, app.hover, theme, app.hover.gap === undefined);
  });
}

function paintSelection(pen, app, selection, theme, hasArrows = true) {
  const { timeline } = selection;
  if (selection.gap !== undefined) {
    paintGapBox(pen, app, timeline, selection.gap, theme);
    if (hasArrows) paintChain(pen, app, timeline, chainOf(timeline, selection.gap), theme);
    return;
  }
  outline(pen, app, timeline, selection.action, theme.arrow, 2);
  if (!hasArrows) return;
  const before = readBy(timeline, selection.action).map(({ action }) => [action, selection.action]);
  const after = readersOf(timeline, selection.action).map(({ action }) => [selection.action, action]);
  for (const [from, to] of [...before, ...after].slice(0, MOST_ARROWS)) {
    arrow(pen, app, timeline, from, to, theme.arrow);
  }
}

function paintGapBox(pen, app, timeline, gap, theme) {
  const row = app.layout.rows.find((one) => one.type === "actions" && one.band === "compute"
    && one.timeline === timeline && one.device === timeline.idle.device[gap]);
  if (!row) return;
  const scale = scaleOf(app, timeline, app.viewport.width);
  const left = scale.x(timeline.idle.start[gap]);
  const y = row.y + AXIS - app.view.scroll;
  pen.outline(left, y, scale.x(timeline.idle.end[gap]) - left, row.height - 1, theme.strong, 2);
}

function paintChain(pen, app, timeline, chain, theme) {
  chain.forEach((link, index) => {
    outline(pen, app, timeline, link.action, theme.strong, 1.5);
    if (index) arrow(pen, app, timeline, link.action, chain[index - 1].action, theme.strong);
  });
}

function placed(app, timeline, action) {
  const box = boxOf(app, app.layout, timeline, action, app.viewport.width);
  if (box) box.y += AXIS - app.view.scroll;
  return box;
}

function outline(pen, app, timeline, action, colour, thickness) {
  const box = placed(app, timeline, action);
  if (box) pen.outline(box.left, box.y, Math.max(2, box.right - box.left - 0.75), box.height - 1, colour, thickness);
}

/** From the end of one action to the start of another, with a head. */
function arrow(pen, app, timeline, from, to, colour) {
  const [source, target] = [placed(app, timeline, from), placed(app, timeline, to)];
  if (!source || !target) return;
  const [x0, y0] = [source.right, source.y + source.height / 2];
  const [x1, y1] = [target.left, target.y + target.height / 2];
  if (Math.abs(y1 - y0) < 1 && x1 - x0 < 2) return;
  const { context } = pen;
  context.strokeStyle = context.fillStyle = colour;
  context.lineWidth = 1.4;
  context.beginPath();
  context.moveTo(x0, y0);
  const bend = Math.max(8, Math.min(60, Math.abs(x1 - x0) / 2));
  const rise = Math.abs(y1 - y0) < 1 ? source.height * 1.1 : 0; // on one row: over what lies between
  context.bezierCurveTo(x0 + bend, y0 - rise, x1 - bend, y1 - rise, x1 - 5, y1);
  context.stroke();
  context.beginPath();
  context.moveTo(x1, y1);
  context.lineTo(x1 - 7, y1 - 3.5);
  context.lineTo(x1 - 7, y1 + 3.5);
  context.fill();
}

function paintMoment(pen, app, theme) {
  const { width, height } = app.viewport;
  const share = (app.cursor - app.view.from) / (app.view.to - app.view.from);
  const x = GUTTER + share * (width - GUTTER);
  pen.rect(x, AXIS, width - x, height - AXIS, theme.shade);
  pen.line([[x, AXIS], [x, height]], theme.strong, 2);
}
