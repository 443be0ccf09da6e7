// The legend: the kinds, categories and causes that are in the picture, and no others.

import { el } from "weft/dom.js";
import { isMoved } from "weft/names.js";
import { CATEGORY_COLOURS, CAUSE_COLOURS } from "weft/palette.js";

const COLOURINGS = {
  microbatch: "a colour for each microbatch, again after twelve",
  stage: "a colour for each stage, again after twelve",
  slack: "dark red: no slack, delays everything; pale: could end later",
  difference: "blue: shorter than in the other timeline; orange: longer, full colour from half as long again",
};

export function buildLegend(app, place) {
  const update = () => place.replaceChildren(...entries(app));
  app.on("timelines", update);
  update();
}

function entries(app) {
  return [...kinds(app), ...causes(app), ...categories(app)];
}

function entry(colour, words, look = "") {
  const swatch = el("span", { class: `swatch ${look}` });
  swatch.style.backgroundColor = colour;
  return el("span", {}, swatch, words);
}

function kinds(app) {
  const { colour, palette } = app.options;
  if (COLOURINGS[colour]) return [el("span", {}, `Colours: ${COLOURINGS[colour]}`)];
  const colours = app.words.palettes[palette];
  const found = new Map();
  for (const timeline of app.shown()) {
    for (const kind of present(timeline)) {
      const isPart = kind < 0;
      const { word, is_hatched: isHatched } = isPart ? { word: "expert communication" } : app.words.kinds[kind];
      const code = isPart ? colours.moved[0] : colours.kinds[kind][0][0];
      const same = [...found.values()].some((one) => one.code === code && isWire(app, kind));
      if (!found.has(word) && !same) found.set(word, { code, isHatched });
    }
  }
  return [...found].map(([word, { code, isHatched }]) => entry(code, word, isHatched ? "hatched" : ""));
}

const isWire = (app, kind) => kind >= 0 && /^(SEND|RECV)/.test(app.words.kinds[kind].name);

/** The kinds that take time; -1 stands for the parts of layers that communicate. */
function present(timeline) {
  if (timeline.present) return timeline.present;
  const { kind, start, end } = timeline.columns;
  const kinds = new Set();
  for (let action = 0; action < timeline.count; action++) {
    if (end[action] <= start[action]) continue;
    kinds.add(isMoved(timeline, action) ? -1 : kind[action]);
  }
  timeline.present = [...kinds].sort((one, other) => one - other);
  return timeline.present;
}

function causes(app) {
  if (!app.options.idle) return [];
  const found = new Set(app.shown().flatMap((timeline) =>
    timeline.idle.sums.flatMap((sums) => Object.keys(sums)))).difference(new Set(["work"]));
  return [...found].map((cause) => entry(CAUSE_COLOURS[cause], `idle: ${cause}`, "bar"));
}

function categories(app) {
  if (!app.options.memory) return [];
  const found = new Set(app.shown().flatMap((timeline) => timeline.categories));
  return [...found].map((name) => entry(CATEGORY_COLOURS[name], `memory: ${name}`));
}
