// Matrix products of float32 with what stands around them, for matrices of the size of a policy.
//
// Every element of a product is summed up in the order of k, whatever the number of rows, columns and threads: results
// do not depend on how work is cut, and one observation gets the action that it gets in a batch.

#pragma once

#include <ATen/Parallel.h>

#if defined(__AVX__)
#include <immintrin.h>
#elif defined(__aarch64__)
#include <arm_neon.h>
#endif

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <vector>

namespace rlx {

#if defined(__AVX512F__)
constexpr int W = 16, WIDEST = 4;  // floats of a vector; vectors side by side that registers have room for
#elif defined(__AVX__)
constexpr int W = 8, WIDEST = 2;
#elif defined(__aarch64__)
constexpr int W = 4, WIDEST = 4;
#else
constexpr int W = 4, WIDEST = 2;
#endif
constexpr int TALL = 6, TALLEST = 12;  // rows of a tile; of a tile one vector wide
constexpr int PANEL = W * WIDEST;

typedef float vec __attribute__((vector_size(W * 4), aligned(4), may_alias));
typedef float reg __attribute__((vector_size(W * 4)));  // of a value that stays in a register
typedef int32_t ivec __attribute__((vector_size(W * 4), aligned(4), may_alias));

inline vec load(const float* x) { return *reinterpret_cast<const vec*>(x); }
inline void store(float* x, vec v) { *reinterpret_cast<vec*>(x) = v; }
inline vec all(float x) { return x - vec{}; }

// x * y + z, rounded once where the CPU can. Compilers are told not to do that by themselves (-ffp-contract=off): one
// would in some copies of a loop and not in others, whose results would then differ.
inline vec mul_add(vec x, vec y, vec z) {
#if defined(__AVX512F__)
  return (vec)_mm512_fmadd_ps((__m512)x, (__m512)y, (__m512)z);
#elif defined(__AVX__) && defined(__FMA__)
  return (vec)_mm256_fmadd_ps((__m256)x, (__m256)y, (__m256)z);
#elif defined(__aarch64__)
  return (vec)vfmaq_f32((float32x4_t)z, (float32x4_t)x, (float32x4_t)y);
#else
  return x * y + z;
#endif
}
inline vec mul_add(vec x, vec y, float z) { return mul_add(x, y, all(z)); }

// the first n numbers of a vector, if it has more; memory behind them is not touched
inline vec load_some(const float* x, int64_t n) {
  if (n >= W) return load(x);
#if defined(__AVX512F__)
  return (vec)_mm512_maskz_loadu_ps(static_cast<__mmask16>((1u << n) - 1), x);
#elif defined(__AVX2__)
  const __m256i number = _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7);
  return (vec)_mm256_maskload_ps(x, _mm256_cmpgt_epi32(_mm256_set1_epi32(static_cast<int>(n)), number));
#else
  float some[W] = {};
  std::memcpy(some, x, n * sizeof(float));
  return load(some);
#endif
}

inline void store_some(float* x, vec v, int64_t n) {
  if (n >= W) return store(x, v);
#if defined(__AVX512F__)
  _mm512_mask_storeu_ps(x, static_cast<__mmask16>((1u << n) - 1), (__m512)v);
#elif defined(__AVX2__)  // half by half: stores with a mask are slow on some CPUs
  __m128 part = _mm256_castps256_ps128((__m256)v);
  if (n & 4) {
    _mm_storeu_ps(x, part);
    part = _mm256_extractf128_ps((__m256)v, 1);
    x += 4;
  }
  if (n & 2) {
    _mm_storel_pi(reinterpret_cast<__m64*>(x), part);
    part = _mm_movehl_ps(part, part);
    x += 2;
  }
  if (n & 1) _mm_store_ss(x, part);
#else
  float some[W];
  store(some, v);
  std::memcpy(x, some, n * sizeof(float));
#endif
}

// -- functions of a vector; within two units in the last place, but for `log1p`, which is to be added to something

