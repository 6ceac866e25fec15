// Pictures and maps on canvases: the picture in gray, the weights of its patches in color.

const INFERNO = [
  [0, 0, 4], [20, 11, 53], [58, 9, 99], [96, 19, 110], [133, 33, 107], [169, 46, 94],
  [203, 65, 73], [230, 93, 47], [247, 131, 17], [252, 173, 18], [245, 219, 75], [252, 255, 164],
];
const BELOW = [77, 144, 255], NOTHING = [128, 130, 136], ABOVE = [255, 130, 29];

function mix(a, b, t) {
  return [0, 1, 2].map((i) => a[i] + (b[i] - a[i]) * t);
}

/** The color of a weight from 0 (least) to 1 (most). */
export function heat(t) {
  const place = Math.min(Math.max(t, 0), 1) * (INFERNO.length - 1);
  const low = Math.min(Math.floor(place), INFERNO.length - 2);
  return mix(INFERNO[low], INFERNO[low + 1], place - low);
}

/** The color of a difference from -1 (less than the first attention) to 1 (more). */
export function lean(t, nothing = NOTHING) {
  const bound = Math.min(Math.max(t, -1), 1);
  return mix(nothing, bound < 0 ? BELOW : ABOVE, Math.abs(bound) ** 0.8);
}

/** True if the page is dark, by its button or by the system. */
export function isDark() {
  const own = document.documentElement.dataset.theme;
  return own ? own === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
}

const css = (color) => `rgb(${color.map(Math.round).join(" ")})`;
export const gradient = (color, from, to) =>
  `linear-gradient(to right, ${[...Array(13)].map((_, i) => css(color(from + (to - from) * i / 12))).join(", ")})`;

/** Load a picture as the model receives it. */
export function loadPicture(address) {
  return new Promise((resolve, reject) => {
    const image = new Image();
    image.onload = () => resolve(image);
    image.onerror = () => reject(new Error("The picture cannot be shown."));
    image.src = address;
  });
}

const grays = new WeakMap();

/** Gray levels 0..1 of an image, row by row. */
function grayOf(image) {
  if (!grays.has(image)) {
    const canvas = new OffscreenCanvas(image.naturalWidth, image.naturalHeight);
    const context = canvas.getContext("2d");
    context.drawImage(image, 0, 0);
    const { data } = context.getImageData(0, 0, canvas.width, canvas.height);
    const levels = new Float32Array(canvas.width * canvas.height);
    for (let i = 0; i < levels.length; i += 1) {
      levels[i] = (0.299 * data[4 * i] + 0.587 * data[4 * i + 1] + 0.114 * data[4 * i + 2]) / 255;
    }
    grays.set(image, levels);
  }
  return grays.get(image);
}

/** Fit the pixels of a canvas to its size on the page; returns the context in CSS pixels. */
function fitted(canvas, ratio) {
  const side = canvas.clientWidth || 240;
  const scale = window.devicePixelRatio || 1;
  const width = Math.round(side * scale), height = Math.round(side * ratio * scale);
  if (canvas.width !== width) canvas.width = width;
  if (canvas.height !== height) canvas.height = height;
  const context = canvas.getContext("2d");
  context.setTransform(1, 0, 0, 1, 0, 0);
  context.clearRect(0, 0, width, height);
  context.imageSmoothingEnabled = false;
  return context;
}

/** Draw a picture, its patch grid, and the chosen patch. */
export function drawPicture(canvas, image, grid, patch) {
  const context = fitted(canvas, image.naturalHeight / image.naturalWidth);
  context.drawImage(image, 0, 0, canvas.width, canvas.height);
  drawGrid(context, grid, 0.16);
  markPatch(context, grid, patch);
}

function drawGrid(context, [rows, columns], opacity) {
  const { width, height } = context.canvas;
  if (width / columns < 9) return;
  context.beginPath();
  for (let c = 1; c < columns; c += 1) { const x = Math.round(c * width / columns) + 0.5; context.moveTo(x, 0); context.lineTo(x, height); }
  for (let r = 1; r < rows; r += 1) { const y = Math.round(r * height / rows) + 0.5; context.moveTo(0, y); context.lineTo(width, y); }
  context.strokeStyle = `rgb(140 150 165 / ${opacity})`;
  context.lineWidth = 1;
  context.stroke();
}

