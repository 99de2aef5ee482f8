// The nodes of rlx/nn/fused.py and the steps of rlx/nn/optim.py in C++: float32 on the CPU.
//
// A function whose arguments are not of that kind returns None, and its caller takes the Python one.

#include <torch/csrc/autograd/python_variable.h>

#include <ATen/TracerMode.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/tensor.h>
#include <torch/csrc/Exceptions.h>
#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/functions/utils.h>
#include <torch/csrc/autograd/saved_variable.h>
#include <torch/csrc/autograd/variable.h>

#include <cmath>
#include <string>
#include <type_traits>
#include <vector>

#include "products.h"
#include "program.h"

namespace {

using namespace rlx;
using at::Tensor;
using torch::autograd::Node;
using torch::autograd::SavedVariable;
using torch::autograd::variable_list;
using NodePtr = decltype(torch::autograd::Edge::function);

constexpr float NORM_EPS = 1e-5f;
constexpr float LOG_STD_MIN = -20.f, LOG_STD_MAX = 2.f;

// how nodes are owned has changed between the versions of torch
template <class T, class Pointer = NodePtr>
std::pair<Pointer, T*> make_node() {
  T* node = new T();
  if constexpr (std::is_same_v<Pointer, std::shared_ptr<Node>>)
    return {Pointer(node), node};
  else
    return {Pointer::unsafe_steal_from_new(node), node};
}

// whose numbers do not lie in its memory, or who is asked about every operation
const c10::DispatchKeySet ELSEWHERE({
    c10::DispatchKey::Python, c10::DispatchKey::Fake, c10::DispatchKey::FuncTorchBatched,
    c10::DispatchKey::FuncTorchGradWrapper, c10::DispatchKey::FuncTorchDynamicLayerBackMode,
    c10::DispatchKey::Functionalize, c10::DispatchKey::ZeroTensor, c10::DispatchKey::Negative,
    c10::DispatchKey::BatchedNestedTensor, c10::DispatchKey::NestedTensor, c10::DispatchKey::Batched,
});

// Does forward-mode differentiation follow it?
bool has_tangent(const Tensor& t) {
  const auto* meta = torch::autograd::impl::get_autograd_meta(t);
  return meta && meta->fw_grad_ && !meta->fw_grad_->empty();
}

bool is_plain(const Tensor& t) {
  return t.defined() && t.device().is_cpu() && t.scalar_type() == at::kFloat && t.layout() == at::kStrided &&
         !t.key_set().has_any(ELSEWHERE) && !has_tangent(t);
}

float* data(const Tensor& t) { return static_cast<float*>(t.unsafeGetTensorImpl()->mutable_data()); }

void changed(const Tensor& t) {
  t.unsafeGetTensorImpl()->bump_version();
  if (capturing) capturing->written.push_back(t);
}

Tensor floats(at::IntArrayRef sizes) { return at::empty(sizes, at::TensorOptions(at::kFloat)); }

// -- networks

struct Layer {
  const float *weight, *bias, *gain, *shift;  // [members, in, out], [members, out]
  int64_t in, out;
};

// A network, or an ensemble, and the rows that it reads
struct Net {
  std::vector<Layer> layers;
  std::vector<int64_t> members;  // which of them
  int64_t rows = 0;
  bool stacked = false;  // an ensemble
  Activation activation = RELU;
  bool norm = false;
  float keep = 1.f;                 // of dropout
  std::vector<const float*> masks;  // [members, rows, out] of each hidden layer, or none
  const float* input = nullptr;     // [rows, in], or [members, rows, in]
  int64_t ld = 0, apart = 0;        // from row to row, and from member to member

  int64_t size() const { return static_cast<int64_t>(members.size()); }
  int64_t hidden() const { return static_cast<int64_t>(layers.size()) - 1; }
  const float* read_by(int64_t member) const { return input + member * apart; }
  double work() const {
    double sum = 0;
    for (const auto& layer : layers) sum += 2.0 * layer.in * layer.out;
    return sum * size();
  }
};

// Where what a backward pass needs lies in one block of memory, for each hidden layer
struct Kept {
  std::vector<int64_t> y, before, normal, rstd;
  int64_t total = 0;

  explicit Kept(const Net& net) {
    auto take = [&](int64_t n) {
      const int64_t at = total;
      total += (n + 15) / 16 * 16;
      return at;
    };
    for (int64_t i = 0; i < net.hidden(); ++i) {
      const int64_t n = net.size() * net.rows;
      y.push_back(take(n * net.layers[i].out));
      if (net.activation == GELU) before.push_back(take(n * net.layers[i].out));
      if (net.norm) {
        normal.push_back(take(n * net.layers[i].out));
        rstd.push_back(take(n));
      }
    }
  }
};

float mean_of(const float* x, int64_t n) {
  double sum = 0;
  vec sums = {};
  int64_t i = 0;
  for (; i + W <= n; i += W) sums += load(x + i);
  for (int j = 0; j < W; ++j) sum += sums[j];
  for (; i < n; ++i) sum += x[i];
  return static_cast<float>(sum / n);
}

// x [rows, n] becomes gain * normal + shift, activated
void normalize(const Net& net, const Layer& layer, int64_t member, float* x, int64_t rows, float* before, float* normal,
               float* rstd, const float* mask) {
  const int64_t n = layer.out;
  const float *gain = layer.gain + member * n, *shift = layer.shift + member * n, *bias = layer.bias + member * n;
  for (int64_t i = 0; i < rows; ++i) {
    float* row = x + i * n;
    for (int64_t j = 0; j < n; ++j) row[j] += bias[j];
    const float mean = mean_of(row, n);
    for (int64_t j = 0; j < n; ++j) row[j] -= mean;
    const float scale = 1.f / std::sqrt(dot(row, row, n) / n + NORM_EPS);
    if (rstd) rstd[i] = scale;
    for (int64_t j = 0; j < n; j += W) {
      const int64_t left = n - j;
      const vec v = load_some(row + j, left) * scale;
      if (normal) store_some(normal + i * n + j, v, left);
      vec y = v * load_some(gain + j, left) + load_some(shift + j, left);
      if (before) store_some(before + i * n + j, y, left);
      y = activated(y, net.activation);
      if (mask) y *= load_some(mask + i * n + j, left);
      store_some(row + j, y, left);
    }
  }
}

// the gradient [rows, n] behind a normalisation becomes that before it
void denormalize(const Layer& layer, int64_t member, float* grad, const float* normal, const float* rstd,
                 int64_t rows) {
  const int64_t n = layer.out;
  const float* gain = layer.gain + member * n;
  for (int64_t i = 0; i < rows; ++i) {
    float* g = grad + i * n;
    const float* z = normal + i * n;
    for (int64_t j = 0; j < n; ++j) g[j] *= gain[j];
    const float mean = mean_of(g, n), along = dot(g, z, n) / n, scale = rstd[i];
    for (int64_t j = 0; j < n; ++j) g[j] = scale * (g[j] - mean - z[j] * along);
  }
}

// One layer of one member for some rows; x and y are those of the first of them
void run_layer(const Net& net, int64_t i, int64_t m, int64_t first, int64_t rows, const float* x, int64_t ld, float* y,
               float* before, float* normal, float* rstd) {
  const Layer& layer = net.layers[i];
  const int64_t member = net.members[m];
  const float *weight = layer.weight + member * layer.in * layer.out, *bias = layer.bias + member * layer.out;
  const bool last = i == net.hidden();
  if (layer.out == 1 && last) {
    for (int64_t r = 0; r < rows; ++r) y[r] = dot(x + r * ld, weight, layer.in) + *bias;
    return;
  }
  const float* mask = net.masks.empty() || last ? nullptr : net.masks[i] + (m * net.rows + first) * layer.out;
  After after;
  if (last || !net.norm) {
    after.kind = After::ACTIVATE;
    after.activation = last ? NONE : net.activation;
    after.row = bias;
    after.before = before;
    after.mask = mask;
  }
  product(rows, layer.out, layer.in, x, ld, 1, weight, layer.out, false, y, layer.out, false, after);
  if (!last && net.norm) normalize(net, layer, member, y, rows, before, normal, rstd, mask);
}

constexpr int64_t SOME = 96;  // rows whose hidden layers are small enough for the cache

// y [members, rows, out]; hidden layers stay in `kept` where a backward pass is going to read them
void forward(const Net& net, float* y, float* kept) {
  const int64_t depth = net.hidden(), out = net.layers.back().out;
  if (kept) {
    const Kept at(net);
    over_rows(net.rows, net.work(), [&](int64_t begin, int64_t end) {
      for (int64_t m = 0; m < net.size(); ++m) {
        const float* x = net.read_by(m) + begin * net.ld;
        int64_t ld = net.ld;
        const int64_t row = m * net.rows + begin;
        for (int64_t i = 0; i <= depth; ++i) {
          const int64_t n = net.layers[i].out;
          float* to = i == depth ? y + row * out : kept + at.y[i] + row * n;
          float* normal = i < depth && net.norm ? kept + at.normal[i] + row * n : nullptr;
          float* before = i < depth && net.activation == GELU ? kept + at.before[i] + row * n : nullptr;
          run_layer(net, i, m, begin, end - begin, x, ld, to, before, normal,
                    normal ? kept + at.rstd[i] + row : nullptr);
          x = to;
          ld = n;
        }
      }
    });
    return;
  }
  int64_t widest = 1;
  for (const auto& layer : net.layers) widest = std::max(widest, layer.out);
  over_rows(net.rows, net.work(), [&](int64_t begin, int64_t end) {
    float* both = scratch(1, 2 * SOME * widest);
    for (int64_t m = 0; m < net.size(); ++m)
      for (int64_t first = begin; first < end; first += SOME) {
        const int64_t rows = std::min(SOME, end - first);
        const float* x = net.read_by(m) + first * net.ld;
        int64_t ld = net.ld;
        for (int64_t i = 0; i <= depth; ++i) {
          float* to = i == depth ? y + (m * net.rows + first) * out : both + i % 2 * SOME * widest;
          run_layer(net, i, m, first, rows, x, ld, to, nullptr, nullptr, nullptr);
          x = to;
          ld = net.layers[i].out;
        }
      }
  });
}

// Where gradients go; null where they are not wanted. Those of weights: as the parameters, [members, ...]
struct Grads {
  struct OfLayer {
    float *weight = nullptr, *bias = nullptr, *gain = nullptr, *shift = nullptr;
    bool any() const { return weight || bias || gain || shift; }
  };
  std::vector<OfLayer> layers;
  struct OfColumns {
    float* to = nullptr;  // [rows, count], summed over the members, or [members, rows, count]
    int64_t first = 0, count = 0;
  };
  OfColumns columns[2];  // of the input
  bool summed = true;
};

// Where the gradients behind each linear layer lie in one block of memory; with normalisation, also those behind that
struct Behind {
  std::vector<int64_t> linear, norm;
  int64_t lowest, total = 0;  // the first layer whose output has to be differentiated

