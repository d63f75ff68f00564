// The keyboard reaches a box that scrolls. The theme does this too, but before the page has its final width.
const letKeyboardScroll = () => {
  for (const box of document.querySelectorAll("pre, .pst-scrollable-table-container")) {
    box.tabIndex = box.scrollWidth > box.clientWidth || box.scrollHeight > box.clientHeight ? 0 : -1;
  }
};

// The button shows the keys of the search too, which its label has to hold. A narrow page hides the words.
const labelSearchButtonWithItsWords = () => {
  for (const button of document.querySelectorAll(".search-button-field")) {
    button.ariaLabel = button.textContent.trim().replace(/\s+/g, " ");
  }
};

addEventListener("load", letKeyboardScroll);
addEventListener("load", labelSearchButtonWithItsWords);
