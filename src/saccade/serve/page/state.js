// What is shown. All of it is in the address, so that a link shows the same.

const DEFAULTS = {
  model: null, picture: null, layer: null, head: null, temperature: 1, order: "2", patch: null,
  rollout: false, difference: false, attentions: "softmax,taylor,performer",
  block: 0, blockhead: 0, dim: 16, most: 2048, tokens: 1024, models: null,
};
const VIEWS = ["look", "learn", "measure", "compare"];

export const state = { view: "look", ...DEFAULTS };
const listeners = [];

/** Call a function whenever the state changes, with the names of what changed. */
export function onChange(call) {
  listeners.push(call);
}

/** Change the state, and the address. */
export function update(changes, { silent = false } = {}) {
  const changed = Object.keys(changes).filter((name) => state[name] !== changes[name]);
  if (!changed.length) return;
  const newView = changed.includes("view");
  Object.assign(state, changes);
  write(newView);
  if (!silent) for (const call of listeners) call(new Set(changed));
}

export function address() {
  const query = new URLSearchParams();
  for (const [name, usual] of Object.entries(DEFAULTS)) {
    const value = state[name];
    if (value !== usual && value !== null) query.set(name, value === true ? "1" : String(value));
  }
  return `#${state.view}${query.size ? `?${query}` : ""}`;
}

function write(isNew) {
  if (location.hash === address()) return;
  if (isNew) history.pushState(null, "", address());
  else history.replaceState(null, "", address());
}

/** Read the state from the address. */
export function read() {
  const [view, query = ""] = location.hash.slice(1).split("?");
  const given = new URLSearchParams(query);
  const found = { view: VIEWS.includes(view) ? view : "look" };
  for (const [name, usual] of Object.entries(DEFAULTS)) {
    const text = given.get(name);
    found[name] = text === null ? (query ? usual : state[name]) : parsed(name, text);
  }
  return found;
}

const NUMBERS = new Set(["layer", "head", "temperature", "block", "blockhead", "dim", "most", "tokens", "patch"]);

function parsed(name, text) {
  if (typeof DEFAULTS[name] === "boolean") return text === "1";
  if (!NUMBERS.has(name)) return text;
  const number = Number(text);
  return Number.isFinite(number) ? number : DEFAULTS[name];
}

/** Follow links and the back button. */
export function follow() {
  const read_ = () => {
    const found = read();
    const changed = Object.keys(found).filter((name) => state[name] !== found[name]);
    Object.assign(state, found);
    if (changed.length) for (const call of listeners) call(new Set(changed));
  };
  addEventListener("hashchange", read_);
  addEventListener("popstate", read_);
}
