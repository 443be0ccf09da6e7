// What a live page asks for beyond its timelines: what would fit, what would help, the frontier.
//
// One question after the other, so that none waits; whatever changes meanwhile is asked about after it.

import { notify } from "weft/app.js";
import { debounced } from "weft/dom.js";
import { post } from "weft/live.js";

export class Asides {
  constructor(controls) {
    this.controls = controls;
    this.app = controls.app;
    this.isDue = this.isAsking = false;
    this.later = debounced(200, () => this.ask());
    this.app.on("select", () => this.later()); // another tab may be open
  }

  async ask() {
    this.isDue = true;
    if (this.controls.isAsking || this.isAsking) return; // asked again after it
    this.isAsking = true;
    while (this.isDue) {
      this.isDue = false;
      try {
        await this.fit();
        if (this.app.tab === "plot") await this.frontier();
        if (this.app.tab === "helps") await this.help();
      } catch (error) {
        notify(error.message, true);
      }
    }
    this.isAsking = false;
  }

  /** Whether somebody wants something else by now. */
  get isOver() {
    return this.controls.isAsking;
  }

  /** Of what does not fit, what would make it fit. */
  async fit() {
    for (const timeline of this.controls.timelines) {
      if (!timeline.shortage || timeline.ways) continue;
      const ways = await answered("/fit", { request: timeline.request });
      if (this.isOver) return;
      timeline.ways = ways;
      this.controls.showShortages();
    }
  }

  async help() {
    for (const timeline of this.app.timelines) {
      if (timeline.helps !== undefined || !timeline.request) continue;
      const { helps, refused } = await answered("/helps", { request: timeline.request });
      timeline.helps = refused ? { refused } : helps;
      if (this.isOver) return;
    }
    if (this.app.tab === "helps") this.app.updateTab();
  }

  /** All schedules at the shape and the costs of the first, then what is synthesised for them. */
  async frontier() {
    const [request] = this.controls.requests();
    const shape = JSON.stringify({ ...request, schedule: "", variant: "", relief: "" });
    if (this.plotted === shape) return;
    const found = [];
    const isDone = await this.schedules(request, found) && await this.synthesised(request, found);
    if (isDone) this.plotted = shape;
  }

  async schedules(request, found) {
    const names = [...this.controls.schedules.keys()];
    for (const [at, schedule] of names.entries()) {
      this.show(found, `${at} of ${names.length} schedules so far.`);
      const stages = { stages_per_device: this.stagesOf(schedule, request) };
      const { points } = await post("/plot", { request: { ...request, ...stages, schedule, variant: "" } });
      if (this.isOver) return false;
      found.push(...points);
    }
    this.show(found, "");
    return true;
  }

  /** As many as it is chosen with, else several where the first has. */
  stagesOf(schedule, { stages_per_device: first }) {
    const { state, schedules } = this.controls;
    const chosen = state.chosen.find((one) => one.schedule === schedule);
    return chosen?.stages_per_device ?? Math.max(first, schedules.get(schedule).stages_per_device);
  }

  /** A point for each of some caps on memory, from the loosest to the tightest. */
  async synthesised(request, found) {
    for (let index = 0, count = 1; index < count; index++) {
      this.show(found, index ? `Synthesised ${index} of ${count} orders so far.` : "Orders are being synthesised.");
      const answer = await answered("/synthesis", { request, index });
      if (this.isOver) return false;
      if (answer.refused) {
        this.show(found, `No orders are synthesised: ${answer.refused}`);
        return true;
      }
      count = answer.count;
      found.push(...answer.points);
    }
    this.show(found, "");
    return true;
  }

  show(points, progress) {
    this.app.points = [...points];
    this.app.progress = progress;
    if (this.app.tab === "plot") this.app.updateTab();
  }
}

/** What is known, or why it is not. */
async function answered(path, question) {
  try {
    return await post(path, question);
  } catch (error) {
    return { refused: error.message };
  }
}
