// A token sampler: temperature, top-k and top-p over logits, with a reproducible random source.

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <numeric>
#include <random>
#include <ranges>
#include <span>
#include <utility>
#include <vector>

namespace {

struct Candidate {
  std::uint32_t token;
  double weight;
};

std::vector<Candidate> weigh(std::span<const float> logits, double temperature) {
  const double top = *std::ranges::max_element(logits);
  std::vector<Candidate> candidates;
  candidates.reserve(logits.size());
  for (std::uint32_t token : std::views::iota(std::uint32_t{0}, static_cast<std::uint32_t>(logits.size())))
    candidates.push_back({token, std::exp((logits[token] - top) / temperature)});
  return candidates;
}

void keep_likely(std::vector<Candidate> &candidates, std::size_t k, double p) {
  std::ranges::stable_sort(candidates, std::ranges::greater{}, &Candidate::weight);
  candidates.resize(std::min(k, candidates.size()));
  auto weights = candidates | std::views::transform(&Candidate::weight);
  const double total = std::accumulate(weights.begin(), weights.end(), 0.0);
  double sum = 0;
  const auto last = std::ranges::find_if(candidates, [&](const Candidate &candidate) {
    sum += candidate.weight;
    return sum >= p * total;
  });
  if (last != candidates.end()) candidates.erase(std::next(last), candidates.end());
}

}  // namespace

extern "C" std::uint32_t sample(const float *logits, std::size_t count, double temperature, std::size_t k, double p,
                                std::uint64_t seed) {
  auto candidates = weigh({logits, count}, temperature);
  keep_likely(candidates, k, p);
  auto weights = candidates | std::views::transform(&Candidate::weight);
  std::mt19937_64 source(seed);
  std::discrete_distribution<std::size_t> choice(weights.begin(), weights.end());
  return candidates[choice(source)].token;
}