inline vec exp(vec x) {
  const vec low = all(-87.33654f), high = all(88.37626f), magic = all(12582912.f);
  x = x < low ? low : x;
  x = x > high ? high : x;  // nan stays
  const vec n = mul_add(x, all(1.44269504f), magic) - magic;
  x = mul_add(n, all(2.12194440e-4f), mul_add(n, all(-0.693359375f), x));
  vec y = all(1.9875691500e-4f);
  y = mul_add(y, x, 1.3981999507e-3f);
  y = mul_add(y, x, 8.3334519073e-3f);
  y = mul_add(y, x, 4.1665795894e-2f);
  y = mul_add(y, x, 1.6666665459e-1f);
  y = mul_add(y, x, 5.0000001201e-1f);
  y = mul_add(y * x, x, x) + 1.f;
  const ivec power = (__builtin_convertvector(n, ivec) + 127) << 23;
  return y * reinterpret_cast<const vec&>(power);
}

inline vec abs(vec x) { return x < 0.f ? -x : x; }

inline vec tanh(vec x) {
  const vec size = abs(x), z = x * x;
  vec y = all(-5.70498872745e-3f);
  y = mul_add(y, z, 2.06390887954e-2f);
  y = mul_add(y, z, -5.37397155531e-2f);
  y = mul_add(y, z, 1.33314422036e-1f);
  y = mul_add(y, z, -3.33332819422e-1f);
  y = mul_add(y * z, x, x);
  const vec large = 1.f - 2.f / (exp(2.f * size) + 1.f);
  return size < 0.625f ? y : (x < 0.f ? -large : large);
}

inline vec expm1(vec x) {  // of x <= 0
  const vec t = tanh(0.5f * x);
  return x < -17.f ? all(-1.f) : 2.f * t / (1.f - t);  // nan stays
}

inline vec log1p(vec e) {  // of 0 <= e <= 1: 2 atanh(e / (2 + e))
  const vec z = e / (e + 2.f), s = z * z;
  vec y = all(1.f / 15.f);
  for (int n = 13; n > 1; n -= 2) y = mul_add(y, s, 1.f / n);
  return 2.f * mul_add(y * s, z, z);
}

// The standard normal distribution: below x, and its density there. erfc by 7.1.26 of Abramowitz & Stegun (1964), which is
// right to 1.5e-7.
struct Normal {
  vec below, density;
  explicit Normal(vec x) {
    const vec bell = exp(-0.5f * x * x), t = 1.f / (1.f + (0.3275911f * 0.70710678f) * abs(x));
    vec y = all(1.061405429f);
    y = mul_add(y, t, -1.453152027f);
    y = mul_add(y, t, 1.421413741f);
    y = mul_add(y, t, -0.284496736f);
    y = mul_add(y, t, 0.254829592f);
    const vec tail = 0.5f * y * t * bell;
    below = x < 0.f ? tail : 1.f - tail;  // nan stays
    density = abs(x) > 14.f ? vec{} : 0.39894228f * bell;  // `exp` does not go down to zero
  }
};

// not inlined, so that loops over cheaper activations stay small
__attribute__((noinline)) inline vec gelu(vec x) { return x * Normal(x).below; }

__attribute__((noinline)) inline vec slope_of_gelu(vec x) {
  const Normal normal(x);
  return normal.below + x * normal.density;
}

// -- what happens to a product before it leaves the cache

enum Activation { RELU, TANH, ELU, GELU, NONE };

struct After {
  enum { NOTHING, ACTIVATE, SLOPE } kind = NOTHING;
  Activation activation = NONE;
  const float* row = nullptr;   // ACTIVATE: the bias [n]
  float* before = nullptr;      // ACTIVATE: where inputs of the activation are kept [m, n]
  const float* y = nullptr;     // SLOPE: outputs of the activation [m, n]; of GELU, its inputs
  const float* mask = nullptr;  // of dropout [m, n]: zeros and 1 / keep
  float keep = 1.f;
};

