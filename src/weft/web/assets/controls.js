// Controls of the live page: schedules, sizes, costs, files; every change is answered at once.

import { notify } from "weft/app.js";
import { Asides } from "weft/asides.js";
import { MOST, fromAddress } from "weft/asked.js";
import { chosenBy, costFields, costsAsked, lengthFields } from "weft/costs.js";
import { timelineOf } from "weft/data.js";
import { el, focusWithin } from "weft/dom.js";
import { openFile } from "weft/drop.js";
import { choice, counter } from "weft/fields.js";
import { post } from "weft/live.js";
import { memoryFields } from "weft/memoryfields.js";
import { shortageBox } from "weft/shortage.js";

const SIZES = {
  devices: { words: "Devices", least: 1, most: 64, step: 1 },
  microbatches: { words: "Microbatches", least: 1, most: 512, step: 1 },
};
const UPDATES = { updates: { words: "Updates of an asynchronous run", least: 1, most: 8, step: 1 } };
const OTHERS = ["zb-h1", "interleaved-1f1b", "gpipe", "zbv", "zb-h2", "eager-1f1b"]; // to compare with

/** Ends when the first answer is on show. */
export async function buildControls(app, place) {
  const controls = new Controls(app, place);
  app.openPoint = (point) => controls.open(point);
  app.openFile = (file) => controls.openFile(file);
  app.followAddress = () => controls.followAddress();
  place.hidden = false;
  controls.build();
  await controls.ask();
}

class Controls {
  constructor(app, place) {
    this.app = app;
    this.place = place;
    this.schedules = new Map(app.live.schedules.map((schedule) => [schedule.name, schedule]));
    this.state = this.wanted();
    this.files = []; // { name, text, views, what they were asked with }
    this.timelines = []; // of the schedules
    this.isDue = this.isAsking = false;
    this.refusals = el("div", { role: "alert" });
    this.shortages = el("div", { role: "status", "aria-label": "What does not fit" });
    this.lengths = el("div", {});
    this.asides = new Asides(this);
    this.hasStreams = app.options.streams;
    app.on("timelines", () => this.followStreams());
  }

  /** What the address says, and the usual for the rest. */
  wanted() {
    const state = fromAddress(this.app.live.given);
    for (const one of state.chosen) one.stages_per_device ??= this.schedules.get(one.schedule)?.stages_per_device ?? 1;
    return state;
  }

  // the form

  build() {
    const focus = focusWithin(this.place);
    const { chosen } = this.state;
    const isUneven = this.state.lengths.some((length) => length !== 1);
    const changes = {
      change: (change) => this.set(change),
      rebuild: (change) => this.set(change, true),
      open: (file) => openFile(this.app, file),
    };
    this.place.replaceChildren(
      el("h2", {}, "Schedules"),
      ...chosen.map((one, index) => this.chooser(one, index)),
      el("button", { disabled: chosen.length >= MOST, onclick: () => this.add() }, "+ Compare with another"),
      ...this.files.map((file, index) => this.fileRow(file, index)),
      this.refusals,
      this.shortages,
      el("h3", {}, "Shape"),
      ...Object.entries(this.sizes()).map(([name, { words, ...range }]) =>
        counter(words, range, this.state[name], (value) => this.set({ [name]: value }))),
      el("h3", {}, "Costs"),
      ...costFields(this.state, this.app.live, changes),
      el("details", { open: isUneven }, el("summary", {}, "Uneven stages"), this.lengths),
      el("p", { class: "note" }, this.note()),
    );
    this.buildLengths();
    focus();
  }

  sizes() {
    const isAsynchronous = ({ schedule }) => this.schedules.get(schedule)?.is_asynchronous ?? false;
    return this.state.chosen.some(isAsynchronous) ? { ...SIZES, ...UPDATES } : SIZES;
  }

  buildLengths() {
    const even = el("button", { onclick: () => this.set({ lengths: [] }, true) }, "All equal");
    this.lengths.replaceChildren(...lengthFields(this.state, (change) => this.set(change)), even);
  }

  note() {
    const units = this.state.costs === "units"
      ? "Weights of a device have size 1, and so has what it saves of a microbatch, and a message."
      : "Derived from the sizes of the model and the device's figures: a bound that good runs come near to.";
    return `${units} Drop a program, a timeline, a torch CSV, a plan or a page on this one to see it here; a model, a device or a cluster to compute with it.`;
  }

  chooser(one, index) {
    const known = this.schedules.get(one.schedule);
    const choose = (change) => {
      Object.assign(one, change);
      this.set({}, true);
    };
    const names = [...this.schedules.values()].map(({ name, summary }) => ({ value: name, words: name, title: summary }));
    const fields = [choice("Schedule", names, one.schedule, (name) =>
      choose({ schedule: name, variant: "", relief: "", stages_per_device: this.schedules.get(name).stages_per_device }))];
    if (known?.variants.length) {
      const variants = ["", ...known.variants].map((value) => ({ value, words: value || "no variant" }));
      fields.push(choice("Variant", variants, one.variant, (variant) => choose({ variant })));
    }
    const { select, texts } = memoryFields(this.reliefs(), one, choose);
    const children = [el("div", { class: "field" }, ...fields, select), ...texts];
    if (known?.loops) {
      children.push(counter("Stages per device", { least: 1, most: 8, step: 1 }, one.stages_per_device, (value) => {
        one.stages_per_device = value;
        this.set({ chosen: this.state.chosen });
      }));
    }
    if (this.state.chosen.length > 1) children.push(this.remover(one.schedule, this.state.chosen, index));
    return el("div", { title: known?.summary ?? "" }, ...children);
  }

