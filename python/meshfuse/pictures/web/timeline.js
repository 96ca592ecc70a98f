// Steps of a profile: one track per rank, time from left to right.

const TRACK = { height: 34, left: 92, right: 20, top: 6, axis: 22, least: 480 };
const STEP_KINDS = { expr_eval: "computation", communication: "communication", no_op: "view" };

/** The tracks, as wide as the page or as `least`; drawn again where the page gets another width. */
function showTimeline(steps, host) {
  host.append(make("p", "note", Object.entries(STEP_KINDS).map(([kind, name]) => totalText(steps, kind, name)).join(", ")));
  const scroll = make("div", "scroll");
  host.append(scroll);
  let drawn = 0;
  const draw = () => {
    if (scroll.clientWidth === drawn) return;
    drawn = scroll.clientWidth;
    scroll.replaceChildren(tracks(steps, Math.max(drawn - TRACK.left - TRACK.right, TRACK.least)));
  };
  draw();
  new ResizeObserver(draw).observe(scroll);
}

function tracks(steps, across) {
  const ranks = [...new Set(steps.map((s) => s.device))].sort((a, b) => a - b);
  // Of a simulated mesh a step is that of all devices.
  const names = ranks.map((rank) => {
    const devices = Math.max(...steps.filter((s) => s.device === rank).map((s) => s.devices));
    return devices > 1 ? `devices 0\u2013${devices - 1}` : `rank ${rank}`;
  });
  const end = Math.max(...steps.map((s) => s.start + s.ms));
  const scale = across / (end || 1);
  const height = TRACK.top + ranks.length * TRACK.height + TRACK.axis;
  const picture = svg("svg", { width: TRACK.left + across + TRACK.right, height, role: "img", "aria-label": "timeline" });
  ranks.forEach((rank, r) => picture.append(label(10, TRACK.top + r * TRACK.height + 19, names[r], "soft")));
  for (const step of steps) {
    const x = TRACK.left + step.start * scale, y = TRACK.top + ranks.indexOf(step.device) * TRACK.height;
    const width = Math.max(step.ms * scale, 1.5);
    const bar = svg("rect", { class: `bar ${step.kind}`, x, y, width, height: TRACK.height - 6, rx: 2 });
    tip(bar, () => stepTip(step));
    picture.append(bar);
    const room = Math.floor((width - 8) / 7.2);
    if (room > 3) {
      const text = label(x + 4, y + 18, clip(step.name, room), "inbar");
      text.style.pointerEvents = "none";
      picture.append(text);
    }
  }
  for (let k = 0; k <= 4; ++k) {
    const text = label(TRACK.left + (k * across) / 4, height - 5, `${((k * end) / 4).toPrecision(3)} ms`, "soft");
    text.setAttribute("text-anchor", k === 0 ? "start" : k === 4 ? "end" : "middle");
    picture.append(text);
  }
  return picture;
}

function totalText(steps, kind, name) {
  const own = steps.filter((s) => s.kind === kind);
  return `${name} ${own.reduce((sum, s) => sum + s.ms, 0).toPrecision(3)} ms in ${plural(own.length, "step")}`;
}

function stepTip(step) {
  const lines = [step.name, `${STEP_KINDS[step.kind]}, ${step.ms.toFixed(4)} ms`];
  lines.push(`host ${step.host.toFixed(4)} ms` + (step.on_device ? `, device ${step.on_device.toFixed(4)} ms` : ""));
  if (step.devices > 1) lines.push(`of ${step.devices} simulated devices together`);
  lines.push(`reads ${bytesText(step.in)}, writes ${bytesText(step.out)}`);
  return lines.join("\n");
}
