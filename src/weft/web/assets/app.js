// The one object that holds what the page shows, and how the picture follows it.

import { byId, debounced } from "weft/dom.js";
import { timelineOf } from "weft/data.js";
import { AXIS, GUTTER, layoutOf } from "weft/layout.js";
import { theme } from "weft/palette.js";
import { CanvasPen } from "weft/pens.js";
import { paint } from "weft/paint.js";
import { paintOverlay } from "weft/overlay.js";

export const OPTIONS = {
  memory: true, streams: false, idle: true, critical: false, paired: true,
  colour: "kind", palette: "safe", align: "start",
};
/** What options that are no switch may be, and the words for it. */
export const CHOICES = {
  colour: { kind: "kind", microbatch: "microbatch", stage: "stage", slack: "slack", difference: "difference" },
  palette: { safe: "safe colours", seeds: "as in papers" },
  align: { start: "starts", end: "ends" },
};
const LARGE = 24; // devices from which on memory starts hidden
const CLOSEST = 1e-7; // share of the whole that a view may be narrowed to

export class App {
  constructor(content) {
    this.words = content.words;
    this.points = content.points ?? [];
    this.live = content.live ?? null;
    this.timelines = [];
    this.hidden = new Set();
    this.options = { ...OPTIONS, ...content.options };
    this.view = { from: 0, to: 1, scroll: 0 };
    this.viewport = { width: 0, height: 0 };
    this.selection = null; // { timeline, action } or { timeline, gap }
    this.hover = null;
    this.cursor = null; // seconds on the common axis, while it plays
    this.layout = { rows: [], height: 0 };
    this.listeners = { view: [], select: [], timelines: [] };
    this.pens = {};
    this.isDue = false;
    this.painted = 0; // milliseconds of the last picture
    this.setTimelines(content.timelines ?? []);
  }

  shown() {
    return this.timelines.filter((timeline) => !this.hidden.has(timeline.key));
  }

  /** In seconds and bytes where any of the shown timelines is; else without a unit. */
  get units() {
    const shown = this.shown();
    const none = { name: "", size: 1 };
    return (shown.find((timeline) => timeline.units.time.name) ?? shown[0])?.units ?? { time: none, memory: none };
  }

  /** The longest of the shown timelines: the common axis. */
  get extent() {
    return Math.max(...this.shown().map((timeline) => timeline.makespan), 0) || 1;
  }

  setTimelines(views) {
    const decoded = views.map((view) => timelineOf(view, this.words));
    this.adopt(decoded);
  }

  adopt(timelines) {
    const wasWhole = this.view.to - this.view.from >= this.wholeSpan * 0.999;
    this.timelines = timelines.map((timeline, index) => Object.assign(timeline, { key: `${index}` }));
    this.selection = this.hover = null;
    if (this.wholeSpan === undefined) {
      this.options.memory = !timelines.some((timeline) => timeline.devices >= LARGE);
      if (timelines.length > 4) timelines.slice(1).forEach((timeline) => this.hidden.add(timeline.key));
    }
    if (wasWhole || this.wholeSpan === undefined) this.fit();
    this.emit("timelines");
    this.emit("select");
  }

  on(event, listener) {
    this.listeners[event].push(listener);
  }

  emit(event) {
    this.listeners[event].forEach((listener) => listener());
    this.redraw();
  }

  fit() {
    const extent = this.extent;
    this.view.from = 0;
    this.view.to = this.wholeSpan = extent * 1.005;
    this.emit("view");
  }

  /** Show a stretch of time, kept within what there is. */
  show(from, to) {
    const whole = (this.wholeSpan = this.extent * 1.005);
    const span = Math.min(whole, Math.max(whole * CLOSEST, to - from));
    this.view.from = Math.max(0, Math.min(whole - span, (from + to - span) / 2));
    this.view.to = this.view.from + span;
    this.emit("view");
  }

  zoom(factor, x = null) {
    const { from, to } = this.view;
    const share = x === null ? 0.5 : (x - GUTTER) / Math.max(1, this.viewport.width - GUTTER);
    const held = from + (to - from) * Math.max(0, Math.min(1, share));
    const span = Math.min(this.extent * 1.005, (to - from) * factor);
    this.show(held - span * share, held + span * (1 - share));
  }

  pan(seconds) {
    const span = this.view.to - this.view.from;
    const from = Math.max(0, Math.min(this.extent * 1.005 - span, this.view.from + seconds));
    this.show(from, from + span);
  }

  scrollBy(pixels) {
    const most = Math.max(0, this.layout.height + AXIS - this.viewport.height);
    this.view.scroll = Math.max(0, Math.min(most, this.view.scroll + pixels));
    this.redraw();
  }

  set(option, value) {
    this.options[option] = value;
    this.emit("timelines");
  }

  toggle(timeline) {
    if (!this.hidden.delete(timeline.key)) this.hidden.add(timeline.key);
    this.fit();
    this.emit("timelines");
  }

  select(selection) {
    this.selection = selection;
    this.emit("select");
  }

  // the picture

  attach(canvas, overlay) {
    this.pens = { base: canvas, overlay };
    new ResizeObserver(() => this.resize()).observe(canvas.parentElement);
    matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => this.redraw());
    this.resize();
  }

  resize() {
    const { base, overlay } = this.pens;
    const { clientWidth: width, clientHeight: height } = base.parentElement;
    if (!width || !height) return;
    this.viewport = { width, height };
    for (const canvas of [base, overlay]) {
      canvas.width = Math.round(width * devicePixelRatio);
      canvas.height = Math.round(height * devicePixelRatio);
    }
    this.pen = new CanvasPen(base.getContext("2d", { alpha: false }), devicePixelRatio);
    this.over = new CanvasPen(overlay.getContext("2d"), devicePixelRatio);
    this.draw();
  }

  redraw() {
    if (this.isDue || !this.pen) return;
    this.isDue = true;
    requestAnimationFrame(() => {
      this.isDue = false;
      this.draw();
    });
  }

  draw() {
    const began = performance.now();
    const { width, height } = this.viewport;
    this.pen.context.setTransform(devicePixelRatio, 0, 0, devicePixelRatio, 0, 0);
    const most = layoutOf(this, height).height + AXIS - height;
    this.view.scroll = Math.max(0, Math.min(most, this.view.scroll));
    this.layout = paint(this.pen, this, { width, height, scroll: this.view.scroll, theme: theme() });
    this.drawOverlay();
    this.painted = performance.now() - began;
  }

  drawOverlay() {
    if (!this.over) return;
    const { width, height } = this.viewport;
    this.over.context.setTransform(devicePixelRatio, 0, 0, devicePixelRatio, 0, 0);
    this.over.context.clearRect(0, 0, width, height);
    paintOverlay(this.over, this, theme());
  }
}

/** Say something to everyone, also to those who do not see the page. */
export function announce(message) {
  byId("status").textContent = message;
}

const hide = debounced(9000, () => { byId("message").hidden = true; });

/** A message that cannot be missed; what went wrong and what to do. */
export function notify(message, isError = false) {
  const box = byId("message");
  box.textContent = message;
  box.className = isError ? "error" : "";
  box.hidden = false;
  hide();
}
