// Learn: the picture's way through the model, with every tensor, equation and line of code.
import { latest, post } from "./api.js";
import { accent, byId, eachFrame, h, slider } from "./dom.js";
import { drawMatrix, drawPicture, patchAt, patchByKey } from "./draw.js";
import { LESSONS } from "./lessons.js";
import { pickerParts, showSamples } from "./picker.js";
import { patchName, shared, tokenOf } from "./shared.js";
import { state, update } from "./state.js";

let answer = null, image = null, hovered = null, parts = null, drawings = [];
const ask = latest((signal, params) => post("/api/walk", params, { signal }));
const patchNow = () => hovered ?? state.patch;
const small = (value) => (Math.abs(value) >= 1000 || (value !== 0 && Math.abs(value) < 0.001) ? value.toExponential(2) : value.toFixed(4));

export function prepare() {
  const canvas = h("canvas", {
    class: "picture", tabindex: "0", role: "application", "aria-roledescription": "patch grid",
    "aria-label": "Picture. The arrow keys choose a patch, Escape lets go of it.",
  });
  parts = { canvas, now: h("p", { class: "help", "aria-live": "polite" }), ...pickerParts("learn") };
  byId("learn-picture").append(canvas, parts.samples, parts.buttons, parts.now);
  const point = eachFrame((patch) => { if (hovered !== patch) { hovered = patch; draw(); } });
  canvas.addEventListener("pointermove", (event) => point(patchAt(event, canvas, shared.model.grid)));
  canvas.addEventListener("pointerleave", () => point(null));
  canvas.addEventListener("click", (event) => update({ patch: patchAt(event, canvas, shared.model.grid) }));
  canvas.addEventListener("keydown", (event) => {
    const patch = patchByKey(event.key, state.patch, shared.model.grid);
    if (patch === undefined) return;
    event.preventDefault();
    update({ patch });
  });
  addEventListener("resize", eachFrame(() => draw()));
}

export async function show(changed) {
  if (changed.has("model") || changed.has("view")) controls();
  if (answer && !["view", "model", "picture", "block", "blockhead"].some((name) => changed.has(name))) {
    draw();
    return;
  }
  const { model, picture } = shared;
  if (picture === null) {
    parts.now.textContent = "Choose, drop, paste, photograph or draw a picture to begin.";
    return;
  }
  try {
    const params = { model: model.id, picture, layer: Math.min(state.block, model.depth - 1), head: Math.min(state.blockhead, model.heads - 1) };
    const found = await ask(params);
    if (!found) return;
    image = await shared.image(found.picture.id);
    answer = found;
    build();
  } catch (error) {
    shared.say(error.message);
  }
}

function controls() {
  const { model } = shared;
  byId("learn-controls").replaceChildren(
    slider({ id: "block", label: "Open block", min: 1, max: model.depth, value: Math.min(state.block, model.depth - 1) + 1,
      shown: (n) => `${n} of ${model.depth}`, onchange: (n) => update({ block: n - 1 }) }),
    slider({ id: "blockhead", label: "Head", min: 1, max: model.heads, value: Math.min(state.blockhead, model.heads - 1) + 1,
      shown: (n) => `${n} of ${model.heads}`, onchange: (n) => update({ blockhead: n - 1 }) }),
  );
}

function build() {
  const { model } = shared;
  showSamples(parts.samples, answer.picture.id);
  drawings = [];
  const steps = answer.steps.map((step) => {
    const lesson = LESSONS[step.id];
    const facts = { ...model, layer: answer.layer + 1, head: answer.head + 1, tokens: model.grid[0] * model.grid[1] + model.prefix_tokens };
    const equation = h("div", {});
    equation.innerHTML = lesson.equation(facts);
    const tensors = step.tensors.map((tensor) => figure(step, tensor));
    return h("li", { class: "step", id: `step-${step.id}`, vars: accent(shared.attentions[model.attention]) },
      h("div", { class: "tell" }, h("h2", {}, lesson.title(facts)), ...lesson.text(facts).map((text) => h("p", {}, text)), equation.firstElementChild,
        h("pre", { class: "line" }, h("cite", {}, `${step.code.file}:${step.code.line}`), h("code", {}, step.code.text))),
      h("div", { class: `tensors${step.tensors.length > 1 && step.id !== "head" ? " side-by-side" : ""}` }, tensors));
  });
  byId("steps").replaceChildren(...steps);
  draw();
}

