// The dialog that starts a rollout: its YAML, what the gateway says that it will do, and then the start.

import { newIdempotencyKey } from "./api.js";
import { problemText } from "./confirmation.js";
import { h } from "./elements.js";

const MAX_BYTES = 64 * 1024;
const place = (id) => document.getElementById(id);

let current = null;

/** Opens the dialog for a candidate. */
export function openStarting(desk, candidate = "latest") {
  current = { desk, plan: null, key: null };
  place("spec").value = example(candidate);
  place("spec-file").value = "";
  place("start-reason").value = "";
  showProblem("");
  showPlan(null);
  setBusy(false);
  place("starting").showModal();
  place("spec").focus();
}

/** Connects the dialog's buttons; once. */
export function connectStarting() {
  place("starting-cancel").addEventListener("click", () => place("starting").close());
  place("starting").addEventListener("cancel", (event) => {
    if (place("starting-form").getAttribute("aria-busy") === "true") event.preventDefault();
  });
  place("spec").addEventListener("input", () => showPlan(null)); // What was checked is no longer what stands there.
  place("check").addEventListener("click", check);
  place("spec-file").addEventListener("change", readFile);
  place("starting-form").addEventListener("submit", (event) => {
    event.preventDefault();
    if (current.plan === null) check();
    else start();
  });
}

function example(candidate) {
  return `candidate: ${candidate}
steps:
  - {weight: 5, pause: 10m}
  - {weight: 25, analysis: {max: 1h}}
  - {weight: 100}
shadow: 10
analysis:
  metrics:
    - {name: error_rate, max_increase: 0.001}
    - {name: latency_p99, max_ratio: 1.25}
    - {name: ctr, max_loss: 0.01}
`;
}

async function readFile(event) {
  const [file] = event.target.files;
  if (!file) return;
  if (file.size > MAX_BYTES) {
    showProblem(`${file.name} has ${file.size} bytes; a rollout has at most ${MAX_BYTES}.`);
    return;
  }
  place("spec").value = await file.text();
  showProblem("");
  showPlan(null);
}

async function check() {
  const yaml = place("spec").value;
  await attempt(async () => {
    showPlan(null);
    const plan = await current.desk.api.post("rollouts/check", { yaml });
    if (place("spec").value !== yaml) return;
    showPlan(plan);
    place("start-reason").focus();
  });
}

async function start() {
  const reason = place("start-reason").value.trim();
  if (!reason) {
    showProblem("Say why: whoever reads the history will want to know.");
    place("start-reason").focus();
    return;
  }
  await attempt(async () => {
    await current.desk.api.post("rollouts", { spec: current.plan.spec, reason }, current.key);
    place("starting").close();
    current.desk.lookNow();
  });
}

async function attempt(call) {
  if (place("starting-form").getAttribute("aria-busy") === "true") return;
  setBusy(true);
  showProblem("");
  try {
    await call();
  } catch (error) {
    showProblem(problemText(error));
  } finally {
    setBusy(false);
  }
}

function showPlan(plan) {
  current.plan = plan;
  current.key = plan && newIdempotencyKey();
  place("plan").hidden = plan === null;
  place("plan-effects").replaceChildren(...(plan?.effects ?? []).map((text) => h("li", {}, text)));
  place("starting-confirm").disabled = plan === null;
  place("check").className = plan === null ? "primary" : "";
}

function showProblem(text) {
  place("starting-problem").hidden = !text;
  place("starting-problem").textContent = text;
}

function setBusy(isBusy) {
  place("starting-form").setAttribute("aria-busy", String(isBusy));
  for (const id of ["check", "starting-cancel"]) place(id).disabled = isBusy;
  place("starting-confirm").disabled = isBusy || current.plan === null;
}
