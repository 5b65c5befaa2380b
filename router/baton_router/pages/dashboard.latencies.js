// Percentiles of the last minutes, each latency against the router's SLO where it has one.

import { count, element, make, Nodes, percent, plural, set, time, write } from "./dashboard.dom.js";

const TITLES = {
  ttft: ["TTFT", "time to first token"],
  tpot: ["TPOT", "mean time per output token"],
  itl: ["ITL", "inter-token latency"],
  e2e: ["E2E", "whole request"],
};
const PERCENTILES = ["p50", "p90", "p99"];
const cards = new Nodes(document.querySelector("#latencies .cards"), (metric) => new Card(metric));

export const titleOf = (metric) => TITLES[metric][0];

export function showLatencies({ window_s, slo_target, latencies }) {
  const { percentiles, num_finished, num_failed } = latencies;
  const shown = cards.show(percentiles.map((one) => one.metric));
  for (const one of percentiles) shown.get(one.metric).show(one);
  write(element("window"), `last ${time(window_s)} · ${plural(num_finished, "request")} finished`);
  write(element("failures"), `${num_failed ? "▲ " : ""}${count(num_failed)} refused or failed`);
  element("failures").className = num_failed ? "bad" : "dim";
  const hasSlo = percentiles.some((one) => one.slo_s !== null);
  write(element("latency-rule"), hasSlo
    ? `The SLO is attained while ${percent(slo_target)} of the finished requests are within it.`
    : "This router has no SLO: start it with --slo ttft=S,tpot=S to have latencies held against one.");
}

class Card {
  constructor(metric) {
    const [title, text] = TITLES[metric];
    this.values = PERCENTILES.map((name) => make("dd"));
    this.verdict = make("p", "verdict");
    const list = make("dl", "percentiles", ...PERCENTILES.map((name, index) => make("div", "", make("dt", "", name), this.values[index])));
    this.node = make("article", "panel", make("h3", "", title, " ", make("span", "dim", text)), list, this.verdict);
    this.node.dataset.metric = metric;
  }

  show(one) {
    PERCENTILES.forEach((name, index) => {
      const value = one[`${name}_s`], isOver = one.slo_s !== null && value !== null && value > one.slo_s;
      write(this.values[index], time(value));
      this.values[index].classList.toggle("over", isOver);
      set(this.values[index], { title: isOver ? `over the SLO of ${time(one.slo_s)}` : null });
    });
    const [className, text] = verdict(one);
    this.verdict.className = `verdict ${className}`;
    write(this.verdict, text);
  }
}

/** The class and the text of how a latency stands to its SLO; the share is rounded down, so that a missed one does not look attained. */
export function verdict({ count: number, slo_s, share_within_slo, is_slo_attained, metric }) {
  if (!number) return ["dim", slo_s === null ? "nothing in this window" : `SLO ${time(slo_s)}: nothing in this window`];
  if (slo_s === null) return ["dim", `no SLO · ${plural(number, metric === "itl" ? "token" : "request")}`];
  const digits = share_within_slo > 0.9 && share_within_slo < 1 ? 1 : 0;
  const whole = 10 ** (2 + digits);
  const share = `${percent(Math.floor(share_within_slo * whole + 1e-9) / whole, digits)} within ${time(slo_s)}`;
  return is_slo_attained ? ["good", `✓ SLO attained: ${share}`] : ["bad", `✗ SLO missed: ${share}`];
}