  Behind(const Net& net, const Grads& to) : linear(net.hidden()), norm(net.hidden()), lowest(net.hidden() + 1) {
    for (int64_t i = net.hidden(); i >= 0; --i)
      if (to.layers[i].any()) lowest = i;
    if (to.columns[0].to || to.columns[1].to) lowest = 0;
    const auto take = [&](int64_t i) { return std::exchange(total, total + net.size() * net.rows * net.layers[i].out); };
    for (int64_t i = lowest; i < net.hidden(); ++i) {
      linear[i] = take(i);
      if (net.norm) norm[i] = take(i);
    }
  }
};

// grad [members, rows, out], by the output; `grads` is room for those behind the layers
void backward(const Net& net, const float* kept, const float* grad, const Grads& to, float* grads) {
  const Kept at(net);
  const Behind place(net, to);
  const auto &behind = place.linear, &after_norm = place.norm;
  const int64_t depth = net.hidden(), size = net.size(), rows = net.rows, lowest = place.lowest;
  if (lowest > depth) return;

  auto of = [&](int64_t i) { return i == depth ? grad : grads + behind[i]; };

  over_rows(rows, net.work(), [&](int64_t begin, int64_t end) {
    for (int64_t m = 0; m < size; ++m) {
      const int64_t member = net.members[m], row = m * rows + begin, count = end - begin;
      for (int64_t i = depth; i > lowest; --i) {
        const Layer& layer = net.layers[i];
        const Layer& before = net.layers[i - 1];
        After after;
        after.kind = After::SLOPE;
        after.activation = net.activation;
        after.y = kept + (net.activation == GELU ? at.before : at.y)[i - 1] + row * layer.in;
        if (!net.masks.empty()) {
          after.mask = net.masks[i - 1] + row * layer.in;
          after.keep = net.keep;
        }
        float* g = grads + behind[i - 1] + row * layer.in;
        product(count, layer.in, layer.out, of(i) + row * layer.out, layer.out, 1,
                layer.weight + member * layer.in * layer.out, layer.out, true, g, layer.in, false, after);
        if (net.norm && count > 0) {
          std::memcpy(grads + after_norm[i - 1] + row * layer.in, g, count * layer.in * sizeof(float));
          denormalize(before, member, g, kept + at.normal[i - 1] + row * layer.in, kept + at.rstd[i - 1] + row, count);
        }
      }
      const Layer& layer = net.layers[0];
      for (const auto& columns : to.columns)
        if (columns.to) {
          float* x = columns.to + (to.summed ? begin : row) * columns.count;
          product(count, columns.count, layer.out, of(0) + row * layer.out, layer.out, 1,
                  layer.weight + (member * layer.in + columns.first) * layer.out, layer.out, true, x, columns.count,
                  to.summed && m > 0);
        }
    }
  });

  for (int64_t i = lowest; i <= depth; ++i) {
    const Layer& layer = net.layers[i];
    const auto& wanted = to.layers[i];
    for (int64_t m = 0; m < size; ++m) {
      const float* g = of(i) + m * rows * layer.out;
      if (wanted.weight) {
        float* w = wanted.weight + m * layer.in * layer.out;
        const float* x = i == 0 ? net.read_by(m) : kept + at.y[i - 1] + m * rows * layer.in;
        const int64_t ld = i == 0 ? net.ld : layer.in;
        if (layer.out == 1)
          product(1, layer.in, rows, g, 0, 1, x, ld, false, w, layer.in);
        else
          over_rows(layer.in, 2.0 * rows * layer.out, [&](int64_t begin, int64_t end) {
            product(end - begin, layer.out, rows, x + begin, 1, ld, g, layer.out, false, w + begin * layer.out,
                    layer.out);
          });
      }
      if (wanted.bias) column_sums(g, nullptr, rows, layer.out, wanted.bias + m * layer.out);
      if (i < depth && net.norm) {
        const float* behind_norm = grads + after_norm[i] + m * rows * layer.out;
        const float* normal = kept + at.normal[i] + m * rows * layer.out;
        if (wanted.gain) column_sums(behind_norm, normal, rows, layer.out, wanted.gain + m * layer.out);
        if (wanted.shift) column_sums(behind_norm, nullptr, rows, layer.out, wanted.shift + m * layer.out);
      }
    }
  }
}

// What a node keeps besides tensors
struct Form {
  int64_t width = 2;  // parameters of a layer but the last: 4 with a normalisation
  Activation activation = RELU;
  std::vector<int64_t> members;
  bool some = false;  // of the members, which then have no gradients
  Tensor index;       // of the members, where they change from call to call
  float keep = 1.f;
  bool shared = true;  // all members read the same rows
};

// The layers of a network by its parameters; false where they are not as they have to be
bool take_layers(Net& net, const std::vector<Tensor>& params, const Form& form) {
  const int64_t n = static_cast<int64_t>(params.size()), width = form.width;
  net.stacked = params[0].dim() == 3;
  net.norm = width == 4;
  net.activation = form.activation;
  net.members = form.members;
  net.keep = form.keep;
  if ((params[0].dim() != 2 && !net.stacked) || n % width != (width == 4 ? 2 : 0)) return false;
  for (const auto& p : params)
    if (!is_plain(p) || !p.is_contiguous()) return false;
  for (int64_t i = 0; i < n; i += width) {
    const Tensor& weight = params[i];
    Layer layer{data(weight), data(params[i + 1]), nullptr, nullptr, weight.size(-2), weight.size(-1)};
    if (i + width <= n && width == 4) {
      layer.gain = data(params[i + 2]);
      layer.shift = data(params[i + 3]);
    }
    const int64_t all = net.stacked ? params[0].size(0) : 1;
    for (int64_t j = 1; j < width && i + j < n; ++j)
      if (params[i + j].numel() != all * layer.out) return false;
    if (weight.numel() != all * layer.in * layer.out || (i > 0 && net.layers.back().out != layer.in)) return false;
    net.layers.push_back(layer);
  }
  if (net.members.empty())
    for (int64_t m = 0; m < (net.stacked ? params[0].size(0) : 1); ++m) net.members.push_back(m);
  return true;
}

void take_input(Net& net, const Tensor& joined) {
  net.input = data(joined);
  net.rows = joined.size(-2);
  net.ld = joined.stride(-2);
  net.apart = joined.dim() == 3 ? joined.stride(0) : 0;
}

// the rows of a tensor, one after another
struct Rows {
  const float* at;
  int64_t width, ld, apart;
  explicit Rows(const Tensor& t)
      : at(data(t)), width(t.size(-1)), ld(t.stride(-2)), apart(t.dim() == 3 ? t.stride(0) : 0) {}
};

// the columns of both side by side
Tensor join(const Tensor& x, const Tensor& action) {
  const Rows left(x), right(action);
  const int64_t size = x.dim() == 3 ? x.size(0) : 1, rows = x.size(-2), width = left.width + right.width;
  Tensor y = x.dim() == 3 ? floats({size, rows, width}) : floats({rows, width});
  compute(
      [=, to = data(y)] {
        float* row = to;
        for (int64_t m = 0; m < size; ++m)
          for (int64_t r = 0; r < rows; ++r, row += width) {
            std::memcpy(row, left.at + m * left.apart + r * left.ld, left.width * sizeof(float));
            std::memcpy(row + left.width, right.at + m * right.apart + r * right.ld, right.width * sizeof(float));
          }
      },
      x, action, y);
  return y;
}

// Which members an index names now; as in Python, -1 is the last
void look_up(const Tensor& index, const Tensor& stacked, std::vector<int64_t>& members) {
  const auto* ids = static_cast<const int64_t*>(index.const_data_ptr());
  const int64_t size = stacked.size(0);
  members.assign(ids, ids + index.numel());
  for (int64_t& m : members) {
    TORCH_CHECK_INDEX(m >= -size && m < size, "there is no member ", m, " of ", size);
    if (m < 0) m += size;
  }
}

// A gradient that autograd brings, one row after another
Tensor rows_of_gradient(const Tensor& grad) {
  TORCH_CHECK(is_plain(grad), "the gradient of a native node is a float32 on the CPU, one at a time");
  return grad.contiguous();
}

PyObject* again = nullptr;  // the Python function for gradients of gradients; set where the module is loaded

PyObject* wrap(const Tensor& t) {
  if (!t.defined()) Py_RETURN_NONE;
  return THPVariable_Wrap(t);
}

struct NativeMLPBackward : Node {
  SavedVariable x, action;
  std::vector<SavedVariable> saved;
  std::vector<Tensor> masks;
  Tensor joined, kept;
  Form form;
  bool has_action = false, released = false;

