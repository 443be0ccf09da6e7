// Colours: a style for each action, chosen by what the reader asks to see.

import { isMoved } from "weft/names.js";

const STEPS = 12;

const rgb = (code) => [1, 3, 5].map((at) => parseInt(code.slice(at, at + 2), 16));
const mix = (one, other, share) => one.map((part, index) => Math.round(part + (other[index] - part) * share));
const css = (colour) => `rgb(${colour.join(",")})`;

/** Black or white, whichever is easier to read on a colour. */
function inkOn(colour) {
  const [red, green, blue] = colour.map((part) => {
    const share = part / 255;
    return share <= 0.04 ? share / 12.92 : ((share + 0.055) / 1.055) ** 2.4;
  });
  return 0.2126 * red + 0.7152 * green + 0.0722 * blue > 0.18 ? "#10151c" : "#ffffff";
}

function style(colour, isHatched = false) {
  return { colour, css: css(colour), ink: inkOn(colour), isHatched };
}

/** Python's own palettes: a colour for each kind, each of a device's stages, odd and even. */
function byKind(timeline, palette) {
  const { columns, words } = timeline;
  const places = palette.kinds[0].length;
  const styles = palette.kinds.flatMap((ofPlaces, kind) => ofPlaces.flatMap((pair) =>
    pair.map((code) => style(rgb(code), words.kinds[kind].is_hatched))));
  const moved = styles.length;
  styles.push(...palette.moved.map((code) => style(rgb(code))));
  const of = Uint8Array.from(columns.kind, (kind, action) => {
    const isOdd = columns.microbatch[action] & 1;
    if (isMoved(timeline, action)) return moved + isOdd;
    return (kind * places + (columns.place[action] % places)) * 2 + isOdd;
  });
  return { of, styles };
}

function hue(index, count) {
  const turn = (index / count) * 2 * Math.PI;
  const wave = (shift) => Math.round(150 + 85 * Math.cos(turn - shift));
  return [wave(0), wave(2.09), wave(4.19)];
}

function byColumn(timeline, column) {
  const styles = Array.from({ length: STEPS }, (_, index) => style(hue(index, STEPS)));
  const of = Uint8Array.from(column, (value) => ((value % STEPS) + STEPS) % STEPS);
  return { of, styles };
}

/** From critical to idle: what has no slack is dark, what has much is pale. */
function bySlack(timeline) {
  const { slack } = timeline.columns;
  const most = slack.reduce((a, b) => Math.max(a, b), 0) || 1;
  const styles = Array.from({ length: STEPS }, (_, index) =>
    style(mix([178, 34, 34], [222, 226, 232], Math.sqrt(index / (STEPS - 1)))));
  const of = Uint8Array.from(slack, (value) =>
    Math.min(STEPS - 1, Math.ceil((Math.max(0, value) / most) * (STEPS - 1) - 1e-6)));
  return { of, styles };
}

/** Shorter than in the other timeline of the same program is blue, longer is orange. */
function byDifference(timeline, other) {
  const { start, end } = timeline.columns;
  const middle = (STEPS - 2) / 2;
  const styles = Array.from({ length: STEPS - 1 }, (_, index) => {
    const side = index < middle ? [0, 114, 178] : [213, 94, 0];
    return style(mix([232, 234, 237], side, Math.abs(index - middle) / middle));
  });
  const of = Uint8Array.from(start, (begin, action) => {
    const expected = other.columns.end[action] - other.columns.start[action];
    const ratio = expected > 0 ? (end[action] - begin) / expected - 1 : 0;
    return Math.round(middle + Math.max(-1, Math.min(1, ratio / 0.5)) * middle);
  });
  return { of, styles };
}

/** For each action the index of its style, and the styles; remembered until the choice changes. */
export function stylesOf(timeline, options, twin = null) {
  const key = `${options.colour} ${options.palette} ${twin?.name ?? ""}`;
  if (timeline.styled?.key === key) return timeline.styled;
  timeline.styled = { key, ...chosen(timeline, options, twin) };
  return timeline.styled;
}

function chosen(timeline, options, twin) {
  if (options.colour === "microbatch") return byColumn(timeline, timeline.columns.microbatch);
  if (options.colour === "stage") return byColumn(timeline, timeline.columns.stage);
  if (options.colour === "slack") return bySlack(timeline);
  if (options.colour === "difference" && twin) return byDifference(timeline, twin);
  return byKind(timeline, timeline.words.palettes[options.palette]);
}

export const CAUSE_COLOURS = {
  "warm-up": "#8d99a8",
  host: "#3d8a6d",
  value: "#d55e00",
  wire: "#cc79a7",
  memory: "#7b5ea7",
  order: "#b8960b",
  optimizer: "#8a5a2b",
  "cool-down": "#b9c2cc",
  unexplained: "#8d99a8",
};

export const CATEGORY_COLOURS = {
  weights: "#5b6b7d",
  gradients: "#8795a5",
  optimizer: "#b3bcc6",
  activations: "#3f8fc4",
  inputs: "#7cc0a4",
  buffers: "#cc79a7",
};

const LIGHT = {
  back: "#ffffff", row: "#f4f6f8", line: "#dfe4ea", ink: "#1a2330", faint: "#5b6877",
  strong: "#b3261e", arrow: "#1a2330", shade: "rgba(255,255,255,0.72)",
};
const DARK = {
  back: "#12171d", row: "#1a2129", line: "#2c3641", ink: "#e6ebf1", faint: "#9aa7b5",
  strong: "#ff8a75", arrow: "#f2f5f8", shade: "rgba(18,23,29,0.74)",
};

const isDark = () => matchMedia("(prefers-color-scheme: dark)").matches;
export const theme = () => (isDark() ? DARK : LIGHT);
