// The dashboard: asks the router once a second while it is seen, and has each part show what it says.

import { age, element, set, write } from "./dashboard.dom.js";
import { showHistory, forgetHistory, lastSample } from "./dashboard.history.js";
import { showLatencies } from "./dashboard.latencies.js";
import { showRequests } from "./dashboard.requests.js";
import { key, look, NeedsKey, NoAnswer } from "./dashboard.router.js";
import { showTotals } from "./dashboard.totals.js";
import { showWorkers } from "./dashboard.workers.js";

const EVERY_MS = 1000, NUM_REQUESTS = 16;
const VISIBLE_ASCII = /^[!-~]+$/;
let timer = 0, isAsking = false;

async function poll() {
  clearTimeout(timer);
  const isWithoutKey = !element("ask").hidden && !key.get();
  if (document.hidden || isAsking || isWithoutKey) return;
  isAsking = true;
  try {
    const paths = ["debug/cluster", `debug/requests?limit=${NUM_REQUESTS}`, `debug/history?since=${lastSample()}`];
    const answers = [];
    // One after the other over one connection: a process of the router answers all three.
    for (const path of paths) answers.push(await look(path));
    show(...answers);
  } catch (error) {
    if (!(await fail(error))) return;
  } finally {
    isAsking = false;
  }
  clearTimeout(timer);
  if (!document.hidden) timer = setTimeout(poll, EVERY_MS);
}

function show(cluster, { requests }, history) {
  element("ask").hidden = true;
  element("main").hidden = false;
  element("main").classList.remove("stale");
  element("forget").hidden = !key.get();
  const [model, ...others] = cluster.models;
  const models = others.length > 3 ? `${model} and ${others.length} more` : cluster.models.join(", ");
  set(element("server"), { title: others.length ? cluster.models.join(", ") : null });
  write(element("server"), `${models} · up ${age(cluster.uptime_s)} · ${cluster.version}`);
  state(cluster.is_ready ? "ready" : "not ready", cluster.is_ready ? "ready" : "away");
  showLatencies(history);
  showHistory(history, cluster);
  showWorkers(cluster);
  showRequests(requests, history);
  showTotals(cluster);
}

/** Say what is wrong; returns whether asking again may help without the user. */
async function fail(error) {
  if (error instanceof NeedsKey) {
    askForKey(key.get() ? "That key is not one of this router's." : "");
    return false;
  }
  state(error.message, "away");
  element("main").classList.add("stale");
  if (!(error instanceof NoAnswer)) console.error(error);
  return true;
}

/** Ask for a key, and show nothing that another one has opened. */
function askForKey(why) {
  key.forget();
  forgetHistory();
  for (const dialog of document.querySelectorAll("dialog")) dialog.close();
  element("main").hidden = true;
  element("forget").hidden = true;
  element("ask").hidden = false;
  write(element("server"), "");
  write(element("refused"), why);
  state("needs an API key", "away");
  element("key").value = "";
  element("key").focus();
}

function state(text, className) {
  write(element("state"), text);
  element("state").className = `badge ${className}`;
}

element("ask").addEventListener("submit", (event) => {
  event.preventDefault();
  const typed = element("key").value.trim();
  if (!VISIBLE_ASCII.test(typed)) return askForKey("A key has visible ASCII characters only.");
  key.set(typed);
  poll();
});
element("forget").addEventListener("click", () => {
  key.forget();
  location.reload(); // so that no answer under way is shown, and no figure stays in the page
});
document.addEventListener("visibilitychange", poll);
poll();