  std::string name() const override { return "NativeMLPBackward"; }

  void release_variables() override {
    x.reset_data();
    action.reset_data();
    for (auto& p : saved) p.reset_data();
    masks.clear();
    joined = kept = Tensor();
    released = true;
  }

  variable_list apply(variable_list&& incoming) override {
    TORCH_CHECK(!released, torch::autograd::ERR_BACKWARD_TWICE);
    const size_t inputs = num_outputs();
    variable_list found(inputs);
    if (!incoming[0].defined()) return found;
    std::vector<Tensor> params;
    for (const auto& p : saved) params.push_back(p.unpack());
    const Tensor by_x = x.unpack(), by_action = has_action ? action.unpack() : Tensor();
    if (at::GradMode::is_enabled()) return differentiable(incoming[0], by_x, by_action, params);
    const Tensor grad = rows_of_gradient(incoming[0]);

    Net net;
    TORCH_CHECK(take_layers(net, params, form), "the parameters of a network have changed since it computed");
    take_input(net, joined);
    TORCH_CHECK(kept.numel() == Kept(net).total && net.layers[0].in == joined.size(-1) &&
                    grad.numel() == net.size() * net.rows * net.layers.back().out,
                "the parameters of a network have changed their sizes since it computed");
    for (const auto& mask : masks) net.masks.push_back(data(mask));
    Grads to;
    to.layers.resize(net.layers.size());
    to.summed = net.stacked && form.shared;
    auto place = [&](size_t i, const Tensor& like) -> float* {
      if (!task_should_compute_output(i)) return nullptr;
      found[i] = floats(like.sizes());
      return data(found[i]);
    };
    to.columns[0] = {place(0, by_x), 0, by_x.size(-1)};
    if (has_action) to.columns[1] = {place(1, by_action), by_x.size(-1), by_action.size(-1)};
    for (size_t i = 0; i < params.size(); ++i) {
      auto& layer = to.layers[i / form.width];
      float** slots[] = {&layer.weight, &layer.bias, &layer.gain, &layer.shift};
      *slots[i % form.width] = place(2 + i, params[i]);
    }
    const Tensor room = floats({Behind(net, to).total});
    compute(
        [net = std::move(net), to, kept = data(kept), grad = data(grad), index = form.index, room = data(room),
         stacked = without_history(params[0])]() mutable {
          if (index.defined()) look_up(index, stacked, net.members);
          backward(net, kept, grad, to, room);
        },
        kept, grad, joined, masks, params, found, room);
    return found;
  }

  variable_list differentiable(const Tensor& grad, const Tensor& by_x, const Tensor& by_action,
                               const std::vector<Tensor>& params) {
    variable_list found(num_outputs());
    const PyGILState_STATE state = PyGILState_Ensure();
    PyObject *given = PyTuple_New(params.size()), *wanted = PyTuple_New(found.size()), *dropped;
    const Tensor members = at::tensor(form.members);
    for (size_t i = 0; i < params.size(); ++i)
      PyTuple_SET_ITEM(given, i, THPVariable_Wrap(form.some ? params[i].index_select(0, members) : params[i]));
    for (size_t i = 0; i < found.size(); ++i)
      PyTuple_SET_ITEM(wanted, i, PyBool_FromLong(task_should_compute_output(i)));
    dropped = PyTuple_New(masks.size());
    for (size_t i = 0; i < masks.size(); ++i) PyTuple_SET_ITEM(dropped, i, THPVariable_Wrap(masks[i]));
    PyObject* made = PyObject_CallFunction(again, "NNNNLiNN", wrap(grad), wrap(by_x), wrap(by_action), given,
                                           static_cast<long long>(form.width), static_cast<int>(form.activation),
                                           dropped, wanted);
    if (!made) {
      python_error error;
      error.persist();
      PyGILState_Release(state);
      throw error;
    }
    for (size_t i = 0; i < found.size(); ++i) {
      PyObject* item = PyTuple_GetItem(made, i);
      if (item && item != Py_None) found[i] = THPVariable_Unpack(item);
    }
    Py_DECREF(made);
    PyGILState_Release(state);
    return found;
  }
};

// -- squashed Gaussians

struct NativeSquashBackward : Node {
  Tensor head, action, deviation;
  uint32_t versions[2] = {};  // of the first two
  std::string name() const override { return "NativeSquashBackward"; }
  void release_variables() override { head = action = deviation = Tensor(); }

  variable_list apply(variable_list&& incoming) override {
    TORCH_CHECK(head.defined(), torch::autograd::ERR_BACKWARD_TWICE);
    TORCH_CHECK(!at::GradMode::is_enabled(), "a squashed sample can be differentiated once");
    TORCH_CHECK(head._version() == versions[0] && action._version() == versions[1],
                "what a squashed sample needs for its gradient has been modified by an inplace operation");
    variable_list found(1);
    if (!incoming[0].defined() && !incoming[1].defined()) return found;
    const int64_t rows = head.size(0), n = head.size(1) / 2;
    const Tensor by_action = incoming[0].defined() ? rows_of_gradient(incoming[0]) : Tensor();
    const Tensor by_log_prob = incoming[1].defined() ? rows_of_gradient(incoming[1]) : Tensor();
    found[0] = floats({rows, 2 * n});
    compute(
        [rows, n, x = data(head), a = data(action), d = data(deviation), to = data(found[0]),
         from = by_action.defined() ? data(by_action) : nullptr,
         by = by_log_prob.defined() ? data(by_log_prob) : nullptr] {
          for (int64_t r = 0; r < rows; ++r) {
            const float g = by ? by[r] : 0.f;
            for (int64_t j = 0; j < n; ++j) {
              const float y = a[r * n + j], log_std = x[r * 2 * n + n + j];
              const float raw = (from ? from[r * n + j] : 0.f) * (1.f - y * y) + 2.f * y * g;
              to[r * 2 * n + j] = raw;
              const bool clamped = log_std < LOG_STD_MIN || log_std > LOG_STD_MAX;  // nan is not
              to[r * 2 * n + n + j] = clamped ? 0.f : raw * d[r * n + j] - g;
            }
          }
        },
        head, action, deviation, by_action, by_log_prob, found);
    return found;
  }
};

void squash(const float* head, const float* noise, int64_t rows, int64_t n, float* action, float* log_prob,
            float* deviation) {
  constexpr float PER_ACTION = 0.9189385332046727f + 1.3862943611198906f;  // log(2 pi) / 2 + 2 log 2
  const int64_t count = rows * n, room = (count + W - 1) / W * W;
  float *means = scratch(1, 2 * room), *log_stds = means + room;  // side by side: rows are shorter than vectors
  for (int64_t r = 0; r < rows; ++r)
    for (int64_t j = 0; j < n; ++j) {
      means[r * n + j] = head[r * 2 * n + j];
      log_stds[r * n + j] = head[r * 2 * n + n + j];
    }
  for (int64_t i = 0; i < count; i += W) {
    const int64_t left = count - i;
    const vec z = load_some(noise + i, left);
    vec log_std = load_some(log_stds + i, left);
    log_std = log_std < LOG_STD_MIN ? all(LOG_STD_MIN) : log_std;
    log_std = log_std > LOG_STD_MAX ? all(LOG_STD_MAX) : log_std;
    const vec d = exp(log_std) * z, raw = load_some(means + i, left) + d, size = abs(raw);
    store_some(action + i, tanh(raw), left);
    if (deviation) store_some(deviation + i, d, left);
    // log(e^x + e^-x) = |x| + log(1 + e^(-2 |x|))
    store(log_stds + i, log_std + 0.5f * z * z - 2.f * (size + log1p(exp(-2.f * size))));
  }
  for (int64_t r = 0; r < rows; ++r) {
    float total = 0.f;
    for (int64_t j = 0; j < n; ++j) total += log_stds[r * n + j];
    log_prob[r] = -total - PER_ACTION * n;
  }
}

// -- losses of critics

// where the gradient of a loss lies
const float* number(const Tensor& t) {
  TORCH_CHECK(is_plain(t) && t.numel() == 1, "a loss is a float32 on the CPU");
  return data(t);
}

struct NativeCriticLossBackward : Node {
  Tensor error;
  SavedVariable q, target;
  float scale = 1.f;
  std::string name() const override { return "NativeCriticLossBackward"; }
  void release_variables() override {
    error = Tensor();
    q.reset_data();
    target.reset_data();
  }

