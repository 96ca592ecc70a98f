// Who holds what: a tensor as tables of cells, and the memory of each device as a strip.

const MOST_SLICES = 6; // more are chosen by selectors
const MOST_NAMED = 8; // devices of a cell

/** Devices of a mesh, or of the program: all numbers below one, or a list. */
function numbered(devices) {
  if (Number.isInteger(devices)) return { length: devices, at: (k) => k, find: (d) => d };
  const places = new Map(devices.map((d, k) => [d, k]));
  return { length: devices.length, at: (k) => devices[k], find: (d) => places.get(d) };
}

/** The colour of a device; many devices share them, and cells have their numbers. */
function tint(device) {
  return MODEL.tints[DEVICES.find(device) % MODEL.tints.length];
}

function paint(cell, owners, partial) {
  const colours = owners.slice(0, 8).map(tint);
  const layers = [];
  if (partial) layers.push("repeating-linear-gradient(45deg, #0000 0 5px, #0005 5px 7px)");
  if (colours.length === 1) layers.push(`linear-gradient(${colours[0]}, ${colours[0]})`);
  else {
    const step = 100 / colours.length;
    const stops = colours.map((c, i) => `${c} ${i * step}% ${(i + 1) * step}%`);
    layers.push(`linear-gradient(100deg, ${stops.join(", ")})`);
  }
  cell.style.background = layers.join(", ");
}

function rangeText([start, stop, gap]) {
  if (gap) return "\u2026";
  return stop - start === 1 ? `${start}` : `${start}:${stop}`;
}

/** Devices that hold the cell at `at`, one segment number per dim: how many, and the first ones.
    null: the cell is a gap. */
function ownersOf(tensor, at) {
  if (at.some((s, dim) => tensor.segments[dim][s][2])) return null;
  const wanted = {};
  for (const group of tensor.groups) {
    let k = 0;
    for (const dim of group.dims) {
      const gap = tensor.segments[dim].findIndex((segment) => segment[2]);
      const shown = tensor.segments[dim].length - (gap < 0 ? 0 : 1);
      k = k * shown + at[dim] - (gap >= 0 && gap < at[dim] ? 1 : 0);
    }
    Object.assign(wanted, group.places[k]);
  }
  return devicesAt(MESHES[tensor.mesh], wanted);
}

/** Devices with these places along mesh axes; any along the others. */
function devicesAt(mesh, wanted) {
  const free = mesh.axes.map((axis, i) => (axis in wanted ? 1 : mesh.sizes[i]));
  const count = free.reduce((n, size) => n * size, 1);
  const first = [];
  for (let k = 0; k < Math.min(count, MOST_NAMED); ++k) {
    let left = k, stride = 1, position = 0;
    for (let i = free.length - 1; i >= 0; --i) {
      position += stride * (wanted[mesh.axes[i]] ?? left % free[i]);
      left = Math.floor(left / free[i]);
      stride *= mesh.sizes[i];
    }
    first.push(mesh.devices.at(position));
  }
  return { count, first };
}

function ownersText(tensor, { count, first }) {
  if (count === 1) return `${first[0]}`;
  if (count === MESHES[tensor.mesh].devices.length) return "all";
  return count <= 3 ? first.join(" ") : `${count}\u00d7`;
}

function placeText(tensor, device) {
  const mesh = MESHES[tensor.mesh], parts = [];
  let left = mesh.devices.find(device);
  for (let i = mesh.axes.length - 1; i >= 0; --i) {
    parts.push(`mesh_${mesh.axes[i]}=${left % mesh.sizes[i]}`);
    left = Math.floor(left / mesh.sizes[i]);
  }
  return `device ${device}` + (parts.length ? ` (${parts.join(", ")})` : "");
}

function cellTip(tensor, at, owners) {
  const ranges = at.map((s, dim) => tensor.segments[dim][s]);
  const name = `${tensor.name}[${ranges.map(rangeText).join(", ")}]`;
  if (owners === null) return `${name}\nnot shown: more of the same pattern`;
  const count = ranges.reduce((n, [start, stop]) => n * (stop - start), 1);
  const bytes = bytesText(count * tensor.itemsize);
  const lines = [name, `${count} element${count === 1 ? "" : "s"}, ${bytes}`];
  const who = owners.first.slice(0, 6).map((d) => placeText(tensor, d)).join("\n");
  if (tensor.partial.length) lines.push(`each holds a term of a sum over ${tensor.partial.join(", ")}:`);
  else lines.push(owners.count > 1 ? `${owners.count} replicas:` : "held by");
  lines.push(who + (owners.count > 6 ? `\nand ${owners.count - 6} more` : ""));
  if (tensor.origin) lines.push(`division ${tensor.origin}`);
  if (tensor.made_at) lines.push(`made at ${tensor.made_at}`);
  return lines.join("\n");
}