inline vec activated(vec x, Activation kind) {
  if (kind == RELU) return x < 0.f ? vec{} : x;  // nan stays
  if (kind == TANH) return tanh(x);
  if (kind == ELU) return x > 0.f ? x : expm1(x);
  if (kind == GELU) return gelu(x);
  return x;
}

inline vec slope(vec grad, vec y, Activation kind) {
  if (kind == RELU) return y <= 0.f ? vec{} : grad;  // as in torch, the gradient passes where y is nan
  if (kind == TANH) return grad * (1.f - y * y);
  if (kind == ELU) return y > 0.f ? grad : grad * (y + 1.f);
  if (kind == GELU) return grad * slope_of_gelu(y);
  return grad;
}

// one activation at a time, so that the loop over vectors does not ask which it is
template <Activation ACTIVATION, bool FORWARD>
void finish_as(const After& after, float* c, int64_t ldc, int64_t rows, int64_t cols, int64_t row, int64_t col,
               int64_t width) {
  const float *outputs = after.y, *mask = after.mask;  // which the compiler would look up again after each store
  float* before = after.before;
  const float keep = after.keep;
  const auto column = [&](int64_t j, auto n) __attribute__((always_inline)) {  // of vectors
    const vec bias = FORWARD ? load_some(after.row + col + j, n) : vec{};
    int64_t at = row * width + col + j;
    float* to = c + j;
    for (int64_t i = 0; i < rows; ++i, at += width, to += ldc) {
      vec x = load_some(to, n);
      if (FORWARD) {
        x += bias;
        if (before) store_some(before + at, x, n);
        x = activated(x, ACTIVATION);
        if (mask) x *= load_some(mask + at, n);
      } else {
        vec y = load_some(outputs + at, n);
        if (mask) {
          x *= load_some(mask + at, n);
          if (ACTIVATION != GELU) y *= keep;
        }
        x = slope(x, y, ACTIVATION);
      }
      store_some(to, x, n);
    }
  };
  int64_t j = 0;
  for (; j + W <= cols; j += W) column(j, std::integral_constant<int64_t, W>());
  if (j < cols) column(j, cols - j);
}

inline void finish(const After& after, float* c, int64_t ldc, int64_t rows, int64_t cols, int64_t row, int64_t col,
                   int64_t width) {
  if (after.kind == After::NOTHING) return;
  constexpr decltype(&finish_as<NONE, true>) KINDS[][2] = {
      {finish_as<RELU, false>, finish_as<RELU, true>}, {finish_as<TANH, false>, finish_as<TANH, true>},
      {finish_as<ELU, false>, finish_as<ELU, true>},   {finish_as<GELU, false>, finish_as<GELU, true>},
      {finish_as<NONE, false>, finish_as<NONE, true>}};
  KINDS[after.activation][after.kind == After::ACTIVATE](after, c, ldc, rows, cols, row, col, width);
}

// -- products

// f(0), f(1), ..., f(N - 1), with numbers that the compiler knows from the start: else it keeps arrays in memory
template <int N, class F>
[[gnu::always_inline]] inline void unrolled(F f) {
  [&]<int... I>(std::integer_sequence<int, I...>) __attribute__((always_inline)) {
    (f(std::integral_constant<int, I>()), ...);
  }(std::make_integer_sequence<int, N>());
}

// What a tile does with its sums while they are in registers, where that is little
struct Ending {
  const float* bias = nullptr;     // added, if there is one
  bool relu = false;               // after that
  const float* outputs = nullptr;  // of a relu, as far apart as those of c: its slope, if there are any
};

