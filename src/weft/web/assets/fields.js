// Fields of a form: a slider with its number, of any or of whole numbers, a choice, a text, a file.

import { el } from "weft/dom.js";

/** A slider and a number that say the same; the number may go beyond the slider, and between its steps. */
export const slider = (words, range, value, change) => ranged(words, range, "any", value, change);

/** The same of whole numbers. */
export const counter = (words, range, value, change) => ranged(words, range, 1, value, change);

function ranged(words, { least = 0, most, step }, grain, value, change) {
  const range = el("input", { type: "range", min: least, max: most, step, "aria-label": words });
  const number = el("input", { type: "number", min: least, step: grain, required: true, "aria-label": `${words}, as a number` });
  range.value = number.value = value;
  range.addEventListener("input", () => {
    number.value = range.value;
    change(Number(range.value));
  });
  number.addEventListener("input", () => {
    if (!number.checkValidity()) return;
    range.value = number.value;
    change(Number(number.value));
  });
  number.addEventListener("change", () => number.reportValidity());
  return el("div", { class: "field" }, el("label", {}, words), range, number);
}

/** One of several: each with its value, its words and perhaps a title. */
export function choice(words, options, value, change) {
  const select = el("select", { "aria-label": words, onchange: () => change(select.value) },
    ...options.map((option) => el("option", { value: option.value, title: option.title ?? "" }, option.words)));
  select.value = value;
  return select;
}

export const labelled = (words, control) => el("div", { class: "field" }, el("label", {}, words), control);

/** One of two: `value` is whether it is the second. */
export function toggle(words, [no, yes], value, change) {
  const options = [{ value: "no", words: no }, { value: "yes", words: yes }];
  return labelled(words, choice(words, options, value ? "yes" : "no", (chosen) => change(chosen === "yes")));
}

/** A short text, taken when it is complete. */
export function textField(words, example, value, change) {
  const input = el("input", { type: "text", placeholder: example, value, "aria-label": words, onchange: () => change(input.value.trim()) });
  return labelled(words, input);
}

/** A button that asks for a file. */
export function filePicker(words, open) {
  const input = el("input", { type: "file", accept: ".json,application/json", hidden: true, "aria-label": words, onchange: () => {
    if (input.files.length) open(input.files[0]);
    input.value = "";
  } });
  return el("div", { class: "field" }, el("button", { class: "link", onclick: () => input.click() }, words), input);
}