  variable_list apply(variable_list&& incoming) override {
    TORCH_CHECK(error.defined(), torch::autograd::ERR_BACKWARD_TWICE);
    variable_list found(1);
    if (!incoming[0].defined()) return found;
    if (at::GradMode::is_enabled()) {
      found[0] = incoming[0] * scale * (q.unpack() - target.unpack());
      return found;
    }
    found[0] = floats(error.sizes());
    compute(
        [n = error.numel(), by = number(incoming[0]), scale = scale, e = data(error), to = data(found[0])] {
          const float factor = *by * scale;
          for (int64_t i = 0; i < n; ++i) to[i] = factor * e[i];
        },
        error, incoming, found);
    return found;
  }
};

struct NativeSoftActorLossBackward : Node {
  Tensor alpha;
  int64_t rows = 0;
  std::string name() const override { return "NativeSoftActorLossBackward"; }

  variable_list apply(variable_list&& incoming) override {
    variable_list found(2);
    if (!incoming[0].defined()) return found;
    for (size_t i = 0; i < 2; ++i)
      if (task_should_compute_output(i) && at::GradMode::is_enabled()) {
        const Tensor each = incoming[0] / static_cast<double>(rows);
        found[i] = (i == 0 ? -each : each * alpha).expand({rows});
      } else if (task_should_compute_output(i)) {
        found[i] = floats({rows});
        compute(
            [rows = rows, by = number(incoming[0]), scale = i == 0 ? nullptr : data(alpha), to = data(found[i])] {
              const float each = *by / static_cast<float>(rows);
              std::fill_n(to, rows, scale ? each * *scale : -each);
            },
            incoming, alpha, found[i]);
      }
    return found;
  }
};

// -- the module

bool to_tensor(PyObject* object, Tensor& tensor) {
  if (object == Py_None) return true;
  if (!THPVariable_Check(object)) return false;
  tensor = THPVariable_Unpack(object);
  return true;
}

bool to_tensors(PyObject* object, std::vector<Tensor>& tensors) {
  PyObject* items = PySequence_Fast(object, "a sequence of tensors is needed");
  if (!items) return false;
  const Py_ssize_t n = PySequence_Fast_GET_SIZE(items);
  tensors.resize(n);
  bool good = true;
  for (Py_ssize_t i = 0; i < n && good; ++i) {
    PyObject* item = PySequence_Fast_GET_ITEM(items, i);
    good = THPVariable_Check(item);
    if (good) tensors[i] = THPVariable_Unpack(item);
  }
  Py_DECREF(items);
  return good;
}

// errors of C++ become those of Python
template <PyObject* (*F)(PyObject* const*, Py_ssize_t)>
PyObject* guarded(PyObject*, PyObject* const* args, Py_ssize_t n) {
  try {
    return F(args, n);
  } catch (...) {
    torch::translate_exception_to_python(std::current_exception());  // the same ones as torch's own operations
    return nullptr;
  }
}

PyObject* none() { Py_RETURN_NONE; }

// what is traced has to be operations of torch
template <PyObject* (*F)(PyObject* const*, Py_ssize_t)>
PyObject* unless_traced(PyObject* const* args, Py_ssize_t n) {
  return at::tracer::impl::is_dispatch_enabled() ? none() : F(args, n);
}

PyObject* tuple_of(std::initializer_list<Tensor> tensors) {
  PyObject* tuple = PyTuple_New(static_cast<Py_ssize_t>(tensors.size()));
  Py_ssize_t i = 0;
  for (const auto& t : tensors) PyTuple_SET_ITEM(tuple, i++, THPVariable_Wrap(t));
  return tuple;
}

// mlp(x, action, params, width, activation, frozen, members, masks, keep)
PyObject* mlp(PyObject* const* args, Py_ssize_t n) {
  TORCH_CHECK(n == 9, "mlp takes 9 arguments");
  Tensor x, action, index;
  std::vector<Tensor> params, masks;
  if (!to_tensor(args[0], x) || !to_tensor(args[1], action) || !to_tensors(args[2], params)) return none();
  Form form;
  form.width = PyLong_AsLong(args[3]);
  form.activation = static_cast<Activation>(PyLong_AsLong(args[4]));
  const bool frozen = args[5] == Py_True;
  Py_ssize_t first = 0, end = 0, step = 1;
  const bool sliced = PySlice_Check(args[6]);
  if (sliced ? PySlice_Unpack(args[6], &first, &end, &step) < 0 : !to_tensor(args[6], index)) return none();
  if (args[7] != Py_None && !to_tensors(args[7], masks)) return none();
  form.keep = static_cast<float>(PyFloat_AsDouble(args[8]));
  if (PyErr_Occurred()) return nullptr;
  if (index.defined()) {
    if (index.scalar_type() != at::kLong || index.dim() != 1 || !index.is_contiguous()) return none();
    if (params.empty() || params[0].dim() != 3) return none();
    look_up(index, params[0], form.members);
    form.index = index;
  }
  if (sliced && !params.empty()) {
    const Py_ssize_t n = PySlice_AdjustIndices(params[0].size(0), &first, &end, step);
    for (Py_ssize_t i = 0; i < n; ++i) form.members.push_back(first + i * step);
  }
  form.some = sliced || index.defined();
  if (form.some && form.members.empty()) return none();
  Net net;
  if (params.empty() || !take_layers(net, params, form) || !is_plain(x)) return none();
  const int64_t dim = x.dim();
  const bool fits = dim == 2 || (net.stacked && dim == 3 && x.size(0) == net.size());
  const int64_t columns = x.size(-1) + (action.defined() ? action.size(-1) : 0);
  if (!fits || columns != net.layers[0].in) return none();
  if (action.defined() && (!is_plain(action) || action.dim() != dim || action.size(-2) != x.size(-2) ||
                           (dim == 3 && action.size(0) != x.size(0))))
    return none();
  for (size_t i = 0; i < masks.size(); ++i)
    if (!is_plain(masks[i]) || !masks[i].is_contiguous() || i + 1 >= net.layers.size() ||
        masks[i].numel() != net.size() * x.size(-2) * net.layers[i].out)
      return none();

  const bool recording = at::GradMode::is_enabled();
  bool differentiated = recording && (x.requires_grad() || (action.defined() && action.requires_grad()));
  if (recording && !frozen)
    for (const auto& p : params) {
      if (form.some && p.requires_grad()) return none();
      differentiated = differentiated || p.requires_grad();
    }

  Tensor y, joined, kept;
  {
    const at::NoGradGuard guard;
    const auto rows_of = [](const Tensor& t) { return t.stride(-1) == 1 || t.size(-1) == 1 ? t : t.contiguous(); };
    const Tensor plain = rows_of(x);
    joined = action.defined() ? join(plain, rows_of(action)) : plain.detach();
    take_input(net, joined);
    for (const auto& mask : masks) net.masks.push_back(data(mask));
    const int64_t out = net.layers.back().out;
    y = net.stacked ? floats({net.size(), net.rows, out}) : floats({net.rows, out});
    if (differentiated) kept = floats({Kept(net).total});
    form.members = net.members;
    compute(
        [net = std::move(net), y = data(y), kept = differentiated ? data(kept) : nullptr, index,
         stacked = index.defined() ? without_history(params[0]) : Tensor()]() mutable {
          if (index.defined()) look_up(index, stacked, net.members);
          forward(net, y, kept);
        },
        y, kept, joined, masks, params);
  }
  if (differentiated) {
    auto [owner, node] = make_node<NativeMLPBackward>();
    torch::autograd::edge_list edges;
    edges.reserve(2 + params.size());
    const auto edge_of = [&](const Tensor& t) {
      return t.defined() ? torch::autograd::collect_next_edges(t)[0] : torch::autograd::Edge();
    };
    edges.push_back(edge_of(x));
    edges.push_back(edge_of(action));
    for (const auto& p : params) edges.push_back(frozen ? torch::autograd::Edge() : edge_of(p));
    node->set_next_edges(std::move(edges));
    form.shared = dim == 2;
    node->form = form;
    node->x = SavedVariable(x, false);
    node->has_action = action.defined();
    if (action.defined()) node->action = SavedVariable(action, false);
    node->saved.reserve(params.size());
    for (const auto& p : params) node->saved.emplace_back(p, false);
    node->masks = std::move(masks);
    node->joined = joined;
    node->kept = kept;
    torch::autograd::set_history(y, owner);
  }
  return THPVariable_Wrap(y);
}

// squashed(head, noise) -> action, log_prob
PyObject* squashed(PyObject* const* args, Py_ssize_t n) {
  TORCH_CHECK(n == 2, "squashed takes 2 arguments");
  Tensor head, noise;
  if (!to_tensor(args[0], head) || !to_tensor(args[1], noise)) return none();
  if (!is_plain(head) || !is_plain(noise) || head.dim() != 2 || noise.dim() != 2 || !head.is_contiguous() ||
      !noise.is_contiguous() || head.size(0) != noise.size(0) || head.size(1) != 2 * noise.size(1))
    return none();
  const bool differentiated = at::GradMode::is_enabled() && head.requires_grad();
  const int64_t rows = noise.size(0), width = noise.size(1);
  Tensor action = floats({rows, width}), log_prob = floats({rows}), deviation;
  if (differentiated) deviation = floats({rows, width});
  compute(
      [rows, width, head = data(head), noise = data(noise), action = data(action), log_prob = data(log_prob),
       deviation = differentiated ? data(deviation) : nullptr] {
        squash(head, noise, rows, width, action, log_prob, deviation);
      },
      head, noise, action, log_prob, deviation);
  if (differentiated) {
    auto [owner, node] = make_node<NativeSquashBackward>();
    node->set_next_edges(torch::autograd::collect_next_edges(head));
    {
      const at::NoGradGuard guard;
      node->head = head.detach();
      node->action = action.detach();
    }
    node->deviation = deviation;
    torch::autograd::set_history(action, owner);
    torch::autograd::set_history(log_prob, owner);
    node->versions[0] = head._version();
    node->versions[1] = action._version();
  }
  return tuple_of({action, log_prob});
}

// critic_loss(q, target, coef) -> loss, mean of q, mean of target
PyObject* critic_loss(PyObject* const* args, Py_ssize_t n) {
  TORCH_CHECK(n == 3, "critic_loss takes 3 arguments");
  Tensor q, target;
  if (!to_tensor(args[0], q) || !to_tensor(args[1], target)) return none();
  const double coef = PyFloat_AsDouble(args[2]);
  if (!is_plain(q) || !is_plain(target) || q.dim() != 2 || target.dim() != 1 || target.size(0) != q.size(1) ||
      !q.is_contiguous() || !target.is_contiguous() || target.requires_grad())
    return none();
  const bool differentiated = at::GradMode::is_enabled() && q.requires_grad();
  const int64_t members = q.size(0), rows = q.size(1);
  Tensor error = floats({members, rows}), loss = floats({}), mean = floats({}), aim = floats({});
  compute(
      [members, rows, coef, q = data(q), y = data(target), e = data(error), loss = data(loss), mean = data(mean),
       aim = data(aim)] {
        double squares = 0, sum = 0;
        for (int64_t m = 0; m < members; ++m) {
          const float* x = q + m * rows;
          float* to = e + m * rows;
          for (int64_t i = 0; i < rows; ++i) to[i] = x[i] - y[i];
          squares += static_cast<double>(dot(to, to, rows));
          sum += static_cast<double>(mean_of(x, rows));
        }
        *loss = static_cast<float>(coef * squares / rows);
        *mean = static_cast<float>(sum / members);
        *aim = mean_of(y, rows);
      },
      q, target, error, loss, mean, aim);
  if (differentiated) {
    auto [owner, node] = make_node<NativeCriticLossBackward>();
    node->set_next_edges(torch::autograd::collect_next_edges(q));
    node->error = error;
    node->q = SavedVariable(q, false);
    node->target = SavedVariable(target, false);
    node->scale = static_cast<float>(2.0 * coef / rows);
    torch::autograd::set_history(loss, owner);
  }
  return tuple_of({loss, mean, aim});
}

// soft_actor_loss(q, log_prob, alpha) -> the mean of alpha * log_prob - q, and that of -log_prob
PyObject* soft_actor_loss(PyObject* const* args, Py_ssize_t n) {
  TORCH_CHECK(n == 3, "soft_actor_loss takes 3 arguments");
  Tensor q, log_prob, alpha;
  if (!to_tensor(args[0], q) || !to_tensor(args[1], log_prob) || !to_tensor(args[2], alpha)) return none();
  if (!is_plain(q) || !is_plain(log_prob) || !is_plain(alpha) || q.dim() != 1 || log_prob.dim() != 1 ||
      alpha.dim() != 0 || alpha.requires_grad() || q.size(0) != log_prob.size(0) || !q.is_contiguous() ||
      !log_prob.is_contiguous())
    return none();
  const Tensor loss = floats({}), entropy = floats({});
  compute(
      [rows = q.size(0), alpha = data(alpha), log_prob = data(log_prob), q = data(q), loss = data(loss),
       entropy = data(entropy)] {
        const float mean = mean_of(log_prob, rows);
        *loss = *alpha * mean - mean_of(q, rows);
        *entropy = -mean;
      },
      alpha, log_prob, q, loss, entropy);
  if (at::GradMode::is_enabled() && (q.requires_grad() || log_prob.requires_grad())) {
    auto [owner, node] = make_node<NativeSoftActorLossBackward>();
    node->set_next_edges(torch::autograd::collect_next_edges(q, log_prob));
    node->alpha = alpha;
    node->rows = q.size(0);
    torch::autograd::set_history(loss, owner);
  }
  return tuple_of({loss, entropy});
}

// -- stacks of matrices

// batched(x, y, to) -> x [E, m, k] y [E, k, n]; where `to` [E, m, n] is given, added to it
PyObject* batched(PyObject* const* args, Py_ssize_t n) {
  TORCH_CHECK(n == 3, "batched takes 3 arguments");
  Tensor x, y, to;
  if (!to_tensor(args[0], x) || !to_tensor(args[1], y) || !to_tensor(args[2], to) || !is_plain(x) || !is_plain(y))
    return none();
  if (x.dim() != 3 || y.dim() != 3 || x.size(0) != y.size(0) || x.size(2) != y.size(1)) return none();
  if (at::GradMode::is_enabled() && (x.requires_grad() || y.requires_grad())) return none();
  const int64_t size = x.size(0), m = x.size(1), k = x.size(2), width = y.size(2);
  const bool straight = y.stride(2) == 1 || width == 1, across = y.stride(1) == 1 && !straight, add = to.defined();
  if (!straight && !across) return none();
  if (add && (!is_plain(to) || !to.is_contiguous() || to.sizes() != at::IntArrayRef({size, m, width}))) return none();
  const Tensor made = add ? to : floats({size, m, width});
  compute(
      [=, a = data(x), b = data(y), c = data(made), a0 = x.stride(0), down = x.stride(1), right = x.stride(2),
       b0 = y.stride(0), b1 = y.stride(1), b2 = y.stride(2)] {
        for (int64_t e = 0; e < size; ++e) {
          const float *left = a + e * a0, *other = b + e * b0;
          float* out = c + e * m * width;
          if (width == 1 && down == 1 && right > 1) {  // one row times a matrix
            product(1, m, k, other, 0, b1, left, right, false, out, m, add);
            continue;
          }
          over_rows(m, 2.0 * k * width, [&](int64_t begin, int64_t end) {
            product(end - begin, width, k, left + begin * down, down, right, other, across ? b2 : b1, across,
                    out + begin * width, width, add);
          });
        }
      },
      x, y, made);
  if (add) changed(made);
  return THPVariable_Wrap(made);
}

// -- recorded computations

// record(x, params, activation) -> y and what `go_back` reads
PyObject* record(PyObject* const* args, Py_ssize_t n) {
  TORCH_CHECK(n == 3, "record takes 3 arguments");
  Tensor x;
  std::vector<Tensor> params;
  Form form;
  if (!to_tensor(args[0], x) || !to_tensors(args[1], params) || params.empty()) return none();
  form.activation = static_cast<Activation>(PyLong_AsLong(args[2]));
  Net net;
  if (!take_layers(net, params, form) || net.stacked || !is_plain(x) || x.dim() != 2 || x.stride(1) != 1 ||
      x.size(1) != net.layers[0].in)
    return none();
  take_input(net, x);
  const Tensor y = floats({net.rows, net.layers.back().out}), kept = floats({Kept(net).total});
  compute([net = std::move(net), y = data(y), kept = data(kept)] { forward(net, y, kept); }, x, params, y, kept);
  return tuple_of({y, kept});
}

// go_back(x, kept, params, activation, grad, places): gradients of the parameters into their places
PyObject* go_back(PyObject* const* args, Py_ssize_t n) {
  TORCH_CHECK(n == 6, "go_back takes 6 arguments");
  Tensor x, kept, grad;
  std::vector<Tensor> params, places;
  Form form;
  TORCH_CHECK(to_tensor(args[0], x) && to_tensor(args[1], kept) && to_tensors(args[2], params) &&
                  to_tensor(args[4], grad) && to_tensors(args[5], places),
              "go_back takes tensors");
  form.activation = static_cast<Activation>(PyLong_AsLong(args[3]));
  Net net;
  TORCH_CHECK(take_layers(net, params, form), "the parameters have changed");
  take_input(net, x);
  grad = grad.contiguous();
  TORCH_CHECK(is_plain(grad) && grad.numel() == net.rows * net.layers.back().out && places.size() == params.size(),
              "the gradient does not fit");
  Grads to;
  to.layers.resize(net.layers.size());
  for (size_t i = 0; i < places.size(); ++i) {
    TORCH_CHECK(is_plain(places[i]) && places[i].is_contiguous() && places[i].numel() == params[i].numel(),
                "a place does not fit");
    (i % 2 ? to.layers[i / 2].bias : to.layers[i / 2].weight) = data(places[i]);
  }
  const Tensor room = floats({Behind(net, to).total});
  compute([net = std::move(net), to, kept = data(kept), grad = data(grad),
           room = data(room)] { backward(net, kept, grad, to, room); },
          x, kept, grad, params, places, room);
  Py_RETURN_NONE;
}

// chosen(q, action) -> q [B] of the actions
PyObject* chosen(PyObject* const* args, Py_ssize_t n) {
  TORCH_CHECK(n == 2, "chosen takes 2 arguments");
  Tensor q, action;
  if (!to_tensor(args[0], q) || !to_tensor(args[1], action)) return none();
  if (!is_plain(q) || q.dim() != 2 || !q.is_contiguous() || !action.defined() || action.dim() != 1 ||
      action.scalar_type() != at::kLong || action.size(0) != q.size(0) || !action.device().is_cpu())
    return none();
  const Tensor y = floats({q.size(0)});
  compute(
      [rows = q.size(0), width = q.size(1), index = static_cast<const int64_t*>(action.const_data_ptr()),
       step = action.stride(0), q = data(q), to = data(y)] {
        for (int64_t r = 0; r < rows; ++r) {
          const int64_t a = index[r * step];
          TORCH_CHECK(a >= 0 && a < width, "there is no action ", a);
          to[r] = q[r * width + a];
        }
      },
      q, action, y);
  return THPVariable_Wrap(y);
}

// chosen_back(action, grad, width) -> the gradient [B, width] by q
PyObject* chosen_back(PyObject* const* args, Py_ssize_t n) {
  TORCH_CHECK(n == 3, "chosen_back takes 3 arguments");
  Tensor action, grad;
  TORCH_CHECK(to_tensor(args[0], action) && to_tensor(args[1], grad), "chosen_back takes tensors");
  TORCH_CHECK(is_plain(grad) && action.scalar_type() == at::kLong && action.numel() == grad.numel(),
              "chosen_back takes a gradient for each action");
  grad = grad.contiguous();
  const int64_t rows = action.size(0), width = PyLong_AsLong(args[2]);
  const Tensor y = floats({rows, width});
  compute(
      [rows, width, index = static_cast<const int64_t*>(action.const_data_ptr()), step = action.stride(0),
       grad = data(grad), to = data(y)] {
        std::memset(to, 0, rows * width * sizeof(float));
        for (int64_t r = 0; r < rows; ++r) {
          const int64_t a = index[r * step];
          TORCH_CHECK(a >= 0 && a < width, "there is no action ", a);
          to[r * width + a] = grad[r];
        }
      },
      action, grad, y);
  return THPVariable_Wrap(y);
}

// huber(value, target, weight) -> the mean of weight * huber, |error| [B], slope [B] of the mean, means of value and target
PyObject* huber(PyObject* const* args, Py_ssize_t n) {
  TORCH_CHECK(n == 3, "huber takes 3 arguments");
  Tensor value, target, weight;
  if (!to_tensor(args[0], value) || !to_tensor(args[1], target) || !to_tensor(args[2], weight)) return none();
  const auto fits = [&](const Tensor& t) {
    return is_plain(t) && t.dim() == 1 && t.is_contiguous() && t.size(0) == value.size(0) && !t.requires_grad();
  };
  if (!is_plain(value) || !fits(value) || !fits(target) || (weight.defined() && !fits(weight))) return none();
  const int64_t rows = value.size(0);
  const Tensor loss = floats({}), error = floats({rows}), slopes = floats({rows}), mean = floats({}), aim = floats({});
  compute(
      [rows, x = data(value), y = data(target), w = weight.defined() ? data(weight) : nullptr, loss = data(loss),
       error = data(error), slopes = data(slopes), mean = data(mean), aim = data(aim)] {
        double sum = 0;
        for (int64_t r = 0; r < rows; ++r) {
          const float e = x[r] - y[r], s = e < -1.f ? -1.f : e > 1.f ? 1.f : e, by = w ? w[r] : 1.f;
          error[r] = std::fabs(e);
          slopes[r] = by * s / static_cast<float>(rows);
          sum += static_cast<double>(by * s * (e - 0.5f * s));
        }
        *loss = static_cast<float>(sum / static_cast<double>(rows));
        *mean = mean_of(x, rows);
        *aim = mean_of(y, rows);
      },
      value, target, weight, loss, error, slopes, mean, aim);
  return tuple_of({loss, error, slopes, mean, aim});
}

// clip(vector, most): scales it to a norm of at most `most`, and returns the norm that it had
PyObject* clip(PyObject* const* args, Py_ssize_t n) {
  TORCH_CHECK(n == 2, "clip takes 2 arguments");
  Tensor x;
  if (!to_tensor(args[0], x) || !is_plain(x) || !x.is_contiguous()) return none();
  const double most = PyFloat_AsDouble(args[1]);
  if (PyErr_Occurred()) return nullptr;
  const Tensor norm = floats({});
  compute(
      [most, count = x.numel(), x = data(x), norm = data(norm)] {
        double squares = 0;
        for (int64_t i = 0; i < count; i += 1024) {
          const float* part = x + i;
          squares += static_cast<double>(dot(part, part, std::min<int64_t>(1024, count - i)));
        }
        *norm = static_cast<float>(std::sqrt(squares));
        const float scale = static_cast<float>(most / (std::sqrt(squares) + 1e-6));
        if (!(scale >= 1.f))
          for (int64_t i = 0; i < count; ++i) x[i] *= scale;
      },
      x, norm);
  return THPVariable_Wrap(norm);
}

// td_target(reward, discount, terminated, next_value): reward + discount * (1 - terminated) * next_value, all [B]
PyObject* td_target(PyObject* const* args, Py_ssize_t n) {
  TORCH_CHECK(n == 4, "td_target takes 4 arguments");
  Tensor given[4];
  for (int i = 0; i < 4; ++i) {
    if (!to_tensor(args[i], given[i]) || !is_plain(given[i]) || given[i].dim() != 1) return none();
    if (given[i].size(0) != given[0].size(0) || (at::GradMode::is_enabled() && given[i].requires_grad())) return none();
  }
  const int64_t rows = given[0].size(0);
  const Tensor y = floats({rows});
  struct Column {
    const float* at;
    int64_t step;
    float operator[](int64_t r) const { return at[r * step]; }
  };
  const auto column = [&](int i) { return Column{data(given[i]), given[i].stride(0)}; };
  compute(
      [rows, reward = column(0), discount = column(1), terminated = column(2), next = column(3), y = data(y)] {
        for (int64_t r = 0; r < rows; ++r) y[r] = reward[r] + discount[r] * (1.f - terminated[r]) * next[r];
      },
      given[0], given[1], given[2], given[3], y);
  return THPVariable_Wrap(y);
}

// -- replay

// n_step(rows, place, ended, counts, powers, reward, discount, first, end): transitions from these places over up to n
// steps. `counts` [lanes] of steps ever added; `powers` [n] of the discount; the rest are columns, of which those of
// [first, end) are taken from where a sum stops. Sums are rounded as in rlx/data/n_step.py.
PyObject* n_step(PyObject* const* args, Py_ssize_t n) {
  TORCH_CHECK(n == 9, "n_step takes 9 arguments");
  Tensor rows, place, ended, counts, powers;
  if (!to_tensor(args[0], rows) || !to_tensor(args[1], place) || !to_tensor(args[2], ended) ||
      !to_tensor(args[3], counts) || !to_tensor(args[4], powers))
    return none();
  int64_t columns[4];
  for (int i = 0; i < 4; ++i) columns[i] = PyLong_AsLong(args[5 + i]);
  if (PyErr_Occurred()) return nullptr;
  const auto [reward, discount, first, end] = columns;
  if (!is_plain(rows) || !rows.is_contiguous() || !is_plain(powers) || place.scalar_type() != at::kLong ||
      counts.scalar_type() != at::kLong || ended.scalar_type() != at::kBool || !place.is_contiguous() ||
      !counts.is_contiguous() || !ended.is_contiguous())
    return none();
  const int64_t capacity = rows.size(0), width = rows.size(1), lanes = counts.numel(), most = powers.numel();
  TORCH_CHECK(lanes > 0 && capacity >= lanes && most > 0, "there are no lanes, rows or steps");
  const int64_t slots = capacity / lanes, m = place.numel();
  for (const int64_t column : {reward, discount}) TORCH_CHECK(column >= 0 && column < width, "no column ", column);
  TORCH_CHECK(ended.numel() == capacity && 0 <= first && first <= end && end <= width, "the columns do not fit");
  const auto* at = static_cast<const int64_t*>(place.const_data_ptr());
  const auto* count = static_cast<const int64_t*>(counts.const_data_ptr());
  const auto* stops = static_cast<const bool*>(ended.const_data_ptr());
  const float *from = data(rows), *power = data(powers);
  const Tensor made = floats({m, width});
  float* to = data(made);
  for (int64_t i = 0; i < m; ++i, to += width) {
    int64_t last = at[i];
    TORCH_CHECK(last >= 0 && last < capacity, "no place ", last);
    const int64_t newer = ((count[last % lanes] - 1 - last / lanes) % slots + slots) % slots;
    std::memcpy(to, from + last * width, width * sizeof(float));
    float total = to[reward];
    int64_t steps = 1;
    while (steps < most && newer >= steps && !stops[last]) {
      last = (last + lanes) % capacity;
      const float more = power[steps - 1] * from[last * width + reward];
      total += more;
      ++steps;
    }
    if (steps > 1) std::memcpy(to + first, from + last * width + first, (end - first) * sizeof(float));
    to[reward] = total;
    to[discount] = power[steps - 1];
  }
  return THPVariable_Wrap(made);
}

// -- steps

bool are_alike(const std::vector<Tensor>& a, const std::vector<Tensor>& b) {
  if (a.size() != b.size()) return false;
  for (size_t i = 0; i < a.size(); ++i)
    if (!is_plain(a[i]) || !is_plain(b[i]) || a[i].sizes() != b[i].sizes() || !a[i].is_contiguous()) return false;
  return true;
}

struct AdamNumbers {
  float size, correction, mix, mix2, keep2, floor, shrink;
};

template <bool DECAYS>
void adam_step(float* __restrict p, float* __restrict m, float* __restrict v, const float* __restrict g, int64_t n,
               AdamNumbers c) {
  const float inverse = 1.f / c.correction;
  for (int64_t j = 0; j < n; ++j) {
    const float by = DECAYS ? g[j] + c.shrink * p[j] : g[j];
    m[j] += c.mix * (by - m[j]);
    v[j] = c.keep2 * v[j] + c.mix2 * by * by;
    p[j] -= c.size * m[j] / (std::sqrt(v[j]) * inverse + c.floor);
  }
}

// the same, by the mean gradient alone
void mean_step(float* __restrict p, float* __restrict m, float* __restrict v, const float* __restrict g, int64_t n,
               AdamNumbers c) {
  for (int64_t j = 0; j < n; ++j) {
    m[j] += c.mix * (g[j] - m[j]);
    v[j] = c.keep2 * v[j] + c.mix2 * g[j] * g[j];
    p[j] -= c.size * m[j];
  }
}

// a number that a Python object has now
double attribute(PyObject* object, PyObject* name) {
  PyObject* value = PyObject_GenericGetAttr(object, name);  // which nobody notes: it is asked at every run
  const double x = value ? PyFloat_AsDouble(value) : -1.0;
  Py_XDECREF(value);
  if (PyErr_Occurred()) {
    PyErr_Clear();
    TORCH_CHECK(false, "an optimizer has numbers as its lr and scale");
  }
  return x;
}

// of an optimizer, as it is now
double learning_rate(PyObject* optimizer) {
  static PyObject *const LR = PyUnicode_InternFromString("lr"), *const SCALE = PyUnicode_InternFromString("scale");
  return attribute(optimizer, LR) * attribute(optimizer, SCALE);
}

// What the factors of a step are
AdamNumbers adam_numbers(double lr, double step, double beta1, double beta2, double eps, double decay, bool rectified) {
  double size = lr / (1.0 - std::pow(beta1, step)), correction = std::sqrt(1.0 - std::pow(beta2, step));
  if (rectified) {  // see RAdam in rlx/nn/optim.py; the correction is part of the size
    const double limit = 2.0 / (1.0 - beta2) - 1.0, left = std::pow(beta2, step);
    const double rho = limit - 2.0 * step * left / (1.0 - left);
    const bool trusted = rho > 5.0;
    if (trusted)
      size *= correction * std::sqrt((rho - 4.0) * (rho - 2.0) * limit / ((limit - 4.0) * (limit - 2.0) * rho));
    correction = trusted ? 1.0 : 0.0;
  }
  return {static_cast<float>(size),        static_cast<float>(correction), static_cast<float>(1.0 - beta1),
          static_cast<float>(1.0 - beta2), static_cast<float>(beta2),      static_cast<float>(eps),
          static_cast<float>(decay)};
}

// adam(params, grads, means, squares, steps, optimizer, beta1, beta2, eps, weight_decay, rectified); counts the step. The
// learning rate is what the optimizer has when a step is made.
PyObject* adam(PyObject* const* args, Py_ssize_t n) {
  TORCH_CHECK(n == 11, "adam takes 11 arguments");
  std::vector<Tensor> params, grads, means, squares;
  Tensor steps;
  if (!to_tensors(args[0], params) || !to_tensors(args[1], grads) || !to_tensors(args[2], means) ||
      !to_tensors(args[3], squares) || !to_tensor(args[4], steps))
    return none();
  if (!are_alike(params, grads) || !are_alike(means, params) || !are_alike(squares, params) || !is_plain(steps))
    return none();
  double numbers[4];
  for (int i = 0; i < 4; ++i) numbers[i] = PyFloat_AsDouble(args[6 + i]);
  if (PyErr_Occurred()) return nullptr;
  const at::NoGradGuard guard;
  struct Part {
    float *p, *m, *v;
    const float* g;
    int64_t n;
  };
  std::vector<Part> parts;
  parts.reserve(params.size());
  for (size_t i = 0; i < params.size(); ++i) {
    grads[i] = grads[i].contiguous();
    parts.push_back({data(params[i]), data(means[i]), data(squares[i]), data(grads[i]), params[i].numel()});
  }
  compute(
      [parts = std::move(parts), count = data(steps), optimizer = args[5], beta1 = numbers[0], beta2 = numbers[1],
       eps = numbers[2], decay = numbers[3], rectified = args[10] == Py_True] {
        const double lr = learning_rate(optimizer), step = *count + 1.0;
        *count = static_cast<float>(step);
        const AdamNumbers c = adam_numbers(lr, step, beta1, beta2, eps, decay, rectified);
        const auto step_of = c.correction == 0.f ? mean_step : decay == 0.0 ? adam_step<false> : adam_step<true>;
        for (const Part& part : parts)
          over_rows(part.n, 32.0, [&](int64_t begin, int64_t end) {
            step_of(part.p + begin, part.m + begin, part.v + begin, part.g + begin, end - begin, c);
          });
      },
      params, grads, means, squares, steps, args[5]);
  changed(steps);
  for (size_t i = 0; i < params.size(); ++i) {
    changed(params[i]);
    changed(means[i]);
    changed(squares[i]);
  }
  Py_RETURN_TRUE;
}

// rmsprop(params, grads, squares, optimizer, decay, eps); the learning rate is what the optimizer has when a step is made
PyObject* rmsprop(PyObject* const* args, Py_ssize_t n) {
  TORCH_CHECK(n == 6, "rmsprop takes 6 arguments");
  std::vector<Tensor> params, grads, squares;
  if (!to_tensors(args[0], params) || !to_tensors(args[1], grads) || !to_tensors(args[2], squares)) return none();
  if (!are_alike(params, grads) || !are_alike(squares, params)) return none();
  const double decay = PyFloat_AsDouble(args[4]), eps = PyFloat_AsDouble(args[5]);
  if (PyErr_Occurred()) return nullptr;
  const at::NoGradGuard guard;
  const float keep = static_cast<float>(decay), mix = static_cast<float>(1.0 - decay), floor = static_cast<float>(eps);
  for (size_t i = 0; i < params.size(); ++i) {
    grads[i] = grads[i].contiguous();
    compute(
        [=, count = params[i].numel(), p = data(params[i]), v = data(squares[i]), g = data(grads[i]),
         optimizer = args[3]] {
          const float size = static_cast<float>(learning_rate(optimizer));
          float *__restrict to = p, *__restrict square = v;
          const float* __restrict by = g;
          for (int64_t j = 0; j < count; ++j) {
            square[j] = keep * square[j] + mix * by[j] * by[j];
            to[j] -= size * by[j] / (std::sqrt(square[j]) + floor);
          }
        },
        params[i], squares[i], grads[i], args[3]);
    changed(params[i]);
    changed(squares[i]);
  }
  Py_RETURN_TRUE;
}

// follow(targets, online, tau): target <- target + tau * (online - target)
PyObject* follow(PyObject* const* args, Py_ssize_t n) {
  TORCH_CHECK(n == 3, "follow takes 3 arguments");
  std::vector<Tensor> targets, online;
  if (!to_tensors(args[0], targets) || !to_tensors(args[1], online)) return none();
  const float tau = static_cast<float>(PyFloat_AsDouble(args[2]));
  if (PyErr_Occurred()) return nullptr;
  if (!are_alike(targets, online)) return none();
  for (const auto& t : online)
    if (!t.is_contiguous()) return none();
  for (size_t i = 0; i < targets.size(); ++i) {
    compute(
        [count = targets[i].numel(), tau, to = data(targets[i]), from = data(online[i])] {
          float* __restrict x = to;
          const float* __restrict y = from;
          if (tau < 0.5f)
            for (int64_t j = 0; j < count; ++j) x[j] += tau * (y[j] - x[j]);
          else
            for (int64_t j = 0; j < count; ++j) x[j] = y[j] - (y[j] - x[j]) * (1.f - tau);
        },
        targets[i], online[i]);
    changed(targets[i]);
  }
  Py_RETURN_TRUE;
}

// -- captured updates

Program* program_of(PyObject* capsule) {
  auto* program = static_cast<Program*>(PyCapsule_GetPointer(capsule, "rlx.Program"));
  if (!program) PyErr_Clear();
  TORCH_CHECK(program, "this is no program");
  return program;
}

// The tensors of nested tuples, NamedTuples, lists and dicts, and what they are besides. rlx/capturing.py has looked that
// there is nothing else around tensors.
void take_apart(PyObject* x, std::vector<Tensor>& tensors, Structure& structure) {
  const auto enter = [&](Py_ssize_t n) {
    structure.layout.push_back(n);
    structure.others.push_back(reinterpret_cast<PyObject*>(Py_TYPE(x)));
  };
  if (THPVariable_Check(x)) {
    tensors.push_back(THPVariable_Unpack(x));
    structure.layout.push_back(Structure::TENSOR);
  } else if (PyTuple_Check(x)) {
    enter(PyTuple_GET_SIZE(x));
    for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(x); ++i) take_apart(PyTuple_GET_ITEM(x, i), tensors, structure);
  } else if (PyList_CheckExact(x)) {
    enter(PyList_GET_SIZE(x));
    for (Py_ssize_t i = 0; i < PyList_GET_SIZE(x); ++i) take_apart(PyList_GET_ITEM(x, i), tensors, structure);
  } else if (PyDict_CheckExact(x)) {
    enter(PyDict_GET_SIZE(x));
    PyObject *key, *value;
    for (Py_ssize_t at = 0; PyDict_Next(x, &at, &key, &value);) {
      structure.others.push_back(key);
      take_apart(value, tensors, structure);
    }
  } else {
    structure.layout.push_back(Structure::OTHER);
    structure.others.push_back(x);
  }
}

