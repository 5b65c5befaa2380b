// Sampling of a token from each row of logits, with the result of torch_sampling.py: the highest of
// logit / temperature + Gumbel noise among the tokens that the filters leave. Noise is computed only where it may win.
#pragma once

#include <algorithm>
#include <cmath>

#include "gumbel_noise.h"
#include "structs.h"

namespace baton {

constexpr int64_t kThreadedLogits = 1 << 18;   // below this, one thread is faster
constexpr double kMaxNoise = 22.8807;          // noise of the largest word, rounded up
constexpr float kMargin = 1.0001f;             // covers the rounding of the test that skips a token
constexpr double kMass = int64_t{1} << kMassBits;   // mass of the best token, in steps

// A mask: bit i is set if lane i of `a` is at least that of `b`.
inline uint32_t at_least(Floats a, Floats b) {
#if BATON_LANES == 16
  return _mm512_cmp_ps_mask((__m512)a, (__m512)b, _CMP_GE_OQ);
#elif BATON_LANES == 8
  return _mm256_movemask_ps(_mm256_cmp_ps((__m256)a, (__m256)b, _CMP_GE_OQ));
#else
  uint32_t bits = 0;
  for (int lane = 0; lane < kLanes; ++lane) bits |= uint32_t{a[lane] >= b[lane]} << lane;
  return bits;
#endif
}

// The lowest of the tokens with the highest logit, or a Refusal. Sums of small multiples find NaN at the cost of a
// multiply-add for each vector: no finite number makes them one, and neither does minus infinity.
template <class Element>
int64_t best_token(const Element* logits, int64_t n) {
  constexpr float kSmall = 0x1p-40f;
  Floats highest[4], sums[4];
  std::fill_n(highest, 4, splat(-INFINITY));
  std::fill_n(sums, 4, Floats{});
  int64_t i = 0;
  for (; i + 4 * kLanes <= n; i += 4 * kLanes)
    for (int part = 0; part < 4; ++part) {
      const Floats x = load(logits + i + part * kLanes);
      highest[part] = max(x, highest[part]);
      sums[part] += x * kSmall;
    }
  float top = max_lane(max(max(highest[0], highest[1]), max(highest[2], highest[3])));
  float sum = sum_lanes(sums[0] + sums[1] + (sums[2] + sums[3]));
  for (; i < n; ++i) top = std::max(top, widen(logits[i])), sum += widen(logits[i]) * kSmall;
  if (top == INFINITY) return kInfinite;
  if (sum != sum) return kNotANumber;
  if (top == -INFINITY) return kNothingLeft;
  for (i = 0; i + kLanes <= n; i += kLanes)
    if (const uint32_t bits = at_least(load(logits + i), splat(top))) return i + __builtin_ctz(bits);
  while (widen(logits[i]) < top) ++i;
  return i;
}

// The scores of one row: logit over temperature, relative to the best token's; -inf for filtered tokens.
struct Scores {
  float* of;
  int64_t size;   // a multiple of kNoiseTokens, -inf behind the vocabulary

  static int64_t size_of(const SampleArgs& args) { return round_up(args.vocab_size, kNoiseTokens); }

  template <class Element>
  void fill(const Element* logits, int64_t n, int64_t best, float temperature) {
    const float top = widen(logits[best]);
    int64_t i = 0;
    for (; i + kLanes <= n; i += kLanes) store(of + i, (load(logits + i) - top) / temperature);
    for (; i < n; ++i) of[i] = (widen(logits[i]) - top) / temperature;
    std::fill(of + n, of + size, -INFINITY);
  }

  int64_t count_at_least(float bound) const {
    int64_t count = 0;
    for (int64_t i = 0; i < size; i += kLanes)
      count += __builtin_popcount(at_least(load(of + i), splat(bound)));
    return count;
  }

  void drop_below(float bound) {
    for (int64_t i = 0; i < size; i += kLanes) {
      const Floats x = load(of + i);
      store(of + i, x >= bound ? x : splat(-INFINITY));
    }
  }

  // Keep the first k by (score descending, token ascending). The score of the last of them is found bit by
  // bit: scores are not positive, so they fall as their magnitudes' bits rise.
  void keep_highest(int64_t k) {
    uint32_t low = 0, high = 0x7f800000;
    while (low < high) {
      const uint32_t middle = low + (high - low) / 2;
      if (count_at_least(negative(middle)) >= k) high = middle;
      else low = middle + 1;
    }
    const float last = negative(high);
    drop_below(last);
    int64_t surplus = last > -INFINITY ? count_at_least(last) - k : 0;
    for (int64_t i = size; surplus > 0;)
      if (of[--i] == last) of[i] = -INFINITY, --surplus;
  }

