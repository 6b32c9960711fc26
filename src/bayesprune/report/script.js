"use strict";
(() => {
  const root = document.documentElement;
  const redraws = [];
  const redrawAll = () => redraws.forEach((draw) => draw());
  const clamp = (value, low, high) => Math.min(Math.max(value, low), high);
  const digits = (value) => (value === 0 ? "0" : String(Number(value.toPrecision(3))).replace("-", "−"));

  // ---------------------------------------------------------------- theme
  const system = matchMedia("(prefers-color-scheme: dark)");
  const stored = () => { try { return localStorage.getItem("bayesprune-theme"); } catch { return null; } };
  const isDark = () => (root.dataset.theme ? root.dataset.theme === "dark" : system.matches);
  if (["light", "dark"].includes(stored())) root.dataset.theme = stored();
  const button = document.getElementById("theme");
  const themeChanged = () => {
    button.title = `Switch to ${isDark() ? "light" : "dark"} colours`;
    redrawAll();
  };
  button.addEventListener("click", () => {
    root.dataset.theme = isDark() ? "light" : "dark";
    try { localStorage.setItem("bayesprune-theme", root.dataset.theme); } catch { /* a file may not store anything */ }
    themeChanged();
  });
  system.addEventListener("change", themeChanged);
  themeChanged();

  // ---------------------------------------------------------------- colours
  const colour = (name) => {
    const text = getComputedStyle(root).getPropertyValue(name).trim();
    return [1, 3, 5].map((place) => parseInt(text.slice(place, place + 2), 16));
  };
  const mix = (from, to, share) => from.map((one, place) => Math.round(one + (to[place] - one) * share));
  const packed = ([r, g, b]) => (255 << 24 | b << 16 | g << 8 | r) >>> 0; // little-endian RGBA
  const signedColours = (support) => {
    const [dead, empty, negative, positive, ink] = ["--dead", "--empty", "--negative", "--positive", "--support"].map(colour);
    const table = new Uint32Array(256);
    for (let code = -127; code <= 127; code++) {
      const strong = code < 0 ? negative : positive;
      const shade = support ? ink : mix(empty, strong, 0.22 + 0.78 * Math.abs(code) / 127);
      table[code + 128] = packed(code ? shade : dead);
    }
    table[0] = packed(empty);
    return table;
  };
  const CIVIDIS = ["00224e", "35456c", "666970", "948e77", "c8b866", "fee838"]
    .map((text) => [0, 2, 4].map((place) => parseInt(text.slice(place, place + 2), 16)));
  const SHARES = Uint32Array.from({ length: 256 }, (_, code) => {
    const at = code / 255 * (CIVIDIS.length - 1), low = Math.min(Math.floor(at), CIVIDIS.length - 2);
    return packed(mix(CIVIDIS[low], CIVIDIS[low + 1], at - low));
  });

  const bytes = (text) => Uint8Array.from(atob(text), (one) => one.charCodeAt(0));
  const content = (element) => JSON.parse(element.querySelector(':scope > script[type="application/json"]').textContent);

  // ---------------------------------------------------------------- tooltip
  const tip = document.getElementById("tip");
  const hideTip = () => { tip.hidden = true; };
  const showTip = (text, x, y) => {
    tip.textContent = text;
    tip.hidden = false;
    const box = tip.getBoundingClientRect();
    tip.style.left = `${clamp(x + 14, 4, innerWidth - box.width - 4)}px`;
    tip.style.top = `${y - box.height - 12 > 4 ? y - box.height - 12 : y + 18}px`;
  };
  addEventListener("scroll", hideTip, { passive: true });

  // ---------------------------------------------------------------- charts
  const SVG = "http://www.w3.org/2000/svg";
  const linePlot = (plot) => {
    const { x, y, names, axis } = content(plot);
    const places = [...new Set(x.flat())].sort((a, b) => a - b);
    for (const svg of plot.querySelectorAll("svg")) {
      const [left, right, low, high, bottom, top, least, most, log] = svg.dataset.frame.split(" ").map(Number);
      const pick = svg.querySelector(".pick"), line = pick.querySelector("line");
      svg.querySelectorAll("title").forEach((one) => one.remove());
      const across = (value) => left + (right - left) * (value - low) / (high - low);
      const level = log ? Math.log10 : (value) => value;
      const up = (value) => bottom + (top - bottom) * (level(value) - level(least)) / (level(most) - level(least));
      let chosen = -1;
      const show = (place, clientY) => {
        chosen = clamp(place, 0, places.length - 1);
        const at = places[chosen], rows = [`${axis} ${at}`];
        pick.querySelectorAll("circle").forEach((one) => one.remove());
        names.forEach((name, series) => {
          const index = x[series].indexOf(at), value = index < 0 ? null : y[series][index];
          if (value === null || value === undefined) return;
          rows.push(`${name}: ${digits(value)}`);
          const circle = document.createElementNS(SVG, "circle");
          circle.setAttribute("class", `c${series % 7}`);
          circle.setAttribute("cx", across(at));
          circle.setAttribute("cy", up(value));
          circle.setAttribute("r", 4);
          pick.append(circle);
        });
        line.setAttribute("x1", across(at));
        line.setAttribute("x2", across(at));
        pick.removeAttribute("hidden");
        const box = svg.getBoundingClientRect(), zoom = box.width / svg.viewBox.baseVal.width;
        showTip(rows.join("\n"), box.left + across(at) * zoom, clientY ?? box.top + box.height / 2);
      };
      const hide = () => { pick.setAttribute("hidden", "hidden"); hideTip(); };
      const point = (event) => {
        const box = svg.getBoundingClientRect(), zoom = box.width / svg.viewBox.baseVal.width;
        const value = low + ((event.clientX - box.left) / zoom - left) / (right - left) * (high - low);
        let best = 0;
        places.forEach((one, place) => { if (Math.abs(one - value) < Math.abs(places[best] - value)) best = place; });
        show(best, event.clientY);
      };
      svg.addEventListener("pointermove", point);
      svg.addEventListener("pointerdown", point);
      svg.addEventListener("pointerleave", hide);
      svg.addEventListener("blur", hide);
      svg.addEventListener("keydown", (event) => {
        const step = { ArrowRight: 1, ArrowLeft: -1, Home: -Infinity, End: Infinity, Escape: 0 }[event.key];
        if (step === undefined) return;
        event.preventDefault();
        if (step === 0) hide(); else show(chosen < 0 ? (step > 0 ? 0 : places.length - 1) : chosen + step);
      });
    }
  };

  const tipPlot = (plot) => {
    for (const svg of plot.querySelectorAll("svg")) {
      const marked = [...svg.querySelectorAll("[data-tip]")];
      let chosen = -1;
      const leave = () => { marked.forEach((one) => one.classList.remove("on")); hideTip(); };
      const choose = (one, x, y) => { leave(); one.classList.add("on"); chosen = marked.indexOf(one); showTip(one.dataset.tip, x, y); };
      for (const one of marked) {
        one.querySelectorAll("title").forEach((title) => title.remove());
        one.addEventListener("pointermove", (event) => choose(one, event.clientX, event.clientY));
        one.addEventListener("pointerleave", leave);
      }
      svg.addEventListener("blur", leave);
      svg.addEventListener("keydown", (event) => {
        const step = { ArrowRight: 1, ArrowDown: 1, ArrowLeft: -1, ArrowUp: -1, Escape: 0 }[event.key];
        if (step === undefined || !marked.length) return;
        event.preventDefault();
        if (step === 0) return leave();
        const one = marked[clamp(chosen < 0 ? 0 : chosen + step, 0, marked.length - 1)], box = one.getBoundingClientRect();
        choose(one, box.left + Math.min(box.width, 60), box.top);
      });
    }
  };
  document.querySelectorAll('.plot[data-kind="lines"]').forEach(linePlot);
  document.querySelectorAll('.plot[data-kind="tips"]').forEach(tipPlot);

  // ---------------------------------------------------------------- matrices
  // A view is the part of a matrix that is seen: from x, y (0 to 1), 1 / zoom wide and high.
  const matrixPanel = (panel, group) => {
    const canvas = panel.querySelector("canvas"), readout = panel.querySelector(".readout");
    let data = null, codes = null;
    const load = () => {
      if (data) return;
      data = content(panel);
      codes = new Int8Array(bytes(data.cells).buffer);
      const key = group.linked ? data.whole.join("x") : group.panels.indexOf(self);
      self.view = group.views.get(key) ?? { zoom: 1, x: 0, y: 0 };
      group.views.set(key, self.view);
    };
    // The cells that a row or column of pixels shows: [first, last] of each.
    const spans = (pixels, cells, from, zoom) => {
      const found = new Int32Array(2 * pixels);
      for (let pixel = 0; pixel < pixels; pixel++) {
        const begin = (from + pixel / pixels / zoom) * cells, end = (from + (pixel + 1) / pixels / zoom) * cells;
        found[2 * pixel] = clamp(Math.floor(begin + 1e-6), 0, cells - 1);
        found[2 * pixel + 1] = clamp(Math.max(Math.ceil(end - 1e-6) - 1, found[2 * pixel]), 0, cells - 1);
        if (found[2 * pixel + 1] - found[2 * pixel] === 1 && end - begin <= 1) found[2 * pixel + 1] = found[2 * pixel];
      }
      return found;
    };
    const draw = () => {
      const box = canvas.getBoundingClientRect();
      if (!box.width) return;
      load();
      const ratio = Math.min(devicePixelRatio || 1, 2);
      const width = canvas.width = Math.round(box.width * ratio), height = canvas.height = Math.round(box.height * ratio);
      const { rows, columns, whole } = data, { zoom, x, y } = self.view;
      const table = signedColours(group.support), context = canvas.getContext("2d");
      const image = context.createImageData(width, height), pixels = new Uint32Array(image.data.buffer);
      const down = spans(height, rows, y, zoom), across = spans(width, columns, x, zoom);
      for (let py = 0; py < height; py++) {
        const first = down[2 * py], last = down[2 * py + 1], line = py * width;
        for (let px = 0; px < width; px++) {
          const begin = across[2 * px], end = across[2 * px + 1];
          let code = codes[first * columns + begin];
          if (first !== last || begin !== end) {
            for (let row = first; row <= last; row++) for (let column = begin; column <= end; column++) {
              const other = codes[row * columns + column];
              if (other !== -128 && (code === -128 || Math.abs(other) > Math.abs(code))) code = other;
            }
          }
          pixels[line + px] = table[code + 128];
        }
      }
      context.putImageData(image, 0, 0);
      const wide = width * zoom / whole[1], high = height * zoom / whole[0]; // pixels of a weight
      if (group.clusters && data.rectangles.length) {
        context.strokeStyle = context.fillStyle = getComputedStyle(root).getPropertyValue("--frame");
        context.lineWidth = ratio;
        for (let at = 0; at < data.rectangles.length; at += 4) {
          const [row, column, tall, broad] = data.rectangles.slice(at, at + 4);
          const place = [Math.round(column * wide - x * zoom * width), Math.round(row * high - y * zoom * height)];
          const size = [Math.round(broad * wide), Math.round(tall * high)];
          if (Math.min(...size) >= 6 * ratio) {
            context.strokeRect(place[0] + ratio / 2, place[1] + ratio / 2, size[0] - ratio, size[1] - ratio);
          } else { // a frame would hide what it holds
            context.globalAlpha = 0.4;
            context.fillRect(...place, ...size.map((one) => Math.max(1, one)));
            context.globalAlpha = 1;
          }
        }
      }
      const taps = data.taps.reduce((a, b) => a * b, 1);
      if (taps > 1 && wide * taps > 14 * ratio) { // kernels apart by lines
        context.strokeStyle = getComputedStyle(root).getPropertyValue("--line");
        context.lineWidth = 1;
        context.beginPath();
        for (let column = taps; column < whole[1]; column += taps) {
          const at = Math.round(column * wide - x * zoom * width) + 0.5;
          if (at > 0 && at < width) { context.moveTo(at, 0); context.lineTo(at, height); }
        }
        context.stroke();
      }
      canvas.classList.toggle("zoomed", zoom > 1);
    };
    const span = (from, size, limit) => (size > 1 ? `${from}–${Math.min(from + size, limit) - 1}` : `${from}`);
    const tell = (atX, atY) => { // a place of the canvas, 0 to 1
      load();
      const { rows, columns, whole, block, taps, largest, square } = data, { zoom, x, y } = self.view;
      const column = clamp(Math.floor((x + atX / zoom) * columns), 0, columns - 1);
      const row = clamp(Math.floor((y + atY / zoom) * rows), 0, rows - 1);
      const code = codes[row * columns + column];
      if (code === -128) { readout.textContent = ""; return; }
      const value = code === 0 ? "dead" : digits(Math.sign(code) * (code / 127) ** 2 * largest);
      const kernel = taps.reduce((a, b) => a * b, 1);
      let place = `row ${span(row * block[0], block[0], whole[0])}, column ${span(column * block[1], block[1], whole[1])}`;
      if (taps.length && block[1] === 1) {
        const steps = []; let rest = column % kernel;
        for (const size of [...taps].reverse()) { steps.unshift(rest % size); rest = Math.floor(rest / size); }
        place = `output ${span(row * block[0], block[0], whole[0])}, input ${Math.floor(column / kernel)}, tap ${steps.join(", ")}`;
      }
      readout.textContent = square ? value : `${place}: ${value}`;
    };
    const zoomBy = (factor, atX = 0.5, atY = 0.5) => {
      load();
      const view = self.view, before = view.zoom;
      view.zoom = clamp(before * factor, 1, Math.max(8, Math.max(data.rows, data.columns) / 4));
      view.x = clamp(view.x + atX / before - atX / view.zoom, 0, 1 - 1 / view.zoom);
      view.y = clamp(view.y + atY / before - atY / view.zoom, 0, 1 - 1 / view.zoom);
      group.draw();
    };
    const moveBy = (dx, dy) => { // in widths and heights of what is seen
      load();
      const view = self.view;
      view.x = clamp(view.x + dx / view.zoom, 0, 1 - 1 / view.zoom);
      view.y = clamp(view.y + dy / view.zoom, 0, 1 - 1 / view.zoom);
      group.draw();
    };
    const reset = () => { load(); Object.assign(self.view, { zoom: 1, x: 0, y: 0 }); group.draw(); };
    const self = { draw, zoomBy, reset, view: null };

    const place = (event) => {
      const box = canvas.getBoundingClientRect();
      return [(event.clientX - box.left) / box.width, (event.clientY - box.top) / box.height];
    };
    const fingers = new Map();
    canvas.addEventListener("pointerdown", (event) => {
      fingers.set(event.pointerId, place(event));
      canvas.setPointerCapture(event.pointerId);
      tell(...place(event));
    });
    canvas.addEventListener("pointermove", (event) => {
      const now = place(event), before = fingers.get(event.pointerId);
      tell(...now);
      if (!before) return;
      if (fingers.size === 2) {
        const [other] = [...fingers].filter(([id]) => id !== event.pointerId).map(([, at]) => at);
        const gap = (a) => Math.max(0.02, Math.hypot(a[0] - other[0], a[1] - other[1]));
        zoomBy(gap(now) / gap(before), (now[0] + other[0]) / 2, (now[1] + other[1]) / 2);
      } else if (fingers.size === 1) {
        moveBy(before[0] - now[0], before[1] - now[1]);
      }
      fingers.set(event.pointerId, now);
    });
    for (const end of ["pointerup", "pointercancel"]) canvas.addEventListener(end, (event) => fingers.delete(event.pointerId));
    canvas.addEventListener("pointerleave", () => { if (!fingers.size) readout.textContent = ""; });
    // Two fingers zoom the matrix, not the page.
    canvas.addEventListener("touchmove", (event) => { if (event.touches.length > 1) event.preventDefault(); }, { passive: false });
    canvas.addEventListener("wheel", (event) => { // only after a click, so that the page can be scrolled
      if (document.activeElement !== canvas && !event.ctrlKey) return;
      event.preventDefault();
      zoomBy(Math.exp(-clamp(event.deltaY, -120, 120) / 300), ...place(event));
    }, { passive: false });
    canvas.addEventListener("keydown", (event) => {
      const steps = { ArrowLeft: [-0.2, 0], ArrowRight: [0.2, 0], ArrowUp: [0, -0.2], ArrowDown: [0, 0.2] };
      if (event.key === "+" || event.key === "=") zoomBy(1.5);
      else if (event.key === "-") zoomBy(1 / 1.5);
      else if (event.key === "0" || event.key === "Escape") reset();
      else if (steps[event.key] && self.view?.zoom > 1) moveBy(...steps[event.key]);
      else return;
      event.preventDefault();
      tell(0.5, 0.5);
    });
    new ResizeObserver(draw).observe(canvas);
    return self;
  };

  for (const element of document.querySelectorAll(".matrices")) {
    const group = { linked: "linked" in element.dataset, views: new Map(), panels: [], support: false, clusters: true };
    group.draw = () => group.panels.forEach((panel) => panel.draw());
    group.panels = [...element.querySelectorAll(".panel")].map((panel) => matrixPanel(panel, group));
    redraws.push(group.draw);
    const once = (change) => { // panels that share a view are changed once
      const seen = new Set();
      group.draw();
      for (const panel of group.panels) if (panel.view && !seen.has(panel.view)) { seen.add(panel.view); change(panel); }
    };
    element.querySelector(".tools").addEventListener("click", (event) => {
      const button = event.target.closest("button");
      if (!button) return;
      const wanted = button.dataset.do;
      if (wanted === "in") once((panel) => panel.zoomBy(1.5));
      else if (wanted === "out") once((panel) => panel.zoomBy(1 / 1.5));
      else if (wanted === "all") once((panel) => panel.reset());
      else {
        group[wanted] = !group[wanted];
        button.setAttribute("aria-pressed", String(group[wanted]));
        group.draw();
      }
    });
  }

  // ---------------------------------------------------------------- messages
  for (const element of document.querySelectorAll(".frames")) {
    const slider = element.querySelector('input[type="range"]'), select = element.querySelector("select");
    const output = element.querySelector("output"), play = element.querySelector('[data-do="play"]');
    const canvases = [...element.querySelectorAll("canvas")], readout = element.querySelector(".readout");
    let data = null, timer = 0;
    const loaded = new Map();
    const layer = () => {
      data ??= content(element);
      const place = select.selectedIndex;
      if (!loaded.has(place)) loaded.set(place, data.layers[place].parts.map(bytes));
      return { ...data.layers[place], parts: loaded.get(place) };
    };
    const draw = () => {
      const { rows, columns, parts } = layer(), frame = Number(slider.value), size = rows * columns;
      const iteration = String(data.iterations[frame]);
      output.textContent = iteration;
      slider.setAttribute("aria-valuetext", `iteration ${iteration}`);
      canvases.forEach((canvas, part) => {
        canvas.width = columns;
        canvas.height = rows;
        canvas.style.aspectRatio = clamp(columns / rows, 1, 3);
        const context = canvas.getContext("2d"), image = context.createImageData(columns, rows);
        const pixels = new Uint32Array(image.data.buffer), from = frame * size;
        for (let at = 0; at < size; at++) pixels[at] = SHARES[parts[part][from + at]];
        context.putImageData(image, 0, 0);
      });
    };
    canvases.forEach((canvas) => canvas.addEventListener("pointermove", (event) => {
      const { rows, columns, parts } = layer(), box = canvas.getBoundingClientRect();
      const row = clamp(Math.floor((event.clientY - box.top) / box.height * rows), 0, rows - 1);
      const column = clamp(Math.floor((event.clientX - box.left) / box.width * columns), 0, columns - 1);
      const at = Number(slider.value) * rows * columns + row * columns + column;
      const [evidence, prior, both] = parts.map((part) => (part[at] / 255).toFixed(2));
      readout.textContent = `row ${row}, column ${column}: weights ${evidence}, neighbours ${prior}, together ${both}`;
    }));
    const stop = () => { clearInterval(timer); timer = 0; play.setAttribute("aria-pressed", "false"); play.textContent = "Play"; };
    play.addEventListener("click", () => {
      if (timer) return stop();
      if (slider.value === slider.max) slider.value = 0;
      play.setAttribute("aria-pressed", "true");
      play.textContent = "Stop";
      draw();
      timer = setInterval(() => {
        slider.value = Number(slider.value) + 1;
        draw();
        if (slider.value === slider.max) stop();
      }, 220);
    });
    slider.addEventListener("input", () => { stop(); draw(); });
    select.addEventListener("change", draw);
    const seen = new IntersectionObserver((entries) => { // nothing is decoded before it is looked at
      if (entries.some((one) => one.isIntersecting)) { seen.disconnect(); draw(); }
    }, { rootMargin: "400px" });
    seen.observe(element);
    redraws.push(draw);
  }

  // ---------------------------------------------------------------- print: everything open, light
  let opened = [], theme;
  addEventListener("beforeprint", () => {
    opened = [...document.querySelectorAll("details:not([open])")];
    opened.forEach((one) => { one.open = true; });
    theme = root.dataset.theme;
    root.dataset.theme = "light";
    redrawAll();
  });
  addEventListener("afterprint", () => {
    opened.forEach((one) => { one.open = false; });
    if (theme === undefined) delete root.dataset.theme; else root.dataset.theme = theme;
    redrawAll();
  });
})();
