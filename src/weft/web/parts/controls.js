// Controls of the live page: schedules, sizes, costs; every change is answered at once.

import { tell } from "weft/app.js";
import { timelineOf } from "weft/data.js";
import { debounced, el } from "weft/dom.js";
import { post } from "weft/live.js";

const SIZES = [
  ["devices", "Devices", 1, 16, 1],
  ["microbatches", "Microbatches", 1, 64, 1],
];
const COSTS = [
  ["forward", "Forward", 0, 4, 0.05],
  ["input_grad", "Input gradient", 0, 4, 0.05],
  ["weight_grad", "Weight gradient", 0, 4, 0.05],
  ["latency", "Latency of a link", 0, 2, 0.01],
  ["bandwidth", "Bandwidth: messages per unit of time, 0: no limit", 0, 20, 0.5],
  ["capacity", "Memory of a device, 0: no limit", 0, 40, 0.5],
];
const USUAL = {
  chosen: [{ schedule: "1f1b", variant: "", stages_per_device: 1 }],
  devices: 4, microbatches: 8, forward: 1, input_grad: 1, weight_grad: 1, latency: 0, bandwidth: 0, capacity: 0,
};
const MOST = 6; // schedules at once

export function buildControls(app, place) {
  const controls = new Controls(app, place);
  app.openPoint = (point) => controls.open(point);
  controls.begin();
}

class Controls {
  constructor(app, place) {
    this.app = app;
    this.place = place;
    this.schedules = new Map(app.live.schedules.map((schedule) => [schedule.name, schedule]));
    this.state = { ...structuredClone(USUAL), ...fromAddress() };
    this.asking = null;
    this.refusals = el("div", { role: "alert" });
    this.moreLater = debounced(200, () => this.more());
    this.streams = app.options.streams;
    app.on("timelines", () => this.followStreams());
    app.on("select", () => this.moreLater()); // another tab may be open
  }

  begin() {
    this.place.hidden = false;
    this.build();
    this.ask();
  }

  build() {
    const { chosen } = this.state;
    this.place.replaceChildren(
      el("h2", {}, "Schedules"),
      ...chosen.map((_, index) => this.chooser(index)),
      el("button", { disabled: chosen.length >= MOST, onclick: () => this.add() }, "+ Compare with another"),
      this.refusals,
      el("h3", {}, "Shape"),
      ...SIZES.map((field) => this.slider(...field)),
      el("h3", {}, "Costs of a device's share"),
      ...COSTS.map((field) => this.slider(...field)),
      el("p", { class: "note" }, "Weights of a device have size 1, and so has what it saves of a microbatch, and a message. Drop a program, a timeline or a torch CSV on the page to see it here."),
    );
  }

  chooser(index) {
    const one = this.state.chosen[index];
    const known = this.schedules.get(one.schedule);
    const choose = (change) => {
      Object.assign(one, change);
      this.build();
      this.ask();
    };
    const name = el("select", { "aria-label": "Schedule", onchange: () => {
      const [least, most] = this.schedules.get(name.value).stages_per_device;
      choose({ schedule: name.value, variant: "", stages_per_device: most === null ? Math.max(least, 2) : least });
    } }, ...[...this.schedules.values()].map((schedule) => el("option", { value: schedule.name, title: schedule.summary }, schedule.name)));
    name.value = one.schedule;
    const parts = [name];
    if (known?.variants.length) {
      const variant = el("select", { "aria-label": "Variant", onchange: () => choose({ variant: variant.value }) },
        ...["", ...known.variants].map((value) => el("option", { value }, value || "no variant")));
      variant.value = one.variant;
      parts.push(variant);
    }
    const children = [el("div", { class: "field" }, ...parts)];
    if (known && known.stages_per_device[1] === null) children.push(this.stages(one));
    if (this.state.chosen.length > 1) {
      children.push(el("button", { class: "link", onclick: () => { this.state.chosen.splice(index, 1); this.build(); this.ask(); } }, `Remove ${one.schedule}`));
    }
    return el("div", { title: known?.summary ?? "" }, ...children);
  }

  stages(one) {
    return field("Stages per device", 1, 8, 1, one.stages_per_device, (value) => {
      one.stages_per_device = value;
      this.ask();
    });
  }

  slider(name, words, least, most, step) {
    return field(words, least, most, step, this.state[name], (value) => {
      this.state[name] = value;
      this.ask();
    });
  }

