// Starts the page: models, views, theme, sharing.
import { get } from "./api.js";
import * as compare from "./compare.js";
import { byId, h } from "./dom.js";
import { isDark } from "./draw.js";
import * as learn from "./learn.js";
import * as look from "./look.js";
import * as measure from "./measure.js";
import { listenEverywhere } from "./picker.js";
import { shared } from "./shared.js";
import { follow, onChange, read, state, update } from "./state.js";

const VIEWS = { look, learn, measure, compare };
const TITLES = { look: "Look", learn: "Learn", measure: "Measure", compare: "Compare" };

async function start() {
  theme();
  Object.assign(state, read());
  try {
    const found = await get("/api/models");
    shared.models = found.models;
    shared.attentions = Object.fromEntries(found.attentions.map((own) => [own.name, own]));
    shared.studies = found.studies;
    shared.maxBytes = found.max_bytes;
  } catch (error) {
    shared.say(error.message);
    return;
  }
  if (!shared.models.some((model) => model.id === state.model)) state.model = null;
  models();
  sharing();
  listenEverywhere();
  for (const view of Object.values(VIEWS)) view.prepare();
  for (const link of document.querySelectorAll("nav a, .brand")) {
    link.addEventListener("click", (event) => {
      event.preventDefault();
      update({ view: link.dataset.view ?? "look" });
    });
  }
  onChange(show);
  follow();
  await show(new Set(["view"]));
  window.firstViewMs = performance.now();
  document.documentElement.dataset.ready = "true";
}

/** Show the view of the state; a view fetches only what its changes need. */
async function show(changed) {
  for (const name of Object.keys(VIEWS)) byId(`view-${name}`).hidden = name !== state.view;
  for (const link of document.querySelectorAll("nav a")) {
    if (link.dataset.view === state.view) link.setAttribute("aria-current", "page");
    else link.removeAttribute("aria-current");
  }
  if (changed.has("view")) document.title = `${TITLES[state.view]} · saccade`;
  byId("model").value = shared.model.id;
  await VIEWS[state.view].show(changed);
}

function models() {
  const select = byId("model");
  select.replaceChildren(...shared.models.map(({ id }) => h("option", { value: id }, id)));
  select.closest("label").hidden = shared.models.length < 2;
  select.addEventListener("change", () => update({ model: select.value, layer: null, head: null, patch: null, block: 0, blockhead: 0, picture: state.picture }));
}

function sharing() {
  const button = byId("share");
  const name = button.querySelector("span");
  button.addEventListener("click", async () => {
    try {
      await navigator.clipboard.writeText(location.href);
      button.dataset.done = "true";
      name.textContent = "Link copied";
      setTimeout(() => { delete button.dataset.done; name.textContent = button.title; }, 1600);
    } catch {
      shared.say(`The browser does not let this page copy. The address to share is ${location.href}`);
    }
  });
}

function theme() {
  const root = document.documentElement;
  const stored = localStorage.getItem("theme");
  if (stored) root.dataset.theme = stored;
  byId("theme").addEventListener("click", () => {
    root.dataset.theme = isDark() ? "light" : "dark";
    localStorage.setItem("theme", root.dataset.theme);
    dispatchEvent(new Event("resize"));  // canvases are drawn for one theme
  });
}

start();
