// The axes of a tensor: logical, split, loop, allocation, one row each.

const BOX = { width: 92, height: 34, gapX: 14, gapY: 26, left: 76 };

function axisTree(tree) {
  const most = Math.max(...tree.rows.map((_, r) => tree.boxes.filter((b) => b.row === r).length), 1);
  const width = BOX.left + most * (BOX.width + BOX.gapX);
  const height = tree.rows.length * (BOX.height + BOX.gapY) - BOX.gapY + 4;
  const picture = svg("svg", { width, height, role: "img", "aria-label": "axes" });
  const x = (box) => BOX.left + box.place * (BOX.width + BOX.gapX);
  const y = (row) => 2 + row * (BOX.height + BOX.gapY);
  for (const [from, to] of tree.lines) {
    const [a, b] = [tree.boxes[from], tree.boxes[to]];
    const half = BOX.width / 2;
    picture.append(curve(x(a) + half, y(a.row) + BOX.height, x(b) + half, y(b.row)));
  }
  tree.rows.forEach((name, r) => {
    picture.append(label(0, y(r) + 21, name || "split", "soft"));
  });
  for (const box of tree.boxes) {
    const node = svg("g", { class: `${box.mesh ? "cut" : ""} ${box.kind === "r" ? "reduced" : ""}` });
    node.append(svg("rect", { class: "box", x: x(box), y: y(box.row), width: BOX.width, height: BOX.height, rx: 5 }));
    node.append(label(x(box) + 8, y(box.row) + (box.mesh || KINDS[box.kind] ? 14 : 21), `${box.ref}  ${box.extent}`));
    node.append(label(x(box) + 8, y(box.row) + 28, box.mesh ?? KINDS[box.kind] ?? "", "soft"));
    picture.append(node);
  }
  return picture;
}

const KINDS = { i: "", r: "reduction", b: "broadcast", s: "not known yet" };
