// Light or dark by choice, the menu of narrow screens, and a button that copies a block of code.

const told = localStorage.getItem("scheme");
if (told) document.documentElement.dataset.scheme = told;

document.addEventListener("DOMContentLoaded", () => {
  const isDark = () =>
    (document.documentElement.dataset.scheme || (matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light")) === "dark";
  const scheme = document.querySelector(".scheme");
  const name = () => { scheme.textContent = isDark() ? "Light" : "Dark"; };
  scheme.hidden = false;
  name();
  scheme.addEventListener("click", () => {
    const chosen = isDark() ? "light" : "dark";
    document.documentElement.dataset.scheme = chosen;
    localStorage.setItem("scheme", chosen);
    name();
  });

  const menu = document.querySelector(".menu");
  const contents = document.querySelector(".contents");
  menu.addEventListener("click", () => {
    menu.setAttribute("aria-expanded", String(contents.classList.toggle("is-open")));
  });
  const current = contents.querySelector("[aria-current]");
  if (current && current.offsetTop > contents.clientHeight) contents.scrollTop = current.offsetTop - contents.clientHeight / 2;

  if (!navigator.clipboard) return;
  for (const block of document.querySelectorAll(".highlight")) {
    const button = document.createElement("button");
    button.className = "copy";
    button.textContent = "Copy";
    button.addEventListener("click", async () => {
      // What the shell prints, and its prompt, are not part of what one types.
      const prompts = block.querySelectorAll(".gp");
      const text = block.querySelector("pre").textContent;
      const typed = text.split("\n").filter((line) => line.startsWith("$ ")).map((line) => line.slice(2)).join("\n");
      await navigator.clipboard.writeText(prompts.length ? typed : text);
      button.textContent = "Copied";
      setTimeout(() => { button.textContent = "Copy"; }, 1500);
    });
    block.append(button);
  }
});
