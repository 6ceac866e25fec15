// Classify an image with an exported model and onnxruntime-web. Nothing leaves this page.

import * as ort from "/ort/ort.wasm.min.mjs";
import { normalize, readPixels, resizeSquare } from "/preprocess.js";

ort.env.wasm.wasmPaths = "/ort/";
ort.env.wasm.numThreads = 1;

const element = (id) => document.getElementById(id);
const facts = await (await fetch("/model.json")).json();
const session = await ort.InferenceSession.create("/model.onnx", { executionProviders: ["wasm"] });
const side = Math.max(...facts.preprocessing.image_size);

function softmax(logits) {
  const top = Math.max(...logits);
  const weights = logits.map((logit) => Math.exp(logit - top));
  const total = weights.reduce((sum, weight) => sum + weight, 0);
  return weights.map((weight) => weight / total);
}

function draw(square) {
  const canvas = element("seen");
  [canvas.width, canvas.height] = [side, side];
  const image = new ImageData(side, side);
  for (let i = 0; i < side * side; i++) {
    image.data.set([square[3 * i], square[3 * i + 1], square[3 * i + 2], 255], 4 * i);
  }
  canvas.getContext("2d").putImageData(image, 0, 0);
}

function show(ranked) {
  const body = element("result").tBodies[0];
  body.replaceChildren(
    ...ranked.slice(0, 5).map(([name, probability]) => {
      const row = document.createElement("tr");
      row.insertCell().textContent = name;
      row.insertCell().textContent = `${(100 * probability).toFixed(1)} %`;
      return row;
    }),
  );
  element("result").hidden = false;
}

async function classify(file) {
  element("status").textContent = "Classifying ...";
  try {
    const { pixels, width, height } = await readPixels(file);
    const square = resizeSquare(pixels, width, height, side);
    draw(square);
    const { image_size: size, channels } = facts.preprocessing;
    const images = new ort.Tensor("float32", normalize(square, side, facts.preprocessing), [
      1,
      channels,
      ...size,
    ]);
    const start = performance.now();
    const { logits } = await session.run({ images }, ["logits"]);
    const elapsed = performance.now() - start;
    const probabilities = softmax(Array.from(logits.data));
    const ranked = facts.class_names
      .map((name, i) => [name, probabilities[i]])
      .sort((a, b) => b[1] - a[1]);
    show(ranked);
    element("status").textContent = `${file.name || "image"}: ${elapsed.toFixed(1)} ms`;
    document.body.dataset.logits = JSON.stringify(Array.from(logits.data));
  } catch (error) {
    element("result").hidden = true;
    element("status").textContent = `${file.name || "image"} cannot be classified: ${error.message}`;
  }
}

element("image").addEventListener("change", ({ target }) => {
  if (target.files.length) classify(target.files[0]);
});
document.addEventListener("dragover", (event) => event.preventDefault());
document.addEventListener("drop", (event) => {
  event.preventDefault();
  if (event.dataTransfer.files.length) classify(event.dataTransfer.files[0]);
});
document.addEventListener("paste", (event) => {
  if (event.clipboardData.files.length) classify(event.clipboardData.files[0]);
});

const { variant, architecture, attention, parameters } = facts.model;
element("model").textContent =
  `${variant ?? architecture} with ${attention} attention, ` +
  `${parameters.toLocaleString("en")} parameters, ${facts.class_names.length} classes`;
element("image").disabled = false;
