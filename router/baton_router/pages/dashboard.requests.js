// The latest requests as bars, a lane for each process; those that took too long are marked.

import { age, element, make, Nodes, set, short, stateOf, time, write } from "./dashboard.dom.js";
import { titleOf } from "./dashboard.latencies.js";
import { explain } from "./dashboard.waterfall.js";

const PHASES = [["tokenize", "receive, tokenize"], ["queue", "waiting"], ["prefill_chunk", "prefill"], ["transfer", "transfer"], ["decode", "decode"]];
const LIMITS = { slo: "SLO", p99: "p99" };
const rows = new Nodes(document.querySelector("#requests .rows"), (id) => new Row(id));

document.querySelector("#requests > .legend").append(...PHASES.map(([name, title]) => make("li", "", make("i", `swatch ${name}`), title)),
  make("li", "", make("i", "swatch first_token"), "first token"));

export function showRequests(requests, { latencies, window_s }) {
  const shown = rows.show(requests.map((request) => request.request_id));
  for (const request of requests) shown.get(request.request_id).show(request);
  document.querySelector("#requests .none").hidden = requests.length > 0;
  write(element("outlier-rule"), rule(latencies.percentiles, window_s));
}

function rule(percentiles, window_s) {
  const limits = percentiles.filter((one) => one.slo_s !== null).map((one) => `${titleOf(one.metric)} over its SLO of ${time(one.slo_s)}`);
  const others = percentiles.filter((one) => one.slo_s === null && one.metric !== "itl").map((one) => titleOf(one.metric));
  return `Marked as slow: ${[...limits, `${others.join(", ")} over the p99 of the last ${time(window_s)}, once that has 100 requests`].join("; ")}. `
    + "A request's own SLO comes before the router's.";
}

class Row {
  constructor(id) {
    this.id = id;
    this.where = make("span");
    this.age = make("span");
    this.lanes = make("span", "lanes");
    this.duration = make("b");
    this.state = make("span");
    this.tokens = make("span", "dim");
    this.figures = make("small");
    this.marks = make("span", "marks");
    const name = make("span", "name", make("span", "id", id), make("small", "", this.where, " · ", this.age));
    const facts = make("span", "facts", make("span", "", this.state, " ", this.tokens, " ", this.duration), this.figures);
    this.button = set(make("button", "request", name, this.lanes, facts, this.marks), { type: "button", "aria-haspopup": "dialog" });
    this.button.addEventListener("click", () => explain(id));
    this.node = make("li", "", this.button);
    this.content = "";
  }

  show({ age_s, ...request }) {
    write(this.age, `${age(age_s)} ago`);
    const content = JSON.stringify(request);
    if (this.content === content) return;
    this.content = content;
    const processes = Map.groupBy(request.spans, (span) => span.process);
    const duration = Math.max(request.duration_s, 1e-6, ...request.spans.map((span) => span.end_s));
    this.lanes.replaceChildren(...[...processes.values()].map((spans) => lane(spans, duration)));
    if (request.first_token_s !== null) this.lanes.append(marker(request.first_token_s / duration));
    write(this.where, [...processes.keys()].filter((name) => name !== "router").join(" → ") || request.code || "not placed yet");
    write(this.duration, time(request.duration_s));
    const state = stateOf(request);
    write(this.state, state === "finished" ? "" : state);
    this.state.className = state;
    const output = request.state === "running" ? "…" : short(request.num_output_tokens);
    write(this.tokens, `${short(request.num_prompt_tokens)} → ${output} tokens`);
    write(this.figures, `TTFT ${time(request.first_token_s)}` + (request.per_token_s ? ` · TPOT ${time(request.per_token_s)}` : ""));
    this.marks.replaceChildren(...request.outliers.map(({ metric, value_s, limit_s, limit }) =>
      make("span", "mark", `▲ slow ${titleOf(metric)}: ${time(value_s)}, ${LIMITS[limit]} ${time(limit_s)}`)));
  }
}

const place = (share) => `${100 * Math.min(1, Math.max(0, share))}%`;

function lane(spans, duration) {
  return make("span", "lane", ...spans.filter((span) => span.end_s > span.start_s).map((span) => {
    const bar = make("i", span.name);
    bar.style.left = place(span.start_s / duration);
    bar.style.width = place((span.end_s - span.start_s) / duration);
    return bar;
  }));
}

function marker(share) {
  const line = make("i", "first");
  line.style.left = place(share);
  return line;
}