// c [M, cols] = a [M, k] b [k, V * W]; element (i, j) of a lies at i * down + j * right
template <int M, int V>
void tile(const float* a, int64_t down, int64_t right, const float* b, int64_t ldb, float* c, int64_t ldc, int64_t k,
          int64_t cols, bool add, const Ending& ending) {
  const auto width = [&](int j) __attribute__((always_inline)) { return j < V - 1 ? W : cols - j * W; };
  reg sum[M * V];
  unrolled<M * V>([&](auto n) __attribute__((always_inline)) {
    constexpr int i = n / V, j = n % V;
    sum[n] = add ? load_some(c + i * ldc + j * W, width(j)) : vec{};
  });
  for (int64_t l = 0; l < k; ++l) {
    reg row[V];
    unrolled<V>([&](auto j) __attribute__((always_inline)) { row[j] = load(b + l * ldb + j * W); });
    unrolled<M>([&](auto i) __attribute__((always_inline)) {
      const reg x = all(a[i * down + l * right]);
      unrolled<V>([&](auto j) __attribute__((always_inline)) { sum[i * V + j] = mul_add(x, row[j], sum[i * V + j]); });
    });
  }
  if (ending.bias) {
    unrolled<V>([&](auto j) __attribute__((always_inline)) {
      const reg row = load_some(ending.bias + j * W, width(j));
      unrolled<M>([&](auto i) __attribute__((always_inline)) { sum[i * V + j] += row; });
    });
    if (ending.relu)
      unrolled<M * V>([&](auto n) __attribute__((always_inline)) { sum[n] = activated(sum[n], RELU); });
  } else if (ending.outputs) {
    unrolled<M * V>([&](auto n) __attribute__((always_inline)) {
      constexpr int i = n / V, j = n % V;
      sum[n] = slope(sum[n], load_some(ending.outputs + i * ldc + j * W, width(j)), RELU);
    });
  }
  unrolled<M * V>([&](auto n) __attribute__((always_inline)) {
    constexpr int i = n / V, j = n % V;
    store_some(c + i * ldc + j * W, sum[n], width(j));
  });
}

using Tile = void (*)(const float*, int64_t, int64_t, const float*, int64_t, float*, int64_t, int64_t, int64_t, bool,
                      const Ending&);

template <int V, int... M>
constexpr Tile tile_of(int64_t rows, std::integer_sequence<int, M...>) {
  constexpr Tile tiles[] = {tile<M + 1, V>...};
  return tiles[rows - 1];
}

inline Tile choose(int64_t rows, int64_t vectors) {
  constexpr auto up_to = std::make_integer_sequence<int, TALL>();
  if (vectors == 1) return rows == TALLEST ? tile<TALLEST, 1> : tile_of<1>(rows, up_to);
  if (vectors == 2) return tile_of<2>(rows, up_to);
  return vectors == 3 ? tile_of<3>(rows, up_to) : tile_of<4>(rows, up_to);
}

// memory of a thread that lives as long as it does
inline float* scratch(int which, int64_t n) {
  thread_local std::vector<float> kept[3];
  auto& memory = kept[which];
  if (static_cast<int64_t>(memory.size()) < n + 16) memory.resize(n + 16);
  const auto at = reinterpret_cast<uintptr_t>(memory.data());
  return reinterpret_cast<float*>((at + 63) / 64 * 64);
}

template <int S>
inline void swap_blocks(vec (&r)[W]) {
#if defined(__clang__)
  for (int i = 0; i < W; ++i)
    if (!(i & S))
      for (int j = 0; j < W; ++j)
        if (j & S) {
          const float x = r[i][j];
          r[i][j] = r[i + S][j - S];
          r[i + S][j - S] = x;
        }
#else
  ivec low, high;
  for (int j = 0; j < W; ++j) {
    low[j] = j & S ? W + j - S : j;
    high[j] = j & S ? W + j : j + S;
  }
  for (int i = 0; i < W; ++i)
    if (!(i & S)) {
      const vec a = r[i], b = r[i + S];
      r[i] = __builtin_shuffle(a, b, low);
      r[i + S] = __builtin_shuffle(a, b, high);
    }
#endif
  if constexpr (2 * S < W) swap_blocks<2 * S>(r);
}