// The same structure of other tensors; null with an error set where it cannot be made
template <class Next>
PyObject* put_together(PyObject* x, Next&& next) {
  static PyObject* const MAKE = PyUnicode_InternFromString("_make");
  if (THPVariable_Check(x)) return THPVariable_Wrap(next());
  if (PyTuple_Check(x)) {
    const Py_ssize_t n = PyTuple_GET_SIZE(x);
    PyObject* parts = PyTuple_New(n);
    for (Py_ssize_t i = 0; i < n; ++i) {
      PyObject* part = put_together(PyTuple_GET_ITEM(x, i), next);
      if (!part) return Py_DECREF(parts), nullptr;
      PyTuple_SET_ITEM(parts, i, part);
    }
    if (PyTuple_CheckExact(x)) return parts;
    PyObject* named = PyObject_CallMethodOneArg(reinterpret_cast<PyObject*>(Py_TYPE(x)), MAKE, parts);  // a NamedTuple
    Py_DECREF(parts);
    return named;
  }
  if (PyList_CheckExact(x)) {
    const Py_ssize_t n = PyList_GET_SIZE(x);
    PyObject* parts = PyList_New(n);
    for (Py_ssize_t i = 0; i < n; ++i) {
      PyObject* part = put_together(PyList_GET_ITEM(x, i), next);
      if (!part) return Py_DECREF(parts), nullptr;
      PyList_SET_ITEM(parts, i, part);
    }
    return parts;
  }
  if (PyDict_CheckExact(x)) {
    PyObject *parts = PyDict_New(), *key, *value;
    for (Py_ssize_t at = 0; PyDict_Next(x, &at, &key, &value);) {
      PyObject* part = put_together(value, next);
      if (!part || PyDict_SetItem(parts, key, part) < 0) return Py_XDECREF(part), Py_DECREF(parts), nullptr;
      Py_DECREF(part);
    }
    return parts;
  }
  return Py_NewRef(x);
}