  /** In units there are no norms to compute again. */
  reliefs() {
    return this.app.live.reliefs.filter((relief) => this.state.costs === "model" || !relief.includes("selective"));
  }

  fileRow(file, index) {
    return el("p", {}, `${file.name} `, this.remover(file.name, this.files, index));
  }

  remover(name, list, index) {
    return el("button", { class: "link", onclick: () => {
      list.splice(index, 1);
      this.app.hidden.clear();
      this.set({}, true);
    } }, `Remove ${name}`);
  }

  /** Take what is new and ask; the form is built again where it looks different then. */
  set(change, isOtherForm = false) {
    Object.assign(this.state, change);
    if (isOtherForm) this.build();
    else if ("devices" in change || "chosen" in change) this.buildLengths();
    this.ask();
  }

  add() {
    const names = new Set(this.state.chosen.map((one) => one.schedule));
    const schedule = OTHERS.find((name) => !names.has(name)) ?? OTHERS[0];
    this.open({ schedule, variant: "", relief: "", stages_per_device: this.schedules.get(schedule).stages_per_device });
  }

  /** Beside what is there; again the same is not added. What was synthesised is a file. */
  open({ name, text, schedule, variant, relief, stages_per_device }) {
    if (text) {
      if (!this.files.some((file) => file.text === text)) this.openFile({ name, text });
      return;
    }
    const { chosen } = this.state;
    if (chosen.some((one) => one.schedule === schedule && one.variant === variant && one.relief === relief)) return;
    if (chosen.length >= MOST) chosen.pop();
    chosen.push({ schedule, variant, relief, stages_per_device });
    this.set({}, true);
  }

  // the answers

  requests() {
    const { chosen, devices, microbatches, updates } = this.state;
    return chosen.map((one) =>
      ({ ...costsAsked(this.state), devices, microbatches, updates, ...one, streams: this.hasStreams }));
  }

  /** One question at a time; what changes meanwhile is asked when it is answered. */
  async ask() {
    this.app.asked = this.state;
    this.isDue = true;
    if (this.isAsking) return;
    this.isAsking = true;
    while (this.isDue) {
      this.isDue = false;
      await this.answer();
    }
    this.isAsking = false;
    this.asides.later();
  }

  async answer() {
    const began = performance.now();
    const requests = this.requests();
    try {
      const { answers } = await post("/timelines", { requests });
      for (const file of this.files) await this.time(file);
      this.show(answers, requests);
      this.app.answered = performance.now() - began;
    } catch (error) {
      notify(error.message, true);
    }
  }

  show(answers, requests) {
    this.refusals.replaceChildren(...answers.flatMap((answer, index) => (answer.refused ? [this.refusal(answer, index)] : [])));
    this.timelines = answers.flatMap(({ timeline }, index) =>
      (timeline ? [{ ...timelineOf(timeline, this.app.words), request: requests[index], index }] : []));
    this.showShortages();
    this.adopt();
  }

  showShortages() {
    const short = this.timelines.filter((timeline) => timeline.shortage);
    this.shortages.replaceChildren(...short.map((timeline) => shortageBox(timeline, (change) => this.use(change, timeline))));
  }

  /** A way to fit: what belongs to a schedule changes there, the rest for all. */
  use({ relief, ...change }, { index }) {
    if (relief !== undefined) Object.assign(this.state.chosen[index], { relief, is_own: false });
    this.set(change, true);
  }

  /** Schedules and files; what was on show stays where there is nothing. */
  adopt() {
    const opened = this.files.flatMap(({ views }) => views.map((view) => timelineOf(view, this.app.words)));
    const all = [...this.timelines, ...opened];
    if (all.length) this.app.adopt(all);
  }

  refusal({ refused, nearest }, index) {
    const box = el("div", { class: "refusal" }, refused);
    if (!nearest) return box;
    const { devices, microbatches, ...own } = nearest;
    const words = `${devices} devices, ${microbatches} microbatches, ${own.stages_per_device} per device${own.variant ? `, ${own.variant}` : ""}`;
    box.append(el("div", {}, el("button", { class: "link", onclick: () => {
      Object.assign(this.state.chosen[index], own);
      this.set({ devices, microbatches }, true);
    } }, `Use the nearest that works: ${words}`)));
    return box;
  }

  async openFile(file) {
    if (!file.views) await this.time(file);
    if (file.described) return this.take(file.described);
    this.files.push(file);
    this.build();
    this.adopt();
    return file.views.map((view) => view.title);
  }

  /** A model, a device or a cluster is what the page asks with from now on. */
  take(described) {
    this.set(chosenBy(this.state, described), true);
    return [`${described.kind} ${described.name}: ${described.summary}`];
  }

  /** A program takes the costs that are chosen; a timeline has its own, and so has a page. */
  async time(file) {
    const asked = { costs: costsAsked(this.state), microbatches: this.state.microbatches };
    if (file.asked === JSON.stringify(asked) || (file.views && !file.asked)) return;
    const { timelines, described } = await post("/open", { name: file.name, text: file.text, ...asked });
    Object.assign(file, { views: timelines, described, asked: JSON.stringify(asked) });
  }

  followStreams() {
    if (this.hasStreams === this.app.options.streams) return;
    this.hasStreams = this.app.options.streams;
    this.ask();
  }

  async followAddress() {
    const asked = this.wanted();
    if (JSON.stringify(asked) === JSON.stringify(this.state)) return;
    this.state = asked;
    this.build();
    await this.ask();
  }
}