// columns [0, cols) of b [k, ...], or of the transpose of b [cols, k], side by side and filled up with zeros
inline void pack(const float* b, int64_t ldb, bool transposed, int64_t k, int64_t cols, int64_t width, float* to) {
  if (!transposed) {
    for (int64_t l = 0; l < k; ++l)
      for (int64_t j = 0; j < width; j += W)
        store(to + l * width + j, j < cols ? load_some(b + l * ldb + j, cols - j) : vec{});
    return;
  }
  for (int64_t j = 0; j < width; j += W)
    for (int64_t l = 0; l < k; l += W) {
      vec block[W];
      for (int i = 0; i < W; ++i) block[i] = j + i < cols ? load_some(b + (j + i) * ldb + l, k - l) : vec{};
      swap_blocks<1>(block);
      for (int i = 0; i < std::min<int64_t>(W, k - l); ++i) store(to + (l + i) * width + j, block[i]);
    }
}

constexpr int64_t FAR = 512;  // rows of b that lie further apart fall into the same few lines of the cache

inline void product(int64_t m, int64_t n, int64_t k, const float* a, int64_t down, int64_t right, const float* b,
                    int64_t ldb, bool transposed, float* c, int64_t ldc, bool add = false, const After& after = {}) {
  const bool forward = after.kind == After::ACTIVATE, relu = after.activation == RELU;
  const bool simple = (relu || (forward && after.activation == NONE)) && !after.before && !after.mask && ldc == n;
  for (int64_t col = 0; col < n; col += PANEL) {
    const int64_t cols = std::min<int64_t>(PANEL, n - col), vectors = (cols + W - 1) / W;
    const float* panel = b + col;
    int64_t ldp = ldb;
    if (transposed || cols % W || (ldb >= FAR && m > TALLEST)) {
      float* to = scratch(0, k * vectors * W);
      pack(transposed ? b + col * ldb : b + col, ldb, transposed, k, cols, vectors * W, to);
      panel = to;
      ldp = vectors * W;
    }
    for (int64_t row = 0; row < m;) {
      const int64_t left = m - row;
      const int64_t rows = vectors == 1 && left >= TALLEST ? TALLEST : std::min<int64_t>(TALL, left);
      float* at = c + row * ldc + col;
      Ending ending;
      if (simple && forward) ending = {after.row + col, relu};
      if (simple && after.kind == After::SLOPE) ending.outputs = after.y + row * n + col;
      choose(rows, vectors)(a + row * down, down, right, panel, ldp, at, ldc, k, cols, add, ending);
      if (!simple) finish(after, at, ldc, rows, cols, row, col, n);
      row += rows;
    }
  }
}

inline float dot(const float* x, const float* y, int64_t n) {
  vec sums[4] = {};
  int64_t i = 0;
  for (; i + 4 * W <= n; i += 4 * W)
    for (int j = 0; j < 4; ++j) sums[j] = mul_add(load(x + i + j * W), load(y + i + j * W), sums[j]);
  for (; i < n; i += W) sums[0] = mul_add(load_some(x + i, n - i), load_some(y + i, n - i), sums[0]);
  const vec sum = (sums[0] + sums[1]) + (sums[2] + sums[3]);
  float total = 0.f;
  for (int j = 0; j < W; ++j) total += sum[j];
  return total;
}

// sums [n] of the columns of x [rows, n], or of x * y
inline void column_sums(const float* x, const float* y, int64_t rows, int64_t n, float* to) {
  for (int64_t j = 0; j < n; j += W) {
    vec sum = {};
    for (int64_t i = 0; i < rows; ++i) {
      const vec v = load_some(x + i * n + j, n - j);
      sum = y ? mul_add(v, load_some(y + i * n + j, n - j), sum) : sum + v;
    }
    store_some(to + j, sum, n - j);
  }
}

constexpr double WORTH = 2e6;  // products of numbers from which on a second thread pays for its start

template <class F>
void over_rows(int64_t rows, double work_per_row, const F& f) {
  const int64_t threads = at::get_num_threads();
  if (threads == 1 || static_cast<double>(rows) * work_per_row < WORTH || at::in_parallel_region()) return f(0, rows);
  const int64_t share = (rows + threads - 1) / threads;
  at::parallel_for(0, rows, (share + TALL - 1) / TALL * TALL, f);
}

}  // namespace rlx
