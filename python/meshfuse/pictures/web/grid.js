// Who holds what: a tensor as tables of cells, and the memory of each device as a strip.

const TINTS = ["#7cc4f0", "#f6b45f", "#86d39a", "#f09ab5", "#b7a6f2", "#e5d45c", "#6fd6cf", "#d0a98a"];
const MOST_SLICES = 6; // more are chosen by selectors

function tint(device) {
  const k = MODEL.devices.indexOf(device);
  if (MODEL.devices.length <= TINTS.length) return TINTS[k];
  return `hsl(${Math.round((360 * k) / MODEL.devices.length)} 65% ${k % 2 ? 66 : 77}%)`;
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

/** Devices that hold the cell at `at`, one segment number per dim; null: the cell is a gap. */
function ownersOf(tensor, at) {
  const wanted = {};
  for (const group of tensor.groups) {
    let k = 0;
    for (const dim of group.dims) k = k * tensor.segments[dim].length + at[dim];
    const places = group.places[k];
    if (places === null) return null;
    Object.assign(wanted, places);
  }
  const fits = (d) => Object.entries(wanted).every(([axis, c]) => tensor.coordinates[d][axis] === c);
  return tensor.devices.filter(fits);
}

function ownersText(tensor, owners) {
  if (owners.length === 1) return `${owners[0]}`;
  if (owners.length === tensor.devices.length) return "all";
  return owners.length <= 3 ? owners.join(" ") : `${owners.length}\u00d7`;
}

function placeText(tensor, device) {
  const parts = Object.entries(tensor.coordinates[device]).map(([axis, c]) => `mesh_${axis}=${c}`);
  return `device ${device}` + (parts.length ? ` (${parts.reverse().join(", ")})` : "");
}

function cellTip(tensor, at, owners) {
  const ranges = at.map((s, dim) => tensor.segments[dim][s]);
  const name = `${tensor.name}[${ranges.map(rangeText).join(", ")}]`;
  if (owners === null) return `${name}\nnot shown: more of the same pattern`;
  const count = ranges.reduce((n, [start, stop]) => n * (stop - start), 1);
  const bytes = bytesText(count * tensor.itemsize);
  const lines = [name, `${count} element${count === 1 ? "" : "s"}, ${bytes}`];
  const who = owners.slice(0, 6).map((d) => placeText(tensor, d)).join("\n");
  if (tensor.partial.length) lines.push(`each holds a term of a sum over ${tensor.partial.join(", ")}:`);
  else lines.push(owners.length > 1 ? `${owners.length} replicas:` : "held by");
  lines.push(who + (owners.length > 6 ? `\nand ${owners.length - 6} more` : ""));
  if (tensor.origin) lines.push(`division ${tensor.origin}`);
  if (tensor.made_at) lines.push(`made at ${tensor.made_at}`);
  return lines.join("\n");
}

/** One table: the last two dims, the others fixed by `outer`. */
function sliceTable(tensor, outer) {
  const ndim = tensor.shape.length;
  const rows = ndim > 1 ? tensor.segments[ndim - 2] : [[0, 1, false]];
  const columns = ndim > 0 ? tensor.segments[ndim - 1] : [[0, 1, false]];
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
      const at = ndim > 1 ? [...outer, r, c] : ndim ? [c] : [];
      const owners = ownersOf(tensor, at);
      const cell = make("td", "cell");
      if (owners === null) {
        cell.classList.add("gap");
        cell.textContent = "\u2026";
      } else {
        paint(cell, owners, tensor.partial.length > 0);
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

function product(lists) {
  return lists.reduce((found, list) => found.flatMap((f) => list.map((_, i) => [...f, i])), [[]]);
}

function ownerGrid(tensor) {
  if (tensor.shape.includes(0)) return make("p", "note", "no elements");
  const outer = tensor.segments.slice(0, -2);
  const host = make("div", "owners");
  const slices = make("div", "slices");
  const show = (choices) => {
    slices.replaceChildren();
    for (const at of choices) {
      const figure = make("figure");
      const ranges = at.map((s, dim) => rangeText(tensor.segments[dim][s]));
      if (at.length) figure.append(make("figcaption", "mono", `[${[...ranges, ":", ":"].join(", ")}]`));
      figure.append(sliceTable(tensor, at));
      slices.append(figure);
    }
  };
  const all = product(outer);
  if (all.length <= MOST_SLICES) {
    show(all);
  } else {
    const picks = make("div", "pick");
    const chosen = outer.map(() => 0);
    outer.forEach((list, dim) => {
      const label = make("label", "", `axis ${dim}: `);
      const select = make("select");
      list.forEach((segment, i) => segment[2] || select.append(new Option(rangeText(segment), i)));
      select.addEventListener("change", () => {
        chosen[dim] = Number(select.value);
        show([[...chosen]]);
      });
      label.append(select);
      picks.append(label);
    });
    host.append(picks);
    show([chosen]);
  }
  host.append(slices);
  return host;
}

function elementText(first, last) {
  const parts = first.map((a, k) => (a === last[k] ? `${a}` : `${a}:${last[k] + 1}`));
  return parts.length ? parts.join(",") : "\u00b7";
}

function devicesText(devices) {
  const more = devices.length > 4 ? ` and ${devices.length - 4} more` : "";
  return `device${devices.length > 1 ? "s" : ""} ${devices.slice(0, 4).join(" ")}${more}`;
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
    host.append(make("span", "", `${devicesText(part.devices)}: ${part.count} el., ${bytes}`));
    const strip = make("div", "strip");
    for (const [first, last] of part.cells) {
      const cell = make("span", "cell");
      paint(cell, part.devices, tensor.partial.length > 0);
      cell.append(make("b", "", elementText(first, last)));
      tip(cell, () => `${tensor.name}[${elementText(first, last)}]\nin the memory of ${devicesText(part.devices)}`);
      cell.addEventListener("mouseenter", () => markCell(card, tensor, first));
      cell.addEventListener("mouseleave", () => markCell(card, tensor, null));
      strip.append(cell);
    }
    if (part.more) strip.append(make("span", "cell gap", "\u2026"));
    if (!part.cells.length) strip.append(make("span", "note", "nothing"));
    host.append(strip);
  }
  const left = tensor.devices.length - tensor.memory.flatMap((part) => part.devices).length;
  if (left > 0) host.append(make("span", "", `and ${left} more devices`));
  return host;
}
