// The workers, and, where the router takes an operator's calls, the controls of each.

import { bytes, count, element, make, Nodes, percent, plural, set, short, time, write } from "./dashboard.dom.js";
import { change, NoAnswer } from "./dashboard.router.js";

const ROLES = ["prefill", "decode", "mixed"];
const COLUMNS = ["Worker", "Role", "State", "Batch", "Waiting", "Queued tokens", "KV pool", "Prefill", "Decode step", "Pull"];
const rows = new Nodes(document.querySelector("#workers tbody"), (name) => new Row(name));
let hasControls = null;

export function showWorkers({ workers, absent_workers, has_operator_routes }) {
  if (hasControls !== has_operator_routes) {
    hasControls = has_operator_routes;
    rows.show([]); // those that are there have no cell for the controls, or one too many
    const titles = hasControls ? [...COLUMNS, "Control"] : COLUMNS;
    const cells = titles.map((title) => set(make("th", isNumber(title) ? "number" : "", title), { scope: "col", role: "columnheader" }));
    document.querySelector("#workers thead").replaceChildren(set(make("tr", "", ...cells), { role: "row" }));
  }
  const shown = rows.show([...workers, ...absent_workers].map((worker) => worker.worker_id));
  for (const worker of workers) shown.get(worker.worker_id).show(worker);
  for (const worker of absent_workers) shown.get(worker.worker_id).showAbsent(worker);
  document.querySelector("#workers .none").hidden = workers.length + absent_workers.length > 0;
}

const isNumber = (title) => ["Waiting", "Queued tokens", "Prefill", "Decode step", "Pull"].includes(title);

class Row {
  constructor(name) {
    this.address = make("span", "dim");
    this.role = make("span", "badge role");
    this.state = make("span", "badge");
    this.batch = new Meter("running");
    this.pool = new Meter("of the KV pool");
    this.texts = Object.fromEntries(["Waiting", "Queued tokens", "Prefill", "Decode step", "Pull"].map((title) => [title, make("span")]));
    this.controls = hasControls ? new Controls(name) : null;
    this.end = this.controls ? make("p", "result") : this.address; // of a worker that is absent, and so has no controls
    const contents = { Role: this.role, State: this.state, Batch: this.batch.node, "KV pool": this.pool.node, ...this.texts };
    const cells = COLUMNS.slice(1).map((title) => cell(title, contents[title]));
    const head = set(make("th", "", make("b", "", name), this.address), { scope: "row", role: "rowheader" });
    this.node = set(make("tr", "", head, ...cells, ...(this.controls ? [cell("Control", make("div", "", this.controls.node, this.end))] : [])), { role: "row" });
    this.node.dataset.worker = name;
  }

  show(worker) {
    const { rates } = worker, known = (value, text) => value ? text : "–";
    write(this.end, "");
    write(this.address, worker.metrics_address);
    write(this.role, worker.is_role_fixed ? `${worker.role} (set)` : worker.role);
    set(this.role, { title: worker.is_role_fixed ? "an operator has set this role" : null });
    write(this.state, worker.state);
    this.state.className = `badge ${worker.state}`;
    set(this.state, { title: null });
    this.batch.show(worker.num_running / worker.max_num_seqs, `${worker.num_running} / ${worker.max_num_seqs}`);
    const used = worker.num_blocks ? 1 - worker.num_available_blocks / worker.num_blocks : 0;
    this.pool.show(used, `${percent(used)} of ${bytes(worker.num_blocks * worker.block_bytes)}`);
    write(this.texts.Waiting, count(worker.num_waiting));
    write(this.texts["Queued tokens"], count(worker.num_queued_tokens));
    write(this.texts.Prefill, known(rates.prefill_tokens_per_s, `${short(rates.prefill_tokens_per_s)} tokens/s`));
    write(this.texts["Decode step"], known(rates.decode_step_s, time(rates.decode_step_s)));
    write(this.texts.Pull, known(rates.pull_bytes_per_s, `${bytes(rates.pull_bytes_per_s)}/s`));
    this.controls?.show(worker);
    if (this.controls) this.controls.node.hidden = false;
  }

  /** A worker that baton serve loads, or starts again: it has no figures, and takes no orders. */
  showAbsent({ role, state, retry_in_s, end, reason }) {
    const isWaiting = retry_in_s !== null;
    write(this.address, "");
    write(this.end, end ? `${end}${reason ? `: ${reason}` : ""}` : "");
    write(this.role, role);
    write(this.state, isWaiting ? `restarting in ${Math.ceil(retry_in_s)} s` : state);
    this.state.className = `badge ${state}`;
    set(this.state, { title: isWaiting ? `it ${end}` : null });
    for (const meter of [this.batch, this.pool]) meter.show(0, "–");
    for (const text of Object.values(this.texts)) write(text, "–");
    if (this.controls) this.controls.node.hidden = true;
  }
}