/** A tensor with its shape, range and the number below the pointer. */
function figure(step, tensor) {
  const dims = tensor.shape;
  const range = `${dims.join(" × ")}, from ${small(tensor.low)} to ${small(tensor.high)}, mean ${small(tensor.mean)}`;
  const values = dims.length === 3 ? tensor.values[0] : tensor.values;
  const cut = dims.length === 2 && (values.length < dims[0] || values[0].length < dims[1]);
  const note = cut ? ` (the first ${values.length} × ${values[0].length} are shown)` : dims.length === 3 && dims[0] > 1 ? " (the first channel is shown)" : "";
  const canvas = h("canvas", { role: "img", "aria-label": `${tensor.name}: ${range}` });
  const place = h("span", { class: "at" });
  canvas.addEventListener("pointermove", (event) => {
    const box = canvas.getBoundingClientRect();
    const row = Math.min(Math.floor((event.clientY - box.top) / box.height * values.length), values.length - 1);
    const column = Math.min(Math.floor((event.clientX - box.left) / box.width * values[0].length), values[0].length - 1);
    if (row >= 0 && column >= 0) place.textContent = ` · row ${row + 1}, column ${column + 1}: ${small(values[row][column])}`;
  });
  canvas.addEventListener("pointerleave", () => { place.textContent = ""; });
  canvas.style.aspectRatio = String(shapeOf(step, values));
  drawings.push({ step, tensor, canvas, values });
  const content = step.id === "head" ? classTable(tensor) : null;
  return h("figure", { class: "tensor", "data-tensor": tensor.name }, content ?? canvas, h("figcaption", {}, h("b", {}, tensor.name), ` ${range}${note}`, place));
}

/** Width over height of a drawing: pixels and maps are square, thin matrices are not too thin. */
function shapeOf(step, values) {
  const ratio = values[0].length / values.length;
  return step.id === "pixels" || step.id === "weights" ? ratio : Math.min(Math.max(ratio, step.tensors.length > 2 ? 0.5 : step.tensors.length > 1 ? 1 : 1.8), 12);
}

/** Numbers of the classes: what the picture has become. */
function classTable(tensor) {
  const [values] = tensor.values;
  const best = values.indexOf(Math.max(...values));
  const share = (value) => (tensor.name === "probabilities" ? value : Math.max(0, value) / Math.max(...values.map(Math.abs)));
  return h("ol", { class: "bars" }, values.slice(0, 20).map((value, i) => h("li", { class: i === best ? "best" : "", vars: { "--p": String(share(value)) } },
    h("span", { class: "class" }, shared.model.class_names[i]), h("span", { class: "bar", "aria-hidden": "true" }), h("span", { class: "p" }, value.toFixed(4)))));
}

function draw() {
  if (!answer || !image || byId("view-learn").hidden) return;
  const { model } = shared, patch = patchNow();
  drawPicture(parts.canvas, image, model.grid, patch);
  parts.now.textContent = patch === null ? "Point at a patch to follow it: its row is framed in every tensor." : `Following the patch in ${patchName(patch, model.grid)}, token ${tokenOf(patch) + 1}.`;
  for (const { step, tensor, canvas, values } of drawings) {
    if (!canvas.isConnected) continue;
    if (step.id === "pixels") { drawPicture(canvas, image, model.grid, patch); continue; }
    const isPatches = step.id === "patches" || (step.id === "positions" && values.length === model.grid[0] * model.grid[1]);
    const row = patch === null || values.length === 1 ? null : isPatches ? patch : tokenOf(patch);
    drawMatrix(canvas, values, { low: tensor.low, high: tensor.high, row: row !== null && row < values.length ? row : null, sequential: step.id === "weights" });
  }
}
