// Choosing a picture: drop, paste, pick, photograph, draw, or a sample.
import { Problem, post } from "./api.js";
import { byId, h, whole } from "./dom.js";
import { sampleName, shared } from "./shared.js";
import { update } from "./state.js";

/** Send a picture to the server and show it. */
export async function use(file) {
  try {
    if (!file.size) throw new Problem("The file is empty.");
    if (file.size > shared.maxBytes) {
      throw new Problem(`The picture must have at most ${whole(shared.maxBytes)} bytes, and this one has ${whole(file.size)}. Make it smaller.`);
    }
    const kept = await post("/api/pictures", {}, { body: file });
    shared.say(null);
    update({ picture: kept.id, patch: null });
  } catch (error) {
    shared.say(error.message);
  }
}

/** Drop and paste work anywhere on the page. */
export function listenEverywhere() {
  const veil = byId("dropping");
  let depth = 0;
  const hasFiles = (event) => [...event.dataTransfer?.types ?? []].includes("Files");
  addEventListener("dragenter", (event) => {
    if (!hasFiles(event)) return;
    depth += 1;
    veil.hidden = false;
  });
  addEventListener("dragleave", () => {
    depth = Math.max(0, depth - 1);
    veil.hidden = depth === 0;
  });
  addEventListener("dragover", (event) => event.preventDefault());
  addEventListener("drop", (event) => {
    event.preventDefault();
    depth = 0;
    veil.hidden = true;
    const [file] = event.dataTransfer.files;
    if (file) use(file);
  });
  addEventListener("paste", (event) => {
    const file = [...event.clipboardData.files].find((one) => one.type.startsWith("image/"));
    if (file) use(file);
  });
}

/** The buttons and samples. */
export function pickerParts(name) {
  const input = h("input", {
    type: "file", accept: "image/*", class: "visually-hidden", id: `${name}-file`, tabindex: "-1", "aria-hidden": "true",
    onchange: () => { if (input.files[0]) use(input.files[0]); input.value = ""; },
  });
  const samples = h("div", { class: "samples", role: "group", "aria-label": "Samples" });
  const buttons = h("div", { class: "buttons" },
    h("button", { type: "button", onclick: () => input.click() }, "Choose file"),
    h("button", { type: "button", onclick: () => photograph() }, "Camera"),
    h("button", { type: "button", onclick: draw }, "Draw"), input);
  const hint = h("p", { class: "help" }, "Or drop or paste a picture anywhere on the page.");
  return { samples, buttons, hint };
}

/** Fill the row of samples of the model. */
export function showSamples(row, current) {
  const { model } = shared;
  row.replaceChildren(...model.samples.map((sample) => h("button", {
    type: "button", class: "sample", "aria-pressed": String(sample.picture === current),
    title: sampleName(sample),
    onclick: () => { shared.say(null); update({ picture: sample.picture, patch: null }); },
  }, h("img", { src: shared.pictureAddress(sample.picture), alt: sampleName(sample), width: "36", height: "36" }))));
}

function openDialog(title, content, { onclose } = {}) {
  const dialog = byId("dialog");
  const close = h("button", { type: "button", class: "close", onclick: () => dialog.close() }, "Cancel");
  dialog.replaceChildren(h("h2", { id: "dialog-title" }, title), ...content, close);
  dialog.onclose = onclose ?? null;
  dialog.showModal();
  return dialog;
}

async function photograph() {
  let stream;
  try {
    if (!navigator.mediaDevices) throw new Error("no camera");
    stream = await navigator.mediaDevices.getUserMedia({ video: { facingMode: "environment" } });
  } catch {
    shared.say("No camera can be used: none is there, or the browser was not allowed to. On a phone, “Choose file” can take a photograph.");
    return;
  }
  const video = h("video", { autoplay: true, playsinline: true, muted: true });
  video.srcObject = stream;
  const stop = () => stream.getTracks().forEach((track) => track.stop());
  const shoot = h("button", { type: "button", class: "primary", onclick: async () => {
    const canvas = new OffscreenCanvas(video.videoWidth, video.videoHeight);
    canvas.getContext("2d").drawImage(video, 0, 0);
    const blob = await canvas.convertToBlob({ type: "image/png" });
    dialog.close();
    use(blob);
  } }, "Take the picture");
  const dialog = openDialog("Photograph", [video, shoot], { onclose: stop });
}

const SIDE = 280;

function draw() {
  const isGray = shared.model.channels === 1;
  const canvas = h("canvas", { class: "pad", "aria-label": "Drawing area; drawing needs a pointer" });
  canvas.width = canvas.height = SIDE;
  const context = canvas.getContext("2d");
  const clear = () => {
    context.fillStyle = isGray ? "black" : "white";
    context.fillRect(0, 0, SIDE, SIDE);
  };
  clear();
  let last = null;
  const stroke = (event) => {
    if (!last) return;
    const box = canvas.getBoundingClientRect();
    const point = [(event.clientX - box.left) * SIDE / box.width, (event.clientY - box.top) * SIDE / box.height];
    context.strokeStyle = isGray ? "white" : "#1852b4";
    context.lineWidth = SIDE / 8.5;
    context.lineCap = context.lineJoin = "round";
    context.beginPath();
    context.moveTo(...(last === true ? point : last));
    context.lineTo(...point);
    context.stroke();
    last = point;
  };
  canvas.addEventListener("pointerdown", (event) => { canvas.setPointerCapture(event.pointerId); last = true; stroke(event); });
  canvas.addEventListener("pointermove", stroke);
  canvas.addEventListener("pointerup", () => { last = null; });
  const done = h("button", { type: "button", class: "primary", onclick: () => canvas.toBlob((blob) => { dialog.close(); use(blob); }) }, "Use the drawing");
  const again = h("button", { type: "button", onclick: clear }, "Clear");
  const text = `Draw ${isGray ? "one of the classes" : "something"}, large and centered: ${shared.model.class_names.slice(0, 12).join(", ")}.`;
  const dialog = openDialog("Draw", [h("p", {}, text), canvas, h("div", { class: "buttons" }, done, again)]);
}