  // Keep those before `token` by (score descending, token ascending).
  void keep_before(int64_t token) {
    const float last = of[token];
    drop_below(last);
    for (int64_t i = token; i < size; ++i)
      if (of[i] == last) of[i] = -INFINITY;
  }

  // Probability mass, relative to the best token's, of those before `token`, or of all for `size`.
  int64_t mass_before(int64_t token) const {
    const float last = token < size ? of[token] : -INFINITY;
    int64_t mass = 0;
    for (int64_t i = 0; i < size; ++i)
      if (of[i] > last || (of[i] == last && i < token)) mass += mass_of(of[i]);
    return mass;
  }

 private:
  static float negative(uint32_t magnitude) {
    const uint32_t bits = magnitude | 0x80000000u;
    float x;
    std::memcpy(&x, &bits, sizeof x);
    return x;
  }
  static int64_t mass_of(float score) {
    return score > -32.0f ? int64_t(std::exp(double{score}) * kMass + 0.5) : 0;
  }
};

// The token of the highest score plus noise, ties to the lower one; `best` has score 0.
//
// With u the uniform number of a token, its noise is -log(-log(u)), and -log(u) >= 1 - u. So it reaches a record
// only if 1 - u <= exp(score - record): that compares the generator's word without its logarithm.
inline int64_t sample_gumbel(const Scores& scores, const GumbelNoise& noise, int64_t best) {
  double record = noise.of(best);
  for (int64_t start = 0; start < scores.size; start += kNoiseTokens) {
    uint32_t can_win = 0;
    for (int i = 0; i < kNoiseVectors; ++i)
      can_win |= at_least(load(scores.of + start + i * kLanes), splat(record - kMaxNoise));
    if (!can_win) continue;
    const std::array<Words, kNoiseVectors> words = noise.words(start);
    for (int i = 0; i < kNoiseVectors; ++i) {
      const Floats x = load(scores.of + start + i * kLanes);
      const Floats gap = (x - float(record)) * kLog2E;
      const Floats bound = exp2_nonpositive(gap < 0.0f ? gap : splat(0)) * (kMargin * 0x1p32f);
      uint32_t left = at_least(bound, __builtin_convertvector(~words[i], Floats));
      for (; left; left &= left - 1) {
        const int lane = __builtin_ctz(left);
        const int64_t token = start + i * kLanes + lane;
        const double noisy = x[lane] + GumbelNoise::of_word(words[i][lane]);
        if (noisy > record || (noisy == record && token < best)) record = noisy, best = token;
      }
    }
  }
  return best;
}

// Sample under the filters. top_p leaves a prefix of the tokens by (score descending, token ascending): the winner
// without it is the sample if it lies in that prefix; otherwise it and all tokens behind it are dropped.
inline int64_t sample_filtered(const SampleArgs& args, int64_t row, Scores scores, int64_t best) {
  const GumbelNoise noise(args.seeds[row], args.positions[row]);
  if (args.min_score[row] > -INFINITY) scores.drop_below(args.min_score[row]);
  const int64_t top_k = args.top_k[row];
  if (top_k > 0 && top_k < args.vocab_size) scores.keep_highest(top_k);
  if (!(args.top_p[row] < 1.0)) return sample_gumbel(scores, noise, best);
  const int64_t total = scores.mass_before(scores.size);
  const int64_t needed = std::min(total, int64_t(std::ceil(total * args.top_p[row])));
  while (true) {
    const int64_t token = sample_gumbel(scores, noise, best);
    if (token == best || scores.mass_before(token) < needed) return token;
    scores.keep_before(token);
  }
}

template <class Element>
void sample_row(const SampleArgs& args, int64_t row, float* memory) {
  const Element* logits = static_cast<const Element*>(args.logits) + row * args.stride;
  int64_t token = best_token(logits, args.vocab_size);
  if (token >= 0 && args.temperature[row] > 0) {
    Scores scores{memory, Scores::size_of(args)};
    scores.fill(logits, args.vocab_size, token, args.temperature[row]);
    token = sample_filtered(args, row, scores, token);
  }
  args.tokens[row] = token;
}

inline void sample_rows(const SampleArgs& args, float* memory) {
  const auto sample = args.is_bfloat16 ? sample_row<Bfloat16> : sample_row<float>;
  const int64_t num_threads = args.num_rows * args.vocab_size >= kThreadedLogits ? args.num_threads : 1;
  parallel_for(num_threads, args.num_rows, 1, [&](int64_t row, int64_t thread) noexcept {
    sample(args, row, memory + thread * Scores::size_of(args));
  });
}

}  // namespace baton
