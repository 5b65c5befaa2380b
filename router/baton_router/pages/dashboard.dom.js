// Makes elements without ever reading text as HTML, and writes quantities for people.

const SVG = "http://www.w3.org/2000/svg";

export const element = (id) => document.getElementById(id);

/** An element of this class with these children; text is text. */
export function make(tag, className = "", ...children) {
  const node = document.createElement(tag);
  if (className) node.className = className;
  node.append(...children);
  return node;
}

/** An SVG element with these attributes and children. */
export function draw(tag, attributes = {}, ...children) {
  const node = document.createElementNS(SVG, tag);
  for (const [name, value] of Object.entries(attributes)) node.setAttribute(name, value);
  node.append(...children);
  return node;
}

/** Give an element these attributes; those that are null or false are taken away. */
export function set(node, attributes) {
  for (const [name, value] of Object.entries(attributes)) {
    if (value === null || value === false) node.removeAttribute(name);
    else if (node.getAttribute(name) !== String(value)) node.setAttribute(name, value === true ? "" : value);
  }
  return node;
}

/** Write a text, where it is another one, so that a selection or a reader is not disturbed. */
export function write(node, text) {
  if (node.textContent !== text) node.textContent = text;
}

/** Keep one node for each key, in this order; `build(key)` makes those that are new. */
export class Nodes {
  constructor(parent, build) {
    this.parent = parent;
    this.build = build;
    this.known = new Map();
  }

  show(keys) {
    const shown = new Map(keys.map((key) => [key, this.known.get(key) ?? this.build(key)]));
    for (const [key, { node }] of this.known) if (!shown.has(key)) node.remove();
    let place = this.parent.firstElementChild;
    for (const { node } of shown.values()) {
      if (node === place) place = place.nextElementSibling;
      else this.parent.insertBefore(node, place);
    }
    this.known = shown;
    return shown;
  }
}

/** How a request stands; one whose client left has not failed. */
export const stateOf = ({ state, code }) => code === "cancelled" ? code : state;

export const count = (number) => Math.round(number).toLocaleString("en");

export function short(number) {
  if (number >= 1e6) return `${(number / 1e6).toFixed(1)}M`;
  if (number >= 1e4) return `${(number / 1e3).toFixed(1)}k`;
  return number >= 100 || Number.isInteger(number) ? count(number) : number.toFixed(number < 10 ? 2 : 1);
}

export const percent = (share, digits = 0) => `${(100 * share).toFixed(digits)} %`;

export function time(seconds) {
  if (seconds === null) return "–";
  if (seconds < 0.9995) return `${(1e3 * seconds).toFixed(seconds < 0.0995 ? 1 : 0)} ms`;
  if (seconds < 119.995) return `${seconds.toFixed(2)} s`;
  if (seconds >= 7200) return `${(seconds / 3600).toFixed(1)} h`;
  return seconds % 60 ? `${count(seconds)} s` : `${seconds / 60} min`;
}

/** A time that grows while it is shown, in whole seconds, then whole minutes or more. */
export const age = (seconds) => seconds < 120 ? `${Math.floor(seconds)} s` : time(seconds < 7200 ? 60 * Math.floor(seconds / 60) : seconds);

export function bytes(number) {
  const units = ["B", "KiB", "MiB", "GiB", "TiB"];
  let unit = 0;
  while (number >= 1024 && unit < units.length - 1) { number /= 1024; unit += 1; }
  return `${number.toFixed(number < 10 && unit ? 1 : 0)} ${units[unit]}`;
}

export const plural = (number, noun) => `${count(number)} ${noun}${number === 1 ? "" : "s"}`;