// begin(args) -> program, args: notes what is computed from now on, with the arguments returned
PyObject* begin(PyObject* const* args, Py_ssize_t n) {
  TORCH_CHECK(n == 1 && !capturing, "begin takes 1 argument, and one program is captured at a time");
  std::vector<Tensor> given;
  auto program = std::make_unique<Program>();
  take_apart(args[0], given, program->structure);
  for (PyObject* object : program->structure.others) program->keep(object);
  for (const auto& t : given)
    if (!can_be_input(t)) return none();
  program->take_inputs(given);
  PyObject* inputs = put_together(args[0], [&, i = size_t(0)]() mutable { return program->inputs[i++]; });
  if (!inputs) return nullptr;
  capturing = program.release();
  PyObject* capsule = PyCapsule_New(capturing, "rlx.Program", [](PyObject* object) {
    delete static_cast<Program*>(PyCapsule_GetPointer(object, "rlx.Program"));
  });
  return Py_BuildValue("NN", capsule, inputs);
}

// note(name, overload, args, kwargs, made): an operation of torch; False where it cannot be noted
PyObject* note(PyObject* const* args, Py_ssize_t n) {
  TORCH_CHECK(n == 5 && capturing, "note takes 5 arguments, while a program is captured");
  std::vector<Tensor> made;
  if (!to_tensors(args[4], made)) return PyBool_FromLong(false);
  return PyBool_FromLong(
      note_operation(PyUnicode_AsUTF8(args[0]), PyUnicode_AsUTF8(args[1]), args[2], args[3], made));
}

