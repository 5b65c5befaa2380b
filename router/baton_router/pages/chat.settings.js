// The settings of requests: read, checked, and complained about beside the field that is to blame.

import { element } from "./chat.dom.js";
import { keep, recall } from "./storage.js";

const NUMBERS = ["temperature", "max_tokens", "top_p", "top_k", "min_p", "seed"];
const FIELDS = ["model", "key", "system", "stop", ...NUMBERS];
const STORED = "baton-settings";
const KEY = "baton-key";
const wide = matchMedia("(min-width: 60rem)");

/** Take up what this tab has had set before, unfold the settings where there is room, and check what is changed. */
export function openSettings(onKey) {
  const stored = JSON.parse(recall(STORED) ?? "{}");
  if (stored.model) element("model").append(new Option(stored.model));
  for (const name of FIELDS) if (stored[name] !== undefined) element(name).value = stored[name];
  element("key").value = recall(KEY) ?? "";
  element("settings").open = wide.matches;
  wide.addEventListener("change", () => { element("settings").open = wide.matches; });
  for (const name of FIELDS) {
    element(name).addEventListener("input", () => { complain(name, ""); store(); });
    element(name).addEventListener("change", () => complain(name, problemOf(element(name))));
  }
  element("key").addEventListener("change", () => { if (element("key").validity.valid) onKey(); });
  element("fields").addEventListener("submit", (event) => event.preventDefault());
  element("settings").addEventListener("keydown", (event) => {
    if (event.key !== "Escape" || event.isComposing || wide.matches) return;
    event.preventDefault();
    foldSettings();
    element("settings").querySelector("summary").focus();
  });
}

/** Offer these models, and stay with the one that is chosen where it is among them. */
export function offerModels(options) {
  const model = element("model"), chosen = model.value;
  model.replaceChildren(...options);
  element("model-field").hidden = options.length < 2;
  if (options.some(({ value }) => value === chosen)) model.value = chosen;
}

export const apiKey = () => element("key").value.trim();

/** The fields of a request that the settings give. */
export function requestFields() {
  const fields = {};
  for (const name of NUMBERS) if (element(name).value !== "") fields[name] = element(name).valueAsNumber;
  if (element("stop").value) fields.stop = [element("stop").value];
  return fields;
}

/** The system message, in a list; none where there is no text of it. */
export function systemMessages() {
  const content = element("system").value.trim();
  return content ? [{ role: "system", content }] : [];
}

/** Whether every setting can be sent; complains about those that cannot and goes to the first of them. */
export function areSound() {
  const wrong = FIELDS.filter((name) => complain(name, problemOf(element(name))));
  if (wrong.length) goTo(wrong[0]);
  return wrong.length === 0;
}

/** Say what a refusal says, beside the field that is to blame if there is one, and go there; returns the message. */
export function blame(refusal) {
  const { field, message } = refusal;
  if (!field || !element(`${field}-error`)) return message;
  goTo(field);
  return complain(field, refusal.about(labelOf(field)));
}

/** Fold the settings away where they cover the conversation. */
export function foldSettings() {
  if (!wide.matches) element("settings").open = false;
}

const labelOf = (name) => element(name).labels[0].textContent.trim();

/** Set or, with "", clear the complaint about a field; returns it. */
export function complain(name, message) {
  element(`${name}-error`).textContent = message;
  if (message) element(name).setAttribute("aria-invalid", "true");
  else element(name).removeAttribute("aria-invalid");
  return message;
}

function goTo(name) {
  const settings = element(name).closest("#settings");
  if (settings) settings.open = true;
  element(name).focus();
}

function problemOf(input) {
  const { validity, min, max, step } = input;
  if (validity.valid) return "";
  if (validity.patternMismatch) return "A key has visible ASCII characters only.";
  const kind = step === "1" ? "a whole number" : "a number";
  const range = max === "" ? `, ${min} or more` : ` from ${min} to ${max}`;
  return `${labelOf(input.id)} must be ${kind}${min === "" ? "" : range}.`;
}

function store() {
  const { key, ...others } = Object.fromEntries(FIELDS.map((name) => [name, element(name).value]));
  keep(STORED, JSON.stringify(others));
  if (element("key").validity.valid) keep(KEY, key.trim());
}