/** One table: the dims of `across` as rows and columns, the others as `fixed` says. */
function sliceTable(tensor, across, fixed) {
  const ndim = across.length;
  const rows = ndim > 1 ? tensor.segments[across[0]] : [[0, 1, false]];
  const columns = ndim > 0 ? tensor.segments[across[ndim - 1]] : [[0, 1, false]];
  const table = make("table", "grid");
  const head = table.createTHead().insertRow();
  head.append(make("th"));
  for (const column of ndim ? columns : []) head.append(make("th", "", rangeText(column)));
  const body = table.createTBody();
  rows.forEach((row, r) => {
    const line = body.insertRow();
    const label = make("th", "", ndim > 1 ? rangeText(row) : "");
    label.scope = "row";
    line.append(label);
    columns.forEach((column, c) => {
      const at = [...fixed];
      if (ndim > 1) at[across[0]] = r;
      if (ndim > 0) at[across[ndim - 1]] = c;
      const owners = ownersOf(tensor, at);
      const cell = make("td", "cell");
      if (owners === null) {
        cell.classList.add("gap");
        cell.textContent = "\u2026";
      } else {
        paint(cell, owners.first, tensor.partial.length > 0);
        const sum = tensor.partial.length ? "\u03a3 " : "";
        cell.append(make("b", "", sum + ownersText(tensor, owners)));
      }
      cell.classList.toggle("wide", column[1] - column[0] > 1);
      cell.classList.toggle("high", row[1] - row[0] > 1);
      cell.dataset.at = at.join(",");
      tip(cell, () => cellTip(tensor, at, owners));
      line.append(cell);
    });
  });
  return table;
}

/** Choices of a segment for each of some dims, if there are few; null otherwise. */
function slicesOf(tensor, outer) {
  const count = outer.reduce((n, dim) => n * tensor.segments[dim].length, 1);
  if (count > MOST_SLICES) return null;
  const start = [tensor.shape.map(() => 0)];
  return outer.reduce((found, dim) => found.flatMap((at) => tensor.segments[dim].map((_, i) => at.with(dim, i))), start);
}

function ownerGrid(tensor) {
  if (tensor.shape.includes(0)) return make("p", "note", "no elements");
  const host = make("div", "owners");
  const picks = make("div", "pick");
  const slices = make("div", "slices");
  const fixed = tensor.shape.map(() => 0);
  let across = tensor.plane;
  const show = () => {
    const outer = tensor.outer.length ? fixed.map((_, dim) => dim).filter((dim) => !across.includes(dim)) : [];
    const all = slicesOf(tensor, outer);
    slices.replaceChildren();
    for (const at of all ?? [fixed]) {
      const figure = make("figure");
      const ranges = at.map((s, dim) => (across.includes(dim) ? ":" : rangeText(tensor.segments[dim][s])));
      if (outer.length) figure.append(make("figcaption", "mono", `[${ranges.join(", ")}]`));
      figure.append(sliceTable(tensor, across, at));
      slices.append(figure);
    }
    picks.replaceChildren();
    if (slicesOf(tensor, tensor.outer)) return;
    ["rows", "columns"].forEach((name, k) => {
      const options = fixed.map((_, dim) => [`axis ${dim}`, dim]);
      picks.append(selector(`${name}: `, options, across[k], (dim) => {
        const other = across[1 - k] === dim ? across[k] : across[1 - k];
        across = k ? [other, dim] : [dim, other];
        show();
      }));
    });
    for (const dim of all ? [] : outer) {
      const options = tensor.segments[dim].map((segment, i) => [rangeText(segment), i]);
      const kept = options.filter(([, i]) => !tensor.segments[dim][i][2]);
      picks.append(selector(`axis ${dim}: `, kept, fixed[dim], (i) => {
        fixed[dim] = i;
        show();
      }));
    }
  };
  show();
  host.append(picks, slices);
  return host;
}

/** A list to choose from; `options` are pairs of text and number. */
function selector(name, options, chosen, choose) {
  const label = make("label", "", name);
  const select = make("select");
  for (const [text, value] of options) select.append(new Option(text, value, false, value === chosen));
  select.addEventListener("change", () => choose(Number(select.value)));
  label.append(select);
  return label;
}

function devicesText({ devices, replicas }) {
  const more = replicas > 4 ? ` and ${replicas - 4} more` : "";
  return `device${replicas > 1 ? "s" : ""} ${devices.slice(0, 4).join(" ")}${more}`;
}

/** Outline the cells of the grid that have an element. */
function markCell(card, tensor, first) {
  for (const old of card.querySelectorAll(".marked")) old.classList.remove("marked");
  if (!first) return;
  const find = (i, dim) => tensor.segments[dim].findIndex(([a, b]) => a <= i && i < b);
  const at = first.map(find).join(",");
  for (const cell of card.querySelectorAll("td.cell")) cell.classList.toggle("marked", cell.dataset.at === at);
}

function memoryStrips(tensor, card) {
  const host = make("div", "memory");
  for (const part of tensor.memory) {
    const bytes = bytesText(part.count * tensor.itemsize);
    host.append(make("span", "", `${devicesText(part)}: ${part.count} el., ${bytes}`));
    const strip = make("div", "strip");
    for (const [text, first] of part.cells) {
      const cell = make("span", "cell");
      paint(cell, part.devices, tensor.partial.length > 0);
      cell.append(make("b", "", text));
      tip(cell, () => `${tensor.name}[${text}]\nin the memory of ${devicesText(part)}`);
      cell.addEventListener("mouseenter", () => markCell(card, tensor, first));
      cell.addEventListener("mouseleave", () => markCell(card, tensor, null));
      strip.append(cell);
    }
    if (part.more) strip.append(make("span", "cell gap", "\u2026"));
    if (!part.cells.length) strip.append(make("span", "note", "nothing"));
    host.append(strip);
  }
  const left = MESHES[tensor.mesh].devices.length - tensor.memory.reduce((n, part) => n + part.replicas, 0);
  if (left > 0) host.append(make("span", "", `and ${left} more devices`));
  return host;
}
