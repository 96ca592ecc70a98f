// Puts the parts together; the picture is JSON in the page.

const MODEL = JSON.parse(document.getElementById("data").textContent);
const DEVICES = numbered(MODEL.devices);
const MESHES = MODEL.meshes.map((mesh) => ({ ...mesh, devices: numbered(mesh.devices) }));
const MOST_HEIGHT = 1200; // pixels of a frame in a notebook
const MOST_CARDS = 6; // of a larger program inputs and outputs are shown first

function make(tag, classes = "", text = "") {
  const element = document.createElement(tag);
  if (classes) element.className = classes;
  if (text) element.textContent = text;
  return element;
}

function svg(tag, attributes) {
  const element = document.createElementNS("http://www.w3.org/2000/svg", tag);
  for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, value);
  return element;
}

function label(x, y, text, classes = "") {
  const element = svg("text", { x, y, class: classes });
  element.textContent = text;
  return element;
}

function curve(x1, y1, x2, y2) {
  const middle = (y1 + y2) / 2;
  return svg("path", { class: "edge", d: `M${x1} ${y1}C${x1} ${middle} ${x2} ${middle} ${x2} ${y2}` });
}

function clip(text, most) {
  return text.length <= most ? text : `${text.slice(0, most - 1)}\u2026`;
}

function plural(n, word) {
  return `${n} ${word}${n === 1 ? "" : "s"}`;
}

function bytesText(n) {
  for (const [unit, size] of [["GiB", 2 ** 30], ["MiB", 2 ** 20], ["KiB", 2 ** 10]]) {
    if (n >= size) return `${+(n / size).toPrecision(3)} ${unit}`;
  }
  return `${n} B`;
}

const TIP = document.getElementById("tip");
let placeAgain = null; // of an element that has the focus

/** Show `text()` beside the mouse while it is on an element, or while that has the focus. */
function tip(element, text) {
  const place = (x, y) => {
    TIP.textContent = text();
    TIP.hidden = false;
    const { width, height } = TIP.getBoundingClientRect();
    TIP.style.left = `${Math.max(4, Math.min(x + 14, innerWidth - width - 8))}px`;
    TIP.style.top = `${y + 16 + height > innerHeight ? Math.max(4, y - height - 10) : y + 16}px`;
  };
  element.addEventListener("mousemove", (event) => place(event.clientX, event.clientY));
  element.addEventListener("mouseleave", hideTip);
  element.addEventListener("focus", () => {
    if (!element.matches(":focus-visible")) return; // a click gives it the focus, too
    placeAgain = () => {
      const box = element.getBoundingClientRect();
      place(box.left, box.bottom);
    };
    placeAgain();
  });
  element.addEventListener("blur", hideTip);
}

function hideTip() {
  TIP.hidden = true;
  placeAgain = null;
}
addEventListener("click", hideTip, { capture: true });
// What scrolls moves away from beneath the mouse without an event of its own.
addEventListener("scroll", () => (placeAgain ?? hideTip)(), { capture: true });

function tensorCard(tensor) {
  const card = make("article", "card");
  card.id = `tensor-${tensor.name}`;
  const head = make("header");
  head.append(make("h3", "", `${tensor.name}: ${tensor.dtype}[${tensor.extents.join(", ")}]`));
  head.append(make("span", "", bytesText(tensor.bytes)));
  head.append(make("span", "", MESHES[tensor.mesh].text));
  for (const axis of tensor.partial) head.append(make("span", "chip partial", `partial over ${axis}`));
  head.append(make("span", "", [tensor.sharding, tensor.origin].filter(Boolean).join("; ")));
  card.append(head);
  const columns = make("div", "columns");
  const grids = make("div");
  grids.append(make("h4", "", "Owners, logical order"), ownerGrid(tensor));
  const tree = make("div");
  const scroll = make("div");
  scroll.style.overflowX = "auto";
  scroll.append(axisTree(tensor.tree));
  tree.append(make("h4", "", "Axes"), scroll);
  const memory = make("div");
  memory.append(make("h4", "", "Memory order: the elements that lie one behind the other"));
  memory.append(memoryStrips(tensor, card));
  columns.append(grids, tree, memory);
  card.append(columns);
  return card;
}

