// The legend: the kinds, categories and causes that are in the picture, and no others.

import { el } from "weft/dom.js";
import { CATEGORY_COLOURS, CAUSE_COLOURS } from "weft/palette.js";

const HATCHED = new Set(["W", "R"]);
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
  const found = new Map();
  for (const timeline of app.shown()) {
    const { kind, segment, start, end } = timeline.columns;
    for (let action = 0; action < timeline.count; action++) {
      if (end[action] <= start[action]) continue;
      const { colour: name, word } = timeline.words.kinds[kind[action]];
      const isMoved = segment[action] >= 0 && timeline.words.moved.includes(segment[action] % 4);
      if (isMoved) found.set("experts", "expert communication");
      else if (!found.has(name)) found.set(name, word);
    }
  }
  return [...found].map(([name, word]) =>
    entry(app.words.palettes[palette][name], word, HATCHED.has(name) ? "hatched" : ""));
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