  add() {
    const names = new Set(this.state.chosen.map((one) => one.schedule));
    const next = ["zb-h1", "interleaved-1f1b", "gpipe", "zbv", "zb-h2", "eager-1f1b"].find((name) => !names.has(name));
    this.open({ schedule: next, variant: "", stages_per_device: this.schedules.get(next).stages_per_device[0] });
  }

  /** Beside what is there; again the same is not added. */
  open({ schedule, variant, stages_per_device: stages }) {
    const { chosen } = this.state;
    if (chosen.some((one) => one.schedule === schedule && one.variant === variant)) return;
    if (chosen.length >= MOST) chosen.pop();
    chosen.push({ schedule, variant, stages_per_device: Math.max(stages, this.schedules.get(schedule).stages_per_device[0]) });
    this.build();
    this.ask();
  }

  followStreams() {
    if (this.streams === this.app.options.streams) return;
    this.streams = this.app.options.streams;
    this.ask();
  }

  requests() {
    const { chosen, ...shared } = this.state;
    return chosen.map((one) => ({ ...shared, ...one, streams: this.streams }));
  }

  async ask() {
    this.asking?.abort();
    this.asking = new AbortController();
    this.app.requests = this.state;
    const began = performance.now();
    try {
      const { answers } = await post("/timelines", { requests: this.requests() }, this.asking.signal);
      this.show(answers);
      this.app.answered = performance.now() - began;
      this.moreLater();
    } catch (error) {
      if (error.name !== "AbortError") tell(error.message, true);
    }
  }

  show(answers) {
    const found = answers.filter((answer) => answer.timeline);
    this.refusals.replaceChildren(...answers.flatMap((answer, index) => (answer.refused ? [this.refusal(answer, index)] : [])));
    if (found.length) this.app.adopt(found.map((answer) => timelineOf(answer.timeline, this.app.words)));
  }

  refusal({ refused, nearest }, index) {
    const box = el("div", { class: "refusal" }, refused);
    if (!nearest) return box;
    const { devices, microbatches, ...own } = nearest;
    const words = `${devices} devices, ${microbatches} microbatches, ${own.stages_per_device} per device${own.variant ? `, ${own.variant}` : ""}`;
    box.append(el("div", {}, el("button", { class: "link", onclick: () => {
      Object.assign(this.state, { devices, microbatches });
      Object.assign(this.state.chosen[index], own);
      this.build();
      this.ask();
    } }, `Use the nearest that works: ${words}`)));
    return box;
  }

  /** What the open tab needs beyond the timelines; one schedule after the other, so that none waits long. */
  async more() {
    const { signal } = this.asking;
    try {
      if (this.app.tab === "plot") await this.plot(signal);
      if (this.app.tab === "helps") await this.help(signal);
    } catch (error) {
      if (error.name !== "AbortError") tell(error.message, true);
    }
  }

  async plot(signal) {
    const [request] = this.requests();
    const shape = JSON.stringify({ ...request, schedule: "", variant: "", stages_per_device: 0 });
    if (this.plotted === shape) return;
    const found = [];
    for (const schedule of this.schedules.keys()) {
      const { points } = await post("/plot", { request: { ...request, schedule, variant: "" } }, signal);
      found.push(...points);
      this.app.points = [...found];
      if (this.app.tab === "plot") this.app.updateTab();
    }
    this.plotted = shape;
  }

  async help(signal) {
    const requests = this.requests();
    for (const [index, timeline] of this.app.timelines.entries()) {
      if (timeline.helps !== undefined || !requests[index]) continue;
      timeline.helps = (await post("/helps", { request: { ...requests[index], streams: false } }, signal)).helps;
    }
    if (this.app.tab === "helps") this.app.updateTab();
  }
}

/** A slider and a number that say the same; the number may go beyond the slider. */
function field(words, least, most, step, value, change) {
  const slider = el("input", { type: "range", min: least, max: most, step, "aria-label": words });
  const number = el("input", { type: "number", min: least, step, "aria-label": `${words}, as a number` });
  slider.value = number.value = value;
  slider.addEventListener("input", () => {
    number.value = slider.value;
    change(Number(slider.value));
  });
  number.addEventListener("input", () => {
    if (number.value === "" || !number.checkValidity()) return;
    slider.value = number.value;
    change(Number(number.value));
  });
  return el("div", { class: "field" }, el("label", {}, words), slider, number);
}

function fromAddress() {
  try {
    const given = JSON.parse(new URLSearchParams(location.hash.slice(1)).get("live") ?? "{}");
    const isSound = !given.chosen || (Array.isArray(given.chosen) && given.chosen.every((one) => typeof one?.schedule === "string"));
    return isSound ? given : {};
  } catch {
    return {};
  }
}

