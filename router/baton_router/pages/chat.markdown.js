// Shows Markdown as elements: marked (vendored, see marked.LICENSE) reads it, and each token becomes one node here.
// No text is ever read as HTML, and nothing is loaded: HTML stays text, an image becomes a link to it.

import { copyButton, make } from "./chat.dom.js";
import { lexer } from "./marked.js";

const LINKS = /^(https?:|mailto:)/i;
const ENTITIES = {
  amp: "&", lt: "<", gt: ">", quot: '"', apos: "'", nbsp: "\u00a0", shy: "\u00ad",
  ndash: "–", mdash: "—", hellip: "…", bull: "•", middot: "·", lsquo: "‘", rsquo: "’", ldquo: "“", rdquo: "”", laquo: "«", raquo: "»",
  copy: "©", reg: "®", trade: "™", sect: "§", para: "¶", euro: "€", pound: "£", yen: "¥", cent: "¢", deg: "°", micro: "µ",
  times: "×", divide: "÷", plusmn: "±", minus: "−", ne: "≠", le: "≤", ge: "≥", infin: "∞", frac12: "½", frac14: "¼", frac34: "¾",
  larr: "←", uarr: "↑", rarr: "→", darr: "↓", check: "✓",
};
const sources = new WeakMap();

/** Show `text` in `target`; nodes of blocks that have not changed stay, so that a selection outlives a stream. */
export function showMarkdown(target, text) {
  const blocks = read(text), before = sources.get(target) ?? [];
  const after = blocks.map((block) => JSON.stringify(block));
  const differs = after.findIndex((source, index) => source !== before[index]);
  const numKept = differs < 0 ? after.length : differs;
  while (target.childNodes.length > numKept) target.lastChild.remove();
  for (const block of blocks.slice(numKept)) {
    const node = blockOf(block);
    if (block.type !== "code") node.dir = "auto";
    target.append(node);
  }
  sources.set(target, after);
}

function read(text) {
  try {
    return lexer(text, { gfm: true, breaks: true }).filter(({ type }) => type !== "space" && type !== "def");
  } catch { // nested more deeply than the reader's stack
    return [{ type: "text", text }];
  }
}

function blockOf(token) {
  switch (token.type) {
    case "heading": return make(`h${Math.min(6, token.depth + 2)}`, {}, ...inlines(token.tokens));
    case "paragraph": return make("p", {}, ...inlines(token.tokens));
    case "code": return codeBlock(token);
    case "blockquote": return make("blockquote", {}, ...blocksOf(token.tokens));
    case "list": return list(token);
    case "table": return table(token);
    case "hr": return make("hr");
    case "html": return make("p", { className: "raw" }, token.text);
    default: return make("p", {}, ...inlines([token]));
  }
}

function blocksOf(tokens) {
  return tokens.filter(({ type }) => type !== "space" && type !== "def").map(blockOf);
}

function codeBlock({ text, lang }) {
  const language = (lang ?? "").match(/^\S*/)[0];
  const label = language ? `code in ${language}` : "code";
  const code = make("pre", { tabIndex: 0, role: "region", "aria-label": label }, make("code", {}, text));
  const head = make("div", { className: "code-head" }, make("span", {}, language), copyButton(() => text, "code"));
  return make("div", { className: "code", dir: "ltr" }, head, code);
}

function list({ ordered, start, items }) {
  const rows = items.map(({ tokens, loose }) => make("li", {}, ...tokens
    .filter(({ type }) => type !== "space" && type !== "def")
    .flatMap((token) => token.type === "text" && !loose ? inlines([token]) : [itemPart(token)])));
  return ordered ? make("ol", { start }, ...rows) : make("ul", {}, ...rows);
}

function itemPart(token) {
  return token.type === "checkbox" ? checkbox(token) : blockOf(token);
}

function checkbox({ checked }) {
  return make("input", { type: "checkbox", checked, disabled: true, "aria-label": checked ? "done" : "to do" });
}

function table({ header, rows }) {
  const cells = (tag, row) => row.map(({ tokens, align }) =>
    make(tag, { className: align ?? "" }, ...inlines(tokens)));
  const body = rows.map((row) => make("tr", {}, ...cells("td", row)));
  const head = make("thead", {}, make("tr", {}, ...cells("th", header)));
  const whole = make("table", {}, head, make("tbody", {}, ...body));
  return make("div", { className: "scroll", tabIndex: 0, role: "region", "aria-label": "table" }, whole);
}

function inlines(tokens) {
  return tokens.map(inlineOf);
}

function inlineOf(token) {
  switch (token.type) {
    case "strong": return make("strong", {}, ...inlines(token.tokens));
    case "em": return make("em", {}, ...inlines(token.tokens));
    case "del": return make("s", {}, ...inlines(token.tokens));
    case "codespan": return make("code", {}, token.text);
    case "br": return make("br");
    case "checkbox": return checkbox(token);
    case "link": return link(token.href, inlines(token.tokens));
    case "image": return link(token.href, [token.text || token.href]);
    case "html": return /^<br\s*\/?>$/i.test(token.text) ? make("br") : token.text;
    default: return token.tokens ? make("span", {}, ...inlines(token.tokens)) : decoded(token);
  }
}

function link(href, children) {
  if (!LINKS.test(href)) return make("span", {}, ...children);
  return make("a", { href, target: "_blank", rel: "noopener noreferrer" }, ...children);
}

function decoded({ type, text }) {
  if (type === "escape") return text;
  return text.replace(/&(?:#(\d{1,7})|#x([\da-f]{1,6})|(\w+));/gi, (whole, decimal, hex, name) => {
    if (name) return Object.hasOwn(ENTITIES, name) ? ENTITIES[name] : whole;
    const code = decimal ? parseInt(decimal, 10) : parseInt(hex, 16);
    return code > 0 && code <= 0x10ffff ? String.fromCodePoint(code) : whole;
  });
}
