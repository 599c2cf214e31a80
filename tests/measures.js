// What a page looks like to eyes and to a keyboard, measured in the browser. The value is an object of functions.
(() => {
  const canvas = document.createElement("canvas");
  canvas.width = canvas.height = 1;
  const context = canvas.getContext("2d", { willReadFrequently: true });
  const rgba = (colour) => { // of any CSS colour: the browser itself paints it
    context.clearRect(0, 0, 1, 1);
    context.fillStyle = colour;
    context.fillRect(0, 0, 1, 1);
    const [r, g, b, a] = context.getImageData(0, 0, 1, 1).data;
    return [r, g, b, a / 255];
  };
  const over = ([r, g, b, a], below) => [r, g, b].map((v, i) => v * a + below[i] * (1 - a));
  const luminance = (colour) => {
    const [r, g, b] = colour.map((v) => v / 255).map((v) => (v <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4));
    return 0.2126 * r + 0.7152 * g + 0.0722 * b;
  };
  const contrast = (a, b) => {
    const [dark, light] = [luminance(a), luminance(b)].sort((x, y) => x - y);
    return (light + 0.05) / (dark + 0.05);
  };
  const behind = (element) => { // the colour below an element's text
    const above = [];
    for (let at = element; at; at = at.parentElement) above.unshift(rgba(getComputedStyle(at).backgroundColor));
    return above.reduce((below, colour) => over(colour, below), [255, 255, 255]);
  };
  const opacity = (element) => { let all = 1; for (let at = element; at; at = at.parentElement) all *= Number(getComputedStyle(at).opacity); return all; };
  const seen = (element) => element.checkVisibility({ checkOpacity: true, checkVisibilityCSS: true }) && !element.closest(".unseen, :disabled");
  const name = (element) => `${element.tagName.toLowerCase()}.${element.getAttribute("class") || ""} ${(element.textContent || "").trim().slice(0, 20)}`;
  const texts = () => {
    const walk = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
    const found = new Set();
    while (walk.nextNode()) {
      const element = walk.currentNode.parentElement;
      if (walk.currentNode.data.trim() && !["SCRIPT", "STYLE", "TITLE", "DESC", "title", "desc", "OPTION"].includes(element.tagName) && seen(element)) found.add(element);
    }
    for (const element of document.querySelectorAll("input, select")) if (seen(element)) found.add(element);
    return [...found];
  };
  const pixels = (element) => Number.parseFloat(getComputedStyle(element).fontSize) * (element.ownerSVGElement ? element.getScreenCTM().a : 1);

  // Texts whose contrast is below 4.5 (3 for large ones), arrows of table heads and placeholders included.
  const faint = () => texts().flatMap((element) => {
    const below = behind(element);
    const parts = [[element, null], ...["::before", "::after"].filter((part) => /[^"\s]/.test(getComputedStyle(element, part).content.replace("none", ""))).map((part) => [element, part])];
    if (element.matches("input[placeholder]")) parts.push([element, "::placeholder"]);
    return parts.flatMap(([from, part]) => {
      const style = getComputedStyle(from, part);
      const [r, g, b, a] = rgba(element.ownerSVGElement ? style.fill : style.color);
      const ratio = contrast(over([r, g, b, a * opacity(from) * (part ? Number(style.opacity) : 1)], below), below);
      const large = pixels(element) >= 24 || (pixels(element) >= 18.66 && Number(style.fontWeight) >= 700);
      return ratio < (large ? 3 : 4.5) ? [`${ratio.toFixed(2)} ${name(element)} ${part || ""}`] : [];
    });
  });

  // Shapes that carry meaning whose contrast with what is behind them is below 3.
  const SHAPES = ".bar-0, .bar-1, .bar-2, .bar-3, .line .stroke, .line .mark, .interval line, .interval .mark, .base, .wave .under, .wave .over, .play, .shares i";
  const pale = () => [...document.querySelectorAll(SHAPES)].filter((element) => seen(element) || element.ownerSVGElement).flatMap((element) => {
    const style = getComputedStyle(element);
    const below = behind(element.ownerSVGElement ? element.ownerSVGElement : element.parentElement);
    if (element.matches(".shares i") && style.backgroundImage === "none" && style.backgroundColor === "rgba(0, 0, 0, 0)") return []; // the rest of a bar
    const hatched = style.backgroundImage.match(/rgba?\([^)]*\)/);
    const drawn = !element.ownerSVGElement && !element.matches("svg") ? [[hatched ? hatched[0] : style.backgroundColor, 1]]
      : [[style.fill, Number(style.fillOpacity)], [style.stroke, Number.parseFloat(style.strokeWidth) ? Number(style.strokeOpacity) : 0]].filter(([colour]) => colour !== "none");
    const ratio = ([colour, share]) => { const [r, g, b, a] = rgba(colour); return contrast(over([r, g, b, a * share * opacity(element)], below), below); };
    const best = Math.max(...drawn.map(ratio));
    return best < 3 ? [`${best.toFixed(2)} ${name(element)}`] : [];
  });

  // What reacts to a click, and cannot be reached by Tab, or by arrows from a neighbour in its group.
  const CAN_FOCUS = "a[href], button, input, select, summary, [tabindex]";
  const unreachable = () => [...document.querySelectorAll("body *")].filter((element) => seen(element) && getComputedStyle(element).cursor === "pointer" && !element.parentElement.closest(CAN_FOCUS)).flatMap((element) => {
    const stop = element.matches(CAN_FOCUS) && (element.tabIndex >= 0 || [...element.parentElement.querySelectorAll("[tabindex='0']")].length === 1);
    const role = element.getAttribute("role") || { A: "link", BUTTON: "button", INPUT: "input", SELECT: "select", SUMMARY: "summary" }[element.tagName];
    const label = element.getAttribute("aria-label") || element.textContent.trim() || element.closest("label, fieldset");
    return stop && role && label ? [] : [name(element)];
  });

  // Boxes below 24 × 24, but for words within a text (WCAG 2.2, 2.5.8).
  const tiny = () => [...document.querySelectorAll(CAN_FOCUS)].filter((element) => seen(element) && !element.matches(".word, .at, p a")).flatMap((element) => {
    const box = element.getBoundingClientRect();
    return Math.min(box.width, box.height) < 23.5 ? [`${box.width.toFixed(0)} × ${box.height.toFixed(0)} ${name(element)}`] : [];
  });

  // Text of less than 11 pixels as it is seen.
  const small = () => texts().filter((element) => pixels(element) < 11).map((element) => `${pixels(element).toFixed(1)} ${name(element)}`);

  return { faint, pale, unreachable, tiny, small };
})()
