// Requests to this server. Errors arrive in words.
import { byId } from "./dom.js";

let underway = 0;

/** Show the progress line while a promise is pending, if that takes longer than a blink. */
export async function busy(promise) {
  let counted = 0;
  const timer = setTimeout(() => { counted = 1; show(1); }, 150);
  try {
    return await promise;
  } finally {
    clearTimeout(timer);
    show(-counted);
  }
}

function show(change) {
  underway += change;
  byId("progress").hidden = underway === 0;
}

/** An answer that is not what was asked for; `message` is for the user. */
export class Problem extends Error {}

async function answer(request) {
  let response;
  try {
    response = await request;
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new Problem("The server does not answer. Is `saccade serve` still running?");
  }
  if (response.ok) return response;
  let detail = `The server answered with status ${response.status}.`;
  try {
    detail = (await response.json()).detail ?? detail;
  } catch { /* the answer has no words */ }
  throw new Problem(sentence(detail));
}

/** Capital letter first and a full stop last. */
function sentence(text) {
  const said = String(text);
  return said.charAt(0).toUpperCase() + said.slice(1) + (/[.?!]$/.test(said) ? "" : ".");
}

function address(path, params) {
  const query = new URLSearchParams();
  for (const [name, value] of Object.entries(params)) {
    if (value === null || value === undefined) continue;
    for (const one of [value].flat()) query.append(name, one);
  }
  return query.size ? `${path}?${query}` : path;
}

export async function get(path) {
  return (await busy(answer(fetch(path)))).json();
}

export async function post(path, params = {}, { body, signal } = {}) {
  const headers = body ? { "content-type": body.type || "application/octet-stream" } : {};
  const sent = fetch(address(path, params), { method: "POST", body, signal, headers });
  return (await busy(answer(sent))).json();
}

/** The lines of a stream of JSON objects, as they arrive. */
export async function* lines(path, params, signal) {
  const response = await answer(fetch(address(path, params), { method: "POST", signal }));
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  let text = "";
  for (;;) {
    const { value, done } = await reader.read();
    if (done) break;
    text += value;
    const parts = text.split("\n");
    text = parts.pop();
    for (const part of parts) if (part) yield JSON.parse(part);
  }
}

/** Only the latest of several calls counts: the others are aborted and their results dropped. */
export function latest(call) {
  let current = null;
  return async (...args) => {
    current?.abort();
    const mine = new AbortController();
    current = mine;
    try {
      const result = await call(mine.signal, ...args);
      return current === mine ? result : undefined;
    } catch (error) {
      if (error.name === "AbortError") return undefined;
      throw error;
    }
  };
}
