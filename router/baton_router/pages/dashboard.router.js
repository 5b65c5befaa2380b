// Asks the router that served the page, with the key of this tab if it wants one.

import { keep, recall } from "./storage.js";

const WITHIN_MS = 4000, CHANGES_WITHIN_MS = 130_000;
const STORED = "baton-key";

/** The router wants a key, or another one. */
export class NeedsKey extends Error {}

/** The router does not do what it is asked; `message` is its own. */
export class Refusal extends Error {}

/** Nothing comes from the router. */
export class NoAnswer extends Error {}

let current = recall(STORED) ?? "";

export const key = {
  get: () => current,
  set: (value) => {
    current = value;
    keep(STORED, value);
  },
  forget: () => key.set(""),
};

/** What the router says of itself at a path. */
export const look = (path) => call("GET", path, WITHIN_MS);

/** Have the router do something with a worker, as `baton admin` does; returns what the worker has open. */
export const change = (action, query) => call("POST", `${action}?${new URLSearchParams(query)}`, CHANGES_WITHIN_MS);

async function call(method, path, withinMs) {
  const headers = key.get() ? { Authorization: `Bearer ${key.get()}` } : {};
  let response, body;
  try {
    response = await fetch(path, { method, headers, cache: "no-store", signal: AbortSignal.timeout(withinMs) });
    body = await response.json();
  } catch (error) {
    if (response && error instanceof SyntaxError) throw new Refusal(`the router answers ${response.status}, and no JSON`);
    throw new NoAnswer("no answer from the router");
  }
  const message = body.error?.message ?? `the router answers ${response.status}`;
  if (response.status === 401) throw new NeedsKey(message);
  if (!response.ok) throw new Refusal(message);
  return body;
}
