// One request in full: where its time went, where its prompt came from, and why it ran where it did.

import { bytes, count, element, make, plural, set, stateOf, time } from "./dashboard.dom.js";
import { look } from "./dashboard.router.js";
import { SOURCES } from "./dashboard.totals.js";

const MAX_TICKS = 5;
const GAP_PX = 4, MOMENT_PX = 9; // between a label and its bar, or the middle of its mark
const NAMES = { prefill_chunk: "prefill", decode_queue: "wait", first_token: "first token" };
const COSTS = ["queue_s", "prefill_s", "gap_s", "stall_s", "affinity_s", "score_s"];

/** Open the dialog about a request. */
export async function explain(id) {
  const dialog = element("details"), close = set(make("button", "", "Close"), { type: "button" });
  close.addEventListener("click", () => dialog.close());
  const heading = make("header", "", set(make("h2", "", id), { id: "details-title" }), close);
  try {
    dialog.replaceChildren(heading, ...explanation(await look(`debug/requests/${id.split("/").map(encodeURIComponent).join("/")}`)));
  } catch (error) {
    dialog.replaceChildren(heading, make("p", "bad", error.message));
  }
  if (!dialog.open) dialog.showModal();
  dialog.scrollTop = 0;
}

function explanation(request) {
  const first = request.first_token_s === null ? "no token yet" : `first token after ${time(request.first_token_s)}`;
  return [
    make("p", "", `${stateOf(request)} in ${time(request.duration_s)}, ${first}; ${count(request.num_prompt_tokens)} prompt tokens, `
      + `${count(request.num_cached_tokens)} cached, ${count(request.num_output_tokens)} new`),
    ...(request.message ? [make("p", "bad", `${request.code}: ${request.message}`)] : []),
    make("h3", "", "Waterfall"), waterfall(request),
    table("Prompt tokens by source", ["Worker", ...SOURCES.map(([, title]) => title)], request.hops.filter((hop) => hop.sources)
      .map((hop) => [hop.process, ...SOURCES.map(([name]) => count(hop.sources[`num_${name}`]))])),
    ...request.decisions.flatMap(decided),
  ];
}

/** The axis reaches to the last end: workers' clocks are not the router's, and may tell of one after the request's. */
function waterfall({ hops, duration_s, first_token_s }) {
  const duration = Math.max(duration_s, 1e-6, ...hops.flatMap((hop) => hop.phases.map((phase) => phase.end_s)));
  const ticks = marks(duration).map((at) => {
    const tick = make("span", "tick", at < 1 ? `${+(1e3 * at).toPrecision(3)} ms` : `${+at.toPrecision(3)} s`);
    tick.style.left = `${100 * at / duration}%`;
    return tick;
  });
  const chart = make("div", "waterfall", set(make("div", "axis", make("div", "track", ...ticks)), { "aria-hidden": "true" }),
    ...hops.map((hop) => make("section", "hop", make("h4", "", hop.process, make("span", "dim", pulledFrom(hop))),
      make("ol", "", ...phasesOf(hop).map(([name, phases]) => row(name, phases, duration))),
      ...(hop.num_left_out ? [make("p", "dim", `and ${count(hop.num_left_out)} further phases`)] : []))));
  chart.style.setProperty("--grid", `${100 * (marks(duration)[1] ?? duration) / duration}%`);
  new ResizeObserver(() => placeLabels(chart)).observe(chart);
  if (first_token_s !== null) chart.style.setProperty("--first", `${100 * first_token_s / duration}%`);
  return chart;
}

/** Round times from 0 on, a handful of them. */
function marks(duration) {
  const power = 10 ** Math.floor(Math.log10(duration / MAX_TICKS));
  const step = [1, 2, 5, 10].map((factor) => factor * power).find((one) => duration / one <= MAX_TICKS);
  return Array.from({ length: Math.floor(duration / step) + 1 }, (_, index) => index * step);
}

function pulledFrom({ phases }) {
  const peers = [...new Set(phases.map((phase) => phase.peer).filter(Boolean))];
  return peers.length ? ` · pulls from ${peers.join(", ")}` : "";
}

