// The dialog that stands before each command: what will happen, and why it is done.

import { newIdempotencyKey } from "./api.js";
import { h } from "./elements.js";

const place = (id) => document.getElementById(id);

let current = null;

/**
 * Asks before a command is sent.
 *
 * An action has a title, its effects (sentences), the word on its button, whether it is dangerous, and the path and
 * fields of the call.
 */
export function ask(desk, action) {
  current = { desk, action, key: newIdempotencyKey(), isSending: false };
  place("confirmation-title").textContent = action.title;
  place("confirmation-effects").replaceChildren(...action.effects.map((text) => h("li", {}, text)));
  place("confirmation-confirm").textContent = action.confirm;
  place("confirmation-confirm").className = action.isDangerous ? "danger" : "primary";
  place("reason").value = "";
  showProblem("");
  setBusy(false);
  place("confirmation").showModal();
  place("reason").focus();
}

/** Connects the dialog's buttons; once. */
export function connectConfirmation() {
  place("confirmation-form").addEventListener("submit", (event) => {
    event.preventDefault();
    send();
  });
  place("confirmation-cancel").addEventListener("click", () => place("confirmation").close());
  place("confirmation").addEventListener("cancel", (event) => {
    if (current?.isSending) event.preventDefault(); // Whether it was done would stay unknown.
  });
}

async function send() {
  const { desk, action, key, isSending } = current;
  const reason = place("reason").value.trim();
  if (isSending) return;
  if (!reason) {
    showProblem("Say why: whoever reads the history will want to know.");
    place("reason").focus();
    return;
  }
  current.isSending = true;
  setBusy(true);
  showProblem("");
  try {
    await desk.api.post(action.path, { ...action.fields, reason }, key);
    place("confirmation").close();
    desk.lookNow();
  } catch (error) {
    showProblem(problemText(error));
  } finally {
    current.isSending = false;
    setBusy(false);
  }
}

/** What went wrong, as the API says it. */
export function problemText(error) {
  if (error.status === undefined)
    return `${error.message}: it is not known whether it was done. Sent again it is done once.`;
  return `${error.title ? `${error.title}: ` : ""}${error.message}`;
}

function showProblem(text) {
  place("confirmation-problem").hidden = !text;
  place("confirmation-problem").textContent = text;
}

function setBusy(isBusy) {
  place("confirmation-confirm").disabled = place("confirmation-cancel").disabled = isBusy;
  place("confirmation-form").setAttribute("aria-busy", String(isBusy));
}
