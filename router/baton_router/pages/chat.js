// The chat page: the conversation, the message that is being written, and the model that is talked with.

import { announce, element, make } from "./chat.dom.js";
import { endedRequest, listModels, streamChat } from "./chat.router.js";
import { apiKey, areSound, blame, complain, foldSettings, offerModels, openSettings, requestFields, systemMessages } from "./chat.settings.js";
import { Turn } from "./chat.turn.js";
import { keep, recall } from "./storage.js";

const STORED = "baton-conversation";
const NEAR_PX = 80;
const BUNDLED = "baton-docs-5m";
const QUESTIONS = ["Write a haiku about the sea.", "Explain how a hash table works.", "What should I cook tonight?"];
const BUNDLED_QUESTIONS = ["How do I use sorted?", "What does os.getcwd do?", "What is collections.deque?"];
const actions = { retry: (turn) => generate(turn), resume: (turn) => generate(turn, { continues: true }) };
let turns = [];
let running = null;
let maxModelLen = Infinity;

async function showModels() {
  try {
    const models = await listModels(apiKey());
    maxModelLen = models[0].max_model_len;
    offerModels(models.map(({ id }) => new Option(nameOf(id), id)));
    welcome(element("model").value);
    complain("key", "");
  } catch (error) {
    welcome("");
    if (!error.field) complain("text", error.message);
    else blame(error);
  }
}

/** A model that is served from a folder without a name of its own is called by the folder. */
function nameOf(id) {
  return id.startsWith("/") ? id.split("/").findLast(Boolean) : id;
}

function welcome(id) {
  const isBundled = id === BUNDLED;
  element("model-name").textContent = id ? nameOf(id) : "Baton";
  element("text").placeholder = id ? `Ask ${nameOf(id)}` : "Ask something";
  element("model-note").textContent = isBundled
    ? "Very small: it knows a little about Python's standard library, and is often wrong." : "Ask anything.";
  element("questions").replaceChildren(...(isBundled ? BUNDLED_QUESTIONS : QUESTIONS).map((question) => {
    const button = make("button", { type: "button" }, question);
    button.addEventListener("click", () => say(question));
    return button;
  }));
}

function say(question) {
  if (running || !areSound()) return;
  const turn = new Turn({ question }, actions);
  turns.push(turn);
  element("turns").append(turn.node);
  element("welcome").hidden = true;
  if (element("text").value.trim() === question) element("text").value = ""; // else it is the draft of another one
  generate(turn);
}

async function generate(turn, { continues = false } = {}) {
  if (running || !areSound()) return;
  const body = requestBody(turn, continues), stopping = new AbortController();
  turn.begin({ continues });
  turn.draw();
  setRunning(stopping);
  foldSettings();
  turn.node.scrollIntoView({ block: turn === turns.at(-1) ? "end" : "nearest" });
  rest();
  try {
    for await (const chunk of streamChat(body, apiKey(), stopping.signal)) {
      turn.take(chunk, maxModelLen);
      drawSoon(turn);
    }
    turn.finish();
    if (maxModelLen === Infinity) showModels(); // the server did not answer when the page was opened
  } catch (error) {
    if (stopping.signal.aborted) turn.stop();
    else {
      turn.fail(turns.includes(turn) ? blame(error) : error.message);
      if (error.field === "text" && turn === turns.at(-1)) element("text").value ||= turn.question; // to be shortened
    }
  }
  if (running === stopping) setRunning(null);
  following(() => turn.draw());
  store();
  announce(turn.answer.problem ? "" : turn.note() || "The answer is complete.");
  if (stopping.signal.aborted) explainStop(turn);
}

function requestBody(turn, continues) {
  const model = element("model").value;
  const messages = [
    ...systemMessages(),
    ...turns.slice(0, turns.indexOf(turn)).flatMap((earlier) => earlier.messages),
    { role: "user", content: turn.question },
    ...continues ? [{ role: "assistant", content: turn.answer.text }] : [],
  ];
  return {
    ...model && { model },
    messages,
    ...continues && { continue_final_message: true },
    ...requestFields(),
    stream: true,
    stream_options: { include_usage: true, continuous_usage_stats: true },
    include_timings: true,
  };
}

/** A stopped stream ends without figures; the router has them. */
async function explainStop(turn) {
  const { answer, before } = turn;
  if (!answer.id || answer.id === before.id) return;
  const record = await endedRequest(answer.id, apiKey());
  if (!record || turn.answer !== answer) return;
  turn.explain(record);
  following(() => turn.draw());
  store();
}

let drawing = null, restMs = 0;

/** Draw at most once a frame and a fifth of the time, however fast tokens come and however long they take to draw. */
function drawSoon(turn) {
  drawing ??= setTimeout(() => requestAnimationFrame((began) => {
    drawing = null;
    following(() => turn.draw());
    restMs = 4 * (performance.now() - began);
  }), restMs);
}

/** Change what is shown, and stay at its end if that is where the reader is. */
function following(change) {
  const talk = element("talk");
  const isAtEnd = talk.scrollHeight - talk.scrollTop - talk.clientHeight < NEAR_PX;
  change();
  if (isAtEnd) talk.scrollTop = talk.scrollHeight;
}

function setRunning(stopping) {
  running = stopping;
  element("send").textContent = running ? "Stop" : "Send";
  element("send").classList.toggle("stop", running !== null);
  for (const button of document.querySelectorAll(".generates")) button.disabled = running !== null;
}

/** Leave the focus where the next message is written; on phones that would bring the keyboard up. */
function rest() {
  if (matchMedia("(pointer: fine)").matches) element("text").focus();
  else document.activeElement?.blur();
}

/** Keep the conversation, or as many of its last turns as the browser has room for. */
function store() {
  const isKept = (_, index) => keep(STORED, JSON.stringify(turns.slice(index)));
  if (!turns.some(isKept)) keep(STORED, "[]");
}

function restore() {
  turns = JSON.parse(recall(STORED) ?? "[]").map((stored) => new Turn(stored, actions));
  element("turns").append(...turns.map(({ node }) => node));
  element("welcome").hidden = turns.length > 0;
  element("talk").scrollTop = element("talk").scrollHeight;
}

function reset() {
  running?.abort();
  setRunning(null);
  turns = [];
  store();
  element("turns").replaceChildren();
  element("welcome").hidden = false;
  complain("text", "");
  rest();
}

element("ask").addEventListener("submit", (event) => {
  event.preventDefault();
  const question = element("text").value.trim();
  if (question) say(question);
});
element("send").addEventListener("click", (event) => {
  if (!running) return;
  event.preventDefault();
  running.abort();
  rest();
});
element("text").addEventListener("keydown", (event) => {
  if (event.key !== "Enter" || event.shiftKey || event.isComposing) return;
  event.preventDefault();
  element("ask").requestSubmit();
});
element("text").addEventListener("input", () => complain("text", ""));
element("new").addEventListener("click", reset);
element("model").addEventListener("change", () => welcome(element("model").value));
addEventListener("keydown", (event) => {
  if (event.key === "Escape" && !event.isComposing && !event.defaultPrevented) running?.abort();
});
// A stream of a page that is left fails before the page does: stop it first, so that what came is kept.
addEventListener("pagehide", () => {
  running?.abort();
  store();
});
openSettings(showModels);
restore();
showModels();