/** A frame around a patch that shows on light and on dark. */
function markPatch(context, [rows, columns], patch) {
  if (patch === null || patch === undefined) return;
  const { width, height } = context.canvas;
  const cell = [width / columns, height / rows];
  const x = (patch % columns) * cell[0], y = Math.floor(patch / columns) * cell[1];
  const line = Math.max(2, Math.round(width / 150));
  for (const [color, extra] of [["#10131a", line * 0.8], ["#ffffff", 0]]) {
    context.strokeStyle = color;
    context.lineWidth = line + extra;
    context.strokeRect(x, y, cell[0], cell[1]);
  }
}

/**
 * Draw the weights of the patches over the gray picture.
 * `colors` is `heat` or `lean`; weights are divided by `most`.
 */
export function drawMap(canvas, image, grid, weights, { most, colors = heat, patch = null }) {
  const context = fitted(canvas, image.naturalHeight / image.naturalWidth);
  const [rows, columns] = grid;
  const { naturalWidth: w, naturalHeight: hgt } = image;
  const levels = grayOf(image);
  const pixels = new ImageData(w, hgt);
  for (let y = 0; y < hgt; y += 1) {
    const row = Math.min(Math.floor(y * rows / hgt), rows - 1);
    for (let x = 0; x < w; x += 1) {
      const column = Math.min(Math.floor(x * columns / w), columns - 1);
      const t = weights[row * columns + column] / most;
      const color = t < 0 && colors === heat ? lean(t) : colors(t);
      const cover = 0.74 + 0.24 * Math.min(Math.abs(t), 1);
      const gray = 255 * (0.08 + 0.5 * levels[y * w + x]);
      for (let i = 0; i < 3; i += 1) pixels.data[4 * (y * w + x) + i] = gray * (1 - cover) + color[i] * cover;
      pixels.data[4 * (y * w + x) + 3] = 255;
    }
  }
  const small = new OffscreenCanvas(w, hgt);
  small.getContext("2d").putImageData(pixels, 0, 0);
  context.drawImage(small, 0, 0, context.canvas.width, context.canvas.height);
  drawGrid(context, grid, 0.22);
  markPatch(context, grid, patch);
}

/** Draw a matrix, a pixel a number: blue below zero, orange above; `row` is marked. */
export function drawMatrix(canvas, values, { low, high, row = null, sequential = false }) {
  const paper = isDark() ? [38, 43, 49] : [240, 241, 244];
  const rows = values.length, columns = values[0].length;
  const most = Math.max(Math.abs(low), Math.abs(high)) || 1;
  const small = new OffscreenCanvas(columns, rows);
  const pixels = new ImageData(columns, rows);
  values.forEach((line, r) => line.forEach((value, c) => {
    const color = sequential ? heat(value / (high || 1)) : lean(value / most, paper);
    const start = 4 * (r * columns + c);
    for (let i = 0; i < 3; i += 1) pixels.data[start + i] = color[i];
    pixels.data[start + 3] = 255;
  }));
  small.getContext("2d").putImageData(pixels, 0, 0);
  const context = fitted(canvas, canvas.clientHeight / (canvas.clientWidth || 1));
  context.drawImage(small, 0, 0, context.canvas.width, context.canvas.height);
  if (row !== null) markPatch(context, [rows, 1], row);
}

/** The patch below the pointer. */
export function patchAt(event, canvas, [rows, columns]) {
  const box = canvas.getBoundingClientRect();
  const column = Math.floor((event.clientX - box.left) / box.width * columns);
  const row = Math.floor((event.clientY - box.top) / box.height * rows);
  if (row < 0 || column < 0 || row >= rows || column >= columns) return null;
  return row * columns + column;
}

/** The patch that an arrow key leads to; undefined for other keys. */
export function patchByKey(key, patch, [rows, columns]) {
  const steps = { ArrowLeft: [0, -1], ArrowRight: [0, 1], ArrowUp: [-1, 0], ArrowDown: [1, 0] };
  if (key === "Escape") return null;
  if (!(key in steps)) return undefined;
  if (patch === null) return Math.floor(rows / 2) * columns + Math.floor(columns / 2);
  const row = Math.min(Math.max(Math.floor(patch / columns) + steps[key][0], 0), rows - 1);
  const column = Math.min(Math.max((patch % columns) + steps[key][1], 0), columns - 1);
  return row * columns + column;
}