function showTensors() {
  const chosen = new Set();
  const host = document.getElementById("tensors");
  const buttons = {};
  const set = (name, on) => {
    if (on === chosen.has(name)) return;
    if (on) chosen.add(name);
    else chosen.delete(name);
    buttons[name].setAttribute("aria-pressed", on);
    const old = document.getElementById(`tensor-${name}`);
    if (old) old.remove();
    if (!on) return;
    const tensor = MODEL.tensors.find((t) => t.name === name);
    const behind = MODEL.tensors.slice(MODEL.tensors.indexOf(tensor) + 1);
    const next = behind.map((t) => document.getElementById(`tensor-${t.name}`)).find(Boolean);
    host.insertBefore(tensorCard(tensor), next ?? null);
  };
  for (const tensor of MODEL.tensors) {
    const button = make("button", "mono", tensor.name);
    button.addEventListener("click", () => set(tensor.name, !chosen.has(tensor.name)));
    tip(button, () => `${shapeOf(tensor.name)}\n${tensor.role}`.trim());
    buttons[tensor.name] = button;
    button.setAttribute("aria-pressed", false);
    document.getElementById("chooser").append(button);
  }
  const few = MODEL.tensors.length <= MOST_CARDS;
  const first = MODEL.tensors.filter((t) => few || t.role).sort((a, b) => (a.role < b.role) - (a.role > b.role));
  for (const tensor of first.slice(0, MOST_CARDS)) set(tensor.name, true);
  return (names) => {
    for (const name of names) if (buttons[name]) set(name, true);
    document.getElementById(`tensor-${names[0]}`)?.scrollIntoView({ behavior: "smooth" });
  };
}

function showHead() {
  const { communications, bytes, tensors, assumed } = MODEL;
  const devices = Array.from({ length: Math.min(DEVICES.length, 64) }, (_, k) => DEVICES.at(k));
  const parts = [tensors.length ? `${plural(tensors.length, "tensor")} on ${plural(DEVICES.length, "device")}` : "no tensors"];
  const sent = bytes === null ? "bytes depend on open sizes" : `${bytesText(bytes)} sent per device`;
  parts.push(communications ? `${plural(communications, "communication")}, ${sent}` : "no communication");
  if (MODEL.nodes.length) document.getElementById("summary").textContent = parts.join("; ");
  const open = Object.entries(assumed).map(([name, n]) => `${name} = ${n}`);
  if (open.length) {
    const note = document.getElementById("assumed");
    const others = MODEL.nodes.length ? "; pass inputs or sizes for others" : "";
    note.textContent = `The program leaves sizes open. They are drawn as ${open.join(", ")}${others}.`;
    note.hidden = false;
  }
  const legend = document.getElementById("legend");
  for (const device of devices) {
    const item = make("li");
    const swatch = make("span", "swatch");
    swatch.style.background = tint(device);
    item.append(swatch, `device ${device}`);
    legend.append(item);
  }
  for (const [text, owners, partial] of [["replicas", devices.slice(0, 4), false], ["partial sums", devices.slice(0, 4), true]]) {
    if (devices.length < 2) break;
    const item = make("li");
    const swatch = make("span", "swatch");
    paint(swatch, owners, partial);
    item.append(swatch, text);
    legend.append(item);
  }
}

/** The graph at full size, its first box in sight, or as wide as the page. */
function showGraph(choose) {
  const host = document.getElementById("graph");
  const picture = programGraph(MODEL.nodes, choose);
  const { width, height } = picture.viewBox.baseVal;
  host.append(picture);
  const begin = () => (host.scrollLeft = (picture.dataset.middle * picture.clientWidth) / width - host.clientWidth / 2);
  begin();
  const button = document.getElementById("fit");
  button.hidden = width <= host.clientWidth;
  button.addEventListener("click", () => {
    const fit = button.getAttribute("aria-pressed") !== "true";
    button.setAttribute("aria-pressed", fit);
    const scale = fit ? host.clientWidth / width : 1;
    picture.setAttribute("width", width * scale);
    picture.setAttribute("height", height * scale);
    begin();
  });
}

/** In a notebook: make the frame as high as the page, within reason. */
function fitFrame() {
  try {
    const frame = window.frameElement;
    if (frame) frame.style.height = `${Math.min(document.documentElement.offsetHeight + 4, MOST_HEIGHT)}px`;
  } catch {} // of another origin: its height stays
}

showHead();
const choose = showTensors();
document.getElementById("tensor-section").hidden = !MODEL.tensors.length;
if (MODEL.nodes.length) showGraph(choose);
else for (const id of ["graph-section", "chooser"]) document.getElementById(id).hidden = true; // of one tensor
if (MODEL.steps.length) {
  document.getElementById("timeline-section").hidden = false;
  showTimeline(MODEL.steps, document.getElementById("timeline"));
}
fitFrame();
