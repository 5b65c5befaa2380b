// Curves of the last minutes. The router keeps their samples, so a page that opens later shows them too.

import { age, bytes, count, draw, element, make, Nodes, percent, plural, set, short, time, write } from "./dashboard.dom.js";

const WIDTH = 300, HEIGHT = 44, PAD = 2;
const ROLES = ["prefill", "decode", "mixed"];
const FIGURES = {
  requests: { title: "Requests", lines: ["finished", "failed"], of: (one, line) => one[`${line}_per_s`], text: (value) => `${short(value)} /s`,
    now: () => samples.at(-1)?.finished_per_s ?? null,
    note: ({ totals }) => `${count(totals.num_failed)} failed in all` },
  tokens: { title: "Output tokens", of: (one) => one.generated_tokens_per_s, text: (value) => `${short(value)} /s`,
    note: ({ totals }) => `${short(totals.num_generated_tokens)} in all` },
  prompts: { title: "Prompt tokens", of: (one) => one.prompt_tokens_per_s, text: (value) => `${short(value)} /s`,
    note: ({ totals }) => `${percent(totals.num_prompt_tokens ? totals.num_cached_tokens / totals.num_prompt_tokens : 0)} found in a cache` },
  ttft: { title: "TTFT p90", of: (one) => one.loads.ttft_p90_s, text: time, note: () => "over the last 30 s" },
  queued: { title: "Queue at the router", of: (one) => one.loads.num_queued, text: count,
    now: (cluster) => cluster.num_waiting, note: (cluster) => `${plural(cluster.num_open_requests, "open request")}` },
  running: { title: "Running", of: (one) => one.loads.num_running, text: count,
    now: ({ workers }) => sum(workers, "num_running"), note: ({ workers }) => `${count(sum(workers, "num_waiting"))} wait at workers` },
  kv: { title: "KV blocks in use", lines: ROLES, of: (one, role) => one.loads.kv_usage[role] ?? null, top: 1,
    text: (value) => percent(value), now: ({ workers }) => used(workers), note: ({ workers }) => blocks(workers) },
  transfers: { title: "KV transfers", of: (one) => one.transfer_bytes_per_s, text: (value) => `${bytes(value)}/s`,
    note: ({ totals }) => `${bytes(totals.transfer_bytes)} in all` },
};
const figures = new Nodes(document.querySelector("#figures .cards"), (name) => new Figure(name));
let samples = [];

/** When the last sample was taken that is known here. */
export const lastSample = () => samples.at(-1)?.at_s ?? 0;

export function forgetHistory() {
  samples = [];
}

export function showHistory(history, cluster) {
  const span = history.interval_s * history.max_samples;
  samples.push(...history.samples);
  samples = samples.filter((one) => one.at_s > lastSample() - span);
  const slo = history.latencies.percentiles.find((one) => one.metric === "ttft").slo_s;
  for (const figure of figures.show(Object.keys(FIGURES)).values()) figure.show(cluster, span, slo);
  write(element("span"), `last ${time(span)} · rates are means over 10 s`);
}

const sum = (workers, name) => workers.reduce((total, worker) => total + worker[name], 0);

function used(workers) {
  const all = sum(workers, "num_blocks");
  return all ? 1 - sum(workers, "num_available_blocks") / all : 0;
}

function blocks(workers) {
  const all = sum(workers, "num_blocks");
  return `${count(all - sum(workers, "num_available_blocks"))} of ${count(all)} blocks`;
}

/** One quantity: its value now, its curve, and its greatest value within the curve. */
class Figure {
  constructor(name) {
    this.figure = FIGURES[name];
    this.value = make("b");
    this.note = make("p", "dim");
    this.peak = make("p", "dim");
    this.svg = draw("svg", { viewBox: `0 0 ${WIDTH} ${HEIGHT}`, preserveAspectRatio: "none", role: "img" });
    this.node = make("article", "panel figure", make("h3", "", this.figure.title), this.value, this.svg, make("div", "foot", this.note, this.peak));
    this.node.dataset.figure = name;
    if (this.figure.lines) this.legend = this.node.appendChild(make("ul", "legend"));
    this.drawn = null;
    this.svg.addEventListener("pointermove", (event) => this.point(event));
    this.svg.addEventListener("pointerleave", () => write(this.peak, this.text));
  }