// keep(tensors): memory that the program uses
PyObject* keep(PyObject* const* args, Py_ssize_t n) {
  TORCH_CHECK(n == 1 && capturing, "keep takes 1 argument, while a program is captured");
  std::vector<Tensor> tensors;
  TORCH_CHECK(to_tensors(args[0], tensors), "keep takes tensors");
  capturing->keep(tensors);
  Py_RETURN_NONE;
}

// what a program has computed, as the captured method returned it
PyObject* result_of(const Program& program) {
  return put_together(program.result, [&, i = size_t(0)]() mutable { return program.output(i++); });
}

// abandon(): nothing more is noted
PyObject* abandon(PyObject* const*, Py_ssize_t) {
  capturing = nullptr;
  Py_RETURN_NONE;
}

// end(result, reads, own) -> a copy of the result, and the end of a program that gives it, while what was read (see
// Program::watch) is as it is now
PyObject* end(PyObject* const* args, Py_ssize_t n) {
  TORCH_CHECK(n == 3 && capturing, "end takes 3 arguments, while a program is captured");
  Program* program = std::exchange(capturing, nullptr);
  std::vector<Tensor> outputs;
  Structure structure;  // that of the result, which nobody compares
  take_apart(args[0], outputs, structure);
  for (const auto& t : outputs) {
    program->outputs.push_back(without_history(t));
    program->dense.push_back(t.is_non_overlapping_and_dense());
  }
  const Program& made = *program;
  program->result = put_together(args[0], [&, i = size_t(0)]() mutable { return made.outputs[i++]; });
  if (!program->result) return nullptr;
  program->objects.push_back(program->result);
  program->watch(args[1], args[2]);
  return result_of(made);
}

