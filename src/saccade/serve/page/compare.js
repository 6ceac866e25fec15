// Compare: several models on one picture, their latency, and the reports of studies.
import { latest, post } from "./api.js";
import { accent, bars, byId, duration, eachFrame, h, percent, weight, whole } from "./dom.js";
import { drawMap, drawPicture } from "./draw.js";
import { pickerParts, showSamples } from "./picker.js";
import { patchName, shared } from "./shared.js";
import { state, update } from "./state.js";

const MOST = 6, CLASSES = 5;
let parts = null, drawings = [];
const ask = latest((signal, models, picture) => Promise.all(models.map((model) => post(
  "/api/explain", { model: model.id, picture, attention: [model.attention], layer: model.depth - 1 }, { signal },
))));

export function prepare() {
  const canvas = h("canvas", { class: "picture", role: "img", "aria-label": "The picture" });
  parts = { canvas, ...pickerParts("compare") };
  byId("compare-picker").append(h("div", { class: "small-picture" }, canvas), h("div", { class: "field" }, parts.samples, parts.buttons, parts.hint));
  addEventListener("resize", eachFrame(() => draw()));
}

/** The models that are compared: those of the address, or the first few. */
function chosen() {
  const asked = state.models?.split(",") ?? shared.models.map((model) => model.id);
  return shared.models.filter((model) => asked.includes(model.id)).slice(0, MOST);
}

export async function show(changed) {
  if (changed.has("view")) { choices(); reports(); }
  if (!["view", "models", "picture"].some((name) => changed.has(name))) return;
  const models = chosen(), { picture } = shared;
  showSamples(parts.samples, picture);
  if (picture === null || !models.length) return;
  try {
    const answers = await ask(models, picture);
    if (!answers) return;
    const images = await Promise.all(models.map((model) => shared.image(picture, model)));
    build(models, answers, images);
    await times(models);
  } catch (error) {
    shared.say(error.message);
  }
}

function choices() {
  const place = byId("compare-models");
  const own = chosen().map((model) => model.id);
  const boxes = shared.models.map((model) => {
    const input = h("input", { type: "checkbox", value: model.id, onchange: () => {
      const ids = [...place.querySelectorAll("input:checked")].map((box) => box.value);
      update({ models: ids.join(",") || null });
    } });
    input.checked = own.includes(model.id);
    return h("label", {}, input, model.id);
  });
  const alone = shared.models.length < 2
    ? h("p", { class: "help" }, "One model is served. Start the server with more of them to compare: ", h("code", {}, "saccade serve runs/a runs/b"), ", or with the folder of a comparison.")
    : null;
  place.replaceChildren(h("legend", {}, "Models"), ...boxes, ...(alone ? [alone] : []));
}

function build(models, answers, images) {
  drawings = [];
  byId("compare-cards").replaceChildren(...models.map((model, place) => {
    const [panel] = answers[place].panels;
    const best = panel.classes[0];
    const canvas = h("canvas", { class: "map", role: "img" });
    drawings.push({ model, panel, canvas, image: images[place] });
    const fact = (name, value, own) => [h("dt", {}, name), h("dd", { "data-fact": own }, value)];
    return h("article", { class: "panel", vars: accent(shared.attentions[model.attention]), "data-model": model.id },
      h("header", {}, h("h2", {}, model.id), h("p", { class: "formula" }, `${model.name}, ${model.attention}`)), canvas,
      h("p", { class: "caption" }), h("p", { class: "verdict" }, h("strong", {}, best.name), ` ${percent(best.probability)}`),
      bars(panel.classes.slice(0, CLASSES), best.name),
      h("dl", { class: "facts" }, fact("one picture", "…", "latency"), fact("right on its test set", model.accuracy === null ? "not known" : percent(model.accuracy), "accuracy"),
        fact("parameters", whole(model.parameters), "parameters"), fact("tokens", whole(model.grid[0] * model.grid[1] + model.prefix_tokens), "tokens")));
  }));
  draw();
}

/** Time the models one after the other. */
async function times(models) {
  for (const model of models) {
    const found = await post("/api/latency", { model: model.id });
    const cell = byId("compare-cards").querySelector(`[data-model="${CSS.escape(model.id)}"] [data-fact=latency]`);
    if (cell) cell.textContent = duration(found.median_ms);
  }
}

function draw() {
  if (byId("view-compare").hidden || !drawings.length) return;
  drawPicture(parts.canvas, drawings[0].image, drawings[0].model.grid, null);
  for (const { model, panel, canvas, image } of drawings) {
    const patches = panel.reading.slice(model.prefix_tokens);
    const most = Math.max(...patches);
    drawMap(canvas, image, model.grid, patches, { most });
    const text = `last layer, mean of the heads: most at ${patchName(patches.indexOf(most), model.grid)}: ${weight(most)}`;
    canvas.setAttribute("aria-label", `${model.id}: ${text}`);
    canvas.closest("article").querySelector(".caption").textContent = text;
  }
}

function reports() {
  byId("compare-reports").replaceChildren(...shared.studies.map(({ name, report }) => h("section", {},
    h("h2", {}, `Report of ${name}`), h("p", {}, h("a", { href: report, target: "_blank", rel: "noopener" }, "Open it on its own page")),
    h("iframe", { src: report, title: `Report of ${name}`, sandbox: "allow-scripts", loading: "lazy" }))));
}