function cell(title, content) {
  const node = set(make("td", isNumber(title) ? "number" : title === "Control" ? "control" : "", content), { role: "cell" });
  node.dataset.title = title;
  return node;
}

class Meter {
  constructor(what) {
    this.what = what;
    this.bar = make("i");
    this.text = make("span");
    this.node = make("span", "metered", set(make("span", "meter", this.bar), { "aria-hidden": "true" }), this.text);
  }

  show(share, text) {
    this.bar.style.width = `${Math.min(100, 100 * share)}%`;
    this.bar.className = share > 0.9 ? "high" : "";
    write(this.text, text);
    set(this.node, { title: `${text} ${this.what}` });
  }
}

/** What an operator may do with one worker; says beside it what came of that. */
class Controls {
  constructor(name) {
    this.name = name;
    this.worker = null;
    this.roles = set(make("select", "", ...ROLES.map((role) => make("option", "", role))), { "aria-label": `Role of ${name}` });
    const setRole = this.button("Set role", () => this.setRole());
    this.drain = this.button("Drain", () => this.worker.state === "draining" ? this.undrain() : this.askToDrain());
    this.result = set(make("p", "result"), { role: "status" });
    this.node = make("div", "controls", make("div", "buttons", this.roles, setRole, this.drain), this.result);
    this.isBusy = false;
  }

  button(text, act) {
    const node = set(make("button", "", text), { type: "button", "aria-label": `${text} of ${this.name}` });
    node.addEventListener("click", () => { if (!this.isBusy) act(); });
    return node;
  }

  show(worker) {
    if (this.worker?.role !== worker.role && document.activeElement !== this.roles) this.roles.value = worker.role;
    this.worker = worker;
    const text = worker.state === "draining" ? "Undrain" : "Drain";
    write(this.drain, text);
    set(this.drain, { "aria-label": `${text} ${this.name}` });
  }

  async askToDrain() {
    const text = `${this.name} takes no new requests then. Those it has go on to their end, and Undrain brings it back.`;
    if (await isConfirmed(`Drain ${this.name}?`, text, "Drain")) await this.ask("drain", {}, "drained", drained);
  }

  undrain() {
    return this.ask("undrain", {}, "undrained", () => "It takes requests again.");
  }

  setRole() {
    const role = this.roles.value;
    return this.ask("set_role", { role }, "changed", () => `It prefers ${role} from now on.`);
  }

  async ask(action, query, done, say) {
    this.say("", "asking the worker …");
    this.isBusy = true;
    set(this.node, { "aria-busy": "true" });
    try {
      this.say("good", `✓ ${say(await change(action, { worker_id: this.name, ...query }))}`);
    } catch (error) {
      this.say("bad", error instanceof NoAnswer ? `✗ It is not known whether it is ${done}: ${error.message}.` : `✗ Not ${done}: ${inWords(error.message, this.name)}`);
    }
    this.isBusy = false;
    set(this.node, { "aria-busy": null });
  }

  say(className, text) {
    this.result.className = `result ${className}`;
    write(this.result, text);
  }
}

/** The router's reason; where it guards the last worker of a kind, what that means. */
function inWords(message, name) {
  const guarded = /workers without whom another one still (.+), or any with force/.exec(message);
  if (!guarded) return message;
  const halves = ["prefills", "decodes"].filter((half) => guarded[1].includes(half));
  const why = halves.length ? `${name} is the last worker that takes requests and ${halves.join(" or ")}` : "with --split always two workers have to be left";
  return `${why}. Bring another one first, or use baton admin with --force.`;
}

function drained({ num_requests, num_offers, num_transfers }) {
  const open = [[num_requests, "request"], [num_offers, "offer"], [num_transfers, "transfer"]].filter(([number]) => number);
  const texts = open.map(([number, noun]) => plural(number, noun));
  return texts.length ? `It takes no new requests; it still has ${texts.join(", ")}.` : "It takes no new requests, and has none left.";
}

function isConfirmed(title, text, verb) {
  const dialog = element("confirm");
  write(element("confirm-title"), title);
  write(element("confirm-text"), text);
  write(dialog.querySelector("[value=yes]"), verb);
  dialog.returnValue = "";
  dialog.showModal();
  return new Promise((resolve) => {
    dialog.addEventListener("close", () => resolve(dialog.returnValue === "yes"), { once: true });
  });
}
