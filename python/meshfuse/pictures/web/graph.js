// The program: inputs and operations, operands above their readers, communications marked.

const NODE = { width: 208, height: 44, line: 17, gapX: 18, gapY: 34, margin: 14 };

function programGraph(nodes, choose) {
  const orders = nodes.flatMap((n) => [n.order, ...n.bends]);
  const [left, right] = [Math.min(...orders), Math.max(...orders)];
  const layers = Math.max(...nodes.map((n) => n.layer)) + 1;
  const stepX = NODE.width + NODE.gapX;
  const heights = new Array(layers).fill(NODE.height); // the shapes of a communication are a line more
  for (const node of nodes) heights[node.layer] = Math.max(heights[node.layer], heightOf(node));
  const tops = heights.map((_, layer) => heights.slice(0, layer).reduce((y, h) => y + h + NODE.gapY, NODE.margin));
  const width = (right - left) * stepX + NODE.width + 2 * NODE.margin;
  const height = tops[layers - 1] + heights[layers - 1] + NODE.margin;
  const picture = svg("svg", { width, height, viewBox: `0 0 ${width} ${height}` });
  const x = (n) => NODE.margin + (n.order - left) * stepX;
  picture.dataset.middle = x(nodes.find((n) => n.layer === 0)) + NODE.width / 2;
  const y = (n) => tops[n.layer];
  for (const node of nodes) {
    for (const k of node.operands) {
      const from = nodes[k];
      const bends = from.bends.slice(0, node.layer - from.layer - 1);
      const stops = [...bends.map((order, i) => ({ order, layer: from.layer + 1 + i })), node];
      let last = from, leave = y(from) + heightOf(from);
      for (const stop of stops) {
        picture.append(curve(x(last) + NODE.width / 2, leave, x(stop) + NODE.width / 2, y(stop)));
        last = stop;
        leave = y(stop) + heights[stop.layer];
        if (stop !== node) picture.append(curve(x(stop) + NODE.width / 2, y(stop), x(stop) + NODE.width / 2, leave));
      }
    }
  }
  for (const node of nodes) {
    const comm = node.communication;
    const kind = `node ${comm ? "comm" : ""} ${node.op ? "" : "input"} ${node.output ? "output" : ""}`;
    const group = svg("g", { class: kind, tabindex: 0, role: "button", transform: `translate(${x(node)} ${y(node)})` });
    group.append(svg("rect", { class: "box", width: NODE.width, height: heightOf(node), rx: 6 }));
    const names = node.names.join(", ");
    group.append(label(9, 18, clip(`${names} = ${node.op ?? "input"}`, 27)));
    group.append(label(9, 35, clip(comm ? commText(comm) : shapeOf(node.names[0]), 32), comm ? "soft kind" : "soft"));
    if (shapesKnown(comm)) group.append(label(9, 35 + NODE.line, clip(localText(comm), 32), "soft"));
    tip(group, () => nodeTip(node));
    group.addEventListener("click", () => choose(node.names));
    group.addEventListener("keydown", (event) => event.key === "Enter" && choose(node.names));
    picture.append(group);
  }
  return picture;
}

function heightOf(node) {
  return NODE.height + (shapesKnown(node.communication) ? NODE.line : 0);
}

function shapesKnown(comm) {
  return comm !== null && comm.local.every((shape) => shape !== null);
}

/** What a device has before and after a communication. */
function localText(comm) {
  return comm.local.map((shape) => `[${shape.join(", ")}]`).join(" \u2192 ");
}

function commText(comm) {
  const bytes = comm.bytes === null ? "" : `, ${bytesText(comm.bytes)}`;
  return `${comm.kind} ${comm.mesh_axis}${bytes}`;
}

function shapeOf(name) {
  const tensor = MODEL.tensors.find((t) => t.name === name);
  return tensor ? shardText(tensor) : "scalar";
}

/** The shape with the mesh axes that divide it: "[4@y, 8@x]", and sums: "of parts over x". */
function shardText(tensor) {
  const axes = Object.entries(tensor.on_mesh);
  const on = (k) => axes.filter(([, dim]) => dim === k).map(([axis]) => `@${axis}`).join("");
  const parts = tensor.partial.map((axis) => axis.replace("mesh_", "")).join(", ");
  return `[${tensor.shape.map((n, k) => n + on(k)).join(", ")}]` + (parts ? ` \u03a3 over ${parts}` : "");
}

function nodeTip(node) {
  const lines = [`${node.names.join(", ")} = ${node.text}`];
  for (const name of node.names) lines.push(`${name}: ${shapeOf(name)}`);
  const comm = node.communication;
  if (comm) {
    const axis = comm.mesh_axis + (comm.mesh_axis_name ? ` ('${comm.mesh_axis_name}')` : "");
    const bytes = comm.bytes === null ? "bytes depend on open sizes" : `${comm.bytes} bytes per device`;
    lines.push(`${comm.kind} over ${axis}: ${bytes}, among ${comm.among}`);
    if (shapesKnown(comm)) lines.push(`${localText(comm)} on each device`);
    lines.push(`because ${comm.reason}`);
    for (const line of comm.lines) lines.push(`at ${line}`);
  }
  const tensor = MODEL.tensors.find((t) => t.name === node.names[0]);
  if (tensor?.origin) lines.push(`division ${tensor.origin}`);
  if (tensor?.made_at) lines.push(`made at ${tensor.made_at}`);
  return lines.join("\n");
}
