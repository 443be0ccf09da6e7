// Where the page begins: read the data, build the parts, follow the address.

import { App } from "weft/app.js";
import { buildChooser, buildWindow } from "weft/chooser.js";
import { buildControls } from "weft/controls.js";
import { buildDetails } from "weft/details.js";
import { byId } from "weft/dom.js";
import { watchDrops } from "weft/drop.js";
import { readOptions, watchHash } from "weft/hash.js";
import { watchPointer } from "weft/hover.js";
import { watchKeys } from "weft/keys.js";
import { buildLegend } from "weft/legend.js";
import { buildTabs } from "weft/tabs.js";
import { buildToolbar } from "weft/toolbar.js";

const began = performance.now();
const content = JSON.parse(byId("data").textContent);
const app = new App(content);
const decoded = performance.now();
app.openPoint = (point) => openStored(app, point);
buildTabs(app, byId("tabs"));
if (content.tab) app.openTab(content.tab);
buildToolbar(app, byId("toolbar"));
buildLegend(app, byId("legend"));
buildChooser(app, byId("timelines"));
buildDetails(app, byId("details"));
buildWindow(app, byId("window"), byId("thumb"));
watchPointer(app, byId("overlay"));
watchKeys(app, byId("overlay"));
watchDrops(app);
readOptions(app);
app.attach(byId("base"), byId("overlay"));
if (app.live) await buildControls(app, byId("controls"));
watchHash(app);
app.times = { decode: decoded - began, first: performance.now() - decoded };
globalThis.weft = app; // for the curious, and for tests
document.documentElement.dataset.ready = "true";

/** In a file, a point of the plot opens the timeline that came with it, beside the first. */
function openStored(page, point) {
  const timeline = page.timelines[point.timeline];
  if (timeline && page.hidden.has(timeline.key)) page.toggle(timeline);
}