// run(program, args, own) -> what the captured method would return; NotImplemented where the arguments are of another
// kind, or what it read has changed, or it is part of what is captured now; `own` are the attributes of the learner
PyObject* run(PyObject* const* args, Py_ssize_t n) {
  TORCH_CHECK(n == 3, "run takes 3 arguments");
  if (capturing) Py_RETURN_NOTIMPLEMENTED;
  Program* program = program_of(args[0]);
  static thread_local std::vector<Tensor> given;
  static thread_local Structure structure;
  given.clear();
  structure.clear();
  take_apart(args[1], given, structure);
  const bool fits = program->fits(given) && structure == program->structure && program->still_holds(args[2]);
  if (fits) program->copy_in(given);
  given.clear();
  if (!fits) Py_RETURN_NOTIMPLEMENTED;
  program->run();
  return result_of(*program);
}

PyObject* set_again(PyObject* const* args, Py_ssize_t n) {
  TORCH_CHECK(n == 1, "set_again takes 1 argument");
  Py_XDECREF(again);
  again = Py_NewRef(args[0]);
  Py_RETURN_NONE;
}

template <PyObject* (*F)(PyObject* const*, Py_ssize_t)>
PyMethodDef method(const char* name) {
  return {name, reinterpret_cast<PyCFunction>(reinterpret_cast<void*>(guarded<F>)), METH_FASTCALL, nullptr};
}

PyMethodDef methods[] = {
    method<unless_traced<mlp>>("mlp"),
    method<unless_traced<squashed>>("squashed"),
    method<unless_traced<critic_loss>>("critic_loss"),
    method<unless_traced<soft_actor_loss>>("soft_actor_loss"),
    method<unless_traced<td_target>>("td_target"),
    method<unless_traced<batched>>("batched"),
    method<unless_traced<record>>("record"),
    method<go_back>("go_back"),
    method<unless_traced<chosen>>("chosen"),
    method<chosen_back>("chosen_back"),
    method<unless_traced<huber>>("huber"),
    method<unless_traced<clip>>("clip"),
    method<unless_traced<adam>>("adam"),
    method<unless_traced<rmsprop>>("rmsprop"),
    method<unless_traced<follow>>("follow"),
    method<n_step>("n_step"),
    method<set_again>("set_again"),
    method<begin>("begin"),
    method<note>("note"),
    method<keep>("keep"),
    method<abandon>("abandon"),
    method<end>("end"),
    method<run>("run"),
    {nullptr, nullptr, 0, nullptr},
};

PyModuleDef module = {PyModuleDef_HEAD_INIT, "rlx_native", nullptr, -1, methods, nullptr, nullptr, nullptr, nullptr};

}  // namespace

PyMODINIT_FUNC PyInit_rlx_native() { return PyModule_Create(&module); }
