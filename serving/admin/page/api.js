// The admin API, as far as the page needs it.

const SECONDS = 10;

/** What the gateway answered instead of what was asked for, in its own words. */
export class Problem extends Error {
  constructor(status, document) {
    const detail = document.detail || document.title || `the gateway answered with status ${status}`;
    super(document.path && !detail.startsWith(document.path) ? `${document.path} ${detail}` : detail);
    this.status = status;
    this.title = document.title || "";
    this.requestId = document.request_id || "";
  }
}

/** No answer came. */
export class Unreachable extends Error {}

/** Calls with one key. */
export class Api {
  #key;

  constructor(key) {
    this.#key = key;
  }

  get(path) {
    return this.#call("GET", path, undefined, {});
  }

  /** Sends a command; sent again with the same idempotency key, it is not done again. */
  post(path, body, idempotencyKey) {
    const headers = { "content-type": "application/json" };
    if (idempotencyKey) headers["idempotency-key"] = idempotencyKey;
    return this.#call("POST", path, JSON.stringify(body), headers);
  }

  async #call(method, path, body, headers) {
    let response, text;
    try {
      response = await fetch(`admin/v1/${path}`, {
        method,
        body,
        headers: { ...headers, authorization: `Bearer ${this.#key}` },
        cache: "no-store",
        credentials: "omit",
        redirect: "error",
        signal: AbortSignal.timeout(SECONDS * 1000),
      });
      text = await response.text();
    } catch (error) {
      const isLate = error.name === "TimeoutError";
      throw new Unreachable(isLate ? `no answer within ${SECONDS} s` : "no connection to the gateway");
    }
    const document = parsed(text);
    if (!response.ok) throw new Problem(response.status, document ?? {});
    if (document === undefined) throw new Problem(response.status, { title: "the answer is not JSON" });
    return document;
  }
}

/** A new idempotency key; randomUUID is for secure origins only. */
export function newIdempotencyKey() {
  return [...crypto.getRandomValues(new Uint8Array(16))].map((byte) => byte.toString(16).padStart(2, "0")).join("");
}

function parsed(text) {
  try {
    return JSON.parse(text);
  } catch {
    return undefined;
  }
}