const phasesOf = (hop) => [...Map.groupBy(hop.phases, (phase) => phase.name)];

/** All phases of one name as bars on one line, with what they took together. */
function row(name, phases, duration) {
  const start = phases[0].start_s, end = Math.max(...phases.map((phase) => phase.end_s));
  const [took, ...others] = textsOf(phases), title = NAMES[name] ?? name, share = (at) => Math.min(1, Math.max(0, at / duration));
  const bars = phases.map((phase) => {
    const bar = make("i", phase.end_s > phase.start_s ? name : "moment");
    bar.style.left = `${100 * share(phase.start_s)}%`;
    if (phase.end_s > phase.start_s) bar.style.width = `${100 * (share(phase.end_s) - share(phase.start_s))}%`;
    return bar;
  });
  const label = make("span", "took", took, make("span", "more", ...others.map((text) => ` · ${text}`)));
  Object.assign(label.dataset, { start: share(start), end: share(end), steps: phases.length });
  const node = make("li", "", make("span", "phase", title), make("span", "track", ...bars, label));
  node.title = `${title}: ${[took, ...others].join(", ")}, from ${time(start)} to ${time(end)}`;
  return node;
}

/** Put what a bar took into it, or beside it; where there is room for neither, the time alone. */
function placeLabels(chart) {
  for (const label of chart.querySelectorAll(".took")) {
    label.classList.remove("brief");
    if (!placeLabel(label)) {
      label.classList.add("brief");
      placeLabel(label);
    }
  }
}

/** Returns whether there was room. */
function placeLabel(label) {
  const gap = label.previousElementSibling.className === "moment" ? MOMENT_PX : GAP_PX;
  const width = label.parentElement.clientWidth, own = label.offsetWidth + 2 * gap;
  const start = label.dataset.start * width, end = label.dataset.end * width;
  const isInside = label.dataset.steps === "1" && end - start >= own;
  const left = isInside ? (start + end - own) / 2 : width - end >= Math.min(own, start) ? end : start - own;
  label.classList.toggle("inside", isInside);
  label.style.left = `${left + gap}px`;
  return left >= 0 && left + own <= width;
}

/** How long phases took together, and what they did. */
function textsOf(phases) {
  const total = (name) => phases.reduce((sum, phase) => sum + phase[name], 0);
  const took = phases.reduce((sum, phase) => sum + phase.end_s - phase.start_s, 0);
  if (!took) return [`at ${time(phases[0].start_s)}`];
  return [time(took), phases.length > 1 && plural(phases.length, "step"), total("num_tokens") && plural(total("num_tokens"), "token"),
    total("num_bytes") && bytes(total("num_bytes"))].filter(Boolean);
}

function decided(decision) {
  const rows = decision.candidates.map((one) => {
    const where = one.prefill === one.decode ? one.decode : `${one.prefill} → ${one.decode}`;
    const isChosen = decision.chosen && one.prefill === decision.chosen.prefill && one.decode === decision.chosen.decode;
    return [`${isChosen ? "▸ " : ""}${where}`, count(one.num_cached_tokens), ...COSTS.map((name) => time(one.cost[name]))];
  });
  return [
    table(`Placement after ${time(decision.at_s)} · ${decision.policy}`, ["Candidate", "Cached", "Queue", "Prefill", "Gap", "Stall", "Affinity", "Score"], rows),
    make("p", "", decision.reason),
    ...decision.left_out.map(([worker, reason]) => make("p", "dim", `${worker} left out: ${reason}`)),
  ];
}

function table(title, titles, rows) {
  const head = make("tr", "", ...titles.map((text, index) => set(make("th", index ? "number" : "", text), { scope: "col" })));
  const body = rows.map(([first, ...cells]) => make("tr", "", set(make("th", "", first), { scope: "row" }), ...cells.map((text) => make("td", "number", text))));
  const whole = make("table", "", make("caption", "", title), make("thead", "", head), make("tbody", "", ...body));
  return set(make("div", "scroll", whole), { tabindex: "0", role: "region", "aria-label": title });
}
