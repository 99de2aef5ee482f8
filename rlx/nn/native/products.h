// Matrix products of float32 with what stands around them, for matrices of the size of a policy.
//
// Every element of a product is summed up in the order of k, whatever the number of rows, columns and threads: results
// do not depend on how work is cut, and one observation gets the action that it gets in a batch.

#pragma once

#include <ATen/Parallel.h>

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
typedef int32_t ivec __attribute__((vector_size(W * 4), aligned(4), may_alias));

inline vec load(const float* x) { return *reinterpret_cast<const vec*>(x); }
inline void store(float* x, vec v) { *reinterpret_cast<vec*>(x) = v; }
inline vec all(float x) { return x - vec{}; }

inline vec load_some(const float* x, int64_t n) {
  if (n >= W) return load(x);
  float some[W] = {};
  std::memcpy(some, x, n * sizeof(float));
  return load(some);
}

inline void store_some(float* x, vec v, int64_t n) {
  if (n >= W) return store(x, v);
  float some[W];
  store(some, v);
  std::memcpy(x, some, n * sizeof(float));
}

// -- functions of a vector; within two units in the last place, but for `log1p`, which is to be added to something

inline vec exp(vec x) {
  const vec low = all(-87.33654f), high = all(88.37626f), magic = all(12582912.f);
  x = x < low ? low : x;
  x = x > high ? high : x;  // nan stays
  const vec n = (x * 1.44269504f + magic) - magic;
  x = (x - n * 0.693359375f) + n * 2.12194440e-4f;
  vec y = all(1.9875691500e-4f);
  y = y * x + 1.3981999507e-3f;
  y = y * x + 8.3334519073e-3f;
  y = y * x + 4.1665795894e-2f;
  y = y * x + 1.6666665459e-1f;
  y = y * x + 5.0000001201e-1f;
  y = y * x * x + x + 1.f;
  const ivec power = (__builtin_convertvector(n, ivec) + 127) << 23;
  return y * reinterpret_cast<const vec&>(power);
}

inline vec abs(vec x) { return x < 0.f ? -x : x; }

inline vec tanh(vec x) {
  const vec size = abs(x), z = x * x;
  vec y = all(-5.70498872745e-3f);
  y = y * z + 2.06390887954e-2f;
  y = y * z - 5.37397155531e-2f;
  y = y * z + 1.33314422036e-1f;
  y = y * z - 3.33332819422e-1f;
  y = y * z * x + x;
  const vec large = 1.f - 2.f / (exp(2.f * size) + 1.f);
  return size < 0.625f ? y : (x < 0.f ? -large : large);
}

inline vec expm1(vec x) {  // of x <= 0
  const vec t = tanh(0.5f * x);
  return x > -17.f ? 2.f * t / (1.f - t) : all(-1.f);
}

inline vec log1p(vec e) {  // of 0 <= e <= 1: 2 atanh(e / (2 + e))
  const vec z = e / (e + 2.f), s = z * z;
  vec y = all(1.f / 15.f);
  for (int n = 13; n > 1; n -= 2) y = y * s + 1.f / n;
  return 2.f * (y * s * z + z);
}

// -- what happens to a product before it leaves the cache

enum Activation { RELU, TANH, ELU, NONE };

struct After {
  enum { NOTHING, ACTIVATE, SLOPE } kind = NOTHING;
  Activation activation = NONE;
  const float* row = nullptr;   // ACTIVATE: the bias [n]
  const float* y = nullptr;     // SLOPE: outputs of the activation [m, n]
  const float* mask = nullptr;  // of dropout [m, n]: zeros and 1 / keep
  float keep = 1.f;
};

inline vec activated(vec x, Activation kind) {
  if (kind == RELU) return x < 0.f ? vec{} : x;  // nan stays
  if (kind == TANH) return tanh(x);
  if (kind == ELU) return x > 0.f ? x : expm1(x);
  return x;
}

inline vec slope(vec grad, vec y, Activation kind) {
  if (kind == RELU) return y > 0.f ? grad : vec{};
  if (kind == TANH) return grad * (1.f - y * y);
  if (kind == ELU) return y > 0.f ? grad : grad * (y + 1.f);
  return grad;
}

inline void finish(const After& after, float* c, int64_t ldc, int64_t rows, int64_t cols, int64_t row, int64_t col,
                   int64_t width) {
  if (after.kind == After::NOTHING) return;
  for (int64_t i = 0; i < rows; ++i) {
    const int64_t at = (row + i) * width + col;
    for (int64_t j = 0; j < cols; j += W) {
      const int64_t n = cols - j;
      vec x = load_some(c + i * ldc + j, n);
      if (after.kind == After::ACTIVATE) {
        x = activated(x + load_some(after.row + col + j, n), after.activation);
        if (after.mask) x *= load_some(after.mask + at + j, n);
      } else {
        vec y = load_some(after.y + at + j, n);
        if (after.mask) {
          x *= load_some(after.mask + at + j, n);
          y *= after.keep;
        }
        x = slope(x, y, after.activation);
      }
      store_some(c + i * ldc + j, x, n);
    }
  }
}

// -- products

// c [M, cols] = a [M, k] b [k, V * W]; element (i, j) of a lies at i * down + j * right
template <int M, int V>
void tile(const float* a, int64_t down, int64_t right, const float* b, int64_t ldb, float* c, int64_t ldc, int64_t k,
          int64_t cols, bool add) {
  vec sum[M][V];
  for (int i = 0; i < M; ++i)
    for (int j = 0; j < V; ++j) sum[i][j] = add ? load_some(c + i * ldc + j * W, cols - j * W) : vec{};
  for (int64_t l = 0; l < k; ++l) {
    vec row[V];
    for (int j = 0; j < V; ++j) row[j] = load(b + l * ldb + j * W);
    for (int i = 0; i < M; ++i) {
      const float x = a[i * down + l * right];
      for (int j = 0; j < V; ++j) sum[i][j] += x * row[j];
    }
  }
  for (int i = 0; i < M; ++i)
    for (int j = 0; j < V; ++j) store_some(c + i * ldc + j * W, sum[i][j], cols - j * W);
}

using Tile = void (*)(const float*, int64_t, int64_t, const float*, int64_t, float*, int64_t, int64_t, int64_t, bool);

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
      choose(rows, vectors)(a + row * down, down, right, panel, ldp, at, ldc, k, cols, add);
      finish(after, at, ldc, rows, cols, row, col, n);
      row += rows;
    }
  }
}

inline float dot(const float* x, const float* y, int64_t n) {
  vec sums[4] = {};
  int64_t i = 0;
  for (; i + 4 * W <= n; i += 4 * W)
    for (int j = 0; j < 4; ++j) sums[j] += load(x + i + j * W) * load(y + i + j * W);
  for (; i < n; i += W) sums[0] += load_some(x + i, n - i) * load_some(y + i, n - i);
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
      sum += y ? v * load_some(y + i * n + j, n - j) : v;
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
