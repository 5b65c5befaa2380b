// Shows where the time of an answer went, in the router's own figures.

import { make } from "./chat.dom.js";

export const count = (number) => number.toLocaleString("en");

export const tokens = (number) => `${count(number)} ${number === 1 ? "token" : "tokens"}`;

/** A line that unfolds; nothing where the router has not said anything. */
export function showTimings({ usage, timings, numTokens, id }) {
  if (!timings) return [];
  const { first_token_s: first, per_token_s: perToken, prefill_worker: prefill, decode_worker: decode } = timings;
  const figures = [
    tokens(numTokens),
    perToken ? `${rate(1 / perToken)} tokens/s` : "",
    first ? `first token after ${time(first)}` : "",
    [...new Set([prefill, decode])].filter(Boolean).join(" → "),
  ].filter(Boolean);
  const summary = figures.flatMap((figure, index) =>
    index < figures.length - 1 ? [make("span", {}, `${figure} ·`), " "] : [make("span", {}, figure)]);
  const rows = [
    ...usage && usage.completion_tokens < numTokens ? [["Figures", `of the last ${tokens(usage.completion_tokens)}`]] : [],
    ...usage ? [["Prompt", promptOf(usage)]] : [],
    ...timings.queue_s === undefined ? [] : phases(timings),
    ["In all", time(timings.total_s)],
    ["Request", id],
  ];
  const list = make("dl", {}, ...rows.flatMap(([name, value]) => [make("dt", {}, name), make("dd", {}, value)]));
  return [make("details", { className: "timing" }, make("summary", {}, ...summary), list)];
}

function promptOf({ prompt_tokens: total, prompt_tokens_details: details }) {
  return `${tokens(total)}, ${count(details?.cached_tokens ?? 0)} of them cached`;
}

function phases({ queue_s, prefill_s, transfer_s, transferred_bytes, per_token_s }) {
  return [
    ["Queue", time(queue_s)],
    ["Prefill", time(prefill_s)],
    ...transferred_bytes ? [["KV transfer", `${time(transfer_s)}, ${(transferred_bytes / 1024).toFixed(0)} KiB`]] : [],
    ["Each further token", time(per_token_s)],
  ];
}

function rate(value) {
  return value < 100 ? value.toFixed(1) : count(Math.round(value));
}

function time(seconds) {
  if (seconds >= 1) return `${seconds.toFixed(2)} s`;
  return `${(1000 * seconds).toFixed(seconds < 0.01 ? 1 : 0)} ms`;
}
