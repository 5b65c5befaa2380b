// One turn of a conversation: a question, its answer as it grows, and how both are shown. `draw` shows what has changed.

import { copyButton, make } from "./chat.dom.js";
import { showMarkdown } from "./chat.markdown.js";
import { count, showTimings, tokens } from "./chat.timings.js";

const KEPT = ["finished", "cut", "full", "stopped"];
const EMPTY = { text: "", reasoning: "", state: "waiting", problem: "", numTokens: 0 };

export class Turn {
  /** `stored` is what `JSON.stringify` has made of a turn; `actions` are `retry(turn)` and `resume(turn)`. */
  constructor({ question, answer = EMPTY }, actions) {
    this.question = question;
    this.answer = answer;
    this.actions = actions;
    this.parts = {
      thoughts: make("div", { className: "markdown" }),
      text: make("div", { className: "markdown" }),
      end: make("div", { className: "end" }),
    };
    this.parts.reasoning = make("details", { className: "reasoning" }, make("summary", {}, "Thinking"), this.parts.thoughts);
    const { reasoning, text, end } = this.parts;
    this.box = make("div", { className: "answer", role: "group", "aria-label": "Answer" }, reasoning, text, end);
    this.node = make("article", { className: "turn" }, make("div", { className: "question", dir: "auto", role: "group", "aria-label": "Your message" }, question), this.box);
    this.draw();
  }

  toJSON() {
    return { question: this.question, answer: this.isRunning ? this.stopped() : this.answer };
  }

  get isRunning() {
    return ["waiting", "streaming"].includes(this.answer.state);
  }

  /** What later requests are told of this turn: nothing where it failed or has no answer. */
  get messages() {
    const { state, text } = this.answer;
    if (!text || !KEPT.includes(state)) return [];
    return [{ role: "user", content: this.question }, { role: "assistant", content: text }];
  }

  /** Begin the answer anew, or go on where it ended. */
  begin({ continues }) {
    this.before = this.answer;
    this.numTokensBefore = continues ? this.answer.numTokens : 0;
    this.answer = continues ? { ...this.answer, state: "streaming", problem: "" } : EMPTY;
  }

  /** Take a chunk of the stream. */
  take({ id, choices: [choice], usage, timings }, maxModelLen) {
    const { text, reasoning, state } = this.answer;
    const delta = choice?.delta ?? {};
    const fresh = { text: delta.content ?? "", reasoning: delta.reasoning ?? delta.reasoning_content ?? "" };
    this.answer = {
      ...this.answer,
      id,
      text: text + fresh.text,
      reasoning: reasoning + fresh.reasoning,
      state: state === "waiting" && (fresh.text || fresh.reasoning) ? "streaming" : state,
    };
    if (choice?.finish_reason) this.answer.finishReason = choice.finish_reason;
    if (usage) this.answer = { ...this.answer, usage, numTokens: this.numTokensBefore + usage.completion_tokens, maxModelLen };
    if (timings) this.answer.timings = timings;
  }

  /** The stream has ended by itself. */
  finish() {
    const { finishReason, usage, maxModelLen } = this.answer;
    const isFull = usage && usage.total_tokens >= maxModelLen;
    this.end(finishReason === "length" ? isFull ? "full" : "cut" : "finished");
  }

  /** The user has stopped it: what came stays, or what there was before it. */
  stop() {
    this.answer = this.stopped();
  }

  stopped() {
    const hasNothingNew = ["", this.before.text].includes(this.answer.text);
    if (hasNothingNew && this.before.text) return { ...this.before, problem: "" };
    return { ...this.answer, state: "stopped", finishReason: "", usage: null, timings: null };
  }

  /** It failed; an answer that was there before stays. */
  fail(problem) {
    if (this.before.text && KEPT.includes(this.before.state)) this.answer = { ...this.before, problem };
    else this.end("failed", { problem });
  }

  /** What the router remembers of a stopped request. */
  explain(record) {
    const { decode, prefill } = record.decisions.at(-1)?.chosen ?? {};
    const timings = { first_token_s: record.first_token_s, total_s: record.duration_s, prefill_worker: prefill, decode_worker: decode };
    this.answer = { ...this.answer, timings, numTokens: this.numTokensBefore + record.num_output_tokens };
  }

  end(state, changes = {}) {
    this.answer = { ...this.answer, ...changes, state };
  }

  draw() {
    const { text, reasoning, state } = this.answer, { parts, box } = this;
    box.className = `answer ${state}`;
    box.setAttribute("aria-busy", String(this.isRunning));
    const isThinking = this.isRunning && reasoning !== "" && !text;
    if (isThinking !== this.isThinking) parts.reasoning.open = isThinking; // in between it is the reader's
    this.isThinking = isThinking;
    parts.reasoning.hidden = !reasoning;
    showMarkdown(parts.thoughts, reasoning);
    showMarkdown(parts.text, text);
    parts.end.replaceChildren(...this.isRunning ? this.waiting() : this.ending());
  }

  waiting() {
    return this.answer.state === "waiting" ? [make("p", { className: "note" }, "Waiting for the first token …")] : [];
  }

  ending() {
    const { text, problem, state } = this.answer, note = this.note();
    const button = (name, act) => {
      const made = make("button", { type: "button", className: "quiet generates" }, name);
      made.addEventListener("click", () => act(this));
      return made;
    };
    const canContinue = text && ["cut", "stopped"].includes(state);
    return [
      ...problem ? [make("p", { className: "error", role: "alert" }, problem)] : [],
      ...note ? [make("p", { className: "note" }, note, ...canContinue ? [" ", button("Continue", this.actions.resume)] : [])] : [],
      make("div", { className: "actions" },
        ...text ? [copyButton(() => this.answer.text, "answer")] : [],
        button("Retry", this.actions.retry),
        ...showTimings(this.answer)),
    ];
  }

  /** How the answer ended, and whether the model is told of the turn; "" where both are as they should be. */
  note() {
    const leftOut = this.messages.length ? "" : "This turn is left out of what the model is sent next.";
    return [this.reason(), leftOut].filter(Boolean).join(" ");
  }

  reason() {
    const { state, text, reasoning, numTokens, maxModelLen, finishReason } = this.answer;
    if (state === "cut" && reasoning && !text) return `Cut at ${tokens(numTokens)}, while it was thinking: raise Max tokens and retry.`;
    if (state === "cut") return `Cut at ${tokens(numTokens)}.`;
    if (state === "full") return `Cut at ${tokens(numTokens)}: the model's context of ${count(maxModelLen)} is full.`;
    if (state === "stopped") return numTokens ? `Stopped after ${tokens(numTokens)}.` : "Stopped.";
    if (state === "failed") return "";
    if (finishReason === "repetition") return "Ended because it repeated itself.";
    return text ? "" : "The model ended its answer before it said anything.";
  }
}
