// Sums since the router's start: where prompts came from, what was copied, admitted, placed and shifted.

import { age, bytes, count, make, time } from "./dashboard.dom.js";

export const SOURCES = [["computed", "computed"], ["local_cache", "local cache"], ["remote", "remote"], ["recomputed", "recomputed"]];

export function showTotals({ totals, num_waiting, admissions, placements, shifts }) {
  showSources(totals);
  list("transfers", [
    ["requests that pulled", count(totals.num_transfers)],
    ["bytes", bytes(totals.transfer_bytes)],
    ["mean size", totals.num_transfers ? bytes(totals.transfer_bytes / totals.num_transfers) : "–"],
    ["mean time", totals.num_transfers ? time(totals.transfer_s / totals.num_transfers) : "–"],
    ["while copying", totals.transfer_s ? `${bytes(totals.transfer_bytes / totals.transfer_s)}/s` : "–"],
  ]);
  list("admission", [["waiting now", count(num_waiting)],
    ...admissions.map(({ outcome, count: number }) => [outcome.replaceAll("_", " "), count(number)])]);
  list("placements", placements.map(({ policy, kind, count: number }) => [`${kind} · ${policy}`, count(number)]));
  list("shifts", shifts.slice(0, 8).map((shift) => [`${shift.worker_id}: ${shift.before} → ${shift.after}`, `${age(shift.age_s)} ago`]));
}

function showSources(totals) {
  const all = SOURCES.reduce((sum, [name]) => sum + totals[`num_${name}`], 0);
  document.querySelector("#sources .stack").replaceChildren(...SOURCES.map(([name]) => {
    const part = make("i", name);
    part.style.width = `${all ? 100 * totals[`num_${name}`] / all : 0}%`;
    return part;
  }));
  list("sources", SOURCES.map(([name, title]) => [title, count(totals[`num_${name}`]), name]));
}

function list(id, rows) {
  const node = document.querySelector(`#${id} dl`);
  const content = JSON.stringify(rows);
  if (node.dataset.content === content) return;
  node.dataset.content = content;
  node.replaceChildren(...rows.flatMap(([title, value, swatch]) => [
    make("dt", "", ...(swatch ? [make("i", `swatch ${swatch}`)] : []), title), make("dd", "", value)]),
    ...(rows.length ? [] : [make("dt", "dim", "none yet")]));
}