  show(cluster, span, slo) {
    const { figure } = this, last = samples.at(-1);
    const now = figure.now ? figure.now(cluster) : last ? figure.of(last) : null;
    write(this.value, now === null ? "–" : figure.text(now));
    write(this.note, figure.note(cluster));
    if (this.drawn === lastSample()) return;
    this.drawn = lastSample();
    this.span = span;
    this.draw(span, figure.title === "TTFT p90" ? slo : null);
  }

  /** Tell the values at the pointer. */
  point({ clientX }) {
    const { figure } = this, { left, width } = this.svg.getBoundingClientRect();
    if (!samples.length) return;
    const one = nearest(lastSample() - this.span * (1 - (clientX - left) / width));
    const values = (figure.lines ?? [""]).map((line) => [line, figure.of(one, line)]).filter(([, value]) => value !== null);
    const texts = values.map(([line, value]) => `${line} ${figure.text(value)}`.trim());
    write(this.peak, `${texts.join(", ") || "–"}, ${age(lastSample() - one.at_s)} ago`);
  }

  draw(span, limit) {
    const { figure } = this, lines = (figure.lines ?? [""]).map((line) => [line, samples.map((one) => figure.of(one, line))])
      .filter(([line, values]) => !line || values.some((value) => value !== null));
    const known = lines.flatMap(([, values]) => values).filter((value) => value !== null);
    const peak = Math.max(0, ...known), top = figure.top ?? (Math.max(peak, limit ?? 0) * 1.05 || 1);
    const y = (value) => (HEIGHT - PAD - (HEIGHT - 2 * PAD) * Math.min(1, value / top)).toFixed(1);
    const x = (index) => (WIDTH * (1 - (lastSample() - samples[index].at_s) / span)).toFixed(1);
    const marks = limit === null ? [] : [draw("line", { class: "limit", x1: 0, x2: WIDTH, y1: y(limit), y2: y(limit) })];
    for (const [line, values] of lines) marks.push(...curve(values, x, y, line, !figure.lines));
    this.svg.replaceChildren(...marks);
    this.text = known.length ? `peak ${figure.text(peak)}` : "no samples yet";
    if (!this.svg.matches(":hover")) write(this.peak, this.text);
    const slo = limit === null ? "" : `; the SLO is ${time(limit)}`;
    set(this.svg, { "aria-label": `${figure.title} over the last ${time(span)}: ${this.text}${slo}` });
    this.legend?.replaceChildren(...lines.map(([line, values]) => make("li", "", make("i", `stroke ${line}`), `${line} ${lastOf(values, figure)}`)));
  }
}

/** The sample that is nearest to a time. */
const nearest = (at_s) => samples.reduce((one, other) => Math.abs(other.at_s - at_s) < Math.abs(one.at_s - at_s) ? other : one);

const lastOf = (values, figure) => values.at(-1) === null ? "–" : figure.text(values.at(-1));

/** A line for each run of known values, over an area where it is alone. */
function curve(values, x, y, className, hasArea) {
  const runs = [];
  values.forEach((value, index) => {
    if (value === null) return;
    if (index === 0 || values[index - 1] === null) runs.push([]);
    runs.at(-1).push([x(index), y(value)]);
  });
  return runs.flatMap((run) => {
    const points = run.map((point) => point.join(",")).join(" ");
    const line = draw("polyline", { class: className, points: run.length > 1 ? points : `${points} ${points}` });
    const area = () => draw("polygon", { points: `${run[0][0]},${HEIGHT} ${points} ${run.at(-1)[0]},${HEIGHT}` });
    return hasArea ? [area(), line] : [line];
  });
}
