// Speaks to the router that served the page: its model, streamed answers, and what it remembers of a request.

const RECORD_TRIES = 10, RECORD_WAIT_MS = 100;

/** An error in words for people. */
export class Refusal extends Error {
  /** `field` names the setting that is to blame, if one is. */
  constructor(message, field = "") {
    super(message);
    this.field = field;
  }

  /** The message for whoever sees the field, under the label that it has on the page. */
  about(label) {
    const [, allowed] = this.message.match(/^[\w.[\]]+ is .+; allowed: (.+?)\.?$/s) ?? [];
    return allowed ? `${label} must be ${allowed}.` : this.message;
  }
}

/** The model by each of its names, the first one first. */
export async function listModels(key) {
  const response = await ask("v1/models", key);
  const list = await response.json().catch(() => { throw new Refusal("What answers here is no Baton server: it lists no models."); });
  return list.data;
}

/** The chunks of a streamed answer; raises Refusal, or AbortError once `signal` is aborted. */
export async function* streamChat(body, key, signal) {
  const response = await ask("v1/chat/completions", key, { method: "POST", body: JSON.stringify(body), signal });
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  for (;;) {
    const { value, done } = await reader.read().catch((error) => { throw broken(error); });
    if (done) throw broken();
    const events = (rest + value).split("\n\n");
    rest = events.pop();
    for (const event of events.filter((event) => event.startsWith("data: "))) {
      const data = event.slice("data: ".length);
      if (data === "[DONE]") return;
      const chunk = JSON.parse(data);
      if (chunk.error) throw new Refusal(sentence(chunk.error.message));
      yield chunk;
    }
  }
}

/** What the router remembers of a request once it has ended; null where it does not say. */
export async function endedRequest(id, key) {
  for (let number = 0; number < RECORD_TRIES; number += 1) {
    const response = await ask(`debug/requests/${encodeURIComponent(id)}`, key).catch(() => null);
    const record = await response?.json();
    if (!record || record.state !== "running") return record ?? null;
    await new Promise((resolve) => { setTimeout(resolve, RECORD_WAIT_MS); });
  }
  return null;
}

async function ask(path, key, options = {}) {
  const headers = { ...(options.body && { "Content-Type": "application/json" }), ...(key && { Authorization: `Bearer ${key}` }) };
  const response = await fetch(path, { ...options, headers }).catch((error) => {
    throw error.name === "AbortError" ? error : new Refusal("The server cannot be reached. Is it running?");
  });
  if (!response.ok) throw await refusalOf(response, key);
  return response;
}

async function refusalOf(response, key) {
  const error = (await response.json().catch(() => null))?.error ?? {};
  const reason = error.message ?? `the server answered with status ${response.status}`;
  if (response.status === 401) {
    return new Refusal(key ? "The server does not know this key." : "The server asks for an API key.", "key");
  }
  if (response.status === 429) {
    const seconds = response.headers.get("Retry-After");
    return new Refusal(`The server is busy${seconds ? `; try again in ${seconds} s` : ""}. ${sentence(reason)}`);
  }
  if (error.code === "context_length_exceeded") {
    return new Refusal("The conversation is longer than the model's context. Shorten it, or start a new chat.", "text");
  }
  return new Refusal(sentence(reason), error.param === "max_completion_tokens" ? "max_tokens" : error.param ?? "");
}

function broken(error) {
  return error?.name === "AbortError" ? error : new Refusal("The connection broke before the answer was complete.");
}

/** A message as a sentence; names at its beginning, such as `slo_ttft_s` and `decode-1`, stay as they are. */
function sentence(text) {
  return text.replace(/^[a-z]+(?=[ ,;:])/, (word) => word.charAt(0).toUpperCase() + word.slice(1)) + (/[.!?]$/.test(text) ? "" : ".");
}
