// A tokenizer's pre-splitter: contractions, words, numbers and punctuation, by one regular expression.
// A few lines that cost a compiler seconds, since std::regex is all templates.

#include <cstddef>
#include <regex>

namespace {

const std::regex &pattern() {
  static const std::regex compiled(
      "('s|'t|'re|'ve|'m|'ll|'d)|([A-Za-z]+)|([0-9]{1,3})|([^\\sA-Za-z0-9]+)|(\\s+)",
      std::regex::optimize);
  return compiled;
}

}  // namespace

extern "C" std::size_t tokens(const char *text, std::size_t length) {
  std::size_t count = 0;
  std::cmatch piece;
  for (const char *end = text + length; std::regex_search(text, end, piece, pattern()); text = piece[0].second)
    ++count;
  return count;
}
