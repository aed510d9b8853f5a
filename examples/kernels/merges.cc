// Byte pair encoding: the merge loop of a tokenizer, with a queue of candidate pairs over a linked list of symbols.

#include <cstddef>
#include <cstdint>
#include <functional>
#include <limits>
#include <map>
#include <queue>
#include <sstream>
#include <string>
#include <string_view>
#include <tuple>
#include <unordered_map>
#include <utility>
#include <vector>

namespace {

using Ranks = std::map<std::pair<std::string, std::string>, std::size_t>;

// One merge a line, "left right", the most frequent first.
Ranks read(const std::string &table) {
  Ranks ranks;
  std::istringstream lines(table);
  for (std::string left, right; lines >> left >> right;) ranks.emplace(std::pair(left, right), ranks.size());
  return ranks;
}

struct Symbol {
  std::string text;
  std::size_t previous, next;
  bool gone = false;
};

constexpr std::size_t none = std::numeric_limits<std::size_t>::max();

std::vector<std::string> merge(const Ranks &ranks, std::string_view word) {
  std::vector<Symbol> symbols;
  for (std::size_t index = 0; index < word.size(); ++index)
    symbols.push_back({std::string(word.substr(index, 1)), index ? index - 1 : none,
                       index + 1 < word.size() ? index + 1 : none});
  using Candidate = std::tuple<std::size_t, std::size_t, std::string, std::string>;
  std::priority_queue<Candidate, std::vector<Candidate>, std::greater<>> queue;
  const auto offer = [&](std::size_t left) {
    if (left == none || symbols[left].next == none) return;
    const auto &first = symbols[left].text, &second = symbols[symbols[left].next].text;
    if (const auto found = ranks.find({first, second}); found != ranks.end())
      queue.emplace(found->second, left, first, second);
  };
  for (std::size_t index = 0; index < symbols.size(); ++index) offer(index);
  while (!queue.empty()) {
    const auto [rank, left, first, second] = queue.top();
    queue.pop();
    auto &symbol = symbols[left];
    if (symbol.gone || symbol.text != first || symbol.next == none || symbols[symbol.next].text != second) continue;
    auto &eaten = symbols[symbol.next];
    symbol.text += eaten.text;
    eaten.gone = true;
    symbol.next = eaten.next;
    if (symbol.next != none) symbols[symbol.next].previous = left;
    offer(left);
    offer(symbol.previous);
  }
  std::vector<std::string> pieces;
  for (const auto &symbol : symbols)
    if (!symbol.gone) pieces.push_back(symbol.text);
  return pieces;
}

}  // namespace

extern "C" std::size_t encode(const char *table, const char *word, std::uint32_t *ids, std::size_t room) {
  const auto ranks = read(table);
  std::unordered_map<std::string, std::uint32_t> vocabulary;
  for (const auto &[pair, rank] : ranks)
    vocabulary.emplace(pair.first + pair.second, static_cast<std::uint32_t>(256 + rank));
  std::size_t count = 0;
  for (const auto &piece : merge(ranks, word)) {
    if (count == room) break;
    const auto known = vocabulary.find(piece);
    ids[count++] = known != vocabulary.end() ? known->second : static_cast<unsigned char>(piece[0]);
  }
  return count;
}
